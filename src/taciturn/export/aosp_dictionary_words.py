"""The words of a keyboard's dictionary as a public list, the most frequent first."""

import re
from pathlib import Path

from taciturn.data.vocabulary import DataError, Vocabulary, listed_vocabulary
from taciturn.export.aosp_dictionary import Dictionary
from taciturn.export.aosp_dictionary_reader import read_dictionary
from taciturn.export.combined_source import is_combined_source, read_combined_source

# How the description of a dictionary begins that was made from a model of people's text.
MADE_FROM_MODEL = "Taciturn "
# Of a dictionary whose header names none.
DEFAULT_LANGUAGE = "en"


def read_dictionary_words(path: Path, size: int) -> Vocabulary:
    """Return the most frequent words of a dictionary that somebody published.

    Never call it on a dictionary that a keyboard learned from a person: which words they use is
    private.

    Args:
        path: of the dictionary (.dict), or of its source (.combined, .combined.gz).
        size: the entries of the list at most, of which some are punctuation.

    Raises:
        DataError: it is not a dictionary, was made from a model of people's text, or has fewer
            words than are asked for.
    """
    read = read_combined_source if is_combined_source(path) else read_dictionary
    dictionary = read(path)
    if dictionary.header.get("description", "").startswith(MADE_FROM_MODEL):
        raise DataError(
            f"{path} was made from a run's model, and the order of its words was learned"
            " from people whom only that run's ledger knows: it is not public. Name a dictionary"
            " that somebody published"
        )
    words = rank_words(dictionary)
    if not words:
        raise DataError(
            f"{path} suggests none of its {len(dictionary.words):,} words, as their frequency is 0"
            " or they are marked: name its source (.combined), or another dictionary"
        )
    return listed_vocabulary(
        words,
        size=size,
        source=path.name,
        language=_find_language(dictionary, path),
    )


def rank_words(dictionary: Dictionary) -> list[str]:
    """Return the words that a keyboard suggests from a dictionary, the most frequent first.

    Left out are offensive ones, those with the frequency 0, and what is there to be corrected.
    """
    suggested = [
        word
        for word, entry in dictionary.words.items()
        if entry.frequency > 0 and not entry.is_not_a_word and not entry.is_offensive
    ]
    return sorted(suggested, key=lambda word: (-dictionary.words[word].frequency, word))


def _find_language(dictionary: Dictionary, path: Path) -> str:
    locale = dictionary.header.get("locale", DEFAULT_LANGUAGE)
    language = re.split("[_-]", locale)[0].lower()
    if not re.fullmatch("[a-z]{2,8}", language):
        raise DataError(
            f"{path} names {locale[:20]!r} as its locale, which is not a language such as en or"
            " pt_BR: compile it again with one"
        )
    return language
