"""A run's folder: complete or absent, and without its secrets once the run ends."""

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from taciturn import randomness
from taciturn.errors import TaciturnError
from taciturn.files import check_new_folder, lock_file, not_a, sync_folder, write_atomically
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import load_recipe

# how a root file begins
FROM_ENTROPY, FROM_SEED = b"entropy\n", b"seeded:\n"


class RunError(TaciturnError):
    """The run folder cannot be used as asked."""


def check_new_run(folder: Path) -> None:
    """Refuse a folder that is not new, and say whether the run in it can be resumed."""
    interrupted = (folder / "private" / "root").exists()
    check_new_folder(
        folder,
        (
            "resume it with --resume, or choose another --run"
            if interrupted
            else "choose another --run"
        ),
    )


def alone_in(folder: Path) -> AbstractContextManager[BinaryIO]:
    """Lock a run for one process: a second would overwrite what the first is charged for. The
    recipe file is locked, as it stays.
    """
    busy = RunError(
        f"another process is using {folder}: wait until it ends, or stop it; then add --resume"
    )
    return lock_file(folder / "recipe.toml", busy)


def save_root(folder: Path, root: bytes, seeded: bool) -> None:
    private = folder / "private"
    private.mkdir()
    private.chmod(0o700)
    write_atomically(private / "root", (FROM_SEED if seeded else FROM_ENTROPY) + root, 0o600)


def load_root(folder: Path) -> tuple[bytes, bool]:
    """Load the root of a run's randomness, if the run has not ended, and whether it comes from a
    seed.
    """
    path = folder / "private" / "root"
    if not path.exists():
        # if a crash left some of them
        delete_secrets(folder)
        page = (
            ""
            if (folder / "report.html").exists()
            else f". Its page is missing: taciturn report {folder}"
        )
        further = f"to train further, start a run with model.warm_start={folder}"
        raise RunError(f"{folder} is finished, and its secrets are deleted; {further}{page}")
    kind, root = path.read_bytes()[: len(FROM_SEED)], path.read_bytes()[len(FROM_SEED) :]
    if kind not in (FROM_ENTROPY, FROM_SEED) or len(root) != randomness.ROOT_BYTES:
        raise RunError(
            f"{path} is damaged, so this run cannot be resumed: start another one. What it released"
            " stays charged"
        )
    return root, kind == FROM_SEED


def delete_secrets(folder: Path) -> None:
    """Delete the root first: a crash meanwhile leaves a finished run, never one that could resume
    from an older state.
    """
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
        raise RunError(
            f"{not_a('a run', folder)}; name a folder that `taciturn train` has made{hint}"
        )
    return load_recipe(folder / "recipe.toml")
