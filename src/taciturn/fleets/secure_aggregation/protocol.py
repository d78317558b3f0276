"""A sum whose parts no one can see: secure aggregation (Bonawitz et al. 2017, Figure 4), in cells
of at most 200 devices (cells.py).

Five stages as plain calls without a network; this file has what both sides share.

    1. advertise   fresh keys for the round, signed by the device; cells follow from all adverts
    2. share       the device's two secrets, split into shares for its cell, each sealed for its
       receiver
    3. mask        y_u = x_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv)   modulo M =
       2^b, over the cell
    4. sign        the list of all survivors, whose reports have arrived; once
    5. unmask      under t signatures of that list: shares of b_v for survivors, of the mask key s_v
       for those that have gone; once

In the sum the masks of pairs cancel, except those with devices that have gone; these, and the
devices' own masks, the server reconstructs from shares and subtracts. What is left is Σ x_u of the
survivors, exactly, or the cell has failed and the others continue without it.

**Guarantee:** a server, together with as many devices of a cell as cells.py allows, learns one sum
of the cell, of at least t reports, and nothing else about the other devices in it, whoever drops
out, whatever lists of survivors it invents and shows to whom, except with probability 2⁻⁸⁰ a list
that a cell has more of them. A report that arrives after its device was given up stays masked. All
keys depend on the round's terms, and so on the message that devices train on: devices that got
different ones have no sum.

**Assumes:** the enrolment authority is not the server (identities.py), and no more than the share
`Terms.corrupt` of a cohort works for the server; TLS authenticates messages between device and
server; a device is in a round of one name once (participation_record.py). What a server can do
nevertheless is in docs/secure_aggregation.md. A device that lies can spoil its cell's sum, and
learns nothing by it.
"""

import hashlib

import numpy as np

from taciturn.fleets.secure_aggregation import masks
from taciturn.fleets.secure_aggregation.masks import Secret
from taciturn.fleets.secure_aggregation.messages import Advert, Terms

STAGES = ADVERTISE, SHARE, MASK, SIGN, UNMASK, DONE = (
    "advertise",
    "share",
    "mask",
    "sign",
    "unmask",
    "done",
)


class Refused(ValueError):
    """One side refuses what the other sent; nothing has changed. The sentence may name devices: it
    belongs in a private log.
    """


class Unneeded(Refused):
    """There is no room for it, though nothing is wrong with it."""


def expect(now: str, asked: str) -> None:
    if now != asked:
        late = STAGES.index(now) > STAGES.index(asked)
        raise Refused(
            f"it is too {'late' if late else 'early'} to {asked}: "
            + ("that is done" if late else f"{now} comes first")
        )


def check_cell(own: bytes, theirs: bytes) -> None:
    if own != theirs:
        raise Refused("this belongs to another round, or to another cell of it")


def residue(total: np.ndarray, terms: Terms) -> np.ndarray:
    return (total & total.dtype.type((1 << terms.modulus_bits) - 1)).astype(np.uint32, copy=False)


def commitment(seed: bytes) -> bytes:
    return hashlib.sha256(b"taciturn secure sum: seed\0" + seed).digest()


def ends_of(cell: bytes, sender: int, receiver: int) -> bytes:
    return cell + sender.to_bytes(8, "big") + receiver.to_bytes(8, "big")


def own_mask_key(seed: Secret, cell: bytes) -> Secret:
    return masks.derive_key(seed, b"own mask" + cell)


def pair_mask_key(secret: Secret, peer: Advert, device: int, cell: bytes) -> Secret:
    """Return the key of the mask that a device and its peer share, the same from both ends."""
    ends = ends_of(cell, min(device, peer.device), max(device, peer.device))
    return masks.agree_on_key(secret, peer.mask_key, b"pair mask" + ends)
