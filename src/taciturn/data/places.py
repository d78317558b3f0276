"""Files that are elsewhere, with the part of `Path` that readers need: s3:// and gs:// by pyarrow's
own filesystems, others by fsspec.

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

# a Path turns s3://bucket into s3:/bucket
ADDRESS = re.compile(r"([a-z][a-z0-9+]+):/+(.+)")
# bytes of a request
BUFFER = 2**22
# what a store reports, and what that means to its user; the first that matches
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


@dataclass(frozen=True)
class Remote:
    scheme: str
    path: PurePosixPath
    # a filesystem of pyarrow's
    store: Any
    # file, folder, or nothing
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
        with _explained(self):
            inside = self.store.get_file_info(
                filesystems.FileSelector(str(self.path), recursive=True)
            )
        return (
            Remote(self.scheme, PurePosixPath(one.path), self.store, one.type, one.size or 0)
            for one in inside
        )

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_size=self.size)

    def open(self, _: str = "rb") -> io.BufferedReader:
        return io.BufferedReader(self.random_access(), BUFFER)

    def random_access(self) -> Any:
        return self.store.open_input_file(str(self.path))


Place = Path | Remote


def place(named: Path | str) -> Place:
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
    with _explained(f"{scheme}://{rest}"):
        if scheme in ("s3", "gs", "gcs"):
            # by default a quarter of an hour
            limit = "?retry_limit_seconds=20" if scheme != "s3" and "?" not in rest else ""
            store, path = filesystems.FileSystem.from_uri(f"{scheme}://{rest}{limit}")
        else:
            store, path = _by_fsspec(f"{scheme}://{rest}")
        found = store.get_file_info(path)
    return Remote(scheme, PurePosixPath(path), store, found.type, found.size or 0)


def _by_fsspec(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        store, path = url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise DataError(
            f"{address} needs fsspec and its package for such addresses ({error}); pip install them"
        ) from None
    return filesystems.PyFileSystem(filesystems.FSSpecHandler(store)), path


@contextmanager
def _explained(address: Any) -> Iterator[None]:
    try:
        yield
    # ArrowInvalid, for a malformed address, is a ValueError
    except (OSError, ValueError) as error:
        # Google's details repeat it, and name functions
        said = str(error).split("\n")[0].split(" error_info=")[0]
        why = next(
            (why for pattern, why in WHY.items() if re.search(pattern, said.lower())),
            "it cannot be read",
        )
        raise DataError(f"{address}: {why} ({said})") from None
