"""What stands in public text word for word is found, and nothing else."""

import numpy as np
import pytest

from taciturn.core import END
from taciturn.data.token_shards import Texts
from taciturn.evaluation import overlap
from taciturn.evaluation.overlap import LENGTH, find_overlap

VOCABULARY = 5000


def random_text(seed: int, words: int = 400) -> np.ndarray:
    return np.random.default_rng(seed).integers(4, VOCABULARY, words)


def documents(*texts: np.ndarray) -> Texts:
    return Texts.of(texts, VOCABULARY)


def sequences(text: np.ndarray) -> list[tuple[int, ...]]:
    """The slow way."""
    words = text.tolist()
    every = (tuple(words[start : start + LENGTH]) for start in range(len(words) - LENGTH + 1))
    return [one for one in every if END not in one]


def messages(seed: int, least: int, most: int) -> np.ndarray:
    """Few words, so that much repeats, in messages of many lengths."""
    generator = np.random.default_rng(seed)
    parts = []
    for length in generator.integers(least, most, 60).tolist():
        parts += [4 + generator.integers(0, 2, length), np.array([END])]
    return np.concatenate(parts)


def test_shares_are_those_of_a_slow_search():
    people = [messages(seed, 5, 40) for seed in range(4)]
    public = [messages(seed, 5, 40) for seed in (11, 12)]
    known = {one for text in public for one in sequences(text)}
    found = find_overlap(people, [documents(*public)], VOCABULARY)
    every = [sequences(text) for text in people]
    assert found.sequences == sum(map(len, every))
    assert found.found == sum(one in known for theirs in every for one in theirs)
    assert 0 < found.share < 1
    assert found.is_found.tolist() == [any(one in known for one in theirs) for theirs in every]


def test_public_text_with_the_peoples_own_words_is_found():
    people = [random_text(1), random_text(2), random_text(3)]
    clean = find_overlap(people, [documents(random_text(4))], VOCABULARY)
    assert clean.share == 0.0
    assert clean.people == 0
    # 20 words of the second person's have 8 sequences of 13.
    copied = np.concatenate([random_text(5, 100), people[1][50:70], random_text(6, 100)])
    found = find_overlap(people, [documents(random_text(4)), documents(copied)], VOCABULARY)
    assert found.found == 8
    assert found.share == 8 / found.sequences
    assert found.is_found.tolist() == [False, True, False]


@pytest.mark.parametrize(("copied", "found"), [(LENGTH - 1, False), (LENGTH, True)])
def test_twelve_words_are_too_few(copied, found):
    person = random_text(1)
    public = np.concatenate([random_text(2, 50), person[100 : 100 + copied], random_text(3, 50)])
    assert find_overlap([person], [documents(public)], VOCABULARY).is_found.item() == found


def test_two_documents_are_not_one_text():
    person = random_text(1)
    public = documents(person[:10], person[10:20])
    assert find_overlap([person], [public], VOCABULARY).found == 0


def test_documents_joined_at_other_places_give_the_same(monkeypatch):
    people = [messages(seed, 5, 40) for seed in range(3)]
    public = documents(*(messages(seed, 5, 40) for seed in range(20, 26)))
    whole = find_overlap(people, [public], VOCABULARY)
    monkeypatch.setattr(overlap, "AT_A_TIME", 100)
    assert find_overlap(people, [public], VOCABULARY).found == whole.found


@pytest.mark.parametrize("people", [[], [np.zeros(0, int)], [random_text(1, 12)]])
def test_people_who_wrote_too_little_have_no_share(people):
    found = find_overlap(people, [documents(random_text(1))], VOCABULARY)
    assert found.share == 0.0
    assert found.people == 0
