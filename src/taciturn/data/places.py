"""Files that are elsewhere, with the part of `Path` that readers need.

s3:// and gs:// are read by pyarrow's own filesystems, other addresses by fsspec.

Nothing is reached over a network unless an address is named. Credentials come from the environment,
as pyarrow takes them.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pyarrow.fs as filesystems

from taciturn.data.vocabulary import DataError

# One slash or more: a Path turns s3://bucket into s3:/bucket.
ADDRESS = re.compile(r"([a-z][a-z0-9+]+):/+(.+)")
# The bytes of a request.
BUFFER = 2**22
# What a store reports, and what that means to its user; the first that matches holds.
WHY = {
    r"access_denied|\b40[13]\b|forbidden|credential|permission|access token": (
        "access is denied; set the credentials in the environment "
        "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS)"
    ),
    "resolve host|connect to server|network_connection|timed? ?out|unavailable": (
        "it cannot be reached: is there a network?"
    ),
    r"not found|no_such_bucket|does not exist|\b404\b": (
        "there is no such bucket, or nothing of that name in it"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file or a folder at an address."""

    scheme: str
    path: PurePosixPath
    # One of pyarrow's filesystems.
    store: Any
    # Of pyarrow: a file, a folder, or nothing.
    kind: Any
    size: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"

    def __getattr__(self, name: str) -> Any:
        if name not in ("name", "parts", "suffix", "suffixes"):
            raise AttributeError(name)
        return getattr(self.path, name)

    def __lt__(self, other: "Remote") -> bool:
        return self.path < other.path

    def relative_to(self, folder: Any) -> PurePosixPath:
        return self.path.relative_to(folder.path)

    def is_file(self) -> bool:
        return self.kind == filesystems.FileType.File

    def is_dir(self) -> bool:
        return self.kind == filesystems.FileType.Directory

    def rglob(self, _: str) -> Iterator["Remote"]:
        with _explain_errors(self):
            everything = filesystems.FileSelector(str(self.path), recursive=True)
            inside = self.store.get_file_info(everything)
        for info in inside:
            yield Remote(
                scheme=self.scheme,
                path=PurePosixPath(info.path),
                store=self.store,
                kind=info.type,
                size=info.size or 0,
            )

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_size=self.size)

    def open(self, _: str = "rb") -> io.BufferedReader:
        return io.BufferedReader(self.random_access(), BUFFER)

    def random_access(self) -> Any:
        return self.store.open_input_file(str(self.path))


Place = Path | Remote


def locate(named: Path | str) -> Place:
    """Return where something is: on this machine, or at an address."""
    address = ADDRESS.fullmatch(str(named))
    if address is None:
        return Path(named)
    scheme, rest = address.groups()
    if "@" in rest.split("/")[0]:
        raise DataError(
            f"{scheme}://…@{rest.split('@')[-1]}: addresses end up in logs: put keys into the"
            " environment instead"
        )
    with _explain_errors(f"{scheme}://{rest}"):
        store, path = _open_store(scheme, rest)
        info = store.get_file_info(path)
    return Remote(
        scheme=scheme,
        path=PurePosixPath(path),
        store=store,
        kind=info.type,
        size=info.size or 0,
    )


def _open_store(scheme: str, rest: str) -> tuple[Any, str]:
    """Return the filesystem of an address, and the path in it."""
    address = f"{scheme}://{rest}"
    if scheme not in ("s3", "gs", "gcs"):
        return _open_by_fsspec(address)
    if scheme != "s3" and "?" not in rest:
        # By default Google's library tries again for a quarter of an hour.
        address = f"{address}?retry_limit_seconds=20"
    return filesystems.FileSystem.from_uri(address)


def _open_by_fsspec(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        store, path = url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise DataError(
            f"{address} needs fsspec and its package for such addresses ({error}); pip install them"
        ) from None
    return filesystems.PyFileSystem(filesystems.FSSpecHandler(store)), path


@contextmanager
def _explain_errors(address: Any) -> Iterator[None]:
    try:
        yield
    # A malformed address is ArrowInvalid, which is a ValueError.
    except (OSError, ValueError) as error:
        # Google's details repeat what comes before, and name functions.
        reason = str(error).split("\n")[0].split(" error_info=")[0]
        raise DataError(f"{address}: {_explain(reason)} ({reason})") from None


def _explain(reason: str) -> str:
    for pattern, meaning in WHY.items():
        if re.search(pattern, reason.lower()):
            return meaning
    return "it cannot be read"
