"""Test whether a model memorised a secret.

It is the Secret Sharer framework (Carlini et al. 2019), as Ramaswamy et al. 2020, §IV-A use it.

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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.audit.canaries import LENGTH, PREFIX, Canary, canary_words
from taciturn.core import BEGIN, PADDING, WordModel
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.models.recurrence import Cell
from taciturn.models.stepping import Recurrent, State, StepWeights, Windowed, step, zero_state
from taciturn.progress import Progress, ignore_progress

# |R|.
REFERENCES = 2_000_000
# Of the beam.
WIDTH = 5
# In words.
CONTINUATION = LENGTH - PREFIX
# What a seed is used for; audit/canaries.py has the others.
DRAWING_REFERENCES = 2
# Bytes for one block; with more it is not faster.
CPU_MEMORY = 2**26
ACCELERATOR_MEMORY = 2**31

# Of a prefix; returns the log-probability of each continuation after it, float32.
Scorer = Callable[[Sequence[int]], np.ndarray]
# Of the words read after a prefix, [count, words]; returns the log-probabilities of what follows,
# [count, vocabulary].
ScoresAfter = Callable[[np.ndarray], np.ndarray]


class Finding(NamedTuple):
    """What a model memorised of a canary."""

    canary: Canary
    # By random sampling: 1 where no reference is as likely as the canary.
    rank: int
    references: int
    # Among the continuations that beam search found, from 1; None if absent.
    place: int | None

    @property
    def exposure(self) -> float:
        """Return log2 |R| − log2 rank, in bits (Carlini et al. 2019).

        R holds the references and the canary.
        """
        return math.log2(self.references + 1) - math.log2(self.rank)


def measure(
    model: WordModel,
    vocabulary: Vocabulary,
    canaries: Sequence[Canary],
    references: int = REFERENCES,
    progress: Progress = ignore_progress,
) -> list[Finding]:
    """Run both attacks on each canary.

    Args:
        model: what is attacked.
        vocabulary: its words.
        canaries: the secrets that were planted.
        references: how many are drawn, for random sampling.
        progress: called with the prefixes that are done, and how many there are.

    Raises:
        DataError: the model knows other words.
    """
    if model.vocabulary != len(vocabulary):
        raise DataError(
            f"the model knows {model.vocabulary} words, and its word list has {len(vocabulary)}"
        )
    words = canary_words(vocabulary)
    drawn = draw_references(words, references, seed=0)
    ranks = random_sampling(
        model,
        canaries=canaries,
        references=drawn,
        progress=progress,
    )
    findings = []
    for canary, rank in zip(canaries, ranks, strict=True):
        generated = beam_search(model, canary.prefix, words)
        finding = Finding(
            canary=canary,
            rank=rank,
            references=references,
            place=_find_place(canary.continuation, generated),
        )
        findings.append(finding)
    return findings


def _find_place(secret: tuple[int, ...], generated: list[tuple[int, ...]]) -> int | None:
    """Return the place of a secret among continuations, from 1; None if it is absent."""
    return generated.index(secret) + 1 if secret in generated else None


def draw_references(words: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw R without the canary: int32 [count, 3]."""
    generator = np.random.default_rng([seed, DRAWING_REFERENCES])
    return generator.choice(words, (count, CONTINUATION)).astype(np.int32)


def random_sampling(
    model: WordModel,
    canaries: Sequence[Canary],
    references: np.ndarray,
    progress: Progress = ignore_progress,
) -> list[int]:
    """Rank each canary's continuation among the references by log-perplexity after its prefix.

    An equally likely reference comes before it, an identical one is not counted. A broken model
    (NaN) knows nothing, and the rank is the last.
    """
    secrets = _continuations_of(canaries)
    # All together, so that the secrets are scored by the same arithmetic as the references.
    score = scorer(model, np.concatenate([references, secrets]))
    ranks = [0] * len(canaries)
    prefixes = list(dict.fromkeys(canary.prefix for canary in canaries))
    for done, prefix in enumerate(prefixes, 1):
        scores, secret_scores = np.split(score(prefix), [len(references)])
        for number, canary in enumerate(canaries):
            if canary.prefix != prefix:
                continue
            ranks[number] = _rank_secret(
                secret=secrets[number],
                secret_score=secret_scores[number],
                references=references,
                scores=scores,
            )
        progress(done, len(prefixes))
    return ranks


def _continuations_of(canaries: Sequence[Canary]) -> np.ndarray:
    """Return int32 [canaries, 3]."""
    continuations = np.array([canary.continuation for canary in canaries], np.int32)
    return continuations.reshape(-1, CONTINUATION)


def _rank_secret(
    *, secret: np.ndarray, secret_score: float, references: np.ndarray, scores: np.ndarray
) -> int:
    is_other = np.any(references != secret, axis=1)
    # It is also where one of the two is NaN.
    is_as_likely = ~(scores < secret_score)
    return 1 + int(np.count_nonzero(is_as_likely & is_other))


class _Beam(NamedTuple):
    """A continuation so far, and the state of the model after it."""

    log_probability: float
    words: tuple[int, ...]
    state: Any


def beam_search(
    model: WordModel, prefix: Iterable[int], words: np.ndarray, width: int = WIDTH
) -> list[tuple[int, ...]]:
    """Return the likeliest continuations of these words that a greedy search finds, best first."""
    start = reduce(model.read, prefix, model.start())
    beams = [_Beam(log_probability=0.0, words=(), state=start)]
    for _ in range(CONTINUATION):
        beams = _extend_beams(model, beams, words, width)
    return [beam.words for beam in beams]


def _extend_beams(
    model: WordModel, beams: list[_Beam], words: np.ndarray, width: int
) -> list[_Beam]:
    """Return the best of all beams that are longer by a word."""
    longer: list[_Beam] = []
    for beam in beams:
        longer += _extend_beam(
            model,
            beam,
            words=words,
            width=width,
        )
    best = sorted(longer, key=_improbability)[:width]
    return [_read_last_word(model, beam) for beam in best]


def _improbability(beam: _Beam) -> float:
    return -beam.log_probability


def _extend_beam(model: WordModel, beam: _Beam, *, words: np.ndarray, width: int) -> list[_Beam]:
    """Return the beam with each of the likeliest next words, which the model has not read yet."""
    scores = model.scores(beam.state)[words]
    likeliest = np.argsort(-scores, kind="stable")[:width]
    longer = []
    for place in likeliest.tolist():
        beam_with_word = _Beam(
            log_probability=beam.log_probability + float(scores[place]),
            words=(*beam.words, int(words[place])),
            state=beam.state,
        )
        longer.append(beam_with_word)
    return longer


def _read_last_word(model: WordModel, beam: _Beam) -> _Beam:
    return beam._replace(state=model.read(beam.state, beam.words[-1]))


def scorer(model: WordModel, continuations: np.ndarray, memory: int | None = None) -> Scorer:
    """Return the fastest scorer for this model and these continuations, int [count, 3]."""
    if not memory:
        is_on_cpu = jax.default_backend() == "cpu"
        memory = CPU_MEMORY if is_on_cpu else ACCELERATOR_MEMORY
    # Those with the same beginning are then adjacent, and read together.
    order = np.lexsort(continuations.T[::-1])
    in_order = continuations[order]
    if isinstance(model, Recurrent):
        score_sorted = _recurrent_scorer(model, in_order, memory)
    else:
        score_sorted = _general_scorer(model, in_order, memory)

    def score(prefix: Sequence[int]) -> np.ndarray:
        scores = np.empty(len(order), np.float32)
        scores[order] = score_sorted(prefix)
        return scores

    return score


# The recurrent models, in one program.


def _recurrent_scorer(model: Recurrent, continuations: np.ndarray, memory: int) -> Scorer:
    """Score a prefix in one program, block by block, without waiting for Python.

    It needs room for all states besides `memory`.
    """
    weights: StepWeights = jax.device_put(model.weights)
    # Of float32.
    bytes_of_row = 8 * model.vocabulary + 16 * len(weights.gate_bias)
    size = max(1, memory // bytes_of_row)
    states_at_once = min(size, model.vocabulary)
    blocks = jax.device_put(_cut_into_blocks(continuations, size))

    def score(prefix: Sequence[int]) -> np.ndarray:
        beginning = np.array([BEGIN, *prefix], np.int32)
        scores = _score_blocks(
            cell=model.cell,
            states_at_once=states_at_once,
            weights=weights,
            beginning=beginning,
            blocks=blocks,
        )
        in_order = np.asarray(scores).reshape(-1)
        return in_order[: len(continuations)]

    return score


def _cut_into_blocks(continuations: np.ndarray, size: int) -> np.ndarray:
    """Return [blocks, rows, 3], with at most `size` rows; the last block is padded with zeros."""
    rows = min(size, len(continuations))
    missing = -len(continuations) % rows
    padded = np.pad(continuations, ((0, missing), (0, 0)))
    return padded.reshape(-1, rows, CONTINUATION)


class _AfterFirst(NamedTuple):
    """What is computed once for a beginning, however many continuations there are."""

    # log P(w₁ | beginning), [vocabulary].
    scores: jax.Array
    # After each w₁, and log Σ exp of the scores of all words to follow it.
    states: State
    normalisers: jax.Array


@partial(jax.jit, static_argnames=("cell", "states_at_once"))
def _score_blocks(
    *,
    cell: Cell,
    states_at_once: int,
    weights: StepWeights,
    beginning: jax.Array,
    blocks: jax.Array,
) -> jax.Array:
    """Return log P(w₁ w₂ w₃ | beginning) for every row of the blocks, [blocks, rows, 3]."""
    # A GPU would otherwise round the factors of products to ten bits, and close ranks would swap.
    with jax.default_matmul_precision("highest"):
        after_first = _read_every_first_word(
            cell=cell,
            weights=weights,
            beginning=beginning,
            states_at_once=states_at_once,
        )
        return jax.lax.map(partial(_score_rows, cell, weights, after_first), blocks)


def _read_every_first_word(
    *, cell: Cell, weights: StepWeights, beginning: jax.Array, states_at_once: int
) -> _AfterFirst:
    """Read each word of the list after the beginning, some of them at a time."""
    state, scores = _read_beginning(cell, weights, beginning)
    vocabulary = len(scores)
    padded = math.ceil(vocabulary / states_at_once) * states_at_once
    words = jnp.arange(padded).reshape(-1, states_at_once) % vocabulary
    blockwise = jax.lax.map(partial(_read_words, cell, weights, state), words)
    states, normalisers = jax.tree.map(_join_blocks, blockwise)
    return _AfterFirst(scores, states, normalisers)


def _read_beginning(
    cell: Cell, weights: StepWeights, beginning: jax.Array
) -> tuple[State, jax.Array]:
    state = zero_state(weights)
    scores = jnp.zeros_like(weights.word_bias)
    for word in beginning:
        state, scores = step(cell, weights, state, word)
    return state, scores


def _read_words(
    cell: Cell, weights: StepWeights, state: State, words: jax.Array
) -> tuple[State, jax.Array]:
    """Return the state after each of these words, and the normaliser of what follows."""
    size = len(words)
    repeated = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), state)
    # The scores are not used, and so not computed.
    after, _ = step(cell, weights, repeated, words)
    return after, _normaliser(weights, after)


def _join_blocks(leaf: jax.Array) -> jax.Array:
    return leaf.reshape(-1, *leaf.shape[2:])


def _score_rows(
    cell: Cell, weights: StepWeights, after_first: _AfterFirst, rows: jax.Array
) -> jax.Array:
    first_words, second_words, third_words = rows.T
    before = jax.tree.map(lambda leaf: leaf[first_words], after_first.states)
    after, _ = step(cell, weights, before, second_words)
    second = _score_word(weights, before, second_words) - after_first.normalisers[first_words]
    first_and_second = after_first.scores[first_words] + second
    third = _score_word(weights, after, third_words)
    return first_and_second + third - _normaliser(weights, after)


def _context(weights: StepWeights, state: State) -> jax.Array:
    fed_back = state[0]
    return fed_back if weights.to_context is None else fed_back @ weights.to_context


def _score_word(weights: StepWeights, state: State, word: jax.Array) -> jax.Array:
    """Score one word after each state, before normalisation."""
    products = _context(weights, state) * weights.words[word]
    return jnp.sum(products, axis=-1) + weights.word_bias[word]


def _normaliser(weights: StepWeights, state: State) -> jax.Array:
    """Return log Σ exp of all words' scores, after each state."""
    scores = _context(weights, state) @ weights.words.T + weights.word_bias
    return jax.nn.logsumexp(scores, axis=-1)


# All other models.


class _Beginnings(NamedTuple):
    """The beginnings of one length that sorted continuations have."""

    # [distinct, length], sorted.
    distinct: np.ndarray
    # [continuations]: the number of each one's beginning.
    numbers: np.ndarray


def _split_beginnings(continuations: np.ndarray, length: int) -> _Beginnings:
    beginnings = continuations[:, :length]
    distinct, counts = np.unique(beginnings, axis=0, return_counts=True)
    return _Beginnings(distinct, np.repeat(np.arange(len(distinct)), counts))


def _general_scorer(model: WordModel, continuations: np.ndarray, memory: int) -> Scorer:
    """Score sorted continuations by the scores of all words after each distinct beginning."""
    all_beginnings = [_split_beginnings(continuations, length) for length in range(CONTINUATION)]
    most_at_once = max(1, memory // (12 * model.vocabulary))
    size = min(most_at_once, len(continuations))

    def score(prefix: Sequence[int]) -> np.ndarray:
        total = np.zeros(len(continuations), np.float32)
        scores_after = _scores_after(model, prefix, size)
        for length, beginnings in enumerate(all_beginnings):
            _add_next_words(
                total,
                beginnings=beginnings,
                next_words=continuations[:, length],
                scores_after=scores_after,
                size=size,
            )
        return total

    return score


def _add_next_words(
    total: np.ndarray,
    *,
    beginnings: _Beginnings,
    next_words: np.ndarray,
    scores_after: ScoresAfter,
    size: int,
) -> None:
    """Add to each continuation's total the log-probability of one more word of it."""
    for start in range(0, len(beginnings.distinct), size):
        scores = scores_after(beginnings.distinct[start : start + size])
        first, end = np.searchsorted(beginnings.numbers, [start, start + size])
        numbers = beginnings.numbers[first:end] - start
        total[first:end] += scores[numbers, next_words[first:end]]


def _scores_after(model: WordModel, prefix: Sequence[int], size: int) -> ScoresAfter:
    """Return what scores at most `size` texts after the prefix at once."""
    if isinstance(model, Windowed):
        return partial(_score_side_by_side, model, (BEGIN, *prefix), size)
    state = reduce(model.read, prefix, model.start())
    return partial(_score_one_by_one, model, state)


def _score_side_by_side(
    model: Windowed, beginning: tuple[int, ...], size: int, texts: np.ndarray
) -> np.ndarray:
    length = len(beginning) + texts.shape[1]
    # One size, so that it is compiled once.
    rows = np.full((size, length), PADDING, np.int32)
    rows[: len(texts), : len(beginning)] = beginning
    rows[: len(texts), len(beginning) :] = texts
    scores = model.scores_at(rows, length - 1)
    return np.asarray(scores)[: len(texts)]


def _score_one_by_one(model: WordModel, state: Any, texts: np.ndarray) -> np.ndarray:
    scores = []
    for text in texts.tolist():
        after = reduce(model.read, text, state)
        scores.append(model.scores(after))
    return np.stack(scores)
