"""Writing a file so that it is whole or not there."""

import os
from collections.abc import Sequence
from pathlib import Path


def write_atomically(path: Path, content: bytes | Sequence[bytes | memoryview], mode: int = 0o644) -> None:
    """The old file or the new one, on disk when this returns, whatever happens in between. Content may come in parts."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")  # two processes may write the same file
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
