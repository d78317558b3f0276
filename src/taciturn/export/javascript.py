"""A model as one script, for pages, Node and Keyman.

It holds its runtime, its words, its weights, and its guarantee. A page loads it with <script src>
and finds it as `taciturn.models[name]`, Node gets it from `require`, Keyman takes it as a compiled
`.model.js`. The guarantee is part of the script, so no page can show the model without it.
"""

import base64
import json
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from taciturn.models.ngram import NGram
from taciturn.models.stepping import StepWeights, int8
from taciturn.privacy.ledger.guarantee import Guarantee
from taciturn.release.gate import ExportRefused
from taciturn.release.privacy_statement import WORDS, is_reliable, plain_words

# The seconds that Node may take.
PATIENCE = 120
# In export/runtime: what every script holds, and what runs one in Node.
RUNTIME = ("runtime.js", "words.js", "predictor.js")
CHECK = "check.js"
COMMENT_WIDTH = 100


class Published(NamedTuple):
    """What a script states about its model."""

    # Pages know the model by this name.
    name: str
    words: Sequence[str]
    # The language and the unit, as ModelCard.text has them.
    text: dict[str, str]
    # There is none for a model of public text only, or of unknown text.
    guarantee: Guarantee | None
    # That of release.privacy_statement.statement, or where public text came from.
    statement: str
    # Whose text, as a phrase that continues «learned from»: «the posts of 4,000 people». None where
    # that is unknown.
    learned_from: str | None
    # These words are never suggested.
    blocked: Sequence[str] = ()
    # Whether only its owner may use it.
    personal: bool = False


def javascript_model(
    weights: StepWeights, cell: str, restarts: Sequence[int], about: Published
) -> str:
    """Return the script of an LSTM, a CIFG or a GRU.

    `restarts` are the words after which it starts afresh (models/stepping.py).
    """
    packed: dict[str, Any] = {}
    for name, matrix in _list_matrices(weights).items():
        packed[name] = _pack_in_bytes(matrix)
    packed["word_bias"] = _base64(weights.word_bias)
    packed["gate_bias"] = _base64(weights.gate_bias)
    model = {"cell": cell, "weights": packed, "restarts": list(restarts)}
    return _write_script("recurrent", model, about)


def _pack_in_bytes(matrix: np.ndarray) -> dict[str, str]:
    """Return a matrix as bytes, with a scale for each row."""
    values, scales = int8(matrix)
    return {"values": _base64(values), "scales": _base64(scales)}


def _list_matrices(weights: StepWeights) -> dict[str, np.ndarray]:
    """Return the matrices that a model has, row by row as a script multiplies them."""
    matrices: dict[str, np.ndarray] = {}
    for name in ("input", "recurrent", "projection", "to_context"):
        matrix = getattr(weights, name)
        if matrix is not None:
            matrices[name] = matrix.T
    matrices["words"] = weights.words
    if weights.embedding is not weights.words:
        matrices["embedding"] = weights.embedding
    return matrices


def javascript_ngram(model: NGram, about: Published) -> str:
    """Return the script of an n-gram model.

    What follows a context is stored together, so words need no context beside them.
    """
    short = model.vocabulary <= 2**16
    word_type = np.uint16 if short else np.uint32
    levels = []
    for n, level in enumerate(model.levels):
        packed = {
            "probability": _base64(level.probability),
            "backoff": _base64(level.backoff),
            "words": "",
            "starts": "",
        }
        # Every word is in the first level, in its place.
        if n:
            context_of, words = np.divmod(level.keys, np.uint64(model.vocabulary))
            contexts = len(model.levels[n - 1].keys)
            starts = np.searchsorted(context_of, np.arange(contexts + 1))
            packed["words"] = _base64(words.astype(word_type))
            packed["starts"] = _base64(starts.astype(np.uint32))
        levels.append(packed)
    return _write_script("ngram", {"levels": levels, "short": short}, about)


def check_javascript(
    script: str, texts: Iterable[Iterable[int]], listed: Sequence[str]
) -> list[np.ndarray]:
    """Return the scores that a script's model gives in Node, for each text.

    They are those before its first word and after each, [1 + words, vocabulary]. A script whose
    words are not those `listed` is refused.
    """
    words_of_texts = [[int(word) for word in words] for words in texts]
    words, _, scores = _run_in_node(script, words_of_texts).partition(b"\n")
    if json.loads(words) != list(listed):
        raise ExportRefused("the script has other words than the model: nothing was written")
    rows = np.frombuffer(scores, "<f4").reshape(-1, len(listed))
    ends = np.cumsum([1 + len(text) for text in words_of_texts])
    return np.split(rows, ends[:-1])


def _run_in_node(script: str, texts: list[list[int]]) -> bytes:
    """Return what Node prints that runs the script on these texts."""
    node = shutil.which("node")
    if node is None:
        raise ExportRefused(
            "a script is checked before it is written, and that needs Node.js: install it, or"
            " export to another format"
        )
    question = json.dumps({"script": script, "texts": texts}).encode()
    try:
        done = subprocess.run(
            [node, "-e", _read_runtime(CHECK)],
            input=question,
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
    except subprocess.TimeoutExpired:
        words = sum(len(text) for text in texts)
        raise ExportRefused(
            f"in Node the script did not finish {words} words within {PATIENCE} seconds"
        ) from None
    except subprocess.CalledProcessError as error:
        raise ExportRefused(
            f"the script does not run in Node: {_find_reason(error.stderr, error.returncode)}"
        ) from None
    return done.stdout


def _find_reason(complaint: bytes, exit_code: int) -> str:
    """Return the line of what Node complained of that names an error, or the last."""
    lines = complaint.decode(errors="replace").strip().splitlines()
    if not lines:
        return f"exit code {exit_code}"
    errors = [line for line in lines if "Error" in line]
    return errors[0] if errors else lines[-1]


def _write_script(kind: str, model: dict[str, Any], about: Published) -> str:
    if about.text.get("unit", "word") != "word":
        raise ExportRefused("a keyboard suggests words; this model was trained on characters")
    if about.personal:
        plain = WORDS["plain"]["personal"]
    else:
        plain = plain_words(about.guarantee, about.learned_from)
    content = {
        "name": about.name,
        "plain": plain,
        "promises": _is_reliable(about),
        "statement": about.statement,
        "head": about.guarantee.head if about.guarantee else None,
        "language": about.text["language"],
        "blocked": list(about.blocked),
        "words": "\n".join(about.words),
        "kind": kind,
        "model": model,
    }
    published = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    # Nothing in it may end the page's <script>.
    published = published.replace("<", "\\u003c")
    runtime = "\n".join(_read_runtime(name) for name in RUNTIME)
    comment = _write_comment(plain, about)
    return f"/*\n{comment}\n */\n(function () {{\n{runtime}\npublish({published});\n}})();\n"


def _is_reliable(about: Published) -> bool:
    """Tell whether people may rely on the guarantee; if not, pages show it as a warning."""
    if about.learned_from is None or about.personal:
        return False
    guarantee = about.guarantee
    return guarantee is None or is_reliable(guarantee)


def _write_comment(plain: Iterable[str], about: Published) -> str:
    """Return the lines at the top of a script, which say what it is to those who open it."""
    paragraphs = [f"Taciturn keyboard model «{about.name}»", *plain]
    if about.guarantee:
        paragraphs.append(f"Ledger row: {about.guarantee.head}")
    if about.guarantee and about.guarantee.ledger_key:
        paragraphs.append(f"Ledger key: {about.guarantee.ledger_key}")
    lines = []
    for paragraph in paragraphs:
        lines += textwrap.wrap(paragraph, COMMENT_WIDTH)
    comment = "\n".join(f" * {line}" for line in lines)
    # Nothing in it may end the comment or the page's <script>.
    return re.sub(r"\*/|<", lambda found: f"{found[0][0]} {found[0][1:]}", comment)


def _read_runtime(name: str) -> str:
    return (files("taciturn.export") / "runtime" / name).read_text("utf-8")


def _base64(array: np.ndarray) -> str:
    little_endian = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return base64.b64encode(little_endian.tobytes()).decode()
