"""A device in a secure sum (protocol.py): its five stages, and what it refuses.

They are those of Bonawitz et al. (2017), Figure 4.
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
from taciturn.fleets.secure_aggregation.stages import Stage

NONCE_BYTES = 12


class _Peer(NamedTuple):
    """What a device shares with another of its cell and with no one else."""

    mask_key: Secret
    share_key: Secret


class _Shares(NamedTuple):
    """A holder's shares of one device's two secrets."""

    seed: Secret
    mask_key: Secret


class _Cell(NamedTuple):
    """A device's cell, as it follows from all adverts of the round."""

    name: bytes
    threshold: int


class DeviceRound:
    """One device in one round.

    Its secrets are in memory only: after a crash it cannot sign or unmask in this round.
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
        """Enter a round.

        Args:
            terms: what all in the round agree on.
            key: the device's own, which never leaves it.
            certificate: what the authority says about that key; it may come from anywhere.
            authority: whom the device believes about other devices.
            dismissed: the list that the terms name; it may come from anywhere.

        Raises:
            Refused: the authority does not vouch for the list or the certificate.
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
        self._device = certificate.device
        self._stage = Stage.ADVERTISE
        self._mask_secret = masks.new_secret()
        self._share_secret = masks.new_secret()
        # Of the device's own mask.
        self._seed = masks.new_secret()
        # The name of its cell.
        self._cell = b""
        self._threshold = 0
        # The others of its cell, until it has masked its report.
        self._others: dict[int, _Peer] = {}
        # With which the others sign.
        self._keys: dict[int, bytes] = {}
        # By owner, this device among them.
        self._held: dict[int, _Shares] = {}
        # With which it has masks.
        self._peers: frozenset[int] = frozenset()
        # The list that it has signed.
        self._survivors = Survivors(b"", frozenset())

    def advertise(self) -> Advert:
        """Return fresh public keys for this round, signed with the device's key."""
        protocol.expect(self._stage, Stage.ADVERTISE)
        unsigned = Advert(
            certificate=self._certificate,
            mask_key=masks.public_key(self._mask_secret),
            share_key=masks.public_key(self._share_secret),
            commitment=protocol.commitment(self._seed),
            signature=b"",
        )
        signature = self._key.sign(unsigned.signed_content(self._terms))
        self._own = unsigned._replace(signature=signature)
        self._stage = Stage.SHARE
        return self._own

    def share(self, roster: Roster) -> SealedShares:
        """Split both secrets into shares for the cell, each sealed for the device that holds it."""
        protocol.expect(self._stage, Stage.SHARE)
        cell = self._check_roster(roster)
        others = {}
        keys = {}
        for advert in roster.adverts:
            others[advert.device] = self._agree(cell.name, advert)
            keys[advert.device] = advert.certificate.key
        shares = _split(
            seed=self._seed,
            mask_secret=self._mask_secret,
            holders=sorted((self._device, *others)),
            threshold=cell.threshold,
        )
        sealed = {}
        for device, peer in others.items():
            ends = protocol.ends_of(
                cell.name,
                sender=self._device,
                receiver=device,
            )
            sealed[device] = _seal(peer.share_key, ends, shares[device])
        self._held = {self._device: shares[self._device]}
        self._cell = cell.name
        self._threshold = cell.threshold
        self._others = others
        self._keys = keys
        del self._mask_secret
        del self._share_secret
        self._stage = Stage.MASK
        return SealedShares(cell.name, sealed)

    def mask(self, delivery: SealedShares, values: np.ndarray) -> MaskedReport:
        """Mask the report, uint32 [length], each number below the modulus."""
        protocol.expect(self._stage, Stage.MASK)
        protocol.check_cell(self._cell, delivery.cell)
        strangers = delivery.shares.keys() - self._others.keys()
        if strangers:
            raise Refused(f"shares came from device {min(strangers)}, which is not in this cell")
        opened = self._open_shares(delivery)
        held = self._held | opened
        # Only devices in this very round, now, can have sealed what opens here: a replayed old
        # advert cannot.
        self._check_enough(held.keys(), "shared their secrets")
        _check_values(values, self._terms)
        masked = self._add_masks(values, peers=delivery.shares)
        self._held = held
        self._peers = frozenset(delivery.shares)
        self._stage = Stage.SIGN
        del self._seed
        self._others = {}
        return MaskedReport(self._cell, masked)

    def sign(self, survivors: Survivors) -> bytes:
        """Sign, once: of two lists at most one can have enough signatures."""
        protocol.expect(self._stage, Stage.SIGN)
        protocol.check_cell(self._cell, survivors.cell)
        if self._device not in survivors.devices:
            raise Refused("this device has reported, and is not listed so")
        strangers = survivors.devices - self._peers - {self._device}
        if strangers:
            raise Refused(f"device {min(strangers)} shared no secret with this one")
        self._check_enough(survivors.devices, "reported")
        self._survivors = survivors
        self._stage = Stage.UNMASK
        return self._key.sign(survivors.signed_content())

    def unmask(self, request: UnmaskRequest) -> Unmasking:
        """Return shares of one secret of each device in the cell, once."""
        protocol.expect(self._stage, Stage.UNMASK)
        protocol.check_cell(self._cell, request.cell)
        signers = find_signers(
            self._survivors,
            signatures=request.signatures,
            keys=self._keys,
        )
        agreed = {self._device} | signers
        self._check_enough(agreed, "signed the survivors that this one has")
        held = self._held
        self._stage = Stage.DONE
        self._held = {}
        seeds: dict[int, bytes] = {}
        mask_keys: dict[int, bytes] = {}
        for owner, shares in held.items():
            if owner in self._survivors.devices:
                seeds[owner] = shares.seed
            else:
                mask_keys[owner] = shares.mask_key
        return Unmasking(
            cell=self._cell,
            seeds=seeds,
            mask_keys=mask_keys,
        )

    def _check_roster(self, roster: Roster) -> _Cell:
        """Refuse devices that do not follow from all adverts, or are not who they claim."""
        own = self._own.digest()
        if roster.digests.get(self._device) != own:
            raise Refused("the advert of this device is not in the list of the round")
        digests = list(roster.digests.values())
        self._check_cohort(digests)
        cohort = roster.cohort(self._terms)
        cell = next(cell for cell in cells(cohort, digests) if own in cell)
        adverts = {advert.digest() for advert in roster.adverts}
        if adverts != set(cell) - {own}:
            raise Refused("these are not the devices of its cell that follow from all adverts")
        for advert in roster.adverts:
            if not _is_in_its_row(roster, advert):
                raise Refused(
                    "a device has another advert in the list of the round: it would be there twice"
                )
        self._check_members(roster)
        needed = threshold(
            cohort=len(digests),
            cell=len(cell),
            dropouts=self._terms.dropouts,
            corrupt=self._terms.corrupt,
        )
        return _Cell(cell_name(cohort, cell), needed)

    def _check_cohort(self, digests: list[bytes]) -> None:
        """Refuse a round of too few or too many devices, or with one advert twice."""
        devices = len(set(digests))
        if not self._terms.least <= devices == len(digests) <= self._terms.most:
            raise Refused(
                f"{devices} devices are not between {self._terms.least} and {self._terms.most}"
            )

    def _check_members(self, roster: Roster) -> None:
        """Refuse a cell in which a device is not who it claims, or two are one."""
        keys = {self._own.certificate.key}
        for advert in roster.adverts:
            certificate = advert.certificate
            why_not = self._authority.why_not_device(certificate, self._dismissed)
            if why_not:
                raise Refused(why_not)
            is_signed = is_signed_by(
                certificate.key,
                content=advert.signed_content(self._terms),
                signature=advert.signature,
            )
            if not is_signed:
                raise Refused(
                    f"the keys of device {advert.device} are not signed by it for this round"
                )
            keys.add(certificate.key)
        if len(keys) < 1 + len(roster.adverts):
            raise Refused("two devices of the cell have one key: they are one")

    def _check_enough(self, devices: Collection[int], done: str) -> None:
        """Refuse to continue with fewer devices than the threshold."""
        if len(devices) < self._threshold:
            raise Refused(
                f"{len(devices)} devices of the cell, this one among them, have {done}, and"
                f" {self._threshold} are needed"
            )

    def _agree(self, cell: bytes, peer: Advert) -> _Peer:
        """Agree with a peer on the two keys that only both of them know."""
        try:
            mask_key = protocol.pair_mask_key(
                self._mask_secret,
                peer=peer,
                device=self._device,
                cell=cell,
            )
            share_key = masks.agree_on_key(
                self._share_secret, peer.share_key, purpose=b"shares" + cell
            )
        except ValueError as weak:
            raise Refused(f"device {peer.device}: {weak}") from None
        return _Peer(mask_key, share_key)

    def _open_shares(self, delivery: SealedShares) -> dict[int, _Shares]:
        """Return the shares that open, by owner."""
        opened = {}
        for owner, content in delivery.shares.items():
            ends = protocol.ends_of(
                self._cell,
                sender=owner,
                receiver=self._device,
            )
            shares = _open(
                self._others[owner].share_key,
                ends=ends,
                content=content,
            )
            if shares is not None:
                opened[owner] = shares
        return opened

    def _add_masks(self, values: np.ndarray, peers: Collection[int]) -> bytes:
        """Return the report behind its own mask and those that it has with these peers, packed."""
        plus = []
        minus = []
        for peer in peers:
            mask_key = self._others[peer].mask_key
            if self._device < peer:
                plus.append(mask_key)
            else:
                minus.append(mask_key)
        plus.append(protocol.own_mask_key(self._seed, self._cell))
        bits = self._terms.modulus_bits
        masked = values.astype(masks.words(bits))
        masks.add_masks(
            masked,
            plus=plus,
            minus=minus,
        )
        residue = protocol.residue(masked, self._terms)
        return pack(residue, bits)


def _is_in_its_row(roster: Roster, advert: Advert) -> bool:
    """Tell whether an advert is its device's only one.

    With more, corrupt devices would be a larger share of a round than stated.
    """
    return roster.digests.get(advert.device) == advert.digest()


def find_signers(
    survivors: Survivors, signatures: Mapping[int, bytes], keys: Mapping[int, bytes]
) -> set[int]:
    """Return the survivors who have signed this list of them.

    No one else counts: a device outside the cell may work for the server.
    """
    content = survivors.signed_content()
    candidates = signatures.keys() & survivors.devices & keys.keys()
    return {
        device
        for device in candidates
        if is_signed_by(
            keys[device],
            content=content,
            signature=signatures[device],
        )
    }


def _check_values(values: np.ndarray, terms: Terms) -> None:
    """Refuse what is not a report that the terms name."""
    if values.dtype != np.uint32 or values.shape != (terms.length,):
        raise ValueError(
            f"a report is uint32 [{terms.length}], not {values.dtype} {list(values.shape)}"
        )
    if int(values.max()) >> terms.modulus_bits:
        raise ValueError(f"a number in a report has more than {terms.modulus_bits} bits")


def _split(
    *, seed: Secret, mask_secret: Secret, holders: list[int], threshold: int
) -> dict[int, _Shares]:
    """Split both secrets; return the two shares of each holder."""
    seed_shares = shamir.share(
        seed,
        threshold=threshold,
        holders=len(holders),
    )
    key_shares = shamir.share(
        mask_secret,
        threshold=threshold,
        holders=len(holders),
    )
    return {
        holder: _Shares(Secret(of_seed), Secret(of_key))
        for holder, of_seed, of_key in zip(holders, seed_shares, key_shares, strict=True)
    }


def _seal(key: Secret, ends: bytes, shares: _Shares) -> bytes:
    """Encrypt shares so that only the device at the other end can read them."""
    nonce = os.urandom(NONCE_BYTES)
    cipher = AESGCM(masks.derive_key(key, purpose=ends))
    return nonce + cipher.encrypt(nonce, Secret(shares.seed + shares.mask_key), ends)


def _open(key: Secret, ends: bytes, content: bytes) -> _Shares | None:
    """Open shares, or return None if that device did not seal them for this one in this round.

    The others' may suffice.
    """
    cipher = AESGCM(masks.derive_key(key, purpose=ends))
    try:
        shares = cipher.decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], ends)
    except (InvalidTag, ValueError):
        return None
    return _Shares(
        seed=Secret(shares[: shamir.SHARE_BYTES]),
        mask_key=Secret(shares[shamir.SHARE_BYTES :]),
    )
