"""A model on its way to a keyboard: as a page serves it, as a script, and all that may refuse
it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import numpy as np

from taciturn.core import END
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.export.javascript import Published
from taciturn.models.ngram import katz
from taciturn.models.stepping import StepWeights, int8
from taciturn.privacy.ledger.ledger import LedgerError
from taciturn.release.gate import ExportRefused
from taciturn.release.model_file import ModelFileError, load_model, save_model
from taciturn.runs.folder import RunError
from taciturn.runs.try_keyboard import make_keyboard_server

REFUSED = (ExportRefused, RunError, DataError, LedgerError, ModelFileError)


def changed_card(folder: Path, **fields) -> None:
    params, card = load_model(folder)
    save_model(folder / "model.safetensors", params, replace(card, **fields))


@contextmanager
def served(*paths: Path, blocked: tuple[str, ...] = ()) -> Iterator[HTTPConnection]:
    server = make_keyboard_server(paths, blocked, 0)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield HTTPConnection("127.0.0.1", int(server.url.rsplit(":", 1)[1].strip("/")), timeout=10)
    finally:
        server.close()


def script_on_page(*paths: Path) -> str:
    with served(*paths) as connection:
        connection.request("GET", "/model-1.js")
        return connection.getresponse().read().decode()


def published(
    vocabulary: Vocabulary, name: str = "one", blocked: tuple[str, ...] = ()
) -> Published:
    return Published(
        name=name,
        words=vocabulary.words,
        text=vocabulary.about,
        guarantee=None,
        statement="made up",
        learned_from="public text",
        blocked=blocked,
    )


def counted(vocabulary: Vocabulary, *sentences: str, order: int = 3):
    ids = [[vocabulary.ids[word] for word in one.split()] for one in sentences]
    return katz([np.array([*one, END] * 4) for one in ids], len(vocabulary), order)


def in_bytes(weights: StepWeights) -> StepWeights:
    """What bytes say of the weights that were rounded to them."""

    def rounded(matrix: np.ndarray) -> np.ndarray:
        values, scales = int8(matrix)
        return values.astype(np.float32) * scales[:, None]

    named = {
        name: getattr(weights, name) for name in ("input", "recurrent", "projection", "to_context")
    }
    turned = {name: rounded(matrix.T).T for name, matrix in named.items() if matrix is not None}
    words, tied = rounded(weights.words), weights.embedding is weights.words
    return weights._replace(
        **turned, words=words, embedding=words if tied else rounded(weights.embedding)
    )
