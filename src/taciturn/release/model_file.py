"""Models and states on disk. A *model* is public: parameters, their description, and the ledger row
of their history. A *state* is what a run needs to resume, and secret.
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

# names the public-text start that comes with the package
SHIPPED = "taciturn:english"
# how it is shipped
BFLOAT16 = np.dtype(jax.numpy.bfloat16)
_STARTS = Path(__file__).parents[1] / "starts"


class ModelFileError(TaciturnError):
    """The file is not a model that can be used here."""


@dataclass(frozen=True)
class ModelCard:
    """What a model file states about itself."""

    architecture: dict[str, Any]
    vocabulary: tuple[str, ...]
    # language and unit of the vocabulary: how text is split into its words
    text: dict[str, str]
    run: str | None = (
        # its name in the population's ledger; none for a model of public text alone
        None
    )
    ledger_head: str | None = None
    round: int = 0
    # public text that went into it
    public_sources: tuple[str, ...] = ()
    sentences: bool = (
        # whether it was trained on single sentences, and so starts afresh after each
        False
    )
    # whether it then learned from one person's own text, and so never leaves their device
    personal: bool = False

    @property
    def public_text(self) -> tuple[str, ...]:
        """Return all that is public in it, including the list of its words."""
        return (
            *self.public_sources,
            f"the list of words ({self.text.get('source') or 'of unknown origin'})",
        )


def save_model(path: Path, params: Params, card: ModelCard, mode: int = 0o644) -> None:
    """Write a model. One without privacy may hold what people wrote: give it a mode that only its
    owner may read.
    """
    content = safetensors.numpy.save(
        _named(params), {"taciturn": json.dumps(_said(card), sort_keys=True)}
    )
    write_atomically(path, content, mode)


def load_model(path: Path) -> tuple[Params, ModelCard]:
    """Load parameters as a nested dict, and the card. `path` is a model file, a folder that holds
    model.safetensors, or `SHIPPED`.
    """
    if str(path) == SHIPPED:
        path = _STARTS / "english.safetensors"
    where, path = path, path / "model.safetensors" if path.is_dir() else path
    try:
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            named = {
                name: value.astype(np.float32) if value.dtype == BFLOAT16 else value
                for name, value in named.items()
            }
    except FileNotFoundError:
        if (where / "recipe.toml").exists() and not (where / "enrolled.txt").exists():
            raise ModelFileError(
                f"{where} has no model yet: resume it with taciturn train --resume --run {where}"
            ) from None
        raise ModelFileError(
            f"{not_a('a run or a model', where)}; name a folder with a model.safetensors, or such a"
            " file"
        ) from None
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelFileError(
            f"{path} is not a model file, or is damaged; name a run's folder, or restore the file"
            " from a copy"
        ) from error
    if "taciturn" not in metadata:
        raise ModelFileError(
            f"{path} was not written by taciturn, so nothing is known about its privacy; name a"
            " model that was"
        )
    for array in named.values():
        # what the ledger knows is what is used
        array.flags.writeable = False
    card = json.loads(metadata["taciturn"])
    for name in ("vocabulary", "public_sources"):
        card[name] = tuple(card[name])
    return trees.nest(named), ModelCard(**card)


def params_digest(params: Params) -> str:
    """Return a digest of the parameters; the ledger records which ones a run published."""
    digest = hashlib.sha256()
    for name, value in sorted(_named(params).items()):
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def card_digest(card: ModelCard) -> str:
    """Return a digest of what a card states, apart from its place in the ledger, which records
    this.
    """
    said = _said(card)
    for place in ("run", "ledger_head", "round"):
        del said[place]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _said(card: ModelCard) -> dict[str, Any]:
    """Return what a card states; `personal` is omitted where false, as in older files and
    ledgers.
    """
    # not asdict, which copies ten thousand words one by one
    said = dict(vars(card))
    if not card.personal:
        del said["personal"]
    return said


def save_state(path: Path, state: PyTree, about: dict[str, str]) -> None:
    leaves = {
        f"{index:04}": np.asarray(leaf)
        for index, leaf in enumerate(jax.tree.leaves(jax.device_get(state)))
    }
    write_atomically(path, safetensors.numpy.save(leaves, about), mode=0o600)


def load_state(path: Path, like: PyTree) -> tuple[PyTree, dict[str, str]]:
    """Load the state saved at `path`, in the structure of `like`."""
    with safetensors.safe_open(path, "numpy") as file:
        leaves = [file.get_tensor(name) for name in sorted(file.keys())]
        about = file.metadata() or {}
    expected = [
        (np.shape(leaf), np.asarray(leaf).dtype) for leaf in jax.tree.leaves(jax.device_get(like))
    ]
    if [(leaf.shape, leaf.dtype) for leaf in leaves] != expected:
        raise ModelFileError(
            f"{path} was saved by a run whose model has another shape than this recipe's"
        )
    return jax.tree.unflatten(jax.tree.structure(like), leaves), about


def _named(params: Params) -> dict[str, np.ndarray]:
    return dict(
        zip(
            trees.layer_names(params),
            map(np.asarray, jax.tree.leaves(jax.device_get(params))),
            strict=True,
        )
    )
