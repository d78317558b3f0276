"""Words and their numbers. The list is public (wordfreq's), so that choosing the words costs no privacy.

>>> vocabulary = Vocabulary(("<pad>", "<unk>", "<bos>", "<eos>", ".", "hello", "world"))
>>> vocabulary.encode("Hello, World.")
[5, 1, 6, 4]
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>")
_, UNKNOWN, BEGIN, END = range(4)  # the first is core.PADDING
PUNCTUATION = (".", ",", "!", "?", "'", '"', ":", ";", "-", "(", ")", "...")

# A word is letters with apostrophes inside, or digits; punctuation that people type stands for itself.
_TOKEN = re.compile(r"""[^\W\d_]+(?:'[^\W\d_]+)*|\d+|\.\.\.|[.,!?'":;()-]""")


def tokenize(text: str) -> list[str]:
    return _TOKEN.findall(text.lower().replace("’", "'"))


class DataError(Exception):
    """Text, words or a folder of them that cannot be used, and why."""


@dataclass(frozen=True)
class Vocabulary:
    words: tuple[str, ...]
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise DataError(
                f"a vocabulary starts with {' '.join(SPECIAL)}; this one starts with {' '.join(self.words[:4])}"
            )
        if len(set(self.words)) != len(self.words):
            raise DataError("a word stands twice in this vocabulary")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: position for position, word in enumerate(self.words)}

    def encode(self, text: str) -> list[int]:
        return [self.ids.get(word, UNKNOWN) for word in tokenize(text)]

    def save(self, path: Path) -> None:
        path.write_text("\n".join(self.words) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        return cls(tuple(path.read_text(encoding="utf-8").splitlines()))


def public_vocabulary(size: int, language: str = "en") -> Vocabulary:
    """The most frequent words of a language by wordfreq, after special words and punctuation, `size` in all."""
    import wordfreq  # only needed to make a vocabulary, not to use one

    fixed = SPECIAL + PUNCTUATION
    if size <= len(fixed):
        raise DataError(
            f"a vocabulary of {size} words has no room for words: {len(fixed)} are special signs and punctuation"
        )
    try:
        frequent = [word for word in wordfreq.top_n_list(language, size) if word not in fixed]
    except (LookupError, ValueError):
        known = ", ".join(sorted(wordfreq.available_languages()))
        raise DataError(f"wordfreq has no list for the language {language!r}; it has: {known}") from None
    return Vocabulary((fixed + tuple(frequent))[:size], source=f"wordfreq {language}")
