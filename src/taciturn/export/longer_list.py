"""Words of a longer public list, below those that a model has.

A keyboard's dictionary completes rare words too, and tells spelling from misspelling; a model has
some ten thousand words. How often any other word comes, the model says; which of them, a public
list.
"""

from collections.abc import Collection

import numpy as np

from taciturn.data.vocabulary import DataError, list_frequent_words, tokenize
from taciturn.export.combined import ListedWord, can_hold, to_f


def list_rarer_words(
    language: str,
    *,
    without: Collection[str],
    share: float,
    size: int,
) -> list[ListedWord]:
    """Return words of a public list (wordfreq), the most frequent first.

    Args:
        language: of the words; there are none where wordfreq has no list for it.
        without: words that are left out, because a model has them or nobody wants them.
        share: how often one of the words comes, of all words.
        size: how many words of the public list are looked at.
    """
    import wordfreq

    try:
        frequent = list_frequent_words(language, size)
    except DataError:
        return []
    left_out = set(without)
    rarer = [word for word in frequent if word not in left_out and _is_one_word(word, language)]
    if not rarer:
        return []
    frequencies = np.array([wordfreq.word_frequency(word, language) for word in rarer])
    places_f = to_f(share * frequencies / frequencies.sum())
    return [
        ListedWord(word=word, f=int(f), followers=[])
        for word, f in zip(rarer, places_f, strict=True)
    ]


def _is_one_word(word: str, language: str) -> bool:
    return can_hold(word) and tokenize(word, language) == [word]
