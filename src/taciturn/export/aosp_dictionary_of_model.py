"""A model's words as a binary dictionary, and the probabilities that a keyboard finds in one.

A dictionary has the words and frequencies of a `.combined` list. How likely a word is after another
it only knows in sixteen levels above the word's own frequency.
"""

import math
from collections.abc import Iterable

from taciturn.export.aosp_dictionary import Dictionary, Entry, Follower, from_level, to_level
from taciturn.export.combined import LEAST, MOST, STEP, ListedWord


def make_dictionary(header: dict[str, str], listed: Iterable[ListedWord]) -> Dictionary:
    """Return the dictionary of a list of words."""
    words = {word.word: word for word in listed}
    entries = {}
    for word in words.values():
        followers = []
        for follower in word.followers:
            level = to_level(words[follower.word].f, follower.f)
            followers.append(Follower(word=follower.word, level=level))
        entries[word.word] = Entry(frequency=word.f, followers=tuple(followers))
    return Dictionary(header=header, words=entries)


def find_probabilities(
    dictionary: Dictionary,
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the probabilities of words, and of words after a word, as a dictionary holds them."""
    words = {}
    followers = {}
    for word, entry in dictionary.words.items():
        words[word] = math.exp(_score(entry.frequency))
        followers[word] = {
            follower.word: math.exp(_score(_find_frequency_after(dictionary, follower)))
            for follower in entry.followers
        }
    return words, followers


def hold_score(dictionary: Dictionary, word: str, score: float) -> float:
    """Return how a dictionary holds the score that one of its words has after another."""
    frequency_after = min(max(round(MOST + score / STEP), LEAST), MOST)
    level = to_level(dictionary.words[word].frequency, frequency_after)
    return _score(_find_frequency_after(dictionary, Follower(word=word, level=level)))


def _find_frequency_after(dictionary: Dictionary, follower: Follower) -> int:
    return from_level(dictionary.words[follower.word].frequency, follower.level)


def _score(frequency: int) -> float:
    return (frequency - MOST) * STEP
