"""Files and folders that are complete or absent, locks of one process, JSON with infinities."""

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

# What a folder is, by a file in it.
HOLDS = {
    "manifest.json": "a population",
    "about.json": "a public corpus",
    "words.json": "a list of public words",
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

    Args:
        path: of the file.
        content: whole, or in parts.
        mode: of the file.
    """
    # Another process may write the same file.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    unfinished.unlink(missing_ok=True)
    _write_new(unfinished, [content] if isinstance(content, bytes) else content, mode)
    unfinished.replace(path)
    sync_folder(path.parent)


def _write_new(path: Path, parts: Iterable[bytes | memoryview], mode: int) -> None:
    with open(path, "xb", opener=partial(os.open, mode=mode)) as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the folder's list of names durable: a new name is not on disk before."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def not_a(wanted: str, path: Path) -> str:
    """Say what is at a path instead of what is wanted: «runs/first is a run, not a population»."""
    if not path.exists():
        return f"{path} does not exist"
    return f"{path} is {_describe(path)}, not {wanted}"


def _describe(path: Path) -> str:
    for name, kind in HOLDS.items():
        if (path / name).exists():
            return kind
    if path.is_file():
        return "a file"
    return "a folder of something else" if any(path.iterdir()) else "an empty folder"


def check_new_folder(folder: Path, hint: str) -> None:
    """Refuse a folder that exists, unless it is empty. `hint` says what to do."""
    if not folder.name:
        raise FolderExists(f"{folder} has no name, which a new folder needs: {hint}")
    is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if folder.is_symlink() or is_taken:
        raise FolderExists(f"{folder} exists already: {hint}")


def check_can_be_made(folder: Path) -> None:
    """Refuse a place where no folder can be made, before anything is spent on what is to be in it.

    Raises:
        OSError: as when it is made.
    """
    parent = next(path for path in folder.parents if path.exists())
    trial = parent / f".{folder.name}.{secrets.token_hex(4)}.partial"
    trial.mkdir()
    trial.rmdir()


@contextmanager
def new_folder(folder: Path, hint: str, mode: int = 0o777) -> Iterator[Path]:
    """Write into a temporary folder beside it, then rename.

    An interrupted start leaves nothing, and a concurrent one is refused.
    """
    check_new_folder(folder, hint)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    unfinished.mkdir(mode)
    try:
        yield unfinished
        check_new_folder(folder, hint)
        try:
            unfinished = unfinished.rename(folder)
        # Another process was faster.
        except OSError:
            check_new_folder(folder, hint)
            raise
        for path in missing or [folder]:
            sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(unfinished)
        raise


def next_folder(parent: Path, prefix: str = "") -> Path:
    """Return the first of PARENT/PREFIX1, PARENT/PREFIX2, … that is free.

    Neither it nor a recipe of its name exists.
    """
    folders = (parent / f"{prefix}{number}" for number in itertools.count(1))
    return next(folder for folder in folders if _is_free(folder))


def _is_free(folder: Path) -> bool:
    recipe = folder.with_name(f"{folder.name}.toml")
    return not folder.exists() and not recipe.exists()


@contextmanager
def lock_file(
    path: Path, busy: TaciturnError | None = None, mode: int = 0o600
) -> Iterator[BinaryIO]:
    """Open (and create) a file for this process only: wait for the lock, or raise `busy`.

    The lock ends with the process.
    """
    with open(path, "a+b", opener=partial(os.open, mode=mode)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError as held:
            raise busy or held from None
        # Closing the file releases the lock.
        yield file


def to_json(content: Any, **layout: Any) -> str:
    """Write JSON, which has no infinite numbers: infinity becomes "infinity", and NaN null."""
    return json.dumps(_map_values(_spell_infinity, content), allow_nan=False, **layout)


def _spell_infinity(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return None
    return "infinity" if value > 0 else "-infinity"


def from_json(text: str) -> Any:
    """Read what `to_json` wrote; null is NaN."""
    numbers = {"infinity": math.inf, "-infinity": -math.inf, None: math.nan}
    return _map_values(lambda value: numbers.get(value, value), json.loads(text))


def _map_values(change: Callable[[Any], Any], content: Any) -> Any:
    """Return JSON content with every value changed that is not a dict or a list."""
    if isinstance(content, dict):
        return {name: _map_values(change, value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_map_values(change, value) for value in content]
    return change(content)
