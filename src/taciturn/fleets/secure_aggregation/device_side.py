"""A device in a secure sum (protocol.py): its five stages, and what it refuses (Bonawitz et al.
2017, Figure 4).
"""

import os
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from taciturn.fleets.secure_aggregation import masks, protocol, shamir
from taciturn.fleets.secure_aggregation.bit_packing import pack
from taciturn.fleets.secure_aggregation.cells import cell_name, cells, threshold
from taciturn.fleets.secure_aggregation.identities import (
    Authority,
    Certificate,
    DismissedDevices,
    is_signed_by,
)
from taciturn.fleets.secure_aggregation.masks import Secret
from taciturn.fleets.secure_aggregation.messages import (
    Advert,
    MaskedReport,
    Roster,
    SealedShares,
    Survivors,
    Unmasking,
    UnmaskRequest,
)
from taciturn.fleets.secure_aggregation.protocol import Refused, Terms

NONCE_BYTES = 12


class _Peer(NamedTuple):
    """What a device shares with another of its cell and with no one else."""

    mask_key: Secret
    share_key: Secret


class DeviceRound:
    """One device in one round. Its secrets are in memory only: after a crash it cannot sign or
    unmask in this round.
    """

    def __init__(
        self,
        *,
        terms: Terms,
        key: Ed25519PrivateKey,
        certificate: Certificate,
        authority: Authority,
        dismissed: DismissedDevices,
    ) -> None:
        """`key` is the device's own, which never leaves it; its certificate, and the list of
        dismissed devices, may come from anywhere.
        """
        terms.check()
        if terms.dismissed != dismissed.digest():
            raise ValueError("the terms name another list of dismissed devices")
        why_not_list = authority.why_not_list(dismissed)
        why_not = why_not_list or authority.why_not_device(certificate, dismissed)
        if why_not:
            raise Refused(why_not)
        if certificate.key != key.public_key().public_bytes_raw():
            raise Refused("this certificate is of another device")
        self._terms = terms
        self._key = key
        self._certificate = certificate
        self._authority = authority
        self._dismissed = dismissed
        self._device, self._stage = certificate.device, protocol.ADVERTISE
        self._mask_secret, self._share_secret, self._seed = (
            masks.new_secret(),
            masks.new_secret(),
            masks.new_secret(),
        )
        self._cell, self._threshold = b"", 0
        # of the cell
        self._others: dict[int, _Peer] = {}
        # with which they sign
        self._keys: dict[int, bytes] = {}
        self._held: dict[
            int,
            tuple[Secret, Secret],
            # shares of seeds and mask keys, its own too
        ] = {}
        # with which it has masks
        self._peers: frozenset[int] = frozenset()
        self._survivors = Survivors(b"", frozenset())

    def advertise(self) -> Advert:
        protocol.expect(self._stage, protocol.ADVERTISE)
        keys = (
            masks.public_key(self._mask_secret),
            masks.public_key(self._share_secret),
            protocol.commitment(self._seed),
        )
        unsigned = Advert(self._certificate, *keys, b"")
        self._own = unsigned._replace(signature=self._key.sign(unsigned.signed(self._terms)))
        self._stage = protocol.SHARE
        return self._own

    def share(self, roster: Roster) -> SealedShares:
        protocol.expect(self._stage, protocol.SHARE)
        cell, needed = self._check_roster(roster)
        others = {advert.device: self._agree(cell, advert) for advert in roster.adverts}
        self._keys = {advert.device: advert.certificate.key for advert in roster.adverts}
        holders = sorted((self._device, *others))
        shares = (
            shamir.share(secret, needed, len(holders)) for secret in (self._seed, self._mask_secret)
        )
        held = dict(zip(holders, zip(*shares, strict=True), strict=True))
        ends = {device: protocol.ends_of(cell, self._device, device) for device in others}
        sealed = {
            device: _seal(peer.share_key, ends[device], Secret(b"".join(held[device])))
            for device, peer in others.items()
        }
        own_seed, own_key = held[self._device]
        self._held = {self._device: (Secret(own_seed), Secret(own_key))}
        self._cell, self._threshold, self._others = cell, needed, others
        del self._mask_secret, self._share_secret
        self._stage = protocol.MASK
        return SealedShares(cell, sealed)

    def mask(self, delivery: SealedShares, values: np.ndarray) -> MaskedReport:
        """Mask the report, uint32 [length], each number below the modulus."""
        protocol.expect(self._stage, protocol.MASK)
        protocol.check_cell(self._cell, delivery.cell)
        if strangers := delivery.shares.keys() - self._others.keys():
            raise Refused(f"shares came from device {min(strangers)}, which is not in this cell")
        peers = {device: self._others[device] for device in delivery.shares}
        ends = {device: protocol.ends_of(self._cell, device, self._device) for device in peers}
        opened = {
            device: _open(peer.share_key, ends[device], delivery.shares[device])
            for device, peer in peers.items()
        }
        held = self._held | {
            device: shares for device, shares in opened.items() if shares is not None
        }
        # Only devices in this very round, now, can have sealed what opens here: a replayed old
        # advert cannot.
        self._check_enough(held.keys(), "shared their secrets")
        _check_values(values, self._terms)
        plus = [peer.mask_key for device, peer in peers.items() if self._device < device]
        minus = [peer.mask_key for device, peer in peers.items() if self._device > device]
        plus.append(protocol.own_mask_key(self._seed, self._cell))
        masked = values.astype(masks.words(self._terms.modulus_bits))
        masks.add_masks(masked, plus, minus)
        report = MaskedReport(
            self._cell, pack(protocol.residue(masked, self._terms), self._terms.modulus_bits)
        )
        self._held, self._peers, self._stage = held, frozenset(peers), protocol.SIGN
        del self._seed
        self._others = {}
        return report

    def sign(self, survivors: Survivors) -> bytes:
        """Sign, once: of two lists at most one can have enough signatures."""
        protocol.expect(self._stage, protocol.SIGN)
        protocol.check_cell(self._cell, survivors.cell)
        if self._device not in survivors.devices:
            raise Refused("this device has reported, and is not listed so")
        if strangers := survivors.devices - self._peers - {self._device}:
            raise Refused(f"device {min(strangers)} shared no secret with this one")
        self._check_enough(survivors.devices, "reported")
        self._survivors, self._stage = survivors, protocol.UNMASK
        return self._key.sign(survivors.signed())

    def unmask(self, request: UnmaskRequest) -> Unmasking:
        """Return shares of one secret of each device in the cell, once."""
        protocol.expect(self._stage, protocol.UNMASK)
        protocol.check_cell(self._cell, request.cell)
        agreed = {self._device} | signers(self._survivors, request.signatures, self._keys)
        self._check_enough(agreed, "signed the survivors that this one has")
        self._stage, held, self._held = protocol.DONE, self._held, {}
        alive = self._survivors.devices
        seeds: dict[int, bytes] = {peer: seed for peer, (seed, _) in held.items() if peer in alive}
        return Unmasking(
            self._cell, seeds, {peer: key for peer, (_, key) in held.items() if peer not in alive}
        )

    def _check_roster(self, roster: Roster) -> tuple[bytes, int]:
        """Refuse devices that do not follow from all adverts, or are not who they claim; return the
        cell's name and threshold.
        """
        digests, adverts = (
            list(roster.digests.values()),
            {advert.digest(): advert for advert in roster.adverts},
        )
        own = self._own.digest()
        if roster.digests.get(self._device) != own:
            raise Refused("the advert of this device is not in the list of the round")
        if not self._terms.least <= len(set(digests)) == len(digests) <= self._terms.most:
            raise Refused(
                f"{len(set(digests))} devices are not between {self._terms.least} and"
                f" {self._terms.most}"
            )
        cohort = roster.cohort(self._terms)
        cell = next(one for one in cells(cohort, digests) if own in one)
        if adverts.keys() != set(cell) - {own}:
            raise Refused("these are not the devices of its cell that follow from all adverts")
        if not all(_in_its_row(roster, advert) for advert in roster.adverts):
            raise Refused(
                "a device has another advert in the list of the round: it would be there twice"
            )
        self._check_members(roster)
        return cell_name(cohort, cell), threshold(
            len(digests), len(cell), self._terms.dropouts, self._terms.corrupt
        )

    def _check_members(self, roster: Roster) -> None:
        """Refuse a cell in which a device is not who it claims, or two are one."""
        for advert in roster.adverts:
            why_not = self._authority.why_not_device(advert.certificate, self._dismissed)
            if why_not:
                raise Refused(why_not)
            if not is_signed_by(
                advert.certificate.key, advert.signed(self._terms), advert.signature
            ):
                raise Refused(
                    f"the keys of device {advert.device} are not signed by it for this round"
                )
        if len({advert.certificate.key for advert in (self._own, *roster.adverts)}) <= len(
            roster.adverts
        ):
            raise Refused("two devices of the cell have one key: they are one")

    def _check_enough(self, devices: Collection[int], done: str) -> None:
        if len(devices) < self._threshold:
            raise Refused(
                f"{len(devices)} devices of the cell, this one among them, have {done}, and"
                f" {self._threshold} are needed"
            )

    def _agree(self, cell: bytes, peer: Advert) -> _Peer:
        try:
            mask_key = protocol.pair_mask_key(self._mask_secret, peer, self._device, cell)
            return _Peer(
                mask_key, masks.agree_on_key(self._share_secret, peer.share_key, b"shares" + cell)
            )
        except ValueError as weak:
            raise Refused(f"device {peer.device}: {weak}") from None


def _in_its_row(roster: Roster, advert: Advert) -> bool:
    """Return whether an advert is its device's only one: with more, corrupt devices would be a
    larger share of a round than stated.
    """
    return roster.digests.get(advert.device) == advert.digest()


def signers(
    survivors: Survivors, signatures: Mapping[int, bytes], keys: Mapping[int, bytes]
) -> set[int]:
    """Return the survivors who have signed this list of them. No one else counts: a device outside
    the cell may work for the server.
    """
    signed, known = survivors.signed(), signatures.keys() & survivors.devices & keys.keys()
    return {one for one in known if is_signed_by(keys[one], signed, signatures[one])}


def _check_values(values: np.ndarray, terms: Terms) -> None:
    if values.dtype != np.uint32 or values.shape != (terms.length,):
        raise ValueError(
            f"a report is uint32 [{terms.length}], not {values.dtype} {list(values.shape)}"
        )
    if int(values.max()) >> terms.modulus_bits:
        raise ValueError(f"a number in a report has more than {terms.modulus_bits} bits")


def _seal(key: Secret, ends: bytes, shares: Secret) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(masks.derive_key(key, ends)).encrypt(nonce, shares, ends)


def _open(key: Secret, ends: bytes, content: bytes) -> tuple[Secret, Secret] | None:
    """Open shares, or return None if that device did not seal them for this one in this round: the
    others' may suffice.
    """
    try:
        shares = AESGCM(masks.derive_key(key, ends)).decrypt(
            content[:NONCE_BYTES], content[NONCE_BYTES:], ends
        )
    except (InvalidTag, ValueError):
        return None
    return Secret(shares[: shamir.SHARE_BYTES]), Secret(shares[shamir.SHARE_BYTES :])
