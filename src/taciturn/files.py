"""Files and folders that are complete or absent, locks that one process holds, and JSON with
infinities.
"""

import fcntl
import itertools
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from taciturn.errors import TaciturnError

# what a folder is, by a file in it
HOLDS = {
    "manifest.json": "a population",
    "about.json": "a public corpus",
    "enrolled.txt": "a fleet",
    "device.key": "a device's folder",
    "counted_on.json": "a folder of counted n-grams",
    "recipe.toml": "a run",
    "guarantee.json": "an export",
    "model.safetensors": "a model",
}


class FolderExists(TaciturnError):
    """Something exists where a new folder is to be."""


def write_atomically(
    path: Path, content: bytes | Iterable[bytes | memoryview], mode: int = 0o644
) -> None:
    """Replace a file atomically: the old or the new one is on disk, whatever happens meanwhile.
    Content may come in parts.
    """
    # two processes may write the same file
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's list of names durable: a new name is not on disk before."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def not_a(wanted: str, path: Path) -> str:
    """Say what is at a path instead of what is wanted: «runs/first is a run, not a population»."""
    if not path.exists():
        return f"{path} does not exist"
    other = (
        "a file"
        if path.is_file()
        else "a folder of something else"
        if any(path.iterdir())
        else "an empty folder"
    )
    return (
        f"{path} is"
        f" {next((kind for name, kind in HOLDS.items() if (path / name).exists()), other)}, not"
        f" {wanted}"
    )


def check_new_folder(folder: Path, hint: str) -> None:
    """Refuse a folder that exists, unless it is empty. `hint` says what to do."""
    if not folder.name:
        raise FolderExists(f"{folder} has no name, which a new folder needs: {hint}")
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise FolderExists(f"{folder} exists already: {hint}")


@contextmanager
def new_folder(folder: Path, hint: str, mode: int = 0o777) -> Iterator[Path]:
    """Write into a temporary folder beside it, then rename: an interrupted start leaves nothing,
    and a concurrent one is refused.
    """
    check_new_folder(folder, hint)
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    made.mkdir(mode)
    try:
        yield made
        check_new_folder(folder, hint)
        try:
            made = made.rename(folder)
        # another process was faster
        except OSError:
            check_new_folder(folder, hint)
            raise
        for one in new or [folder]:
            sync_folder(one.parent)
    except BaseException:
        shutil.rmtree(made)
        raise


def next_folder(parent: Path, prefix: str = "") -> Path:
    """Return the first of PARENT/PREFIX1, PARENT/PREFIX2, … that does not exist and has no recipe
    of its name.
    """
    numbered = (f"{prefix}{number}" for number in itertools.count(1))
    return next(
        parent / name
        for name in numbered
        if not (parent / name).exists() and not (parent / f"{name}.toml").exists()
    )


@contextmanager
def lock_file(
    path: Path, busy: TaciturnError | None = None, mode: int = 0o600
) -> Iterator[BinaryIO]:
    """Open (and create) a file for this process alone: wait for the lock, or raise `busy`. The lock
    ends with the process.
    """
    with open(path, "a+b", opener=partial(os.open, mode=mode)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError as held:
            raise busy or held from None
        # closing the file releases the lock
        yield file


def to_json(content: Any, **layout: Any) -> str:
    """Write JSON, which has no infinite numbers: infinity becomes "infinity", and NaN null."""

    def written(value: Any) -> Any:
        if not isinstance(value, float) or math.isfinite(value):
            return value
        return None if math.isnan(value) else "infinity" if value > 0 else "-infinity"

    return json.dumps(_each(written, content), allow_nan=False, **layout)


def from_json(text: str) -> Any:
    """Read what `to_json` wrote; null is NaN."""
    numbers = {"infinity": math.inf, "-infinity": -math.inf, None: math.nan}
    return _each(lambda value: numbers.get(value, value), json.loads(text))


def _each(change: Callable[[Any], Any], content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _each(change, one) for name, one in content.items()}
    return (
        [_each(change, one) for one in content]
        if isinstance(content, list | tuple)
        else change(content)
    )
