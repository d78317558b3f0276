"""Test whether a model memorised a secret: the Secret Sharer framework (Carlini et al. 2019) as
Ramaswamy et al. 2020, §IV-A use it.

The attacker knows the first two words of a canary (audit/canaries.py), and has the model. Random
sampling: among continuations drawn at random, how many does the model find at least as likely as
the secret one? Beam search: is the secret one among the best five that it generates itself? What
these attacks do not find, another may.

Only the last word of each of two million references takes a softmax over all words: states after
the first are computed once per prefix.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.audit.canaries import LENGTH, PREFIX, Canary, canary_words
from taciturn.core import BEGIN, PADDING, WordModel
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.models.recurrence import Cell
from taciturn.models.stepping import Recurrent, State, StepWeights, Windowed, step, zero_state
from taciturn.progress import Progress, ignore_progress

# |R|
REFERENCES = 2_000_000
# of the beam
WIDTH = 5
# words
CONTINUATION = LENGTH - PREFIX
# what a seed is used for; audit/canaries.py has the others
DRAWING_REFERENCES = 2
# bytes for one block; more is no faster
CPU_MEMORY, ACCELERATOR_MEMORY = 2**26, 2**31

# a prefix → float32, the log-probability of each continuation after it
Scorer = Callable[[Sequence[int]], np.ndarray]


class Finding(NamedTuple):
    """What a model memorised of a canary."""

    canary: Canary
    # by random sampling: 1 where no reference is as likely as the canary
    rank: int
    references: int
    # among the continuations that beam search found, from 1; None if absent
    place: int | None

    @property
    def exposure(self) -> float:
        """Return log2 |R| − log2 rank, in bits (Carlini et al. 2019). R holds the references and
        the canary.
        """
        return math.log2(self.references + 1) - math.log2(self.rank)


def measure(
    model: WordModel,
    vocabulary: Vocabulary,
    canaries: Sequence[Canary],
    references: int = REFERENCES,
    progress: Progress = ignore_progress,
) -> list[Finding]:
    """Run both attacks on each canary."""
    if model.vocabulary != len(vocabulary):
        raise DataError(
            f"the model knows {model.vocabulary} words, and its word list has {len(vocabulary)}"
        )
    words = canary_words(vocabulary)
    ranks = random_sampling(model, canaries, draw_references(words, references, seed=0), progress)
    findings = []
    for canary, rank in zip(canaries, ranks, strict=True):
        found = beam_search(model, canary.prefix, words)
        place = found.index(canary.continuation) + 1 if canary.continuation in found else None
        findings.append(Finding(canary, rank, references, place))
    return findings


def draw_references(words: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw R without the canary: int32 [count, 3]."""
    return (
        np.random.default_rng([seed, DRAWING_REFERENCES])
        .choice(words, (count, CONTINUATION))
        .astype(np.int32)
    )


def random_sampling(
    model: WordModel,
    canaries: Sequence[Canary],
    references: np.ndarray,
    progress: Progress = ignore_progress,
) -> list[int]:
    """Rank each canary's continuation among the references by log-perplexity after its prefix. An
    equally likely reference comes before it, an identical one is not counted. A broken model (NaN)
    knows nothing, and the rank is the last.
    """
    secrets = np.array([canary.continuation for canary in canaries], np.int32).reshape(
        -1, CONTINUATION
    )
    # All together, so that the secrets are scored by the same arithmetic as the references.
    score = scorer(model, np.concatenate([references, secrets]))
    ranks, prefixes = [0] * len(canaries), list(dict.fromkeys(canary.prefix for canary in canaries))
    for done, prefix in enumerate(prefixes, 1):
        scores, own = np.split(score(prefix), [len(references)])
        for number, canary in enumerate(canaries):
            if canary.prefix == prefix:
                others = np.any(references != secrets[number], axis=1)
                ranks[number] = 1 + int(np.count_nonzero(~(scores < own[number]) & others))
        progress(done, len(prefixes))
    return ranks


def beam_search(
    model: WordModel, prefix: Iterable[int], words: np.ndarray, width: int = WIDTH
) -> list[tuple[int, ...]]:
    """Return the likeliest continuations of these words that a greedy search finds, best first."""
    beams = [(0.0, (), reduce(model.read, prefix, model.start()))]
    for _ in range(CONTINUATION):
        longer = []
        for total, said, state in beams:
            scores = model.scores(state)[words]
            for place in np.argsort(-scores, kind="stable")[:width].tolist():
                longer.append((total + float(scores[place]), (*said, int(words[place])), state))
        longer.sort(key=lambda one: -one[0])
        beams = [
            (total, said, model.read(state, said[-1])) for total, said, state in longer[:width]
        ]
    return [said for _, said, _ in beams]


def scorer(model: WordModel, continuations: np.ndarray, memory: int | None = None) -> Scorer:
    """Return the fastest scorer for this model and these continuations, int [count, 3]."""
    memory = memory or (CPU_MEMORY if jax.default_backend() == "cpu" else ACCELERATOR_MEMORY)
    # those with the same beginning are adjacent, and read together
    order = np.lexsort(continuations.T[::-1])
    if isinstance(model, Recurrent):
        score_sorted = _recurrent_scorer(model, continuations[order], memory)
    else:
        score_sorted = _general_scorer(model, continuations[order], memory)

    def score(prefix: Sequence[int]) -> np.ndarray:
        scores = np.empty(len(order), np.float32)
        scores[order] = score_sorted(prefix)
        return scores

    return score


def _recurrent_scorer(model: Recurrent, continuations: np.ndarray, memory: int) -> Scorer:
    """Score a prefix in one program, block by block, without waiting for Python; needs room for all
    states besides `memory`.
    """
    weights: StepWeights = jax.device_put(model.weights)
    # rows that fit, of float32
    size = max(1, memory // (8 * model.vocabulary + 16 * len(weights.gate_bias)))
    rows = min(size, len(continuations))
    padded = np.pad(continuations, ((0, -len(continuations) % rows), (0, 0)))
    blocks = jax.device_put(padded.reshape(-1, rows, CONTINUATION))

    def score(prefix: Sequence[int]) -> np.ndarray:
        beginning = np.array([BEGIN, *prefix], np.int32)
        scores = _after(model.cell, min(size, model.vocabulary), weights, beginning, blocks)
        return np.asarray(scores).reshape(-1)[: len(continuations)]

    return score


@partial(jax.jit, static_argnums=(0, 1))
def _after(
    cell: Cell, size: int, weights: StepWeights, beginning: jax.Array, blocks: jax.Array
) -> jax.Array:
    """Return log P(w₁ w₂ w₃ | beginning) for every row of the blocks, [blocks, rows, 3]. The states
    after w₁ are made `size` at a time.
    """
    # A GPU would otherwise round the factors of products to ten bits, and close ranks would swap.
    with jax.default_matmul_precision("highest"):
        state, first = zero_state(weights), jnp.zeros_like(weights.word_bias)
        for word in beginning:
            state, first = step(cell, weights, state, word)

        def read_first(words: jax.Array) -> tuple[State, jax.Array]:
            alike = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), state)
            # unused scores are not computed
            after, _ = step(cell, weights, alike, words)
            return after, _normaliser(weights, after)

        every = jnp.arange(math.ceil(len(first) / size) * size).reshape(-1, size) % len(first)
        blockwise = jax.lax.map(read_first, every)
        after_first, normaliser = jax.tree.map(
            lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), blockwise
        )

        def continued(rows: jax.Array) -> jax.Array:
            one, two, three = rows.T
            before = jax.tree.map(lambda leaf: leaf[one], after_first)
            after, _ = step(cell, weights, before, two)
            second = _score(weights, before, two) - normaliser[one]
            return first[one] + second + _score(weights, after, three) - _normaliser(weights, after)

        return jax.lax.map(continued, blocks)


def _context(weights: StepWeights, state: State) -> jax.Array:
    return state[0] if weights.to_context is None else state[0] @ weights.to_context


def _score(weights: StepWeights, state: State, word: jax.Array) -> jax.Array:
    """Score one word after each state, before normalisation."""
    return (
        jnp.sum(_context(weights, state) * weights.words[word], axis=-1) + weights.word_bias[word]
    )


def _normaliser(weights: StepWeights, state: State) -> jax.Array:
    """Return log Σ exp of all words' scores, after each state."""
    return jax.nn.logsumexp(_context(weights, state) @ weights.words.T + weights.word_bias, axis=-1)


def _general_scorer(model: WordModel, continuations: np.ndarray, memory: int) -> Scorer:
    """Score sorted continuations by the scores of all words after each distinct beginning."""
    beginnings = [
        np.unique(continuations[:, :known], axis=0, return_counts=True)
        for known in range(CONTINUATION)
    ]
    size = min(max(1, memory // (12 * model.vocabulary)), len(continuations))

    def score(prefix: Sequence[int]) -> np.ndarray:
        scores_after = _scores_after(model, prefix, size)
        total = np.zeros(len(continuations), np.float32)
        for known, (distinct, counts) in enumerate(beginnings):
            which = np.repeat(np.arange(len(distinct)), counts)
            for start in range(0, len(distinct), size):
                scores = scores_after(distinct[start : start + size])
                these = slice(*np.searchsorted(which, [start, start + size]))
                total[these] += scores[which[these] - start, continuations[these, known]]
        return total

    return score


def _scores_after(
    model: WordModel, prefix: Sequence[int], size: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Return [count, words read after the prefix] → the log-probabilities of what follows, [count,
    vocabulary]; at most `size` of them.
    """
    if isinstance(model, Windowed):

        def side_by_side(texts: np.ndarray) -> np.ndarray:
            # one size, compiled once
            rows = np.full((size, 1 + len(prefix) + texts.shape[1]), PADDING, np.int32)
            rows[: len(texts), : 1 + len(prefix)] = BEGIN, *prefix
            rows[: len(texts), 1 + len(prefix) :] = texts
            return np.asarray(model.scores_at(rows, rows.shape[1] - 1))[: len(texts)]

        return side_by_side

    state = reduce(model.read, prefix, model.start())
    return lambda texts: np.stack(
        [model.scores(reduce(model.read, text, state)) for text in texts.tolist()]
    )
