"""What is written is read again, KenLM reads the same in it, and a damaged file is refused with
line and reason.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taciturn.core import BEGIN, END, PADDING, UNKNOWN
from taciturn.data.vocabulary import DataError
from taciturn.export import arpa
from taciturn.export.arpa import read_arpa, write_arpa
from taciturn.models.ngram import NGram, katz, kneser_ney, prune

VOCABULARY = 30
WORDS = ["<pad>", "<unk>", "<bos>", "<eos>", ".", "it's", "über", "नमस्ते", "a\u00a0b"]
WORDS += [f"word{place}" for place in range(len(WORDS), VOCABULARY)]


def texts(seed: int = 0, words: int = 1500) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    text = 4 + np.cumsum(np.minimum(generator.geometric(0.4, words), 9)) % (VOCABULARY - 5)
    text[generator.random(words) < 0.1] = END
    text[generator.random(words) < 0.03] = UNKNOWN
    return [text]


MODELS = {
    "katz": lambda: katz(texts(), VOCABULARY),
    "kneser-ney": lambda: kneser_ney(texts(), VOCABULARY),
    "kneser-ney of order 2": lambda: kneser_ney(texts(), VOCABULARY, 2),
    "pruned": lambda: prune(katz(texts(), VOCABULARY), 400),
    "pruned twice": lambda: prune(prune(kneser_ney(texts(), VOCABULARY, 5), 900), 300),
    "unigrams": lambda: katz(texts(), VOCABULARY, 1),
    "one word": lambda: kneser_ney([np.array([4])], VOCABULARY),
}


def scores_after(model: NGram, words) -> np.ndarray:
    state = model.start()
    for word in words:
        state = model.read(state, word)
    return model.scores(state)


def some_contexts(seed: int, count: int = 60) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [
        [int(word) for word in text[0] if word != END][: generator.integers(0, 7)]
        for text in (texts(int(generator.integers(1000)), 8) for _ in range(count))
    ]


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_written_is_read_again(kind, tmp_path):
    model = MODELS[kind]()
    write_arpa(tmp_path / "model.arpa", model, WORDS, [])
    again, words = read_arpa(tmp_path / "model.arpa")
    assert words[:4] == WORDS[:4]
    assert sorted(words) == sorted(WORDS)
    ids = [words.index(word) for word in WORDS]
    for context in some_contexts(1):
        expected, found = (
            scores_after(model, context),
            scores_after(again, [ids[word] for word in context]),
        )
        np.testing.assert_allclose(found[ids], expected, atol=1e-5)


def test_words_are_read_with_the_likeliest_first_and_written_as_they_were_read(tmp_path):
    write_arpa(tmp_path / "first.arpa", MODELS["katz"](), WORDS, ["made up"])
    model, words = read_arpa(tmp_path / "first.arpa")
    assert np.all(np.diff(model.levels[0].probability[4:]) <= 0)
    write_arpa(tmp_path / "second.arpa", model, words, ["made up"])
    again, words_again = read_arpa(tmp_path / "second.arpa")
    assert words_again == words
    for one, other in zip(model.levels, again.levels, strict=True):
        assert np.array_equal(one.keys, other.keys)
        np.testing.assert_allclose(one.probability, other.probability, atol=1e-6)
        np.testing.assert_allclose(one.backoff, other.backoff, atol=1e-6)


def kenlm_scores(model, context: list[int]) -> np.ndarray:
    """log10 of every word after the beginning of a message and some words."""
    import kenlm

    state, after = kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(state)
    for word in context:
        model.BaseScore(state, WORDS[word] if word != UNKNOWN else "<unk>", after)
        state, after = after, state
    names = {**dict(enumerate(WORDS)), UNKNOWN: "<unk>", END: "</s>"}
    return np.array([model.BaseScore(state, names[word], after) for word in range(VOCABULARY)])


@pytest.mark.parametrize(
    "kind", [kind for kind in MODELS if kind != "unigrams"]
)  # KenLM has no unigram models
def test_kenlm_reads_the_same_probabilities(kind, tmp_path):
    kenlm = pytest.importorskip("kenlm")
    model = MODELS[kind]()
    write_arpa(tmp_path / "model.arpa", model, WORDS, ["a comment\nof two lines", "and another"])
    read = kenlm.Model(str(tmp_path / "model.arpa"))
    predicted = np.setdiff1d(np.arange(VOCABULARY), [PADDING, BEGIN])
    for context in some_contexts(2):
        found = kenlm_scores(read, context)[predicted]
        np.testing.assert_allclose(
            found, scores_after(model, context)[predicted] / np.log(10), atol=1e-4
        )
        assert (10.0**found).sum() == pytest.approx(1, abs=1e-4)


def test_kenlm_would_notice_wrong_weights(tmp_path):
    """The twin that must fail."""
    kenlm = pytest.importorskip("kenlm")
    model = MODELS["katz"]()
    first, *longer = model.levels
    wrong = NGram((first._replace(backoff=first.backoff - 0.1), *longer), VOCABULARY)
    write_arpa(tmp_path / "model.arpa", wrong, WORDS, [])
    read = kenlm.Model(str(tmp_path / "model.arpa"))
    differences = [
        np.abs(
            kenlm_scores(read, context)[4:] - scores_after(model, context)[4:] / np.log(10)
        ).max()
        for context in some_contexts(2)
    ]
    assert max(differences) > 1e-3


def test_blocks_make_no_difference(tmp_path, monkeypatch):
    model = MODELS["katz"]()
    write_arpa(tmp_path / "whole.arpa", model, WORDS, [])
    monkeypatch.setattr(arpa, "BLOCK", 7)
    write_arpa(tmp_path / "parts.arpa", model, WORDS, [])
    assert (tmp_path / "parts.arpa").read_bytes() == (tmp_path / "whole.arpa").read_bytes()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (WORDS[:-1], "do not belong together"),
        ([*WORDS[:-1], "two words"], "'two words'"),
        ([*WORDS[:-1], ""], "''"),
        ([*WORDS[:-1], "</s>"], "twice"),
        ([*WORDS[:-1], "."], "twice"),
    ],
)
def test_words_that_the_format_cannot_hold_are_refused_and_no_file_is_left(words, reason, tmp_path):
    with pytest.raises(DataError, match=reason):
        write_arpa(tmp_path / "model.arpa", MODELS["one word"](), words, [])
    assert not list(tmp_path.iterdir())


FOREIGN = """iARPA, by some other tool

\\data\\
ngram  1=         6
ngram  2=         5
# between
ngram  3=         2


\\1-grams:
-0.9 </s>
-99\t<s>\t-0.2
-1.2\tno \t-0.1
-0.3\tyes
-0.8\tmaybe\t-0.3
-1.5 never
\\2-grams:
-0.4\tyes no\t-0.15

-0.5\t<s> yes\t-0.25
-0.9\t<s>\tno
-0.7\t</s> <s>\t-0.1
-0.6 no </s>

\\3-grams:
-0.2\t<s> yes no
-0.1\t</s> <s> yes

\\end\\
"""


def test_files_of_other_tools_are_read(tmp_path):
    """Words in any order, no <unk>, no back-offs, blanks, comments, and n-grams over the end of a
    sentence.
    """
    (tmp_path / "foreign.arpa").write_text(FOREIGN)
    model, words = read_arpa(tmp_path / "foreign.arpa")
    assert words == ["<pad>", "<unk>", "<bos>", "<eos>", "yes", "maybe", "no", "never"]
    assert [len(level.keys) for level in model.levels] == [8, 4, 1]
    yes, maybe, no, never = range(4, 8)
    log10 = {
        (): {yes: -0.5, no: -0.9, maybe: -0.2 - 0.8, never: -0.2 - 1.5, END: -0.2 - 0.9},
        (yes,): {no: -0.2, maybe: -0.25 - 0.8, END: -0.25 - 0.9},
        (maybe, yes): {no: -0.4, yes: -0.3},
        (no,): {END: -0.6, yes: -0.1 - 0.3},
        (never,): {yes: -0.3},
    }
    for context, expected in log10.items():
        scores = scores_after(model, context)
        assert np.isneginf(scores[[PADDING, UNKNOWN, BEGIN]]).all()
        for word, value in expected.items():
            assert scores[word] / np.log(10) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("\\data\\", "", 29, "not an ARPA file"),
        ("ngram  2=         5", "ngram  3=  5", 5, "ngram 2="),
        ("ngram  1=         6", "ngram  1= many", 4, "ngram 1="),
        ("-1.2\tno", "minus\tno", 13, "number 3 of 6"),
        ("-1.2\tno", "1.2\tno", 13, "a logarithm, words"),
        ("-1.2\tno", "nan\tno", 13, "a logarithm, words"),
        ("-1.2\tno \t-0.1", "-1.2", 13, "number 3 of 6"),
        ("-1.5 never", "-1.5 never 0 0", 16, "number 6 of 6"),
        ("-1.5 never", "-1.5 maybe", 16, "second time"),
        ("-1.5 never", "", 17, "number 6 of 6"),
        ("-1.5 never", "-1.5 never\n-1.5 ever", 17, "expected \\\\2-grams:"),
        ("-0.4\tyes no", "-0.4\tyes nein", 18, "'nein' is not among the 1-grams"),
        ("-0.9\t<s>\tno", "-0.9\tyes\tno", 21, "second time"),
        ("-0.2\t<s> yes no", "-0.2\tmaybe yes no", 26, "all these words but the last"),
        ("\n\\end\\\n", "", 27, "the end of the file"),
        ("-0.1\t</s> <s> yes\n\n\\end\\\n", "", 26, "ends after 1 of 2"),
    ],
)
def test_a_damaged_file_is_refused_with_line_and_reason(old, new, line, reason, tmp_path):
    assert FOREIGN.count(old) == 1
    (tmp_path / "damaged.arpa").write_text(FOREIGN.replace(old, new))
    with pytest.raises(DataError, match=f"line {line}: .*{reason}"):
        read_arpa(tmp_path / "damaged.arpa")


def test_a_word_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "damaged.arpa").write_bytes(FOREIGN.encode().replace(b"never", b"ne\xffer"))
    with pytest.raises(DataError, match=r"line 16: .*UTF-8"):
        read_arpa(tmp_path / "damaged.arpa")


@given(st.integers(0, len(FOREIGN)), st.binary(max_size=4))
@settings(max_examples=200, deadline=None)
def test_a_file_with_any_damage_is_read_or_refused_and_nothing_else(
    tmp_path_factory, place, bytes_
):
    path = tmp_path_factory.getbasetemp() / "random.arpa"
    content = FOREIGN.encode()
    path.write_bytes(content[:place] + bytes_ + content[place + len(bytes_) :])
    try:
        model, words = read_arpa(path)
    except DataError:
        return
    assert model.vocabulary == len(words)
