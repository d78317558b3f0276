"""A model that learns what its user types, on top of another model.

It is hierarchical Dirichlet smoothing (MacKay and Peto 1995). With c for what this user typed, h
the last n − 1 words, h' those without the first of them, and p_0 the model below,

    p_n(w | h) = (c(h w) + κ_n · p_{n−1}(w | h')) / (c(h) + κ_n)

so the user's words count as soon as they are typed, and where nothing was typed yet only the model
below decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from taciturn.core import BEGIN, END, PADDING, UNKNOWN, WordModel

# κ_1, κ_2, κ_3: the best of those tried; results are flat around them.
STRENGTHS = (8000.0, 100.0, 20.0)
NOT_LEARNT = frozenset((PADDING, UNKNOWN, BEGIN, END))


class State(NamedTuple):
    """The state of the model below, and the context of the user's next word."""

    base: Any
    # The last words of this message, as many as a context has at most, from BEGIN on.
    recent: tuple[int, ...]


class WithHistory:
    """A `WordModel` of one user.

    Reading changes nothing; `learn` does, and with it the scores of all states from then on.
    """

    def __init__(
        self, base: WordModel, strengths: Sequence[float] = STRENGTHS, remembered: int = 10_000
    ) -> None:
        """Start without history.

        Args:
            base: the model below.
            strengths: κ_1, κ_2, …
            remembered: how many of the last words are kept.
        """
        self.base = base
        self.strengths = tuple(strengths)
        self.remembered = remembered
        self._typed: deque[tuple[tuple[int, ...], int]] = deque()
        # c(w), dense, as most words of a user are in it soon.
        self._word_counts = np.zeros(base.vocabulary, np.float32)
        self._followers: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    @property
    def vocabulary(self) -> int:
        return self.base.vocabulary

    def copy_without_history(self) -> WithHistory:
        """Return the same for another user."""
        return WithHistory(self.base, self.strengths, self.remembered)

    def start(self) -> State:
        return State(self.base.start(), self._extend_context((), END))

    def read(self, state: State, word: int) -> State:
        return State(
            base=self.base.read(state.base, word),
            recent=self._extend_context(state.recent, word),
        )

    def learn(self, state: State, word: int) -> None:
        """Learn that the user typed this word in this state.

        Punctuation, ends and unknown words are left to the model below.
        """
        if word in NOT_LEARNT:
            return
        self._typed.append((state.recent, word))
        self._count(state.recent, word, 1)
        if len(self._typed) > self.remembered:
            recent, forgotten = self._typed.popleft()
            self._count(recent, forgotten, -1)

    def _extend_context(self, recent: tuple[int, ...], word: int) -> tuple[int, ...]:
        words = (BEGIN,) if word == END else (*recent, word)
        most = len(self.strengths) - 1
        return words[max(0, len(words) - most) :]

    def _count(self, recent: tuple[int, ...], word: int, times: int) -> None:
        self._word_counts[word] += times
        for context in _contexts(recent):
            followers = self._followers[context]
            followers[word] += times
            if not followers[word]:
                del followers[word]
            if not followers:
                del self._followers[context]

    def scores(self, state: State) -> np.ndarray:
        probability = self._smooth_without_context(state)
        for strength, context in zip(self.strengths[1:], _contexts(state.recent), strict=False):
            followers = self._followers.get(context)
            if followers:
                _smooth_with(followers, strength, probability)
        # Where the model below has probability 0.
        with np.errstate(divide="ignore"):
            return np.log(probability, dtype=np.float32)

    def _smooth_without_context(self, state: State) -> np.ndarray:
        """Return p_1."""
        strength = self.strengths[0]
        below = np.exp(self.base.scores(state.base))
        return (self._word_counts + strength * below) / (len(self._typed) + strength)


class LearningReader:
    """A `WordModel` of one user that learns what it reads, for a text that is read once."""

    def __init__(self, history: WithHistory) -> None:
        self._history = history
        self.vocabulary = history.vocabulary

    def start(self) -> State:
        return self._history.start()

    def read(self, state: State, word: int) -> State:
        """Return the state after one more word, which the history has from then on."""
        self._history.learn(state, word)
        return self._history.read(state, word)

    def scores(self, state: State) -> np.ndarray:
        return self._history.scores(state)


def _smooth_with(followers: Counter[int], strength: float, probability: np.ndarray) -> None:
    """Turn p_{n−1} into p_n, in place, by what followed the longer context."""
    total = followers.total() + strength
    counts = np.array(list(followers.values()), np.float32)
    probability *= strength / total
    probability[list(followers)] += counts / total


def _contexts(recent: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the last word, the last two words, …"""
    return (recent[-length:] for length in range(1, len(recent) + 1))
