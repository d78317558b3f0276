"""A dictionary suggests here what AOSP's keyboard would suggest from it."""

import numpy as np
import pytest

from taciturn.core import END
from taciturn.data.sources import Source
from taciturn.export.aosp_dictionary import Dictionary, Entry, Follower, from_level
from taciturn.export.aosp_dictionary_writer import write_dictionary
from taciturn.export.aosp_suggestions import suggest_from
from taciturn.export.word_model import load_word_model
from taciturn.keyboard.predictor import Predictor
from taciturn.keyboard.typing_simulation import simulate_each
from taciturn.release.gate import ExportRefused
from taciturn.runs.folder import RunError
from taciturn.runs.simulate_typing import simulate_typing
from taciturn.runs.try_keyboard import make_keyboard_server

WORDS = {
    "see": Entry(frequency=180, followers=(Follower("you", 12), Follower("they", 3))),
    "you": Entry(frequency=190),
    "the": Entry(frequency=220),
    "they": Entry(frequency=170),
    "then": Entry(frequency=168),
    "there": Entry(frequency=169),
}


def suggesting(words=WORDS, **changed):
    dictionary = Dictionary(header={"locale": "en_US"}, words={**words, **changed})
    return suggest_from(dictionary, "a dictionary")


def strip(made, text, prefix=""):
    """What a keyboard shows behind a text: up to six words."""
    vocabulary, model = made
    state = model.start()
    for place in vocabulary.encode(text):
        state = model.read(state, place)
    scores = model.completion_scores(state) if prefix else model.scores(state)
    found = Predictor(model, vocabulary).candidates(scores, prefix, 6)
    return [vocabulary.words[place] for place in found]


def test_before_a_word_is_begun_only_words_that_follow_the_last_one_are_suggested():
    made = suggesting()
    assert strip(made, "i see") == ["you", "they"]
    for text in ("", "you", "a word that is not in it", "i see."):
        assert strip(made, text) == []


def test_a_begun_word_is_completed_to_any_word_and_those_that_follow_come_earlier():
    made = suggesting()
    assert strip(made, "", "the") == ["they", "then", "there"]
    assert strip(made, "", "t")[:2] == ["the", "they"]
    likelier = suggesting(see=Entry(frequency=180, followers=(Follower("there", 12),)))
    assert strip(likelier, "see", "t")[0] == "there"
    assert strip(likelier, "", "t")[0] == "the"


def test_a_missing_letter_costs_more_than_one_step_of_frequency_and_less_than_two():
    for steps, first in ((1, "then"), (2, "there")):
        made = suggesting(then=Entry(frequency=150), there=Entry(frequency=150 + steps))
        assert strip(made, "", "the").index(first) < strip(made, "", "the").index(
            {"then": "there", "there": "then"}[first]
        )


def test_words_that_differ_in_capitals_are_one_as_frequent_as_the_more_frequent():
    made = suggesting(
        May=Entry(frequency=100, followers=(Follower("the", 5),)),
        may=Entry(frequency=140, followers=(Follower("you", 5),)),
    )
    place = made.vocabulary.ids["may"]
    assert made.model.frequency[place] == 140
    assert set(strip(made, "May")) == {"the", "you"}


def test_what_is_offensive_or_not_a_word_or_several_words_is_never_suggested():
    made = suggesting(
        thed=Entry(frequency=230, is_offensive=True),
        thex=Entry(frequency=230, is_not_a_word=True),
        **{"the-end": Entry(frequency=230)},
        see=Entry(frequency=180, followers=(Follower("thed", 15), Follower("thex", 15))),
    )
    assert strip(made, "see") == []
    assert not {"thed", "thex", "the-end"} & set(strip(made, "see", "the"))


def test_a_follower_has_the_frequency_that_a_keyboard_takes_from_its_level():
    made = suggesting()
    scores = made.model.scores(made.vocabulary.ids["see"])
    you, they = (scores[made.vocabulary.ids[word]] for word in ("you", "they"))
    steps = from_level(190, 12) - from_level(170, 3)
    assert (you - they) / np.log(1.15) == pytest.approx(steps, abs=1e-3)


def test_typing_with_a_dictionary_counts_what_its_strip_saves():
    made = suggesting()
    typing = simulate_each(made.model, made.vocabulary, [["see you, zzz"]], next_words_only=True)
    # «s» of see, as nothing begins a message; you is on the strip; a comma and zzz by hand.
    assert float(typing.typed[0]) == 1 + 0 + 1 + 3
    assert float(typing.letters[0]) == 3 + 3 + 1 + 3
    assert float(typing.offered[0]) == 1


def test_what_a_dictionary_cannot_suggest_is_never_counted_as_foretold():
    """Where nothing is suggested, all words are alike, and the end would be the first of them."""
    made = suggesting()
    scores = made.model.scores(made.vocabulary.ids["you"])
    assert scores[END] == scores.max() == -np.inf
    typing = simulate_each(made.model, made.vocabulary, [["you"]], next_words_only=True)
    assert float(typing.top1[0]) == float(typing.top3[0]) == 0


@pytest.fixture
def files(tmp_path):
    few = {word: WORDS[word] for word in ("the", "they")}
    header = {"dictionary": "main:en", "locale": "en", "version": "18"}
    german = {**header, "locale": "de"}
    write_dictionary(tmp_path / "ours.dict", Dictionary(header=header, words=WORDS))
    write_dictionary(tmp_path / "theirs.dict", Dictionary(header=header, words=few))
    write_dictionary(tmp_path / "german.dict", Dictionary(header=german, words=few))
    (tmp_path / "chats.csv").write_text("user,text\na,see you there\nb,see they\n")
    return tmp_path


def evaluate(files, *names, history=False):
    return simulate_typing(
        paths=[files / name for name in names],
        source=Source(paths=[files / "chats.csv"]),
        history=history,
        most_people=10,
        most_words=100,
    )


def test_two_dictionaries_are_compared_by_what_they_save_though_their_words_differ(files):
    results = evaluate(files, "theirs.dict", "ours.dict")
    theirs, ours = results.typings
    assert results.next_words_only
    # Nobody knows whose text a dictionary was made of.
    assert results.left_out is None
    assert ours["keystroke_saving"].value > theirs["keystroke_saving"].value


def test_a_dictionary_has_no_history_and_is_compared_within_its_language(files):
    with pytest.raises(RunError, match="frequencies and not probabilities"):
        evaluate(files, "ours.dict", history=True)
    with pytest.raises(RunError, match="compare models of one language"):
        evaluate(files, "ours.dict", "german.dict")
    assert load_word_model(files / "german.dict").vocabulary.language == "de"


def test_a_dictionary_is_not_a_page_and_says_what_is(files):
    with pytest.raises(ExportRefused, match="open the run that it was made from"):
        make_keyboard_server([files / "ours.dict"], [], 0)
