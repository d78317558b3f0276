"""The simulated person types what a person would with the same keyboard in front of them."""

from dataclasses import fields

import numpy as np
import pytest

from taciturn.core import END
from taciturn.data.vocabulary import SPECIAL, Vocabulary, is_word
from taciturn.keyboard.predictor import Predictor
from taciturn.keyboard.taps import SPREAD, TapDecoder, draw_taps, keys_of
from taciturn.keyboard.typing_simulation import (
    PICKED_RATE,
    THRESHOLDS,
    Typing,
    enough_words,
    simulate,
)
from taciturn.keyboard.user_history import WithHistory
from taciturn.models.ngram import kneser_ney

WORDS = """
    the station is closed see you at tomorrow morning and then we go to a i am there
""".split()  # noqa: SIM905
VOCABULARY = Vocabulary(words=(*SPECIAL, ".", ",", *WORDS))
MESSAGES = [
    "see you at the station.",
    "the station is closed tomorrow morning, and then we go to a zoo",
    "i am there. see you",
]
TRAINED = [
    "see you at the station",
    "the station is closed",
    "see you tomorrow morning",
    "and then we go to the station",
    "i am there",
]


def model(texts=TRAINED, order=3):
    encoded = [np.array([*VOCABULARY.encode(text), END]) for text in texts]
    return kneser_ney(encoded * 5, len(VOCABULARY), order)


def figures(sums: Typing) -> dict[str, float]:
    return {
        name: float(getattr(sums, name).sum())
        for name in ("letters", "typed", "words", "first", "offered", "tokens")
    }


def test_the_simulation_types_what_a_person_would_with_the_predictor_in_front_of_them():
    predictor, by_hand = (
        Predictor(model(), VOCABULARY),
        dict.fromkeys(("letters", "typed", "words", "first", "offered"), 0),
    )
    for message in MESSAGES:
        predictor.forget()
        text = ""
        for word in VOCABULARY.split(message):
            by_hand["letters"] += len(word)
            if not is_word(word):
                text = text.rstrip() + word + " "
                by_hand["typed"] += len(word)
                continue
            by_hand["words"] += 1
            strips = [
                [one.lower() for one in predictor.suggest(text + word[:n]).words]
                for n in range(len(word))
            ]
            typed = next((n for n, strip in enumerate(strips) if word in strip), len(word))
            by_hand["typed"] += typed
            by_hand["offered"] += typed == 0
            by_hand["first"] += strips[0][0] == word
            text += word + " "
    simulated = figures(simulate(model(), VOCABULARY, [[message] for message in MESSAGES]))
    assert {name: simulated[name] for name in by_hand} == by_hand


def test_a_model_that_knows_the_text_saves_nearly_all_and_one_that_knows_nothing_does_not():
    knowing = simulate(model(MESSAGES, 5), VOCABULARY, [MESSAGES] * 2)
    ignorant = simulate(model(["zzz"], 1), VOCABULARY, [MESSAGES] * 2)
    assert knowing["keystroke_saving"].value > 0.85
    assert ignorant["keystroke_saving"].value < 0.75
    assert knowing["recall_top3"].value > 0.9 > ignorant["recall_top3"].value
    assert knowing["word_modified_ratio"].value <= ignorant["word_modified_ratio"].value


def test_unknown_words_and_punctuation_are_typed_by_hand():
    sums = simulate(model(), VOCABULARY, [["zoo, zoo."]])
    assert (sums.letters.sum(), sums.typed.sum()) == (8, 8)
    assert sums.words.sum() == 2
    assert sums.tokens.sum() == 5  # and the end


def test_a_continuation_counts_as_taken_only_where_it_says_what_comes():
    right = simulate(
        model(["see you tomorrow morning"] * 5, 4), VOCABULARY, [["see you tomorrow morning"]]
    )
    wrong = simulate(
        model(["see you tomorrow morning"] * 5, 4), VOCABULARY, [["see you tomorrow station"]]
    )
    assert right.composed.sum() > 0
    low = 0  # the lowest threshold: what comes after «tomorrow» is then shown too
    assert right.composed[low].sum() == right.triggered[low].sum()
    assert wrong.composed[low].sum() < wrong.triggered[low].sum()
    assert np.all(np.diff(right.triggered.sum(1)[::-1]) >= -1e-9) or right.triggered.sum(1)[0] <= 4


def test_the_trigger_rate_is_that_of_the_threshold_with_the_fixed_picked_rate():
    counts = {name: np.array([100.0]) for name in ("tokens", "words")}
    others = {field.name for field in fields(Typing)} - {"tokens", "words", "triggered", "composed"}
    zeros = {name: np.zeros(1) for name in others}
    triggered = np.linspace(60, 8, len(THRESHOLDS))
    rates = np.linspace(
        PICKED_RATE - 0.13, PICKED_RATE + 0.13, len(THRESHOLDS)
    )  # passes the rate halfway
    sums = Typing(
        **counts, **zeros, triggered=triggered[:, None], composed=(triggered * rates)[:, None]
    )
    assert sums["trigger_rate"].value == pytest.approx(0.34)


def test_history_helps_a_person_who_repeats_themselves_and_starts_empty_for_the_next():
    people = [["a station is closed"] * 8, ["a station is closed"] * 8]
    with_history = simulate(WithHistory(model(), strengths=(5.0, 5.0, 5.0)), VOCABULARY, people)
    without = simulate(model(), VOCABULARY, people)
    assert with_history["keystroke_saving"].value > without["keystroke_saving"].value
    assert with_history.typed[0] == with_history.typed[1]


def test_people_are_compared_in_pairs_on_the_same_text_only():
    people = [[message] for message in MESSAGES]
    one, other = (
        simulate(model(), VOCABULARY, people),
        simulate(model(MESSAGES, 4), VOCABULARY, people),
    )
    change = other.change_from(one, "keystroke_saving")
    assert change.value > 0
    with pytest.raises(ValueError, match="same text"):
        other.change_from(simulate(model(), VOCABULARY, people[:2]), "keystroke_saving")


def test_a_person_types_no_more_words_than_asked():
    assert enough_words(["see you", "at the station"], VOCABULARY, 3) == ["see you", "at"]


def test_taps_land_where_the_noise_says_and_the_decoder_reads_them():
    generator = np.random.default_rng(0)
    keys = keys_of("station")
    assert keys is not None
    offsets = np.stack([draw_taps(keys, generator) for _ in range(2000)]) - draw_taps(
        keys, _Still()
    )
    assert offsets.std() == pytest.approx(SPREAD, rel=0.03)
    decoder = TapDecoder(VOCABULARY)
    read = [decoder.propose(draw_taps(keys, generator))[0][0] for _ in range(50)]
    assert read.count("station") == 50  # nothing else in this list is near
    assert (
        decoder.propose(draw_taps(keys_of("zoo"), _Still()))[-1][0] == "zoo"
    )  # what was spelled is among the readings
    assert keys_of("вокзал") is None


class _Still:
    """A finger that hits the middle."""

    def normal(self, mean, spread, shape):
        return np.zeros(shape)


@pytest.mark.parametrize(
    ("triggered", "composed", "rate"),
    [
        (np.zeros(14), np.zeros(14), 0.0),  # never shown
        (np.full(14, 10.0), np.full(14, 10.0), 0.1),  # always taken
        (np.full(14, 10.0), np.full(14, 6.0), 0.1),  # exactly as often as wanted, everywhere
        (np.full(14, 10.0), np.full(14, 5.0), 0.0),  # never often enough
        (
            np.array([20.0, 10.0] + [0.0] * 12),
            np.array([8.0, 8.0] + [0.0] * 12),
            0.15,
        ),  # half-way between 0.4 and 0.8
    ],
)
def test_the_trigger_rate_at_its_edges(triggered, composed, rate):
    assert len(THRESHOLDS) == 14
    ones = {field.name: np.array([100.0]) for field in fields(Typing)}
    typing = Typing(**{**ones, "triggered": triggered[:, None], "composed": composed[:, None]})
    assert typing["trigger_rate"].value == pytest.approx(rate)
