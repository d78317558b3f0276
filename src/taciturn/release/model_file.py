"""Models and states on disk.

A *model* is public: parameters, their description, and the ledger row of their history. A *state*
is what a run needs to resume, and secret.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

from taciturn import trees
from taciturn.core import Params, PyTree
from taciturn.errors import TaciturnError
from taciturn.files import not_a, write_atomically

# Names the public-text start that comes with the package.
SHIPPED = "taciturn:english"
# The type of its arrays.
BFLOAT16 = np.dtype(jax.numpy.bfloat16)
_STARTS = Path(__file__).parents[1] / "starts"


class ModelFileError(TaciturnError):
    """The file is not a model that can be used here."""


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What a model file states about itself."""

    architecture: dict[str, Any]
    vocabulary: tuple[str, ...]
    # Language and unit of the vocabulary: how text is split into its words.
    text: dict[str, str]
    # Its name in the population's ledger; a model of public text only has none.
    run: str | None = None
    ledger_head: str | None = None
    round: int = 0
    # The public text that went into it.
    public_sources: tuple[str, ...] = ()
    # Whether it was trained on single sentences, and so starts afresh after each.
    sentences: bool = False
    # Whether it then learned from one person's own text, and so never leaves their device.
    personal: bool = False

    @property
    def public_text(self) -> tuple[str, ...]:
        """Return all that is public in it, including the list of its words."""
        origin = self.text.get("source") or "of unknown origin"
        return (*self.public_sources, f"the list of words ({origin})")


def save_model(path: Path, params: Params, card: ModelCard, mode: int = 0o644) -> None:
    """Write a model.

    One without privacy may hold what people wrote: give it a mode that only its owner may read.
    """
    about = {"taciturn": json.dumps(_list_statements(card), sort_keys=True)}
    write_atomically(path, safetensors.numpy.save(_name_arrays(params), about), mode)


def load_model(path: Path) -> tuple[Params, ModelCard]:
    """Load parameters as a nested dict, and the card.

    Args:
        path: of a model file, of a folder that holds model.safetensors, or `SHIPPED`.
    """
    if str(path) == SHIPPED:
        path = _STARTS / "english.safetensors"
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        arrays, metadata = _read_arrays(file)
    except FileNotFoundError:
        raise _no_model(path) from None
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelFileError(
            f"{file} is not a model file, or is damaged; name a run's folder, or restore the file"
            " from a copy"
        ) from error
    if "taciturn" not in metadata:
        raise ModelFileError(
            f"{file} was not written by taciturn, so nothing is known about its privacy; name a"
            " model that was"
        )
    for array in arrays.values():
        # What the ledger knows is what is used.
        array.flags.writeable = False
    card = json.loads(metadata["taciturn"])
    for name in ("vocabulary", "public_sources"):
        card[name] = tuple(card[name])
    return trees.nest(arrays), ModelCard(**card)


def _read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays of a file by name, and its metadata."""
    arrays = {}
    with safetensors.safe_open(path, "numpy") as file:
        metadata = file.metadata() or {}
        for name in file.keys():  # noqa: SIM118 (not a dict)
            array = file.get_tensor(name)
            arrays[name] = array.astype(np.float32) if array.dtype == BFLOAT16 else array
    return arrays, metadata


def _no_model(path: Path) -> ModelFileError:
    is_run = (path / "recipe.toml").exists() and not (path / "enrolled.txt").exists()
    if is_run:
        return ModelFileError(f"{path} has no model yet: resume it with `tt.resume({str(path)!r})`")
    return ModelFileError(
        f"{not_a('a run or a model', path)}; name a folder with a model.safetensors, or such a file"
    )


def params_digest(params: Params) -> str:
    """Return a digest of the parameters; the ledger records which ones a run published."""
    digest = hashlib.sha256()
    for name, value in sorted(_name_arrays(params).items()):
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def card_digest(card: ModelCard) -> str:
    """Return a digest of what a card states, apart from its place in the ledger.

    The ledger records the digest.
    """
    statements = _list_statements(card)
    for place in ("run", "ledger_head", "round"):
        del statements[place]
    return hashlib.sha256(json.dumps(statements, sort_keys=True).encode()).hexdigest()


def _list_statements(card: ModelCard) -> dict[str, Any]:
    """Return what a card states.

    `personal` is omitted where false, as in older files and ledgers.
    """
    # In place of asdict, which copies ten thousand words one by one.
    statements = dict(vars(card))
    if not card.personal:
        del statements["personal"]
    return statements


def save_state(path: Path, state: PyTree, about: dict[str, str]) -> None:
    """Write a state, which only its owner may read, and what is said of it."""
    arrays = {}
    for index, leaf in enumerate(jax.tree.leaves(jax.device_get(state))):
        arrays[f"{index:04}"] = np.asarray(leaf)
    write_atomically(path, safetensors.numpy.save(arrays, about), mode=0o600)


def load_state(path: Path, like: PyTree) -> tuple[PyTree, dict[str, str]]:
    """Load the state saved at `path`, in the structure of `like`, and what is said of it."""
    with safetensors.safe_open(path, "numpy") as file:
        arrays = [file.get_tensor(name) for name in sorted(file.keys())]
        about = file.metadata() or {}
    if _list_shapes(arrays) != _list_shapes(jax.tree.leaves(jax.device_get(like))):
        raise ModelFileError(
            f"{path} was saved by a run whose model has another shape than this recipe's"
        )
    return jax.tree.unflatten(jax.tree.structure(like), arrays), about


def _list_shapes(leaves: list[Any]) -> list[tuple[tuple[int, ...], np.dtype]]:
    return [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves]


def _name_arrays(params: Params) -> dict[str, np.ndarray]:
    """Return the leaves of parameters by name."""
    leaves = jax.tree.leaves(jax.device_get(params))
    return dict(zip(trees.layer_names(params), map(np.asarray, leaves), strict=True))
