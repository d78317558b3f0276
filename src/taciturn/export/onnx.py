"""A recurrent model as ONNX: one word and the state in, the next words and the new state out.

Built from primitives: ONNX's LSTM operator has no CIFG, no projection and no tied embedding.
Weights in bytes are widened when the file is loaded; activations are never rounded, so that what
was checked here holds on every processor.

Inputs:
    word              int64 [batch]; <bos> first
    fed_back, carry   float32 [batch, …]; zeros first, and after a word of the metadata's `restarts`

Outputs:
    top_words         int64 [batch, 10]; never a special token, nor a blocked word
    top_log_probabilities, logits, next_fed_back, next_carry
"""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from scipy.special import log_softmax

from taciturn.core import BEGIN
from taciturn.models.recurrence import Cell
from taciturn.models.stepping import StepWeights, int8
from taciturn.release.gate import ExportRefused

if TYPE_CHECKING:
    import onnx

# Those of 2022, which phones have.
OPSET = 17
IR_VERSION = 8
BEST = 10
# JAX's names of operators, and ONNX's.
OPERATORS = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "tanh": "Tanh",
    "logistic": "Sigmoid",
}


class Stored(NamedTuple):
    """The names of a stored matrix' values and, for bytes, of its scales."""

    values: str
    scales: str | None


class _Outputs(NamedTuple):
    """The names of what a step of the model gives."""

    logits: str
    fed_back: str
    carry: str


def import_libraries() -> tuple[Any, Any]:
    """Return onnx and onnxruntime; refuse the export without them."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise ExportRefused(
            f"writing ONNX and checking it needs two more libraries ({error}): pip install"
            " 'taciturn[onnx]'"
        ) from None
    return onnx, onnxruntime


def onnx_model(
    *,
    cell: Cell,
    weights: StepWeights,
    never: Iterable[int],
    restarts: Iterable[int],
    about: dict[str, str],
    as_bytes: bool,
) -> "onnx.ModelProto":
    """Build the graph.

    Args:
        cell: of the recurrence.
        weights: of the model.
        never: words not to suggest.
        restarts: words after which the model starts afresh.
        about: its metadata.
        as_bytes: whether matrices are stored as bytes with a scale a row.
    """
    onnx, _ = import_libraries()
    graph = _Graph(onnx, as_bytes)
    never = sorted(never)
    vocabulary = len(weights.word_bias)
    step = _add_model(graph, cell, weights)
    best = _add_best_words(graph, step.logits, vocabulary=vocabulary, never=never)
    graph.add("Identity", step.logits, out=("logits",))
    graph.add("Identity", step.fed_back, out=("next_fed_back",))
    graph.add("Identity", step.carry, out=("next_carry",))
    metadata = {
        "never": json.dumps(never),
        "restarts": json.dumps(sorted(restarts)),
        **about,
    }
    return graph.finish(
        states={"fed_back": len(weights.recurrent), "carry": weights.units},
        vocabulary=vocabulary,
        best_words=best,
        metadata=metadata,
    )


def _add_model(graph: "_Graph", cell: Cell, weights: StepWeights) -> _Outputs:
    """Add a step of the model; return the names of what it gives."""
    words = graph.store(weights.words.T)
    is_tied = weights.embedding is weights.words
    embedding = words if is_tied else graph.store(weights.embedding.T)
    output, carry = _add_cell(graph, cell, weights=weights, embedding=embedding)
    fed_back = graph.multiply(output, weights.projection)
    context = graph.multiply(fed_back, weights.to_context)
    scores = graph.add("MatMul", context, graph.widen(words))
    return _Outputs(
        logits=graph.add("Add", scores, graph.constant(weights.word_bias)),
        fed_back=fed_back,
        carry=carry,
    )


def _add_cell(
    graph: "_Graph", cell: Cell, *, weights: StepWeights, embedding: Stored
) -> tuple[str, str]:
    """Add a step of the recurrence; return the names of its output and its carry."""
    from_word = graph.multiply(graph.column(embedding, "word"), weights.input)
    gates = graph.add("Add", from_word, graph.constant(weights.gate_bias))
    recurrent = graph.multiply("fed_back", weights.recurrent)
    program = _trace_cell(cell, gates=len(weights.gate_bias), units=weights.units)
    output, carry = graph.trace(program, [gates, recurrent, "carry"])
    return output, carry


def _trace_cell(cell: Cell, *, gates: int, units: int) -> Jaxpr:
    """Return the operations of a step, for one row."""
    gate_shape = jax.ShapeDtypeStruct((1, gates), np.float32)
    carry_shape = jax.ShapeDtypeStruct((1, units), np.float32)
    return jax.make_jaxpr(cell)(gate_shape, gate_shape, carry_shape).jaxpr


def _add_best_words(graph: "_Graph", logits: str, vocabulary: int, never: list[int]) -> int:
    """Add the best words that may be suggested; return how many there are."""
    penalties = np.zeros(vocabulary, np.float32)
    penalties[never] = -np.inf
    allowed = np.count_nonzero(penalties == 0)
    best = min(BEST, int(allowed))
    log_probabilities = graph.add("LogSoftmax", logits, axis=-1)
    ranked = graph.add("Add", log_probabilities, graph.constant(penalties))
    graph.add(
        "TopK",
        ranked,
        graph.constant(np.array([best], np.int64)),
        out=("top_log_probabilities", "top_words"),
    )
    return best


class _Names(NamedTuple):
    """The names of a cell's variables in a graph; its literals become constants."""

    graph: "_Graph"
    of_variables: dict[Var, str]

    def find(self, values: Sequence[Var | Literal]) -> list[str]:
        return [self._find_one(value) for value in values]

    def _find_one(self, value: Var | Literal) -> str:
        if isinstance(value, Literal):
            return self.graph.constant(np.full(1, value.val, np.float32))
        return self.of_variables[value]


class _Graph:
    """Nodes in the order they are added, with names for their outputs.

    Matrices are stored once, as float32 or as bytes.
    """

    def __init__(self, onnx: Any, as_bytes: bool) -> None:
        self.onnx = onnx
        self.nodes = []
        self.constants = []
        self.as_bytes = as_bytes

    def add(self, operator: str, *inputs: str, out: tuple[str, ...] = (), **attributes: Any) -> Any:
        """Add a node; return the name of its output, or their names where there are several."""
        names = out or (f"{operator.lower()}_{len(self.nodes)}",)
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, names, **attributes))
        return names[0] if len(names) == 1 else names

    def constant(self, value: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def store(self, matrix: np.ndarray) -> Stored:
        """Store a matrix [inputs, outputs]."""
        if not self.as_bytes:
            return Stored(values=self.constant(matrix), scales=None)
        values, scales = int8(matrix.T)
        return Stored(values=self.constant(values.T), scales=self.constant(scales))

    def widen(self, stored: Stored) -> str:
        """Return the values as float32."""
        if stored.scales is None:
            return stored.values
        values = self.add("Cast", stored.values, to=self.onnx.TensorProto.FLOAT)
        return self.add("Mul", values, stored.scales)

    def multiply(self, value: str, matrix: np.ndarray | None) -> str:
        """Multiply by a matrix, if there is one."""
        if matrix is None:
            return value
        return self.add("MatMul", value, self.widen(self.store(matrix)))

    def column(self, stored: Stored, place: str) -> str:
        """Return one output's column of a stored matrix, as a row."""
        gathered = self.add("Gather", stored.values, place, axis=1)
        rows = self.add("Transpose", gathered, perm=[1, 0])
        if stored.scales is None:
            return rows
        scales = self.add("Gather", stored.scales, place)
        axis = self.constant(np.array([1], np.int64))
        return self.widen(Stored(values=rows, scales=self.add("Unsqueeze", scales, axis)))

    def trace(self, program: Jaxpr, inputs: list[str]) -> list[str]:
        """Add the nodes of a cell as JAX traces it, so that it is defined once."""
        names = _Names(self, dict(zip(program.invars, inputs, strict=True)))
        for step in program.eqns:
            outputs = self._trace_step(step, names.find(step.invars))
            names.of_variables.update(zip(step.outvars, outputs, strict=True))
        return names.find(program.outvars)

    def _trace_step(self, step: JaxprEqn, inputs: list[str]) -> list[str]:
        """Add the nodes of one operation; return the names of what it gives."""
        kind = step.primitive.name
        if kind == "split":
            return self._split(inputs, step.params["sizes"])
        # A function within the cell.
        if "jaxpr" in step.params:
            return self.trace(step.params["jaxpr"].jaxpr, inputs)
        if kind in OPERATORS:
            return [self.add(OPERATORS[kind], *inputs)]
        raise ExportRefused(
            f"ONNX export supports cells of {', '.join(OPERATORS)} and split, not of {kind};"
            " choose another"
        )

    def _split(self, inputs: list[str], sizes: Sequence[int]) -> list[str]:
        parts = tuple(f"part_{len(self.nodes)}_{part}" for part in range(len(sizes)))
        lengths = self.constant(np.array(sizes, np.int64))
        return self.add("Split", *inputs, lengths, out=parts, axis=-1)

    def finish(
        self,
        *,
        states: dict[str, int],
        vocabulary: int,
        best_words: int,
        metadata: dict[str, str],
    ) -> "onnx.ModelProto":
        """Return the model of all nodes, checked."""
        helper = self.onnx.helper
        kinds = self.onnx.TensorProto

        def declare(name: str, kind: int, *sizes: int) -> Any:
            return helper.make_tensor_value_info(name, kind, ["batch", *sizes])

        before = [declare(name, kinds.FLOAT, size) for name, size in states.items()]
        after = [declare(f"next_{name}", kinds.FLOAT, size) for name, size in states.items()]
        best = [
            declare("top_words", kinds.INT64, best_words),
            declare("top_log_probabilities", kinds.FLOAT, best_words),
            declare("logits", kinds.FLOAT, vocabulary),
        ]
        graph = helper.make_graph(
            self.nodes,
            "next_word",
            inputs=[declare("word", kinds.INT64), *before],
            outputs=best + after,
            initializer=self.constants,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="taciturn",
        )
        helper.set_model_props(model, metadata)
        self.onnx.checker.check_model(model)
        return model


def onnx_scores(content: bytes, words: np.ndarray) -> np.ndarray:
    """Return the log-probabilities that onnxruntime computes after each word.

    A file whose best words are wrong or blocked is refused.
    """
    _, onnxruntime = import_libraries()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    never = json.loads(metadata["never"])
    restarts = set(json.loads(metadata["restarts"]))
    zero_state = {
        value.name: np.zeros((1, value.shape[1]), np.float32)
        for value in session.get_inputs()
        if value.name != "word"
    }
    outputs = ["logits", "top_words", *(f"next_{name}" for name in zero_state)]
    state = zero_state
    rows = []
    for word in (BEGIN, *words.tolist()):
        if word in restarts:
            state = zero_state
            word = BEGIN
        inputs = {"word": np.array([word], np.int64), **state}
        logits, best, *after = session.run(outputs, inputs)
        state = dict(zip(state, after, strict=True))
        log_probabilities = log_softmax(logits[0])
        _check_best_words(best[0], log_probabilities, never)
        rows.append(log_probabilities)
    return np.stack(rows)


def _check_best_words(best: np.ndarray, log_probabilities: np.ndarray, never: list[int]) -> None:
    allowed = log_probabilities.copy()
    allowed[never] = -np.inf
    if set(best) & set(never) or allowed[best[0]] < allowed.max():
        raise ExportRefused(
            "the graph's best words are not those of its logits: nothing was written"
        )
