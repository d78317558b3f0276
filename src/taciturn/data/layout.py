"""How a text becomes rows for a model.

They are continuous unrolls (McMahan et al. 2018, §3), or sentences (Ramaswamy et al. 2020, Xu et
al. 2023).

>>> Unrolls(3).pieces(np.arange(4, 11)).tolist()
[[2, 4, 5, 6], [6, 7, 8, 9], [9, 10, 0, 0]]
>>> Sentences(3, ends=(3, 9)).pieces(np.array([5, 6, 9, 7, 3, 5, 5, 5, 5])).tolist()
[[2, 5, 6, 9], [2, 7, 3, 0], [2, 5, 5, 5]]
>>> Layout(cut=Unrolls(3), batch_size=2, steps=2).user_data(np.arange(4, 14)).batches.tolist()
[[[2, 4, 5, 6], [9, 10, 11, 12]], [[6, 7, 8, 9], [12, 13, 0, 0]]]
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taciturn.core import BEGIN, UserData


@dataclass(frozen=True)
class Unrolls:
    """Take the text as one stream, cut every `length` tokens.

    Every token is a target once, the first after <bos>.
    """

    length: int

    def pieces(self, tokens: np.ndarray, most: int | None = None) -> np.ndarray:
        """Return int32 [pieces, length + 1], at most `most`, padded with zeros at the end."""
        if most is not None:
            tokens = tokens[: most * self.length]
        whole, rest = divmod(len(tokens), self.length)
        end_of_whole = len(tokens) - rest
        pieces = whole + 1 if rest else whole
        rows = np.zeros((pieces, self.length + 1), np.int32)
        targets = rows[:, 1:]
        targets[:whole] = tokens[:end_of_whole].reshape(whole, self.length)
        targets[whole:, :rest] = tokens[end_of_whole:]
        # Before the first target of a piece comes the last one of the piece before.
        rows[:1, 0] = BEGIN
        rows[1:, 0] = rows[:-1, -1]
        return rows


@dataclass(frozen=True)
class Sentences:
    """Take each sentence by itself: <bos>, its words, and what ends it.

    Longer ones are cut at `length`, shorter ones padded.
    """

    length: int
    # The words that end a sentence.
    ends: tuple[int, ...]

    def pieces(self, tokens: np.ndarray, most: int | None = None) -> np.ndarray:
        """Return int32 [sentences, length + 1], at most `most`, padded with zeros."""
        bounds = np.concatenate([[0], sentence_bounds(tokens, self.ends)])
        if most is not None:
            bounds = bounds[: most + 1]
        starts = bounds[:-1]
        lengths = np.minimum(np.diff(bounds), self.length)
        columns = np.arange(self.length)
        is_inside = columns < lengths[:, None]
        places = starts[:, None] + columns
        rows = np.zeros((len(starts), self.length + 1), np.int32)
        rows[:, 0] = BEGIN
        rows[:, 1:][is_inside] = tokens[places[is_inside]]
        return rows


def sentence_bounds(tokens: np.ndarray, ends: tuple[int, ...]) -> np.ndarray:
    """Return the positions at which sentences end; the last is the text's length."""
    is_end = np.isin(tokens, ends)
    # Of «?!» and <eos> only the last ends a sentence.
    is_end[:-1] &= ~is_end[1:]
    is_end[-1:] = True
    return np.flatnonzero(is_end) + 1


Cut = Unrolls | Sentences


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a user's text becomes batches: cut into pieces, dealt out to local steps."""

    cut: Cut
    # B.
    batch_size: int
    # The batches that a user has at most; the rest of a longer text is left out.
    steps: int

    @classmethod
    def for_pieces(cls, cut: Cut, batch_size: int, pieces: float) -> "Layout":
        """Return the layout that holds this number of pieces."""
        return cls(cut=cut, batch_size=batch_size, steps=math.ceil(pieces / batch_size))

    def user_data(self, tokens: np.ndarray, weight_cap: float | None = None) -> UserData:
        """Return what the device program gets."""
        users = self.users_data([tokens], weight_cap)
        return UserData(batches=users.batches[0], weight=users.weight[0], steps=users.steps[0])

    def users_data(self, texts: Sequence[np.ndarray], weight_cap: float | None = None) -> UserData:
        """Return the same of several users, in arrays.

        A batch holds pieces from all over the text, so that a local step sees more of the user;
        those with text come first.

        Args:
            texts: the tokens of each user.
            weight_cap: ŵ, of which a user of n tokens weighs min(n/ŵ, 1); without one, 1 if n > 0.
        """
        shape = (len(texts), self.steps, self.batch_size, self.cut.length + 1)
        batches: Any = np.zeros(shape, np.int32)
        steps: Any = np.zeros(len(texts), np.int32)
        for user, tokens in enumerate(texts):
            steps[user] = self._fill(batches[user], tokens)
        return UserData(batches=batches, weight=_weigh(texts, weight_cap), steps=steps)

    def _fill(self, batches: np.ndarray, tokens: np.ndarray) -> int:
        """Deal the pieces of a text out to batches, in turn; return how many of these it takes."""
        pieces = self.cut.pieces(tokens, self.steps * self.batch_size)
        used = math.ceil(len(pieces) / self.batch_size)
        turns, rest = divmod(len(pieces), max(used, 1))
        dealt = turns * used
        in_turns = pieces[:dealt].reshape(turns, used, self.cut.length + 1)
        batches[:used, :turns] = in_turns.swapaxes(0, 1)
        if rest:
            batches[:rest, turns] = pieces[dealt:]
        return used


def _weigh(texts: Sequence[np.ndarray], cap: float | None) -> Any:
    lengths = np.array([len(tokens) for tokens in texts], np.float32)
    shares = lengths / np.float32(cap or 1)
    return np.minimum(shares, np.float32(1))
