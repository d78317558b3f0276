"""Neural models word by word, as keyboards run them.

`StepWeights` is what a step needs of a recurrent model, whatever its kind; Python, ONNX and
JavaScript all use it:

    gates    = embedding[word] @ input + gate_bias
    output   = cell(gates, fed_back @ recurrent, carry)        and the next carry
    fed_back = output @ projection                             (CIFG; else the output itself)
    context  = fed_back @ to_context                           (LSTM and GRU; else what is fed back)
    logits   = words @ context + word_bias
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import BEGIN, LanguageModel, Params
from taciturn.models.recurrence import Cell

# Words that a model without a state looks back.
WINDOW = 64


class StepWeights(NamedTuple):
    """The weights of one step of an LSTM, a CIFG or a GRU, all float32."""

    # [vocabulary, width], scaled to length 1 where the model requires it.
    embedding: np.ndarray
    # [vocabulary, context]; the same array as `embedding` where they are tied.
    words: np.ndarray
    word_bias: np.ndarray
    # [width, gates].
    input: np.ndarray
    gate_bias: np.ndarray
    # [fed back, gates].
    recurrent: np.ndarray
    # [units, fed back].
    projection: np.ndarray | None
    # [units, context].
    to_context: np.ndarray | None

    @property
    def units(self) -> int:
        """Return the length of the carry."""
        matrix = self.projection if self.projection is not None else self.to_context
        assert matrix is not None
        return matrix.shape[0]


# What is fed back, and the carry.
State = tuple[jax.Array, jax.Array]


def step_weights(model: LanguageModel, params: Params) -> StepWeights:
    """Return the weights of one step of an LSTM, a CIFG or a GRU."""
    words, word_bias = [np.asarray(part, np.float32) for part in model.words(params)]
    arrays = {name: np.asarray(leaf, np.float32) for name, leaf in params.items()}
    is_tied = model.word_embedding == model.embedding
    return StepWeights(
        embedding=words if is_tied else arrays[model.embedding],
        words=words,
        word_bias=word_bias,
        input=arrays["input"],
        gate_bias=arrays["gate_bias"],
        recurrent=arrays["recurrent"],
        projection=arrays.get("projection"),
        to_context=arrays.get("output"),
    )


def int8(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix [outputs, inputs] to values (int8) · scales[:, None] (float32).

    That is a quarter of the size, for phones and pages. An embedding's outputs are its words. Every
    output has its own scale, so one large weight does not blur the others' (−127 … 127).
    """
    largest = np.abs(matrix).max(axis=1)
    scales = np.maximum(largest, 1e-12).astype(np.float32) / 127
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


@partial(jax.jit, static_argnums=0)
def step(
    cell: Cell, weights: StepWeights, state: State, word: jax.Array
) -> tuple[State, jax.Array]:
    """Read one word, or a batch of them.

    Returns:
        The next state, and the log-probabilities of what follows.
    """
    fed_back, carry = state
    gates = weights.embedding[word] @ weights.input + weights.gate_bias
    output, carry = cell(gates, fed_back @ weights.recurrent, carry)
    fed_back = output if weights.projection is None else output @ weights.projection
    context = fed_back if weights.to_context is None else fed_back @ weights.to_context
    logits = context @ weights.words.T + weights.word_bias
    return (fed_back, carry), jax.nn.log_softmax(logits)


def zero_state(weights: StepWeights, *batch: int) -> State:
    """Return the state before the first word, for a batch of this shape."""
    fed_back = jnp.zeros((*batch, weights.recurrent.shape[0]))
    carry = jnp.zeros((*batch, weights.units))
    return fed_back, carry


class Carrying:
    """A model whose state is what its recurrence carries, and the scores that came with it."""

    restarts: frozenset[int]
    _start: tuple[Any, jax.Array]
    _step: Callable[..., tuple[Any, jax.Array]]

    def start(self) -> tuple[Any, jax.Array]:
        return self._start

    def read(self, state: tuple[Any, jax.Array], word: int) -> tuple[Any, jax.Array]:
        return self._start if word in self.restarts else self._step(state[0], np.int32(word))

    def scores(self, state: tuple[Any, jax.Array]) -> np.ndarray:
        return np.asarray(state[1])


class Recurrent(Carrying):
    """A `core.WordModel` of an LSTM, a CIFG or a GRU."""

    def __init__(self, cell: Cell, weights: StepWeights, restarts: tuple[int, ...] = ()) -> None:
        """Run a cell with its weights.

        Args:
            cell: that the weights belong to.
            weights: of one step.
            restarts: the words after which the model begins anew: sentence ends, where it was
                trained on single sentences.
        """
        self.cell = cell
        self.weights = weights
        self.restarts = frozenset(restarts)
        self.vocabulary = len(weights.word_bias)
        self._step = partial(step, cell, jax.device_put(weights))
        self._start = self._step(zero_state(weights), np.int32(BEGIN))


class Windowed:
    """A `core.WordModel` of any model, for lack of a state: it keeps the last words of a text."""

    def __init__(
        self, model: LanguageModel, params: Params, restarts: tuple[int, ...] = ()
    ) -> None:
        self.restarts = frozenset(restarts)
        self.vocabulary: int = params[model.word_embedding].shape[0]
        params = jax.device_put(params)

        def score(tokens: jax.Array, place: jax.Array) -> jax.Array:
            matrix, bias = model.words(params)
            context = model.contexts(params, tokens, None)[:, place]
            return jax.nn.log_softmax(context @ matrix.T + bias)

        self._score = jax.jit(score)

    def start(self) -> Any:
        return (BEGIN,)

    def read(self, state: Any, word: int) -> Any:
        return self.start() if word in self.restarts else (*state, word)[-WINDOW:]

    def scores(self, state: Any) -> np.ndarray:
        padded = np.zeros((1, WINDOW), np.int32)
        padded[0, : len(state)] = state
        return np.asarray(self.scores_at(padded, len(state) - 1)[0])

    def scores_at(self, tokens: np.ndarray, place: int) -> jax.Array:
        """Return the log-probabilities of what follows the word at a place.

        [batch, length] → [batch, vocabulary].
        """
        return self._score(tokens, np.int32(place))


Neural = Recurrent | Windowed
Stepper = Callable[[LanguageModel, Params, tuple[int, ...]], Neural]


def recurrent(cell: Cell) -> Stepper:
    """Return what steps through models of this cell."""

    def build_stepper(model: LanguageModel, params: Params, restarts: tuple[int, ...]) -> Recurrent:
        return Recurrent(cell, step_weights(model, params), restarts)

    return build_stepper
