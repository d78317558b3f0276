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
of the cell, of at least t reports, and nothing else about the other devices in it, whichever of
them drop out and whatever lists of survivors it invents and shows to each; except with probability
2⁻⁸⁰ for each way to divide a round that it tries, by which some cell has more such devices than
that. A report that arrives after its device was given up stays masked. All keys depend on the
round's terms, and so on the message that devices train on: devices that got different ones have no
sum.

**Assumes:** the enrolment authority is not the server (identities.py), and no more than the share
`Terms.corrupt` of a cohort works for the server; TLS authenticates messages between device and
server; a device is in a round of one name once (own_participation.py). What a server can do
nevertheless is in docs/secure_aggregation.md. A device that lies can spoil its cell's sum, and
learns nothing by it.
"""

import hashlib

import numpy as np

from taciturn.fleets.secure_aggregation import masks
from taciturn.fleets.secure_aggregation.masks import Secret
from taciturn.fleets.secure_aggregation.messages import Advert, Terms
from taciturn.fleets.secure_aggregation.stages import Stage


class Refused(ValueError):
    """One side refuses what the other sent; nothing has changed.

    The sentence may name devices: it belongs in a private log.
    """


class Unneeded(Refused):
    """There is no room for it, though nothing is wrong with it."""


def expect(now: Stage, asked: Stage) -> None:
    """Refuse what belongs to another stage than that in which a round is now."""
    if asked == now:
        return
    if now.is_after(asked):
        raise Refused(f"it is too late to {asked.value}: that is done")
    raise Refused(f"it is too early to {asked.value}: {now.value} comes first")


def check_cell(own: bytes, theirs: bytes) -> None:
    """Refuse what was said in another cell, or in another round."""
    if own != theirs:
        raise Refused("this belongs to another round, or to another cell of it")


def residue(total: np.ndarray, terms: Terms) -> np.ndarray:
    """Return sums modulo M, as uint32."""
    lowest_bits = total.dtype.type((1 << terms.modulus_bits) - 1)
    return (total & lowest_bits).astype(np.uint32, copy=False)


def commitment(seed: bytes) -> bytes:
    """Return a hash of a seed, by which its reconstruction is recognised."""
    return hashlib.sha256(b"taciturn secure sum: seed\0" + seed).digest()


def ends_of(cell: bytes, sender: int, receiver: int) -> bytes:
    """Name a cell and two devices in it: shares and masks are bound to both ends."""
    return cell + sender.to_bytes(8, "big") + receiver.to_bytes(8, "big")


def own_mask_key(seed: Secret, cell: bytes) -> Secret:
    """Return the key of a device's own mask."""
    return masks.derive_key(seed, purpose=b"own mask" + cell)


def pair_mask_key(secret: Secret, peer: Advert, device: int, cell: bytes) -> Secret:
    """Return the key of the mask that a device and its peer share, the same from both ends."""
    first = min(device, peer.device)
    second = max(device, peer.device)
    ends = ends_of(
        cell,
        sender=first,
        receiver=second,
    )
    return masks.agree_on_key(secret, peer.mask_key, purpose=b"pair mask" + ends)
