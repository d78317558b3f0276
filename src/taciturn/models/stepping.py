"""Neural models word by word, as keyboards run them.

`StepWeights` is what a step needs of a recurrent model, whatever its kind; Python, ONNX and JavaScript all take it from here:

    gates    = embedding[word] @ input + gate_bias
    output   = cell(gates, fed_back @ recurrent, carry)          and the next carry
    fed_back = output @ projection                               (CIFG; else the output itself)
    context  = fed_back @ to_context                             (LSTM and GRU; else what is fed back)
    logits   = words @ context + word_bias
"""

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import BEGIN, LanguageModel, Params
from taciturn.models import cifg, gru, lstm

Cell = Literal["lstm", "cifg", "gru"]
CELLS = {"lstm": lstm.cell, "cifg": cifg.cell, "gru": gru.cell}
BLOCK = 256  # words whose scores are taken at a time when a text is read in one go
WINDOW = 64  # words back that a model without a state looks at


class StepWeights(NamedTuple):
    """float32 arrays."""

    embedding: np.ndarray  # [vocabulary, width], scaled to length 1 where the model asks for it
    words: np.ndarray  # [vocabulary, context]; the same array as `embedding` where they are tied
    word_bias: np.ndarray
    input: np.ndarray  # [width, gates]
    gate_bias: np.ndarray
    recurrent: np.ndarray  # [fed back, gates]
    projection: np.ndarray | None  # [units, fed back]
    to_context: np.ndarray | None  # [units, context]

    @property
    def units(self) -> int:
        """Length of the carry."""
        matrix = self.projection if self.projection is not None else self.to_context
        assert matrix is not None
        return matrix.shape[0]


State = tuple[jax.Array, jax.Array]  # what is fed back, and the carry


def step_weights(model: LanguageModel, params: Params) -> StepWeights:
    """Of an LSTM, a CIFG or a GRU."""
    words, bias = (np.asarray(part, np.float32) for part in model.words(params))
    tied = model.word_embedding == model.embedding
    return StepWeights(
        embedding=words if tied else np.asarray(params[model.embedding], np.float32),
        words=words,
        word_bias=bias,
        input=np.asarray(params["input"], np.float32),
        gate_bias=np.asarray(params["gate_bias"], np.float32),
        recurrent=np.asarray(params["recurrent"], np.float32),
        projection=_optional(params, "projection"),
        to_context=_optional(params, "output"),
    )


def _optional(params: Params, name: str) -> np.ndarray | None:
    return np.asarray(params[name], np.float32) if name in params else None


@partial(jax.jit, static_argnums=0)
def step(cell: Cell, weights: StepWeights, state: State, word: jax.Array) -> tuple[State, jax.Array]:
    """One word, or a batch of them → the next state, and the log-probabilities of what follows."""
    fed_back, carry = state
    gates = weights.embedding[word] @ weights.input + weights.gate_bias
    output, carry = CELLS[cell](gates, fed_back @ weights.recurrent, carry)
    fed_back = output if weights.projection is None else output @ weights.projection
    context = fed_back if weights.to_context is None else fed_back @ weights.to_context
    return (fed_back, carry), jax.nn.log_softmax(context @ weights.words.T + weights.word_bias)


def zero_state(weights: StepWeights, *batch: int) -> State:
    return jnp.zeros((*batch, weights.recurrent.shape[0])), jnp.zeros((*batch, weights.units))


class _Neural:
    """What the two below share: reading a text in one go, and where a model starts afresh."""

    def __init__(self, model: LanguageModel, params: Params, restarts: tuple[int, ...] = ()) -> None:
        """`restarts` are the words after which the model expects a new beginning: those that end a sentence, where it was trained on
        single sentences."""
        self.model, self.params = model, jax.device_put(params)
        self.vocabulary: int = params[model.word_embedding].shape[0]
        self._restarts = frozenset(restarts)

    def reading(self, words: np.ndarray) -> Iterator[np.ndarray]:
        ends = [place + 1 for place, word in enumerate(words.tolist()) if word in self._restarts]
        for start, end in zip([0, *ends], [*ends, len(words)], strict=True):
            yield from self._reading_on(words[start:end])

    def _reading_on(self, words: np.ndarray) -> Iterator[np.ndarray]:
        if not len(words):
            return
        padded = np.zeros((1, -(-len(words) // BLOCK) * BLOCK), np.int32)  # few lengths, so few programs
        padded[0, : len(words)] = [BEGIN, *words[:-1]]
        contexts = self._contexts(self.params, padded)
        for start in range(0, len(words), BLOCK):
            scores = np.asarray(self._scores(self.params, contexts[0, start : start + BLOCK]))
            yield from scores[: len(words) - start]

    @cached_property
    def _contexts(self):
        return jax.jit(lambda params, tokens: self.model.contexts(params, tokens, None))

    @cached_property
    def _scores(self):
        def scores(params: Params, contexts: jax.Array) -> jax.Array:
            matrix, bias = self.model.words(params)
            return jax.nn.log_softmax(contexts @ matrix.T + bias)

        return jax.jit(scores)


class Recurrent(_Neural):
    """A `core.WordModel` of an LSTM, a CIFG or a GRU. A state is what the recurrence carries, and the scores that came with it."""

    def __init__(self, cell: Cell, model: LanguageModel, params: Params, restarts: tuple[int, ...] = ()) -> None:
        super().__init__(model, params, restarts)
        self._cell: Cell = cell
        self._weights: StepWeights = jax.device_put(step_weights(model, params))
        self._start = step(cell, self._weights, zero_state(self._weights), np.int32(BEGIN))

    def start(self) -> tuple[State, jax.Array]:
        return self._start

    def read(self, state: tuple[State, jax.Array], word: int) -> tuple[State, jax.Array]:
        if word in self._restarts:
            return self._start
        return step(self._cell, self._weights, state[0], np.int32(word))

    def scores(self, state: tuple[State, jax.Array]) -> np.ndarray:
        return np.asarray(state[1])


class Windowed(_Neural):
    """A `core.WordModel` of a model without a state, a Transformer: what it knows of a text are the last words of it."""

    def start(self) -> tuple[int, ...]:
        return (BEGIN,)

    def read(self, state: tuple[int, ...], word: int) -> tuple[int, ...]:
        return self.start() if word in self._restarts else (*state, word)[-WINDOW:]

    def scores(self, state: tuple[int, ...]) -> np.ndarray:
        padded = np.zeros((1, WINDOW), np.int32)
        padded[0, : len(state)] = state
        contexts = self._contexts(self.params, padded)
        return np.asarray(self._scores(self.params, contexts[:, len(state) - 1])[0])

    def _reading_on(self, words: np.ndarray) -> Iterator[np.ndarray]:
        state = self.start()
        for word in words.tolist():
            yield self.scores(state)
            state = self.read(state, word)
