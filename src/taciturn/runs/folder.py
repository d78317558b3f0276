"""A run's folder: complete or absent, and without its secrets once the run ends."""

import logging
import os
import shutil
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from taciturn import randomness
from taciturn.errors import TaciturnError
from taciturn.files import (
    check_can_be_made,
    check_new_folder,
    lock_file,
    not_a,
    sync_folder,
    write_atomically,
)
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import load_recipe

LOG = logging.getLogger("taciturn")
# How the file of a root begins; both are of one length.
FROM_ENTROPY = b"entropy\n"
FROM_SEED = b"seeded:\n"


class RunError(TaciturnError):
    """The run folder cannot be used as asked."""


def check_new_run(folder: Path) -> None:
    """Refuse a folder that is not new, or in a place that cannot be written to.

    The refusal says whether the run in it can be resumed.
    """
    can_be_resumed = (folder / "private" / "root").exists()
    choose = "choose another `folder`"
    hint = f"resume it with `tt.resume`, or {choose}" if can_be_resumed else choose
    check_new_folder(folder, hint)
    check_can_be_made(folder)


def lock_run(folder: Path) -> AbstractContextManager[BinaryIO]:
    """Lock a run for one process: a second would overwrite what the first is charged for.

    The recipe file is locked, as it stays.
    """
    busy = RunError(
        f"another process is using {folder}: wait until it ends, or stop it; then `tt.resume()`"
    )
    return lock_file(folder / "recipe.toml", busy)


def save_root(folder: Path, root: bytes, seeded: bool) -> None:
    private = folder / "private"
    private.mkdir()
    private.chmod(0o700)
    origin = FROM_SEED if seeded else FROM_ENTROPY
    write_atomically(private / "root", origin + root, 0o600)


def load_root(folder: Path, has_people: bool) -> tuple[bytes, bool]:
    """Load the root of a run's randomness, and whether it comes from a seed.

    Args:
        folder: of the run.
        has_people: whether its people are in reach; nothing starts from it without them.

    Raises:
        RunError: if the run has ended, or the root is damaged.
    """
    path = folder / "private" / "root"
    if not path.exists():
        # A crash may have left some of the other secrets.
        delete_secrets(folder)
        further = ""
        if has_people:
            further = f"; to train further, start a run with model.warm_start={folder}"
        page = f". Its page is missing: `tt.FinishedRun({str(folder)!r}).report()`"
        if (folder / "report.html").exists():
            page = ""
        raise RunError(f"{folder} is finished, and its secrets are deleted{further}{page}")
    content = path.read_bytes()
    origin = content[: len(FROM_SEED)]
    root = content[len(FROM_SEED) :]
    is_known = origin in (FROM_ENTROPY, FROM_SEED)
    is_complete = len(root) == randomness.ROOT_BYTES
    if not is_known or not is_complete:
        raise RunError(
            f"{path} is damaged, so this run cannot be resumed: start another one. What it released"
            " stays charged"
        )
    return root, origin == FROM_SEED


def delete_secrets(folder: Path) -> None:
    """Delete the root first, then all other secrets.

    A crash meanwhile leaves a finished run, never one that could resume from an older state.
    """
    private = folder / "private"
    if private.exists():
        (private / "root").unlink(missing_ok=True)
        sync_folder(private)
        shutil.rmtree(private)


def hide_times(folder: Path) -> None:
    """Date all files of a run that has ended to one full minute.

    They are published, and their dates would say how long the run took, which depends on what its
    users wrote. Where one cannot be changed (of another account's file) a warning says so: the run
    is finished all the same.
    """
    minute = time.time() // 60 * 60
    refusals = []
    for path in (*folder.rglob("*"), folder):
        try:
            os.utime(path, (minute, minute), follow_symlinks=False)
        except OSError as error:
            refusals.append(f"{path}: {error.strerror}")
    if refusals:
        LOG.warning(
            "files of %s keep dates that tell how long the run took, which depends on what people"
            " wrote (%s): before you publish them, copy them without their dates",
            folder,
            refusals[0],
        )


def check_not_a_file(folder: Path) -> None:
    """Refuse a model's file where a folder is wanted: what its run cost lies beside it."""
    if folder.is_file():
        raise RunError(f"{not_a('a run', folder)}; name the folder that it is in")


def recipe_of(folder: Path) -> Recipe:
    check_not_a_file(folder)
    path = folder / "recipe.toml"
    if not path.exists():
        hint = ""
        if (folder / "guarantee.json").exists():
            hint = ": an export has neither the recipe of its run nor figures of its rounds"
        elif (folder / "model.safetensors").exists():
            hint = "; a pretrained model is measured as round 0 of a run that starts from it"
        raise RunError(f"{not_a('a run', folder)}; name a folder that `tt.train` has made{hint}")
    return load_recipe(path)
