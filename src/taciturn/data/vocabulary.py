"""Words and their numbers. The list is public (wordfreq's, or counted on public text), so that
choosing the words costs no privacy.

>>> vocabulary = Vocabulary(("<pad>", "<unk>", "<bos>", "<eos>", ".", "hello", "world"))
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

# not `re`, which splits words at the vowel signs of Hindi
import regex

from taciturn.core import UNKNOWN
from taciturn.errors import TaciturnError

# at the ids core.PADDING, UNKNOWN, BEGIN and END
SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>")
PUNCTUATION = (".", ",", "!", "?", "'", '"', ":", ";", "-", "(", ")", "...")
MORE_PUNCTUATION = {
    **dict.fromkeys(("es", "ca"), ("¿", "¡")),
    **dict.fromkeys(("hi", "bn"), ("।",)),
    **dict.fromkeys(("ar", "fa", "ur"), ("،", "؛", "؟")),
    **dict.fromkeys(("zh", "ja"), ("。", "、")),
}
SENTENCE_ENDS = ("<eos>", ".", "!", "?", "...", "।", "؟", "。")
SCRUBBED = (
    # stands where something was removed; in no word list, so always an unknown word
    "\ue000"
)

# A word is letters and their marks, joined by apostrophes, Catalan's dot or invisible joiners;
# emoji and punctuation that people type stand for themselves.
_TOKEN = regex.compile(
    r"[\p{L}\p{M}]+(?:['·\u200c\u200d][\p{L}\p{M}]+)*"
    r"|\d+|\.\.\.|[.,!?'\":;()¿¡।،؛؟。、-]"
    r"|\p{Extended_Pictographic}\p{Emoji_Modifier}?(?:\u200d\p{Extended_Pictographic}\p{Emoji_Modifier}?)*|\p{RI}\p{RI}"
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
# the emoji selector, the soft hyphen, the zero-width space
_SIGNS |= str.maketrans("", "", "\ufe0f\u00ad\u200b")
# wordfreq omits vowel points in these, and spells these letters in its own way.
_POINTS = regex.compile(r"[\p{Mn}ـ]")
_UNPOINTED = {"ar", "fa", "he", "ur"}
_LONG_RUN = regex.compile(r"\p{M}{31,}+")
_TURKISH = str.maketrans({"I": "ı", "İ": "i"})
_ROMANIAN = str.maketrans("şţŞŢ", "șțȘȚ")
# written without spaces: the longest known word is taken repeatedly
SEGMENTED = {"zh", "ja", "ko"}

_MEANS_SOMETHING = regex.compile(r"[\p{L}\p{N}\p{Extended_Pictographic}\p{RI}]")

Unit = Literal["word", "character"]


class DataError(TaciturnError):
    """Text, words or a folder of them that cannot be used, and why."""


def without_long_runs(text: str) -> str:
    """Keep at most thirty marks on a letter: composing thousands takes quadratic time."""
    return text if text.isascii() else _LONG_RUN.sub(lambda found: found[0][:30], text)


def normalize(text: str, language: str = "en") -> str:
    """Return one spelling for what looks alike: composed letters, lower case, plain quotes and
    dashes.
    """
    text = text if text.isascii() else unicodedata.normalize("NFC", without_long_runs(text))
    text = text.translate(_SIGNS) if not text.isascii() or "`" in text else text
    if language in _UNPOINTED:
        text = _POINTS.sub("", text)
    elif language == "tr":
        text = text.translate(_TURKISH)
    elif language == "ro":
        text = text.translate(_ROMANIAN)
    # as wordfreq does: German ß is ss
    return text.casefold()


def tokenize(text: str, language: str = "en") -> list[str]:
    return _TOKEN.findall(normalize(text, language))


def is_word(token: str) -> bool:
    """Tell a word, a number or an emoji («don't», «7») from punctuation and special tokens («...»,
    «<eos>»).
    """
    return token not in SPECIAL and _MEANS_SOMETHING.search(token) is not None


@dataclass(frozen=True)
class Vocabulary:
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
    def fixed(self) -> int:
        """Return how many entries at the front are not words; the words follow, most frequent
        first.
        """
        signs = set(SPECIAL + _punctuation(self.language))
        return next(
            (place for place, word in enumerate(self.words) if word not in signs), len(self.words)
        )

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
            longest = min(len(word) - start, self._longest)
            end = start + next(
                (n for n in range(longest, 1, -1) if word[start : start + n] in self.ids), 1
            )
            yield word[start:end]
            start = end

    @property
    def about(self) -> dict[str, str]:
        """Return what `of` and `load` need besides the words."""
        return {"source": self.source, "language": self.language, "unit": self.unit}

    def save(self, path: Path) -> None:
        path.write_text("\n".join(self.words) + "\n", encoding="utf-8")

    @classmethod
    def of(cls, words: Iterable[str], about: dict[str, Any]) -> "Vocabulary":
        return cls(tuple(words), about["source"], about["language"], about["unit"])

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
    """Return the most frequent words of a language (wordfreq), or its characters, after
    punctuation: `size` entries at most.
    """
    # only needed to make a vocabulary, not to use one
    import wordfreq

    try:
        frequent = wordfreq.top_n_list(language, max(size + size // 20, 1000))
    except (LookupError, ValueError):
        known = ", ".join(sorted(wordfreq.available_languages()))
        raise DataError(
            f"wordfreq has no list for the language {language!r}; choose one of: {known}"
        ) from None
    if unit == "character":
        letters = Counter(chain.from_iterable(frequent))
        signs = (" ", *"0123456789", "@", "/")
        found = (
            letter
            for letter, _ in letters.most_common()
            if letter.isalpha() or regex.match(r"\p{M}", letter)
        )
        return _vocabulary(
            (*signs, *found), size, f"characters of wordfreq {language}", language, unit
        )
    # Some listed words («3d», «e.g») are several tokens here, and would never occur.
    whole = (word for word in frequent if tokenize(word, language) == [word])
    chosen = _vocabulary(whole, size, f"wordfreq {language}", language, unit)
    # for languages with fewer the default is not refused
    if size > 10_000 and len(chosen) < size:
        raise DataError(
            f"wordfreq lists {len(chosen):,} words for the language {language!r}: ask for at most"
            f" that many, not {size:,}"
        )
    return chosen


def counted_vocabulary(
    texts: Iterable[str], size: int, source: str, language: str = "en"
) -> Vocabulary:
    """Return the most frequent words of public text. Never call it on users' text: which words
    people use is private.
    """
    counts = Counter(chain.from_iterable(tokenize(text, language) for text in texts))
    by_count = sorted(counts, key=lambda word: (-counts[word], word))
    return _vocabulary(by_count, size, source, language, "word")


def _vocabulary(
    words: Iterable[str], size: int, source: str, language: str, unit: Unit
) -> Vocabulary:
    fixed = SPECIAL + _punctuation(language)
    if unit == "character":
        fixed = tuple(sign for sign in fixed if sign in SPECIAL or len(sign) == 1)
    if size <= len(fixed):
        raise DataError(
            f"a vocabulary of {size} has no room for words, as {len(fixed)} entries are"
            " punctuation: take more"
        )
    chosen = (word for word in words if word not in fixed)
    return Vocabulary((*fixed, *islice(chosen, size - len(fixed))), source, language, unit)


def _punctuation(language: str) -> tuple[str, ...]:
    return PUNCTUATION + MORE_PUNCTUATION.get(language, ())
