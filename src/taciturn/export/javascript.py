"""A model as one script, for pages, Node and Keyman: its runtime, its words, its weights, and its
guarantee.

A page loads it with <script src> and finds it as `taciturn.models[name]`, Node gets it from
`require`, Keyman takes it as a compiled `.model.js`. The guarantee is part of the script, so no
page can show the model without it.
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
from taciturn.privacy.accounting.rounding_up import WEAK
from taciturn.privacy.ledger.ledger import Guarantee
from taciturn.release.gate import ExportRefused
from taciturn.release.privacy_statement import WORDS, plain_words

# seconds allowed to Node
PATIENCE = 120
# in export/runtime
RUNTIME, CHECK = ("runtime.js", "words.js", "predictor.js"), "check.js"


class Published(NamedTuple):
    """What a script states about its model."""

    # by which pages know it
    name: str
    words: Sequence[str]
    # ModelCard.text: language and unit
    text: dict[str, str]
    # none for a model of public text alone, or of unknown text
    guarantee: Guarantee | None
    # release.privacy_statement.statement's, or where public text came from
    statement: str
    # whose text, as a phrase that continues «learned from»: «the posts of 4,000 people»; None:
    # unknown
    learned_from: str | None
    # words that are never suggested
    blocked: Sequence[str] = ()
    # whether it is its owner's alone
    personal: bool = False


def javascript_model(
    weights: StepWeights, cell: str, restarts: Sequence[int], about: Published
) -> str:
    """Return the script of an LSTM, a CIFG or a GRU; `restarts` are the words after which it starts
    afresh (models/stepping.py).
    """
    turned = {
        name: getattr(weights, name) for name in ("input", "recurrent", "projection", "to_context")
    }
    rows = {name: matrix.T for name, matrix in turned.items() if matrix is not None} | {
        "words": weights.words
    }
    if weights.embedding is not weights.words:
        rows["embedding"] = weights.embedding
    small = {name: int8(matrix) for name, matrix in rows.items()}
    packed: dict[str, Any] = {
        name: {"values": _base64(values), "scales": _base64(scales)}
        for name, (values, scales) in small.items()
    }
    packed |= {name: _base64(getattr(weights, name)) for name in ("word_bias", "gate_bias")}
    return _script(
        "recurrent", {"cell": cell, "weights": packed, "restarts": list(restarts)}, about
    )


def javascript_ngram(model: NGram, about: Published) -> str:
    """Return the script of an n-gram model. What follows a context is stored together, so words
    need no context beside them.
    """
    short = model.vocabulary <= 2**16
    levels = []
    for n, level in enumerate(model.levels):
        contexts, words = np.divmod(level.keys, np.uint64(model.vocabulary))
        levels.append(
            {
                "probability": _base64(level.probability),
                "backoff": _base64(level.backoff),
                "words": "",
                "starts": "",
            }
        )
        if n:
            starts = np.searchsorted(contexts, np.arange(len(model.levels[n - 1].keys) + 1)).astype(
                np.uint32
            )
            levels[n] |= {
                "words": _base64(words.astype(np.uint16 if short else np.uint32)),
                "starts": _base64(starts),
            }
    return _script("ngram", {"levels": levels, "short": short}, about)


def check_javascript(
    script: str, texts: Iterable[Iterable[int]], listed: Sequence[str]
) -> list[np.ndarray]:
    """For each text return the scores that a script's model gives in Node before its first word and
    after each, [1 + words, vocabulary]; refuse a script whose words are not those `listed`.
    """
    node, texts = shutil.which("node"), [list(map(int, words)) for words in texts]
    if node is None:
        raise ExportRefused(
            "a script is checked before it is written, and that needs Node.js: install it, or"
            " export to another format"
        )
    try:
        asked = json.dumps({"script": script, "texts": texts}).encode()
        done = subprocess.run(
            [node, "-e", _runtime(CHECK)],
            input=asked,
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise ExportRefused(
            f"in Node the script did not finish {sum(map(len, texts))} words within {PATIENCE}"
            " seconds"
        ) from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines() or [
            f"exit code {error.returncode}"
        ]
        reason = next((line for line in said if "Error" in line), said[-1])
        raise ExportRefused(f"the script does not run in Node: {reason}") from None
    words, _, scores = done.stdout.partition(b"\n")
    if json.loads(words) != list(listed):
        raise ExportRefused("the script has other words than the model: nothing was written")
    rows = np.frombuffer(scores, "<f4").reshape(-1, len(listed))
    return np.split(rows, np.cumsum([1 + len(text) for text in texts])[:-1])


def _script(kind: str, model: dict[str, Any], about: Published) -> str:
    if about.text.get("unit", "word") != "word":
        raise ExportRefused("a keyboard suggests words; this model was trained on characters")
    plain = (
        WORDS["plain"]["personal"]
        if about.personal
        else plain_words(about.guarantee, about.learned_from)
    )
    known, given = about.learned_from is not None and not about.personal, about.guarantee
    # Whether people may rely on the guarantee; if not, pages show it as a warning.
    promises = known and (given is None or (given.epsilon <= WEAK and not given.is_simulated))
    content = {
        "name": about.name,
        "plain": plain,
        "promises": promises,
        "statement": about.statement,
    }
    content |= {
        "head": given.head if given else None,
        "language": about.text["language"],
        "blocked": list(about.blocked),
    }
    content |= {"words": "\n".join(about.words), "kind": kind, "model": model}
    runtime = "\n".join(map(_runtime, RUNTIME))
    published = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )
    paragraphs = [
        f"Taciturn keyboard model «{about.name}»",
        *plain,
        *([f"Ledger row: {given.head}"] if given else []),
    ]
    lines = [line for paragraph in paragraphs for line in textwrap.wrap(paragraph, 100)]
    comment = re.sub(
        r"\*/|<",
        lambda found: f"{found[0][0]} {found[0][1:]}",
        "\n".join(f" * {line}" for line in lines),
    )
    return f"/*\n{comment}\n */\n(function () {{\n{runtime}\npublish({published});\n}})();\n"


def _runtime(name: str) -> str:
    return (files("taciturn.export") / "runtime" / name).read_text("utf-8")


def _base64(array: np.ndarray) -> str:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return base64.b64encode(little.tobytes()).decode()
