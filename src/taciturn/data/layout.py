"""How a text becomes rows for a model: continuous unrolls (McMahan et al. 2018, §3), or sentences
(Ramaswamy et al. 2020, Xu et al. 2023).

>>> Unrolls(3).pieces(np.arange(4, 11)).tolist()
[[2, 4, 5, 6], [6, 7, 8, 9], [9, 10, 0, 0]]
>>> Sentences(3, ends=(3, 9)).pieces(np.array([5, 6, 9, 7, 3, 5, 5, 5, 5])).tolist()
[[2, 5, 6, 9], [2, 7, 3, 0], [2, 5, 5, 5]]
>>> Layout(Unrolls(3), batch_size=2, steps=2).user_data(np.arange(4, 14)).batches.tolist()
[[[2, 4, 5, 6], [9, 10, 11, 12]], [[6, 7, 8, 9], [12, 13, 0, 0]]]
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taciturn.core import BEGIN, UserData


@dataclass(frozen=True)
class Unrolls:
    """Take the text as one stream, cut every `length` tokens. Every token is a target once, the
    first after <bos>.
    """

    length: int

    def pieces(self, tokens: np.ndarray, most: int | None = None) -> np.ndarray:
        """Return int32 [pieces, length + 1], at most `most` of them, padded with zeros at the
        end.
        """
        tokens = tokens if most is None else tokens[: most * self.length]
        whole, rest = divmod(len(tokens), self.length)
        rows = np.zeros((whole + (rest > 0), self.length + 1), np.int32)
        rows[:whole, 1:] = tokens[: len(tokens) - rest].reshape(whole, self.length)
        rows[whole:, 1 : 1 + rest] = tokens[len(tokens) - rest :]
        rows[:1, 0], rows[1:, 0] = BEGIN, rows[:-1, -1]
        return rows


@dataclass(frozen=True)
class Sentences:
    """Take each sentence by itself: <bos>, its words, and what ends it. Longer ones are cut at
    `length`, shorter ones padded.
    """

    length: int
    # the words that end a sentence
    ends: tuple[int, ...]

    def pieces(self, tokens: np.ndarray, most: int | None = None) -> np.ndarray:
        bounds = np.concatenate([[0], sentence_bounds(tokens, self.ends)])[
            : None if most is None else most + 1
        ]
        starts, lengths = bounds[:-1], np.minimum(np.diff(bounds), self.length)
        rows = np.zeros((len(starts), self.length + 1), np.int32)
        inside = np.arange(self.length) < lengths[:, None]
        rows[:, 0] = BEGIN
        rows[:, 1:][inside] = tokens[(starts[:, None] + np.arange(self.length))[inside]]
        return rows


def sentence_bounds(tokens: np.ndarray, ends: tuple[int, ...]) -> np.ndarray:
    """Return the positions at which sentences end; the last is the text's length."""
    is_end = np.isin(tokens, ends)
    # of «?!» and <eos> only the last ends a sentence
    is_end[:-1] &= ~is_end[1:]
    is_end[-1:] = True
    return np.flatnonzero(is_end) + 1


Cut = Unrolls | Sentences


@dataclass(frozen=True)
class Layout:
    cut: Cut
    # B
    batch_size: int
    # batches a user has at most; the rest of a longer text is left out
    steps: int

    @classmethod
    def for_pieces(cls, cut: Cut, batch_size: int, pieces: float) -> "Layout":
        return cls(cut, batch_size, math.ceil(pieces / batch_size))

    def user_data(self, tokens: np.ndarray, weight_cap: float | None = None) -> UserData:
        """Return what the device program gets."""
        return UserData(*(values[0] for values in self.users_data([tokens], weight_cap)))

    def users_data(self, texts: Sequence[np.ndarray], weight_cap: float | None = None) -> UserData:
        """Return the same of several users, in arrays. A batch holds pieces from all over the text,
        so that a local step sees more of the user; those with text come first. A user of n tokens
        weighs min(n/ŵ, 1), ŵ being the cap; without one, 1 if n > 0.
        """
        batches = np.zeros(
            (len(texts), self.steps, self.batch_size, row := self.cut.length + 1), np.int32
        )
        steps = [0] * len(texts)
        for user, tokens in enumerate(texts):
            pieces = self.cut.pieces(tokens, self.steps * self.batch_size)
            steps[user] = own = math.ceil(len(pieces) / self.batch_size)
            # rows that every batch has, and batches that have one more
            full, rest = divmod(len(pieces), max(own, 1))
            batches[user, :own, :full] = pieces[: full * own].reshape(full, own, row).swapaxes(0, 1)
            if rest:
                batches[user, :rest, full] = pieces[full * own :]
        weights = np.array([len(tokens) for tokens in texts], np.float32) / np.float32(
            weight_cap or 1
        )
        return UserData(batches, np.minimum(weights, np.float32(1)), np.array(steps, np.int32))  # pyright: ignore
