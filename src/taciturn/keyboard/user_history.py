"""A model that learns what its user types: hierarchical Dirichlet smoothing (MacKay and Peto 1995)
on top of another model.

With c for what this user typed, h the last n − 1 words, h' those without the first of them, and p_0
the model below,

    p_n(w | h) = (c(h w) + κ_n · p_{n−1}(w | h')) / (c(h) + κ_n)

so the user's words count as soon as they are typed, and where nothing was typed yet the model below
decides alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from taciturn.core import BEGIN, END, PADDING, UNKNOWN, WordModel

# κ_1, κ_2, κ_3: the best of those tried; results are flat around them
STRENGTHS = (
    8000.0,
    100.0,
    20.0,
)
NOT_LEARNT = frozenset((PADDING, UNKNOWN, BEGIN, END))


class State(NamedTuple):
    base: Any
    # the last words of this message, as many as a context has at most, from BEGIN on
    recent: tuple[int, ...]


class WithHistory:
    """A `WordModel` of one user. Reading changes nothing; `learn` does, and with it the scores of
    all states from then on.
    """

    def __init__(
        self, base: WordModel, strengths: Sequence[float] = STRENGTHS, remembered: int = 10_000
    ) -> None:
        """Start without history; only the last `remembered` words are kept."""
        self.base, self.strengths, self.remembered = base, tuple(strengths), remembered
        self._typed: deque[tuple[tuple[int, ...], int]] = deque()
        # c(w), dense, as most words of a user are in it soon
        self._once = np.zeros(base.vocabulary, np.float32)
        self._followers: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    @property
    def vocabulary(self) -> int:
        return self.base.vocabulary

    def fresh(self) -> WithHistory:
        """Return the same for another user."""
        return WithHistory(self.base, self.strengths, self.remembered)

    def start(self) -> State:
        return State(self.base.start(), self._after((), END))

    def read(self, state: State, word: int) -> State:
        return State(self.base.read(state.base, word), self._after(state.recent, word))

    def learn(self, state: State, word: int) -> None:
        """Learn that the user typed this word in this state; punctuation, ends and unknown words
        are left to the model below.
        """
        if word in NOT_LEARNT:
            return
        self._typed.append((state.recent, word))
        self._count(state.recent, word, 1)
        if len(self._typed) > self.remembered:
            self._count(*self._typed.popleft(), -1)

    def _after(self, recent: tuple[int, ...], word: int) -> tuple[int, ...]:
        words = (BEGIN,) if word == END else (*recent, word)
        return words[max(0, len(words) - len(self.strengths) + 1) :]

    def _count(self, recent: tuple[int, ...], word: int, times: int) -> None:
        self._once[word] += times
        for context in _contexts(recent):
            followers = self._followers[context]
            followers[word] += times
            if not followers[word]:
                del followers[word]
            if not followers:
                del self._followers[context]

    def scores(self, state: State) -> np.ndarray:
        first, *longer = self.strengths
        probability = (self._once + first * np.exp(self.base.scores(state.base))) / (
            len(self._typed) + first
        )
        for strength, context in zip(longer, _contexts(state.recent), strict=False):
            if followers := self._followers.get(context):
                total = followers.total() + strength
                probability *= strength / total
                probability[list(followers)] += (
                    np.array(list(followers.values()), np.float32) / total
                )
        # where the model below has probability 0
        with np.errstate(divide="ignore"):
            return np.log(probability, dtype=np.float32)


def _contexts(recent: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the last word, the last two words, …"""
    return (recent[-length:] for length in range(1, len(recent) + 1))
