"""An anchor: the ledger's newest head, kept where restoring an older folder does not reach.

It is a file on another disk, or a command that takes two heads. The ledger asks it before every row
and informs it after.

**Guarantee:** where a ledger has an anchor, no row is written, and so nothing released, unless the
anchor was reached and its head is the ledger's newest, or the one before (a crash may come between
a row and the anchor); a row counts once the anchor knows it.

**Assumes:** the person who puts the folder back does not put the anchor back as well.
"""

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from taciturn.files import write_atomically
from taciturn.privacy.ledger.hash_chain import LedgerError, Row

# The seconds that a command may take.
SECONDS = 60


class AnchorError(LedgerError):
    """The anchor contradicts the ledger; nothing may be released."""


class AnchorUnreachable(AnchorError):
    """The anchor cannot be asked; nothing may be released."""


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """A file or a command.

    A command gets PREVIOUS and NEW as its last arguments: if it remembers one of them (or nothing
    yet) it must remember NEW from then on and exit with 0, else with another status.
    """

    file: Path | None = None
    command: str | None = None

    @classmethod
    def from_row(cls, row: Row) -> "Anchor":
        """Return the anchor that a row of the ledger names."""
        return cls(file=Path(row["file"]) if "file" in row else None, command=row.get("command"))

    @property
    def row(self) -> Row:
        """Return what a row of the ledger says of it."""
        return {"file": str(self.file)} if self.file else {"command": self.command}

    def __str__(self) -> str:
        return str(self.file) if self.file else f"«{self.command}»"

    def begin(self, heads: list[str]) -> None:
        """Remember the newest of these, which are all heads that the ledger has had."""
        if self.file is None:
            self.agree(heads[-1], heads[-1])
            return
        if self.file.exists() and self.file.read_text().strip() not in ("", *heads):
            raise AnchorError(
                f"{self.file} holds something else than a head of this ledger: name another file"
            )
        self._write(self.file, heads[-1])

    def agree(self, previous: str, new: str) -> None:
        """Pass if the anchor remembers one of the two heads, and make it remember `new`.

        Raises:
            AnchorError: if it remembers another.
            AnchorUnreachable: if it cannot be asked.
        """
        if self.file is None:
            self._ask(previous, new)
            return
        remembered = self._read(self.file)
        if remembered not in (previous, new):
            raise AnchorError(
                f"the anchor {self} remembers the head {remembered[:16]}…, which is not the"
                " ledger's last: rows were removed, an older copy was put back, or a copy of these"
                " people's folder was used. Nothing was released. Continue with the newest copy."
            )
        if remembered != new:
            self._write(self.file, new)

    def _read(self, file: Path) -> str:
        try:
            return file.read_text().strip()
        except OSError as error:
            raise AnchorUnreachable(
                f"the anchor {self} cannot be read ({error.strerror}), so nothing is released."
                " Bring it back; if it is lost for good, name another: taciturn ledger anchor"
                " FOLDER --file PATH"
            ) from None

    def _write(self, file: Path, head: str) -> None:
        try:
            write_atomically(file, head.encode())
        except OSError as error:
            raise AnchorUnreachable(
                f"the anchor {self} cannot be written ({error.strerror}): make room, or choose"
                " another place"
            ) from None

    def _ask(self, previous: str, new: str) -> None:
        command = [*shlex.split(self.command or ""), previous, new]
        try:
            answer = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AnchorUnreachable(
                f"the anchor {self} cannot be asked ({_describe_failure(error)}), so nothing is"
                " released: correct the command"
            ) from None
        if answer.returncode:
            raise AnchorError(
                f"the anchor {self} did not agree (exit status {answer.returncode})"
                f"{_quote_last_line(answer.stderr)}. Nothing was released. Use the newest copy of"
                " this ledger, or correct the command"
            )


def _describe_failure(error: OSError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return f"no answer within {SECONDS} seconds"


def _quote_last_line(errors: str) -> str:
    lines = errors.strip().splitlines()
    return f": {lines[-1]}" if lines else ""
