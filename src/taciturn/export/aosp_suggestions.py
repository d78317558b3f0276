"""A keyboard's dictionary as a model to type with, beside models of our own."""

from typing import NamedTuple

from taciturn.data.vocabulary import PUNCTUATION, SPECIAL, Vocabulary, is_word, tokenize
from taciturn.export.aosp_dictionary import Dictionary, from_level
from taciturn.models.suggestion_dictionary import SuggestionDictionary

# Of a dictionary whose header names none.
DEFAULT_LOCALE = "en"


class Suggesting(NamedTuple):
    """A dictionary to type with, and its words."""

    vocabulary: Vocabulary
    model: SuggestionDictionary


def suggest_from(dictionary: Dictionary, source: str) -> Suggesting:
    """Return a dictionary as a keyboard suggests from it, in the one spelling that text has here.

    Words that differ only in capitals become one, as frequent as the more frequent of them, with
    the followers of both; on a phone each would take a place of the strip. What is several words
    here («e-mail») is left out. What is not a word is not suggested, nor is what is offensive:
    keyboards block that by default.

    Args:
        dictionary: as it was read.
        source: where it came from.
    """
    language = dictionary.header.get("locale", DEFAULT_LOCALE).partition("_")[0]
    spellings = _spell_words(dictionary, language)
    words = (*SPECIAL, *PUNCTUATION, *dict.fromkeys(spellings.values()))
    vocabulary = Vocabulary(words=words, source=source, language=language)
    places = {word: vocabulary.ids[spelling] for word, spelling in spellings.items()}
    model = SuggestionDictionary.of(
        words,
        frequency=_find_frequencies(dictionary, places),
        followers=_find_followers(dictionary, places),
        sentence_ends=vocabulary.sentence_ends,
    )
    return Suggesting(vocabulary=vocabulary, model=model)


def _spell_words(dictionary: Dictionary, language: str) -> dict[str, str]:
    """Return the spelling that text has here of each word that is one word here."""
    spellings = {}
    for word in dictionary.words:
        tokens = tokenize(word, language)
        if len(tokens) == 1 and is_word(tokens[0]):
            spellings[word] = tokens[0]
    return spellings


def _find_frequencies(dictionary: Dictionary, places: dict[str, int]) -> dict[int, int]:
    """Return the frequencies of the words that are suggested."""
    frequencies: dict[int, int] = {}
    for word, place in places.items():
        entry = dictionary.words[word]
        if not (entry.is_not_a_word or entry.is_offensive):
            frequencies[place] = max(entry.frequency, frequencies.get(place, 0))
    return frequencies


def _find_followers(dictionary: Dictionary, places: dict[str, int]) -> dict[int, dict[int, int]]:
    """Return the words that are suggested after each word, with their frequencies there."""
    followers: dict[int, dict[int, int]] = {}
    for word, place in places.items():
        after_word = followers.setdefault(place, {})
        for follower in dictionary.words[word].followers:
            target = dictionary.words[follower.word]
            if follower.word not in places or target.is_not_a_word or target.is_offensive:
                continue
            frequency = from_level(target.frequency, follower.level)
            follower_place = places[follower.word]
            after_word[follower_place] = max(frequency, after_word.get(follower_place, 0))
    return followers
