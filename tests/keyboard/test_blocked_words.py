"""A word that is blocked is suggested in no spelling, and by no detour."""

import numpy as np
import pytest

from harness import lettered_words
from pages import counted
from taciturn.data.vocabulary import SPECIAL, Vocabulary
from taciturn.keyboard.predictor import Predictor, load_blocklist


def test_the_first_word_of_a_blocklist_is_blocked_whatever_editor_wrote_it(tmp_path):
    (tmp_path / "blocked.txt").write_text("worda\nwordb\n", encoding="utf-8-sig")
    predictor = Predictor(
        counted(lettered_words(), "worda wordb wordc ."),
        lettered_words(),
        blocklist=load_blocklist(tmp_path / "blocked.txt"),
    )
    assert "worda" not in predictor._alphabet._spellings


def test_a_blocked_word_is_not_put_together_from_parts_that_are_written_together():
    listed = Vocabulary(words=(*SPECIAL, "今天", "坏", "人", "坏人"), language="zh")
    model = counted(listed, *["今天 坏 人"] * 20, order=4)
    assert Predictor(model, listed, threshold=0.1).suggest("").continuation == "今天坏人"
    assert (
        "坏人"
        not in Predictor(model, listed, blocklist=["坏人"], threshold=0.1).suggest("").continuation
    )


def test_what_is_blocked_does_not_make_what_is_left_more_likely_than_it_is():
    listed = Vocabulary(words=(*SPECIAL, ".", "go", "homeward", "hopefully"))
    model = counted(listed, *["go homeward ."] * 30, "go hopefully .", order=2)
    predictor = Predictor(model, listed, blocklist=["homeward"])
    state = model.read(model.start(), listed.ids["go"])
    scores = model.scores(state)
    alone = np.exp(scores[[listed.ids["hopefully"], listed.ids["homeward"]]])
    composed = predictor.compose(scores, prefix="ho", state=state, threshold=0.01)
    assert composed.probabilities[0] <= alone[0] / alone.sum()


@pytest.mark.parametrize(
    "spelling", ["CAFÉ", "cafe\u0301", " Café ", "caf\u00ade\u0301", "CAFE\u0301\u200b"]
)
def test_a_word_is_blocked_in_every_spelling_of_it(spelling):
    listed = Vocabulary(words=(*SPECIAL, ".", "the", "café", "cafeteria"))
    model = counted(listed, *["the café ."] * 9, "the cafeteria .", order=3)
    predictor = Predictor(model, listed, blocklist=[spelling], threshold=0.01)
    for text in ("", "the ", "the c", "the caf", "The CAF"):
        suggestions = predictor.suggest(text)
        assert "café" not in (*map(str.lower, suggestions.words),)
        assert "fé" not in suggestions.continuation.lower()
