"""A device in a secure sum (protocol.py): its four stages, and what it refuses (Bonawitz et al. 2017, Figure 4; Bell et al. 2020, §3)."""

import os
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from taciturn.fleets.secure_aggregation import masks, shamir
from taciturn.fleets.secure_aggregation.bit_packing import pack
from taciturn.fleets.secure_aggregation.identities import Identity
from taciturn.fleets.secure_aggregation.masks import Secret
from taciturn.fleets.secure_aggregation.messages import Advert, MaskedReport, Roster, SealedShares, Terms, Unmasking, UnmaskRequest
from taciturn.fleets.secure_aggregation.neighbours import Degree, degree, neighbours, ring
from taciturn.fleets.secure_aggregation.protocol import (
    ADVERTISE,
    DONE,
    MASK,
    SHARE,
    UNMASK,
    Refused,
    check_cohort,
    commitment,
    ends_of,
    expect,
    own_mask_key,
    pair_mask_key,
    residue,
)

NONCE_BYTES = 12


class _Peer(NamedTuple):
    """What a device has in common with a neighbour and with nobody else."""

    mask_key: Secret
    share_key: Secret


class DeviceRound:
    """One device in one round. Its secrets live here, in memory, and no longer than the round."""

    def __init__(self, terms: Terms, device: int, identity: Identity) -> None:
        terms.check()
        self._terms, self._device, self._identity, self._stage = terms, device, identity, ADVERTISE
        self._mask_secret, self._share_secret, self._seed = masks.new_secret(), masks.new_secret(), masks.new_secret()
        self._cohort, self._degree = b"", Degree(0, 0)
        self._neighbours: dict[int, _Peer] = {}
        self._held: dict[int, tuple[Secret, Secret]] = {}  # shares of its peers' seeds and mask keys
        self._peers: frozenset[int] = frozenset()  # the neighbours with which it has masks

    def advertise(self) -> Advert:
        expect(self._stage, ADVERTISE)
        keys = masks.public_key(self._mask_secret), masks.public_key(self._share_secret), commitment(self._seed)
        unsigned = Advert(self._device, *keys, b"")
        self._own = unsigned._replace(signature=self._identity.sign(unsigned.signed(self._terms)))
        self._stage = SHARE
        return self._own

    def share(self, roster: Roster) -> SealedShares:
        expect(self._stage, SHARE)
        cohort, needed = roster.cohort(self._terms), self._check_roster(roster)
        peers = {advert.device: self._agree(cohort, advert) for advert in sorted(roster.adverts)}
        seeds = shamir.share(self._seed, needed.threshold, needed.neighbours)
        keys = shamir.share(self._mask_secret, needed.threshold, needed.neighbours)
        sealed = {
            device: _seal(peer.share_key, ends_of(cohort, self._device, device), Secret(seed + key))
            for (device, peer), seed, key in zip(peers.items(), seeds, keys, strict=True)
        }
        self._cohort, self._degree, self._neighbours = cohort, needed, peers
        del self._mask_secret, self._share_secret
        self._stage = MASK
        return SealedShares(cohort, sealed)

    def mask(self, delivery: SealedShares, values: np.ndarray) -> MaskedReport:
        """The report, uint32 [length], each number below the modulus, behind its masks."""
        expect(self._stage, MASK)
        check_cohort(self._cohort, delivery.cohort)
        if strangers := delivery.shares.keys() - self._neighbours.keys():
            raise Refused(f"shares came from device {min(strangers)}, which is no neighbour")
        peers = {device: self._neighbours[device] for device in delivery.shares}
        opened = {
            device: _open(peer.share_key, ends_of(self._cohort, device, self._device), delivery.shares[device])
            for device, peer in peers.items()
        }
        held = {device: shares for device, shares in opened.items() if shares is not None}
        # Only who is in this very round, now, can have sealed what opens here: an old advert that is shown again cannot.
        if len(held) < self._degree.threshold:
            raise Refused(f"{len(held)} neighbours have shared their secrets, and {self._degree.threshold} are needed")
        _check_values(values, self._terms)
        plus = [peer.mask_key for device, peer in peers.items() if self._device < device]
        minus = [peer.mask_key for device, peer in peers.items() if self._device > device]
        plus.append(own_mask_key(self._seed, self._cohort))
        masked = values.astype(masks.words(self._terms.modulus_bits))
        masks.add_masks(masked, plus, minus)
        report = MaskedReport(self._cohort, pack(residue(masked, self._terms), self._terms.modulus_bits))
        self._held, self._peers, self._stage = held, frozenset(delivery.shares), UNMASK
        del self._seed
        self._neighbours = {}
        return report

    def unmask(self, request: UnmaskRequest) -> Unmasking:
        """Shares of one secret of each neighbour. There is no second answer: with two, a server could have both."""
        expect(self._stage, UNMASK)
        check_cohort(self._cohort, request.cohort)
        self._check_lists(request.alive, request.dead)
        self._stage, held, self._held = DONE, self._held, {}
        return Unmasking(
            self._cohort,
            {peer: seed for peer, (seed, _) in held.items() if peer in request.alive},
            {peer: key for peer, (_, key) in held.items() if peer in request.dead},
        )

    def _check_roster(self, roster: Roster) -> Degree:
        """The neighbours have to be those that follow from all adverts, as many as there must be, and be who they say."""
        digests, adverts = roster.digests, {advert.digest(): advert for advert in roster.adverts}
        if self._own.digest() not in digests:
            raise Refused("the advert of this device is not in the list of the round")
        if not self._terms.least <= len(set(digests)) == len(digests) <= self._terms.most:
            raise Refused(f"{len(set(digests))} devices are not between {self._terms.least} and {self._terms.most}")
        try:
            needed = degree(len(digests), self._terms.dropouts, self._terms.corrupt)
        except ValueError as impossible:
            raise Refused(str(impossible)) from None
        if len(adverts) < needed.neighbours:
            raise Refused(f"{len(adverts)} neighbours are fewer than {needed.neighbours}")
        order = ring(roster.cohort(self._terms), digests)
        if adverts.keys() != neighbours(order, order.index(self._own.digest()), needed.neighbours):
            raise Refused("these are not the neighbours that follow from all adverts")
        if len({advert.device for advert in adverts.values()} | {self._device}) != len(roster.adverts) + 1:
            raise Refused("a device is its own neighbour, or there twice")
        for advert in roster.adverts:
            if not self._identity.verify(advert.device, advert.signed(self._terms), advert.signature):
                raise Refused(f"the keys of device {advert.device} are not signed by it for this round")
        return needed

    def _check_lists(self, alive: frozenset[int], dead: frozenset[int]) -> None:
        if both := alive & dead:
            raise Refused(f"device {min(both)} cannot have reported and have gone")
        if self._device not in alive:
            raise Refused("this device has reported, and is not listed so")
        if strangers := (alive | dead) - self._peers - {self._device}:
            raise Refused(f"device {min(strangers)} shared no secret with this one")
        if missing := self._peers - alive - dead:
            raise Refused(f"what became of device {min(missing)} is not said")
        if len(alive) - 1 < self._degree.threshold:
            raise Refused(f"{len(alive) - 1} neighbours have reported, and {self._degree.threshold} are needed")

    def _agree(self, cohort: bytes, peer: Advert) -> _Peer:
        try:
            return _Peer(
                pair_mask_key(self._mask_secret, peer, self._device, cohort),
                masks.agreed(self._share_secret, peer.share_key, b"shares" + cohort),
            )
        except ValueError as weak:
            raise Refused(f"device {peer.device}: {weak}") from None


def _check_values(values: np.ndarray, terms: Terms) -> None:
    if values.dtype != np.uint32 or values.shape != (terms.length,):
        raise ValueError(f"a report is uint32 [{terms.length}], not {values.dtype} {list(values.shape)}")
    if int(values.max()) >> terms.modulus_bits:
        raise ValueError(f"a number in a report has more than {terms.modulus_bits} bits")


def _seal(key: Secret, ends: bytes, shares: Secret) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(masks.derived(key, ends)).encrypt(nonce, shares, ends)


def _open(key: Secret, ends: bytes, content: bytes) -> tuple[Secret, Secret] | None:
    """None if it was not sealed by this device for that one in this round: the others' shares may do without it."""
    try:
        shares = AESGCM(masks.derived(key, ends)).decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], ends)
    except (InvalidTag, ValueError):
        return None
    return Secret(shares[: shamir.SHARE_BYTES]), Secret(shares[shamir.SHARE_BYTES :])
