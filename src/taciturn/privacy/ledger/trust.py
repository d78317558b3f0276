"""What a reader knows of a ledger that is not in reach: the fingerprint of its key, or its head.

**Guarantee:** rows are trusted only if the reader named the key that signed them, a head of the
ledger that binds them, or a copy of the ledger that has every one of them.

**Assumes:** the reader has that from the ledger's owner, and not from the folder that is opened.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taciturn.privacy.ledger.hash_chain import GENESIS, LedgerError, Row, hash_row
from taciturn.privacy.ledger.ledger_key import FINGERPRINT_DIGITS, fingerprint_of, list_keys
from taciturn.privacy.ledger.signed_rows import SignedRows

HEAD_DIGITS = 64
DIGITS = re.compile(f"[0-9a-f]{{{FINGERPRINT_DIGITS}}}|[0-9a-f]{{{HEAD_DIGITS}}}")


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What a reader vouches for."""

    # As it was given.
    names: tuple[str, ...] = ()
    fingerprints: frozenset[str] = frozenset()
    heads: frozenset[str] = frozenset()
    # The rows of copies of ledgers.
    ledgers: tuple[list[Row], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names)

    def covers(self, signed: SignedRows) -> bool:
        """Tell whether the reader vouches for the ledger of these rows."""
        if signed.signature.fingerprint in self.fingerprints:
            return True
        if self.heads & set(_heads_of(signed)):
            return True
        return any(_has_rows(rows, signed) for rows in self.ledgers)


def parse_trust(named: str | Path | Sequence[str | Path] | None) -> Trust:
    """Return what a reader vouches for.

    Args:
        named: fingerprints of keys, heads, or files: of a ledger (ledger.jsonl), of its head
            (ledger.head), of an anchor.

    Raises:
        LedgerError: if one is nothing of all that.
    """
    if named is None:
        return Trust()
    each = [named] if isinstance(named, str | Path) else named
    fingerprints = set()
    heads = set()
    ledgers = []
    for item in map(str, each):
        # First as it is: a file with that name may come with the folder that is opened.
        content = item if _find_digits(item) else _read_file(item)
        digits = _find_digits(content)
        if len(digits) == FINGERPRINT_DIGITS:
            fingerprints.add("-".join(re.findall("....", digits)))
        elif digits:
            heads.add(digits)
        else:
            ledgers.append(_read_ledger(item, content))
    return Trust(
        names=tuple(map(str, each)),
        fingerprints=frozenset(fingerprints),
        heads=frozenset(heads),
        ledgers=tuple(ledgers),
    )


def _find_digits(text: str) -> str:
    """Return the digits of a fingerprint or of a head; none where a text is neither."""
    digits = re.sub(r"[\s:-]", "", text).lower()
    return digits if DIGITS.fullmatch(digits) else ""


def _read_file(item: str) -> str:
    """Return what a file says."""
    path = Path(item)
    if not path.is_file():
        raise _not_to_trust(item)
    try:
        content = path.read_text(encoding="utf-8")
        # An anchor may have such a name too, and holds nothing but the head.
        has_more = path.suffix == ".head" and not _find_digits(content)
        return str(json.loads(content)["head"]) if has_more else content
    except (ValueError, TypeError, KeyError):
        raise _not_to_trust(item) from None


def _read_ledger(item: str, content: str) -> list[Row]:
    """Return the rows of a copy of a ledger, which fit one another from the first."""
    previous = GENESIS
    rows: list[Row] = []
    try:
        for line in content.splitlines():
            row = json.loads(line)
            if row["hash"] != hash_row(row) or row["previous"] != previous:
                if not rows and row["kind"] == "open":
                    raise _of_one_run(item)
                raise _not_to_trust(item)
            previous = row["hash"]
            rows.append(row)
    except (ValueError, TypeError, KeyError):
        raise _not_to_trust(item) from None
    return rows


def _of_one_run(item: str) -> LedgerError:
    return LedgerError(
        f"{item} has only the rows of one run, as the folder of every run has, real or not: they"
        " prove nothing; ask the run's maker for the fingerprint of the ledger's key"
        " (`taciturn ledger show` prints it), or for a copy of the whole ledger"
    )


def _not_to_trust(item: str) -> LedgerError:
    return LedgerError(
        f"{item} is neither the fingerprint of a ledger's key (32 digits, as `taciturn ledger show`"
        " prints it), nor a whole head (64 digits), nor a file of a ledger: ask the run's maker for"
        " one of them"
    )


def _heads_of(signed: SignedRows) -> list[str]:
    """Return the heads that the ledger had when the run ended: its model's row, and its close."""
    head = signed.signature.head
    closing = {"kind": "close", "closed": signed.signature.run, "previous": head}
    return [head, hash_row(closing)]


def _has_rows(rows: list[Row], signed: SignedRows) -> bool:
    signature = signed.signature
    until = rows[: signature.row]
    of_run = [row for row in until if row.get("run") == signature.run]
    keys = [fingerprint_of(key) for key in list_keys(until)]
    return of_run == signed.rows and signature.fingerprint in keys
