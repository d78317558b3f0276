"""The key of a population's ledger, which signs what runs take away with them.

It lies in `private/` beside the ledger, and its public part is a row of the ledger. A ledger that
was made from Python has no population around it and no key: its models leave through no gate, so
nothing would be signed.

**Guarantee:** a key signs only once the ledger has its row, written under the ledger's lock, so the
chain says which keys were in use, and since when. A key that was lost is replaced by another, with
a row of its own: what the lost one signed can still be checked, and nothing is signed as the lost
one.

**Assumes:** `private/` is secret. Its owner can sign anything, as they could have made any ledger:
a signature says who states something, never that it is true.
"""

import hashlib
import json
import logging
import re
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from taciturn.files import lock_file, write_atomically
from taciturn.privacy.ledger.hash_chain import LedgerError, Row
from taciturn.privacy.ledger.ledger import Ledger

LOG = logging.getLogger("taciturn")
# Files in private/. The lock is held so that two runs that end at once make one key.
KEY = "ledger-key"
KEY_LOCK = "ledger-key-lock"
KEY_BYTES = 32
# Nothing else that such a key may sign begins like this.
CONTEXT = b"taciturn, the rows of a run\n"
# Hexadecimal digits of a fingerprint, and of each of its groups.
FINGERPRINT_DIGITS = 32
GROUP = 4


class LedgerKey:
    """A key that signs."""

    def __init__(self, secret: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw()

    @property
    def fingerprint(self) -> str:
        """Return what people compare."""
        return fingerprint_of(self.public)

    def sign(self, content: dict[str, Any]) -> bytes:
        """Sign JSON content."""
        return self._key.sign(_bytes_to_sign(content))


def open_key(ledger: Ledger) -> LedgerKey:
    """Return the key of a population's ledger; make it, and its row, where there is none.

    Raises:
        LedgerError: if the file of the key is damaged.
    """
    private = ledger.path.parent / "private"
    with lock_file(private / KEY_LOCK):
        path = private / KEY
        if not path.exists():
            secret = Ed25519PrivateKey.generate().private_bytes_raw()
            write_atomically(path, secret, 0o600)
        secret = path.read_bytes()
        if len(secret) != KEY_BYTES:
            raise LedgerError(
                f"{path} is damaged. Restore it from a copy; or move it away, and a new key is"
                " made: what the old one signed can still be checked"
            )
        key = LedgerKey(secret)
        _record(key, ledger)
    return key


def _record(key: LedgerKey, ledger: Ledger) -> None:
    """Write the key's row, unless it is the ledger's newest of a key."""
    # Another run may have written it.
    ledger.refresh()
    known = list_keys(ledger.run_rows(None))
    if known and known[-1] == key.public:
        return
    ledger.append({"kind": "key", "public": key.public.hex()})
    if known:
        LOG.warning(
            "the key %s that signed the runs of %s is gone: from now on they are signed by the"
            " key %s; what was signed before can still be checked",
            fingerprint_of(known[-1]),
            ledger.path,
            key.fingerprint,
        )


def list_keys(rows: list[Row]) -> list[bytes]:
    """Return the public keys that rows of a ledger name, in their order."""
    return [bytes.fromhex(row["public"]) for row in rows if row["kind"] == "key"]


def fingerprint_of(public: bytes) -> str:
    """Return a public key in a form that people can compare: eight groups of four digits.

    Example:
        assert fingerprint_of(bytes(32)) == "6668-7aad-f862-bd77-6c8f-c18b-8e9f-8e20"
    """
    digits = hashlib.sha256(public).hexdigest()[:FINGERPRINT_DIGITS]
    return "-".join(re.findall("." * GROUP, digits))


def is_signed(public: bytes, content: dict[str, Any], signature: bytes) -> bool:
    """Tell whether the owner of a key signed this content."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _bytes_to_sign(content))
    # A key of another length is a ValueError.
    except (InvalidSignature, ValueError):
        return False
    return True


def _bytes_to_sign(content: dict[str, Any]) -> bytes:
    return CONTEXT + json.dumps(content, sort_keys=True).encode()
