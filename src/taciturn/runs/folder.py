"""A run's folder: there as a whole or not at all, and rid of its secrets when the run ends."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taciturn import randomness
from taciturn.errors import TaciturnError
from taciturn.files import sync_folder, write_atomically
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import load_recipe

FROM_ENTROPY, FROM_SEED = b"entropy\n", b"seeded:\n"  # what a root file begins with


class RunError(TaciturnError):
    """The run folder cannot be used as asked."""


def check_new(folder: Path) -> None:
    if not folder.name:
        raise RunError(f"{folder} has no name, which a run needs: choose another --run")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists already: add --resume to go on with it, or choose another --run")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside it for the first files, which then takes its place: whoever is cut off before has left nothing there, and of two
    that begin at once one is told."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    made.mkdir()
    try:
        yield made
        check_new(folder)
        try:
            made.rename(folder)
        except OSError:  # another was faster
            check_new(folder)
            raise
    except BaseException:
        shutil.rmtree(made)
        raise
    sync_folder(folder.parent)


def save_root(folder: Path, root: bytes, seeded: bool) -> None:
    private = folder / "private"
    private.mkdir()
    private.chmod(0o700)
    write_atomically(private / "root", (FROM_SEED if seeded else FROM_ENTROPY) + root, 0o600)


def load_root(folder: Path) -> tuple[bytes, bool]:
    """The root of all randomness of a run that has not ended, and whether it comes from a seed."""
    path = folder / "private" / "root"
    if not path.exists():
        delete_secrets(folder)  # if a crash left some of them
        raise RunError(
            f"{folder} is finished, and its secrets are deleted; to train on, start a new run with model.warm_start={folder}"
        )
    kind, root = path.read_bytes()[: len(FROM_SEED)], path.read_bytes()[len(FROM_SEED) :]
    if kind not in (FROM_ENTROPY, FROM_SEED) or len(root) != randomness.ROOT_BYTES:
        raise RunError(f"{path} is damaged: this run cannot go on; what it released stays charged")
    return root, kind == FROM_SEED


def delete_secrets(folder: Path) -> None:
    """The root first: a crash half-way leaves a run that is finished, never one that could go on from an older state."""
    if (folder / "private").exists():
        (folder / "private" / "root").unlink(missing_ok=True)
        sync_folder(folder / "private")
        shutil.rmtree(folder / "private")


def recipe_of(folder: Path) -> Recipe:
    if not (folder / "recipe.toml").exists():
        hint = (
            "; a pretrained model is measured as round 0 of a run that starts from it"
            if (folder / "model.safetensors").exists()
            else ""
        )
        raise RunError(f"{folder} holds no run: there is no recipe.toml in it{hint}")
    return load_recipe(folder / "recipe.toml")
