"""A finished run's rows, signed, so that its folder can be opened where its ledger is not.

    ledger.jsonl      the rows of the run, up to that of its model
    signature.json    which ledger, which row of it, when, and the signature of all that

The model's row names the key and, by a digest, all earlier rows of the run; its hash is what is
signed. It has the digests of the parameters and of their card too, so no other model fits it.

**Guarantee:** rows that `read_signed_rows` returns are all those that the owner of the key signed
for this model, in their order: none was changed, left out, added, or taken from another run.

**Assumes:** the owner of the key signed what their ledger says. Who makes a key of their own can
sign any rows: they are then stated by an unknown maker, and nobody else.
"""

import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, get_args

from taciturn.files import write_atomically
from taciturn.names import AccountantName
from taciturn.privacy.ledger.guarantee import SECRET, SEEDED, SIMULATED_USER
from taciturn.privacy.ledger.hash_chain import LedgerError, Row, hash_row
from taciturn.privacy.ledger.ledger import FILE_NAME, Ledger
from taciturn.privacy.ledger.ledger_key import LedgerKey, fingerprint_of, is_signed
from taciturn.privacy.ledger.run_rows import RunRows, rows_digest

SIGNATURE = "signature.json"
FORMAT = 1
KINDS = ("open", "resume", "charge", "model")
ADJACENCIES = (
    "add or remove one user",
    "replace one user by another",
    "zero out one user",
)
# Pieces of public text that play users, as units name them.
PLAYERS = re.compile(
    r" \((pieces of public text of \d+ tokens play the users"
    r"|pieces of \d+ tokens play the users; no real person's messages are here)\)"
)
# What costs of correlated noise claim: the noise, who takes part, and what else is released.
CLAIMS = re.compile(
    r"noise: (independent|tree|tree with Honaker's variance reduction|BLT|BLT with \d+ buffers"
    r"|\d+-banded Toeplitz)(, restarted after \d+(, \d+)* rounds)?"
    r"; (at least \d+ rounds between two participations of a user, at most \d+ participations"
    r"|a user has a turn every \d+ rounds and takes it with probability [\d.e-]+, drawn by the"
    r" curator)"
    r"(; each round also releases how many updates were within the clip norm, at no further cost"
    r" \(z_Δ > z\))?",
    re.ASCII,
)
# Far more than any run has: what comes from elsewhere may be anything.
MOST_BYTES = 2**28


class SignatureError(LedgerError):
    """Rows that are read away from their ledger are not as their maker signed them."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What is signed of a run's rows."""

    # The id of the ledger.
    ledger: str
    run: str
    # The public key, in hexadecimal digits.
    key: str
    # The hash of the model's row, and its number in the ledger.
    head: str
    row: int
    # When it was signed.
    date: str
    format: int = FORMAT

    @property
    def fingerprint(self) -> str:
        """Return the key as people compare it."""
        return fingerprint_of(bytes.fromhex(self.key))


class SignedRows(RunRows):
    """The rows of one run, as their maker signed them."""

    def __init__(self, path: Path, rows: list[Row], signature: Signature) -> None:
        self.path = path
        self.rows = rows
        self.signature = signature
        self._by_run = {}
        for row in rows:
            self._sort(row)


def write_signature(folder: Path, ledger: Ledger, key: LedgerKey, head: str) -> None:
    """Sign the rows of a run up to this one, that of its model."""
    number = next(number for number, row in enumerate(ledger.rows, start=1) if row["hash"] == head)
    signature = Signature(
        ledger=ledger.id,
        run=ledger.rows[number - 1]["run"],
        key=key.public.hex(),
        head=head,
        row=number,
        date=datetime.now(UTC).date().isoformat(),
    )
    content = asdict(signature)
    content["signature"] = key.sign(asdict(signature)).hex()
    written = json.dumps(content, indent=2, sort_keys=True) + "\n"
    write_atomically(folder / SIGNATURE, written.encode())


def has_signature(folder: Path) -> bool:
    """Tell whether a folder states that its rows are signed."""
    return (folder / SIGNATURE).exists()


def read_signature(folder: Path) -> Signature:
    """Return what the signature in a folder covers.

    Raises:
        SignatureError: if it is not there, or does not hold.
    """
    path = folder / SIGNATURE
    try:
        content = json.loads(_read(path))
        signed = bytes.fromhex(content.pop("signature"))
        signature = Signature(**content)
        public = bytes.fromhex(signature.key)
        # It is printed, so it must be a date.
        date.fromisoformat(signature.date)
        # So is the name, and an escape sequence would rule a terminal.
        is_readable = signature.run.isprintable()
        is_number = type(signature.row) is int and signature.row > 0
        is_whole = signature.format == FORMAT and is_readable and is_number
    # JSON that is nested too deep is a RecursionError.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise SignatureError(
            f"{path} is damaged, or of another version of Taciturn: ask the run's maker for the"
            " folder again, or open it with that version"
        ) from None
    if not is_whole or not is_signed(public, asdict(signature), signed):
        raise SignatureError(
            f"{path} was changed: its signature does not hold. Ask the run's maker for the folder"
            " again"
        )
    return signature


def read_signed_rows(folder: Path) -> SignedRows:
    """Return the rows of the run in a folder, as its maker signed them.

    Raises:
        SignatureError: if they are not there, or not as they were signed.
    """
    signature = read_signature(folder)
    path = folder / FILE_NAME
    rows = []
    try:
        rows = [json.loads(line) for line in _read(path).splitlines()]
        problem = _find_problem(rows, signature)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        problem = "they cannot be read"
    if problem:
        raise SignatureError(
            f"{path} does not hold the rows that {SIGNATURE} beside it signs ({problem}): rows were"
            " changed, left out, or taken from elsewhere. Ask the run's maker for the folder again"
        )
    return SignedRows(path, rows, signature)


def copy_signed_rows(folder: Path, to: Path, head: str) -> None:
    """Copy the signed rows of a model, where its folder has them as they were signed.

    Args:
        folder: of the model.
        to: where they go.
        head: the row of the model.
    """
    try:
        signed = read_signed_rows(folder)
    except SignatureError:
        return
    if signed.signature.head == head:
        for name in (FILE_NAME, SIGNATURE):
            write_atomically(to / name, (folder / name).read_bytes())


def _read(path: Path) -> str:
    """Return the text of a file from elsewhere; refuse what is not a file, or far too large."""
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        raise SignatureError(
            f"{path} is missing, so nothing says what this run cost: copy the whole folder of the"
            " run"
        )
    return path.read_text(encoding="utf-8")


def _find_problem(rows: list[dict[str, Any]], signature: Signature) -> str:
    """Say why these are not the rows that were signed; empty where they are."""
    for row in rows:
        if row["hash"] != hash_row(row) or row["kind"] not in KINDS:
            return "a row was changed"
        if row["run"] != signature.run:
            return "a row is of another run"
    *earlier, model = rows
    if model["kind"] != "model" or model["hash"] != signature.head:
        return "the last row is not the model's"
    if model["key"] != signature.fingerprint:
        return "the model's row names another key"
    if model["rows"] != rows_digest(earlier):
        return "they are not all rows of the run"
    opening, *later = earlier
    if opening["kind"] != "open" or any(row["kind"] == "open" for row in later):
        return "the first is not the one that declares the run"
    charges = [row["round"] for row in later if row["kind"] == "charge"]
    if charges != list(range(len(charges))):
        return "a charge is missing"
    return "" if _has_known_terms(opening) else "its terms are of no version of Taciturn"


def _has_known_terms(opening: Row) -> bool:
    """Tell whether a run declares terms of ours: they stand in statements word for word."""
    unit = opening["unit"]
    is_of_people = unit in ("one user", "one device")
    is_of_nobody = unit.startswith(SIMULATED_USER) and PLAYERS.fullmatch(
        unit.removeprefix(SIMULATED_USER)
    )
    has_delta = isinstance(opening["delta"], float) and 0 < opening["delta"] < 1
    return bool(
        opening["adjacency"] in ADJACENCIES
        and opening["randomness"] in (SECRET, SEEDED)
        and opening["accountant"] in get_args(AccountantName)
        and (is_of_people or is_of_nobody)
        and _has_known_claim(opening["release"])
        and has_delta
    )


def _has_known_claim(release: Row) -> bool:
    """Tell whether the words are ours that a cost may bring with it."""
    while "of" in release:
        release = release["of"]
    return "claim" not in release or CLAIMS.fullmatch(release["claim"]) is not None
