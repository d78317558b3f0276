"""What a keyboard suggests: words that people can pick, and never what it must not."""

import time

import jax
import numpy as np
import pytest

from taciturn.core import END, UNKNOWN
from taciturn.data.vocabulary import SPECIAL, DataError, Vocabulary, public_vocabulary
from taciturn.keyboard.predictor import (
    FAR_BACK,
    KEPT,
    NOTHING,
    Predictor,
    _wants_space,
    load_blocklist,
)
from taciturn.models.cells import cifg
from taciturn.models.ngram import kneser_ney
from taciturn.models.registry import model_kind

SENTENCES = (
    "see you tomorrow morning . see you tomorrow evening . i am going to the station . i am going"
    " to the office . i'm sorry . the station is closed . see you at the station . are you going to"
    " the office tomorrow morning ?"
)
WORDS = (
    "<pad>",
    "<unk>",
    "<bos>",
    "<eos>",
    ".",
    "?",
    "...",
    *dict.fromkeys(SENTENCES.replace(".", "").replace("?", "").split()),
)
VOCABULARY = Vocabulary(words=WORDS)


@pytest.fixture(scope="module")
def model():
    text = [
        place
        for sentence in SENTENCES.split(" . ")
        for place in (*VOCABULARY.encode(sentence), END)
    ]
    return kneser_ney([np.array(text * 20)], len(VOCABULARY), 4)


@pytest.fixture
def predictor(model):
    return Predictor(model, VOCABULARY)


def test_the_next_word_is_the_one_that_followed_before(predictor):
    assert predictor.suggest("see you at the ").words[0] == "station"


def test_a_half_typed_word_is_completed_and_replaced(predictor):
    suggested = predictor.suggest("see you tomorrow e")
    assert suggested.words == ("evening",)
    assert suggested.replaces == 1


def test_a_word_that_is_typed_out_is_not_suggested_again(predictor):
    assert "station" not in predictor.suggest("the station").words


def test_what_begins_with_a_capital_goes_on_with_one(predictor):
    assert predictor.suggest("S").words[0] == "See"
    assert predictor.suggest("SE").words[0] == "SEE"
    assert predictor.suggest("").words[0][0].isupper()
    assert predictor.suggest("closed. ").words[0][0].isupper()
    assert predictor.suggest("see you, ").words[0].islower()
    assert "I'm" in predictor.suggest("and i").words


def test_special_tokens_and_punctuation_are_never_suggested(predictor, model):
    texts = ["", "see", "see you tomorrow morning ", "zzz ", "i'm sorry", "? ", "<eos> ", "<unk"]
    for text in texts:
        assert not {".", "?", "...", *SPECIAL} & set(predictor.suggest(text).words)
    assert (
        np.argmax(model.scores(model.read(model.start(), VOCABULARY.ids["sorry"]))) == END
    )  # which it would say


def test_a_blocked_word_is_never_suggested_nor_composed(model, tmp_path):
    (tmp_path / "blocked.txt").write_text("# not these\nStation  # in any case\n\nmorning\n")
    predictor = Predictor(
        model, VOCABULARY, blocklist=load_blocklist(tmp_path / "blocked.txt"), threshold=0.05
    )
    for text in (
        "see you at the ",
        "see you at the st",
        "see you tomorrow ",
        "the station is closed see",
    ):
        suggested = predictor.suggest(text)
        assert not {"station", "morning"} & set(suggested.words)
        assert "station" not in suggested.continuation
        assert "morning" not in suggested.continuation
    assert "station" in Predictor(model, VOCABULARY).suggest("see you at the ").words  # the twin


def test_a_continuation_is_shown_when_it_is_likely_enough(model):
    sure, careful = (
        Predictor(model, VOCABULARY, threshold=0.3),
        Predictor(model, VOCABULARY, threshold=0.999),
    )
    assert sure.suggest("i am g").continuation.startswith("oing to the")
    assert sure.suggest("i am ").continuation.startswith("going to")
    assert careful.suggest("i am ").continuation == ""


def test_a_continuation_has_the_probability_that_the_model_gives_it(model):
    predictor, state = Predictor(model, VOCABULARY), model.start()
    composed = predictor.compose(model.scores(state), prefix="", state=state, threshold=0.0001)
    probability = 1.0
    for word, said in zip(composed.words, composed.probabilities, strict=True):
        probability *= np.exp(model.scores(state)[word])
        assert said == pytest.approx(probability, rel=1e-5)
        state = model.read(state, word)
    assert len(composed.words) > 1


def test_nothing_is_shown_for_a_private_field_and_nothing_kept(predictor):
    assert predictor.suggest("see you tomorrow m", private=True) == NOTHING
    assert not predictor._states
    assert not predictor._rests
    predictor.suggest("see you tomorrow m")
    assert predictor._states  # the twin: elsewhere it is kept, until it is forgotten
    predictor.forget()
    assert not predictor._states
    assert not predictor._rests


def test_typing_letter_by_letter_is_like_pasting(model):
    text = "See you... tomorrow, I'm going to THE stati"
    typing = Predictor(model, VOCABULARY)
    for end in range(len(text) + 1):
        assert typing.suggest(text[:end]) == Predictor(model, VOCABULARY).suggest(text[:end])
    for end in range(len(text), -1, -1):  # and back
        assert typing.suggest(text[:end]) == Predictor(model, VOCABULARY).suggest(text[:end])
    assert len(typing._states) <= KEPT


def test_a_rank_is_the_place_among_the_candidates(predictor, model):
    scores = model.scores(model.start())
    for prefix in ("", "s", "t", "mo"):
        candidates = predictor.candidates(scores, prefix, len(VOCABULARY))
        assert [predictor.rank(scores, place, prefix) for place in candidates] == list(
            range(len(candidates))
        )
    assert predictor.rank(scores, UNKNOWN) is None


@pytest.mark.parametrize(
    "text",
    [
        "สวัสดีครับ ",
        "مرحبا بكم ف",
        "我想去",
        "\ud800 broken \udfff",
        "\x00\x07 \x1b[31m",
        "e" + "\u0301" * 5000,
        "🙂🙂👩‍👩‍👧 ",
        "word " * 10_000,
        "x" * 100_000,
        "12345 678",
        "'''' ''",
        "\n\n\n",
        " " * 1000,
    ],
)
def test_predictions_go_on_whatever_is_typed(predictor, text):
    suggested = predictor.suggest(text)
    assert len(suggested.words) <= 3
    assert predictor.suggest(text + " see you at the ").words[0] == "station"


def test_a_long_text_is_not_read_from_its_beginning(model):
    reads = []

    class Counting:
        vocabulary = model.vocabulary
        start, scores = staticmethod(model.start), staticmethod(model.scores)

        def read(self, state, word):
            reads.append(word)
            return model.read(state, word)

    predictor = Predictor(Counting(), VOCABULARY, threshold=2.0)
    text = "see you tomorrow " * 5000
    predictor.suggest(text)
    assert len(reads) <= FAR_BACK
    reads.clear()
    predictor.suggest(text + "see ")
    assert len(reads) == 1  # and one word more is one word read


def test_readings_of_taps_are_ranked_by_what_is_expected(predictor):
    readings = [("stasis", -1.0), ("station", -1.5), ("see", -9.0)]
    assert predictor.rescore("see you at the ", readings)[0][0] == "station"
    assert predictor.rescore("see you at the ", readings, weight=0.0)[0][0] == "stasis"


def test_a_model_and_a_list_that_do_not_belong_together_are_refused(model):
    with pytest.raises(DataError, match="words"):
        Predictor(model, Vocabulary(words=(*WORDS, "more")))
    with pytest.raises(DataError, match="characters"):
        Predictor(model, Vocabulary(words=WORDS, unit="character"))


def test_a_keystroke_takes_less_than_a_millisecond():
    """At the size of Gboard's model; the median by the clock, the mean in processor time, which
    other processes do not lengthen.
    """
    vocabulary, network = public_vocabulary(10_000), cifg(10_000)
    model = model_kind("cifg").stepper(network, network.init(jax.random.key(0)), ())
    predictor, text = (
        Predictor(model, vocabulary),
        "I am going to the park. Don't wait for me, I'll be there in the morning!",
    )
    predictor.suggest(text[:5])
    took, computed = [], []
    for end in range(len(text)):
        start, busy = time.perf_counter(), time.process_time()
        predictor.suggest(text[:end])
        took.append(time.perf_counter() - start)
        computed.append(time.process_time() - busy)
    assert np.median(took) < 1e-3
    assert np.mean(computed) < 2e-3


@pytest.mark.parametrize(
    ("done", "space"),
    [
        ("see you", " "),
        ("see you ", ""),
        ("(", ""),
        ('he said "', ""),
        ('"see you"', " "),
        ("¿", ""),
    ],
)
def test_a_continuation_is_parted_from_the_text_as_a_person_would(done, space):
    assert _wants_space(done) == bool(space)


def test_a_word_before_a_line_break_is_done(predictor):
    assert predictor.suggest("see\n").replaces == 0
    assert predictor.suggest("see\n").words[0][0].isupper()


def test_capitals_are_those_of_the_language(model):
    words = tuple(word if word != "is" else "için" for word in WORDS)
    turkish = Predictor(model, Vocabulary(words=words, language="tr"))
    assert "İçin" in turkish.suggest("İ").words


def test_languages_without_spaces_are_continued_without(model):
    chinese = Predictor(model, Vocabulary(words=WORDS, language="zh"), threshold=0.01)
    assert " " not in chinese.suggest("").continuation
    assert " " in Predictor(model, VOCABULARY, threshold=0.01).suggest("").continuation
