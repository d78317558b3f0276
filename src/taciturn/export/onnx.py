"""A recurrent model as ONNX: one word and the state in, the ten best next words, all logits and the
new state out.

Built from primitives: ONNX's LSTM operator has no CIFG, no projection and no tied embedding.
Weights in bytes are widened when the file is loaded; activations are never rounded, so that what
was checked here holds on every processor.

    word              int64 [batch]                 <bos> first fed_back, carry   float32 [batch, …]
    zeros first, and after a word of the metadata's `restarts` top_words         int64 [batch, 10]
    never a special token, nor a blocked word top_log_probabilities, logits, next_fed_back,
    next_carry
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, Literal, Var
from scipy.special import log_softmax

from taciturn.core import BEGIN
from taciturn.models.recurrence import Cell
from taciturn.models.stepping import StepWeights, int8
from taciturn.release.gate import ExportRefused

if TYPE_CHECKING:
    import onnx

# of 2022: what is on phones
OPSET, IR_VERSION = 17, 8
BEST = 10
# of JAX, of ONNX
OPERATORS = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "tanh": "Tanh",
    "logistic": "Sigmoid",
}


def libraries() -> tuple[Any, Any]:
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
    cell: Cell,
    weights: StepWeights,
    never: Iterable[int],
    restarts: Iterable[int],
    about: dict[str, str],
    as_bytes: bool,
) -> "onnx.ModelProto":
    """Build the graph. `never` are words not to suggest, `restarts` those after which the model
    starts afresh, `about` its metadata.
    """
    onnx, _ = libraries()
    graph = _Graph(onnx, as_bytes)
    words = graph.stored(weights.words.T)
    embedding = words if weights.embedding is weights.words else graph.stored(weights.embedding.T)
    gates = graph(
        "Add",
        graph.product(graph.column(embedding, "word"), weights.input),
        graph.constant(weights.gate_bias),
    )
    recurrent = graph.product("fed_back", weights.recurrent)
    shapes = [
        jax.ShapeDtypeStruct((1, size), np.float32)
        for size in (*weights.gate_bias.shape * 2, weights.units)
    ]
    output, carry = graph.traced(jax.make_jaxpr(cell)(*shapes).jaxpr, [gates, recurrent, "carry"])
    fed_back = graph.product(output, weights.projection)
    context = graph.product(fed_back, weights.to_context)
    logits = graph(
        "Add", graph("MatMul", context, graph.widened(*words)), graph.constant(weights.word_bias)
    )
    never = sorted(never)
    allowed = np.zeros(len(weights.word_bias), np.float32)
    allowed[never] = -np.inf
    best = min(BEST, int(np.count_nonzero(allowed == 0)))
    ranked = graph("Add", graph("LogSoftmax", logits, axis=-1), graph.constant(allowed))
    graph(
        "TopK",
        ranked,
        graph.constant(np.array([best], np.int64)),
        out=("top_log_probabilities", "top_words"),
    )
    for name, value in (("logits", logits), ("next_fed_back", fed_back), ("next_carry", carry)):
        graph("Identity", value, out=(name,))
    sizes = {"fed_back": len(weights.recurrent), "carry": weights.units}
    metadata = {"never": json.dumps(never), "restarts": json.dumps(sorted(restarts)), **about}
    return graph.finished(sizes, len(weights.word_bias), best, metadata)


class _Graph:
    """Nodes in the order they are called, with names for their outputs. Matrices are stored once,
    as float32 or as bytes.
    """

    def __init__(self, onnx: Any, as_bytes: bool) -> None:
        self.onnx, self.nodes, self.constants, self.as_bytes = onnx, [], [], as_bytes

    def __call__(
        self, operator: str, *inputs: str, out: tuple[str, ...] = (), **attributes: Any
    ) -> Any:
        names = out or (f"{operator.lower()}_{len(self.nodes)}",)
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, names, **attributes))
        return names[0] if len(names) == 1 else names

    def constant(self, value: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def stored(self, matrix: np.ndarray) -> tuple[str, str | None]:
        """Store a matrix [inputs, outputs]; return the names of its values and, for bytes, of its
        scales.
        """
        if not self.as_bytes:
            return self.constant(matrix), None
        values, scales = int8(matrix.T)
        return self.constant(values.T), self.constant(scales)

    def widened(self, values: str, scales: str | None) -> str:
        return (
            values
            if scales is None
            else self("Mul", self("Cast", values, to=self.onnx.TensorProto.FLOAT), scales)
        )

    def product(self, value: str, matrix: np.ndarray | None) -> str:
        return (
            value if matrix is None else self("MatMul", value, self.widened(*self.stored(matrix)))
        )

    def column(self, stored: tuple[str, str | None], place: str) -> str:
        """Return one output's column of a stored matrix, as a row."""
        values, scales = stored
        rows = self("Transpose", self("Gather", values, place, axis=1), perm=[1, 0])
        if scales is None:
            return rows
        return self.widened(
            rows,
            self(
                "Unsqueeze", self("Gather", scales, place), self.constant(np.array([1], np.int64))
            ),
        )

    def traced(self, program: Jaxpr, inputs: list[str]) -> list[str]:
        """Add the nodes of a cell as JAX traces it, so that it is defined once."""
        named = dict(zip(program.invars, inputs, strict=True))

        def name_of(value: Var | Literal) -> str:
            return (
                self.constant(np.full(1, value.val, np.float32))
                if isinstance(value, Literal)
                else named[value]
            )

        for step in program.eqns:
            given, kind = [name_of(value) for value in step.invars], step.primitive.name
            if kind == "split":
                sizes = np.array(step.params["sizes"], np.int64)
                parts = tuple(f"part_{len(self.nodes)}_{part}" for part in range(len(sizes)))
                found = self("Split", *given, self.constant(sizes), out=parts, axis=-1)
            # a function within it
            elif "jaxpr" in step.params:
                found = self.traced(step.params["jaxpr"].jaxpr, given)
            elif kind in OPERATORS:
                found = [self(OPERATORS[kind], *given)]
            else:
                raise ExportRefused(
                    f"ONNX export supports cells of {', '.join(OPERATORS)} and split, not of"
                    f" {kind}; choose another"
                )
            named |= dict(zip(step.outvars, found, strict=True))
        return [name_of(value) for value in program.outvars]

    def finished(
        self, states: dict[str, int], vocabulary: int, best_words: int, metadata: dict[str, str]
    ) -> "onnx.ModelProto":
        make, kinds = self.onnx.helper.make_tensor_value_info, self.onnx.TensorProto
        before = [make(name, kinds.FLOAT, ["batch", size]) for name, size in states.items()]
        after = [
            make(f"next_{name}", kinds.FLOAT, ["batch", size]) for name, size in states.items()
        ]
        best = [
            make("top_words", kinds.INT64, ["batch", best_words]),
            make("top_log_probabilities", kinds.FLOAT, ["batch", best_words]),
            make("logits", kinds.FLOAT, ["batch", vocabulary]),
        ]
        inputs = [make("word", kinds.INT64, ["batch"]), *before]
        graph = self.onnx.helper.make_graph(
            self.nodes, "next_word", inputs, best + after, self.constants
        )
        opset = [self.onnx.helper.make_opsetid("", OPSET)]
        model = self.onnx.helper.make_model(
            graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="taciturn"
        )
        self.onnx.helper.set_model_props(model, metadata)
        self.onnx.checker.check_model(model)
        return model


def onnx_scores(content: bytes, words: np.ndarray) -> np.ndarray:
    """Return the log-probabilities that onnxruntime computes after each word; refuse a file whose
    best words are wrong or blocked.
    """
    _, onnxruntime = libraries()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    said = session.get_modelmeta().custom_metadata_map
    never, afresh = json.loads(said["never"]), set(json.loads(said["restarts"]))
    zero = {
        one.name: np.zeros((1, one.shape[1]), np.float32)
        for one in session.get_inputs()
        if one.name != "word"
    }
    wanted = ["logits", "top_words", *(f"next_{name}" for name in zero)]
    state, rows = zero, []
    for word in (BEGIN, *words.tolist()):
        if word in afresh:
            state, word = zero, BEGIN
        logits, best, *after = session.run(wanted, {"word": np.array([word], np.int64), **state})
        state = dict(zip(state, after, strict=True))
        rows.append(log_softmax(logits[0]))
        allowed = rows[-1].copy()
        allowed[never] = -np.inf
        if set(best[0]) & set(never) or allowed[best[0][0]] < allowed.max():
            raise ExportRefused(
                "the graph's best words are not those of its logits: nothing was written"
            )
    return np.stack(rows)
