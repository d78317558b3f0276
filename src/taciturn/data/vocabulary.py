"""Words and their numbers.

The list is public (wordfreq's, or counted on public text), so that choosing the words costs no
privacy.

>>> vocabulary = Vocabulary(words=("<pad>", "<unk>", "<bos>", "<eos>", ".", "hello", "world"))
>>> vocabulary.encode("Hello, World.")
[5, 1, 6, 4]
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

# In place of `re`, which splits words at the vowel signs of Hindi.
import regex

from taciturn.core import UNKNOWN
from taciturn.errors import TaciturnError

# At the ids core.PADDING, UNKNOWN, BEGIN and END.
SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>")
PUNCTUATION = (".", ",", "!", "?", "'", '"', ":", ";", "-", "(", ")", "...")
MORE_PUNCTUATION = {
    **dict.fromkeys(("es", "ca"), ("¿", "¡")),
    **dict.fromkeys(("hi", "bn"), ("।",)),
    **dict.fromkeys(("ar", "fa", "ur"), ("،", "؛", "؟")),
    **dict.fromkeys(("zh", "ja"), ("。", "、")),
}
SENTENCE_ENDS = ("<eos>", ".", "!", "?", "...", "।", "؟", "。")
# Stands where something was removed; it is in no word list, so always an unknown word.
SCRUBBED = "\ue000"

# A word is letters and their marks, joined by apostrophes, Catalan's dot or invisible joiners;
# emoji and punctuation that people type stand for themselves.
_TOKEN = regex.compile(
    r"[\p{L}\p{M}]+(?:['·\u200c\u200d][\p{L}\p{M}]+)*"
    r"|\d+|\.\.\.|[.,!?'\":;()¿¡।،؛؟。、-]"
    r"|\p{Extended_Pictographic}\p{Emoji_Modifier}?"
    r"(?:\u200d\p{Extended_Pictographic}\p{Emoji_Modifier}?)*|\p{RI}\p{RI}"
    rf"|{SCRUBBED}"
)
_SIGNS = str.maketrans(
    dict.fromkeys("’‘ʼ`´", "'")
    | dict.fromkeys("“”„«»", '"')
    | dict.fromkeys("–—−", "-")
    | {
        "…": "...",
        "！": "!",
        "？": "?",
        "，": ",",
    }
)
# The emoji selector, the soft hyphen and the zero-width space are removed.
_SIGNS |= str.maketrans("", "", "\ufe0f\u00ad\u200b")
# wordfreq omits vowel points in these languages, and spells letters of others in its own way.
_POINTS = regex.compile(r"[\p{Mn}ـ]")
_UNPOINTED = {"ar", "fa", "he", "ur"}
_LONG_RUN = regex.compile(r"\p{M}{31,}+")
_TURKISH = str.maketrans({"I": "ı", "İ": "i"})
_ROMANIAN = str.maketrans("şţŞŢ", "șțȘȚ")
# Languages written without spaces: the longest known word is taken repeatedly.
SEGMENTED = {"zh", "ja", "ko"}

# An «I» of English, also in «I'm».
_FIRST_PERSON = regex.compile(r"i(?:'|\Z)")
_MEANS_SOMETHING = regex.compile(r"[\p{L}\p{N}\p{Extended_Pictographic}\p{RI}]")

Unit = Literal["word", "character"]


class DataError(TaciturnError):
    """Text, words or a folder of them that cannot be used, and why."""


def spell_for_display(word: str, language: str) -> str:
    """Spell a word of a list, which has no capitals; English has one that is always used."""
    if language == "en" and _FIRST_PERSON.match(word):
        return word[:1].upper() + word[1:]
    return word


def without_long_runs(text: str) -> str:
    """Return text with thirty marks on a letter at most: composing thousands is quadratic."""
    if text.isascii():
        return text
    return _LONG_RUN.sub(lambda run: run[0][:30], text)


def normalize(text: str, language: str = "en") -> str:
    """Return one spelling for what looks alike.

    Letters are composed and in lower case, quotes and dashes plain.
    """
    is_ascii = text.isascii()
    if not is_ascii:
        text = unicodedata.normalize("NFC", without_long_runs(text))
    if not is_ascii or "`" in text:
        text = text.translate(_SIGNS)
    if language in _UNPOINTED:
        text = _POINTS.sub("", text)
    elif language == "tr":
        text = text.translate(_TURKISH)
    elif language == "ro":
        text = text.translate(_ROMANIAN)
    # As wordfreq does: German ß is ss.
    return text.casefold()


def tokenize(text: str, language: str = "en") -> list[str]:
    """Split text into words, numbers, punctuation and emoji, each in its one spelling."""
    return _TOKEN.findall(normalize(text, language))


def is_word(token: str) -> bool:
    """Tell a word, a number or an emoji («don't», «7») from anything else.

    Punctuation and special tokens («...», «<eos>») are not words.
    """
    return token not in SPECIAL and _MEANS_SOMETHING.search(token) is not None


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A list of words; the number of a word is its place."""

    words: tuple[str, ...]
    source: str = field(default="", compare=False)
    language: str = "en"
    unit: Unit = "word"

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise DataError(
                f"a vocabulary starts with {' '.join(SPECIAL)}; this one starts with"
                f" {' '.join(self.words[:4])}"
            )
        if len(set(self.words)) != len(self.words):
            raise DataError("a word is in this vocabulary twice; remove one of them")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: position for position, word in enumerate(self.words)}

    @cached_property
    def sentence_ends(self) -> tuple[int, ...]:
        return tuple(self.ids[word] for word in SENTENCE_ENDS if word in self.ids)

    @property
    def first_word(self) -> int:
        """Return the place of the first word; entries before it are special tokens or punctuation.

        Words are in the order of their frequency.
        """
        others = set(SPECIAL + _punctuation(self.language))
        for place, word in enumerate(self.words):
            if word not in others:
                return place
        return len(self.words)

    def encode(self, text: str) -> list[int]:
        get = self.ids.get
        return [get(word, UNKNOWN) for word in self.split(text)]

    def split(self, text: str) -> list[str]:
        """Split text into words (or characters), known or not."""
        if self.unit == "character":
            return list(" ".join(normalize(text, self.language).split()))
        words = tokenize(text, self.language)
        if self.language in SEGMENTED:
            return list(chain.from_iterable(self._segments(word) for word in words))
        return words

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.words[len(SPECIAL) :]), default=1)

    def _segments(self, word: str) -> Iterable[str]:
        start = 0
        while start < len(word):
            end = start + self._match_longest(word, start)
            yield word[start:end]
            start = end

    def _match_longest(self, word: str, start: int) -> int:
        """Return the length of the longest known word that stands there; 1 if there is none."""
        longest = min(len(word) - start, self._longest)
        for length in range(longest, 1, -1):
            if word[start : start + length] in self.ids:
                return length
        return 1

    @property
    def about(self) -> dict[str, str]:
        """Return what `of` and `load` need besides the words."""
        return {"source": self.source, "language": self.language, "unit": self.unit}

    def save(self, path: Path) -> None:
        path.write_text("\n".join(self.words) + "\n", encoding="utf-8")

    @classmethod
    def of(cls, words: Iterable[str], about: dict[str, Any]) -> "Vocabulary":
        """Return a list of words; `about` has the other fields."""
        return cls(
            words=tuple(words),
            source=about["source"],
            language=about["language"],
            unit=about["unit"],
        )

    @classmethod
    def load(cls, path: Path, about: dict[str, Any]) -> "Vocabulary":
        try:
            words = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except (OSError, UnicodeDecodeError):
            raise DataError(
                f"{path} is missing or damaged; restore it from a copy, or make {path.parent} again"
            ) from None
        return cls.of(words, about)


def public_vocabulary(size: int, language: str = "en", unit: Unit = "word") -> Vocabulary:
    """Return the most frequent words of a language (wordfreq), or its characters.

    Punctuation comes first; there are `size` entries at most.
    """
    frequent = list_frequent_words(language, max(size + size // 20, 1000))
    if unit == "character":
        return _vocabulary(
            _list_characters(frequent),
            size=size,
            source=f"characters of wordfreq {language}",
            language=language,
            unit=unit,
        )
    # Some listed words («3d», «e.g») are several tokens here, and would never occur.
    words = (word for word in frequent if tokenize(word, language) == [word])
    vocabulary = _vocabulary(
        words, size=size, source=f"wordfreq {language}", language=language, unit=unit
    )
    # The default is not refused for languages with fewer words.
    if size > 10_000 and len(vocabulary) < size:
        raise DataError(
            f"wordfreq lists {len(vocabulary):,} words for the language {language!r}: ask for at"
            f" most that many, not {size:,}"
        )
    return vocabulary


def list_frequent_words(language: str, size: int) -> list[str]:
    """Return the most frequent words of a language (wordfreq), the most frequent first."""
    # Imported only here: it makes a vocabulary, and is not needed to use one.
    import wordfreq

    try:
        return wordfreq.top_n_list(language, size)
    except (LookupError, ValueError):
        languages = ", ".join(sorted(wordfreq.available_languages()))
        raise DataError(
            f"wordfreq has no list for the language {language!r}; choose one of: {languages}"
        ) from None


def _list_characters(words: Iterable[str]) -> list[str]:
    """Return some signs, and the letters and marks of words, most frequent first."""
    characters = [" ", *"0123456789", "@", "/"]
    for character, _ in Counter(chain.from_iterable(words)).most_common():
        if character.isalpha() or regex.match(r"\p{M}", character):
            characters.append(character)
    return characters


def listed_vocabulary(words: Iterable[str], size: int, source: str, language: str) -> Vocabulary:
    """Return the first words of a public list, in the one spelling that text has here.

    Words that are spelled alike here are one, and what is several words here («e-mail») is left
    out.

    Args:
        words: of the list, the most frequent first.
        size: the entries of the vocabulary at most, punctuation among them.
        source: of the list.
        language: of the words.
    """
    tokens = (tokenize(word, language) for word in words)
    single = dict.fromkeys(split[0] for split in tokens if len(split) == 1 and is_word(split[0]))
    vocabulary = _vocabulary(single, size=size, source=source, language=language, unit="word")
    # The default is not refused for shorter lists.
    if size > 10_000 and len(vocabulary) < size:
        raise DataError(
            f"{source} lists {len(vocabulary):,} words: ask for at most that many, not {size:,}"
        )
    return vocabulary


def counted_vocabulary(
    texts: Iterable[str], size: int, source: str, language: str = "en"
) -> Vocabulary:
    """Return the most frequent words of public text.

    Never call it on users' text: which words people use is private.
    """
    counts = Counter(chain.from_iterable(tokenize(text, language) for text in texts))
    by_count = sorted(counts, key=lambda word: (-counts[word], word))
    return _vocabulary(by_count, size=size, source=source, language=language, unit="word")


def _vocabulary(
    words: Iterable[str], *, size: int, source: str, language: str, unit: Unit
) -> Vocabulary:
    """Return special tokens, punctuation and the first of the words, `size` entries at most."""
    fixed = SPECIAL + _punctuation(language)
    if unit == "character":
        fixed = tuple(sign for sign in fixed if sign in SPECIAL or len(sign) == 1)
    room = size - len(fixed)
    if room <= 0:
        raise DataError(
            f"a vocabulary of {size} has no room for words, as {len(fixed)} entries are"
            " punctuation: take more"
        )
    others = (word for word in words if word not in fixed)
    return Vocabulary(
        words=(*fixed, *islice(others, room)),
        source=source,
        language=language,
        unit=unit,
    )


def _punctuation(language: str) -> tuple[str, ...]:
    return PUNCTUATION + MORE_PUNCTUATION.get(language, ())
