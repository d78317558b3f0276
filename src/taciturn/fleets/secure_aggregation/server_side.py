"""The server in a secure sum (protocol.py): passes on what it cannot read, adds, takes masks off (Bonawitz et al. 2017, Figure 4)."""

import random
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from taciturn.core import FailedRound
from taciturn.fleets.secure_aggregation import masks, shamir
from taciturn.fleets.secure_aggregation.bit_packing import unpack
from taciturn.fleets.secure_aggregation.blame import at_fault, few_of
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
    Unneeded,
    check_cohort,
    commitment,
    expect,
    own_mask_key,
    pair_mask_key,
    residue,
)

TRIES = 200  # sets of shares of a secret, at random

_IsRight = Callable[[Secret, Advert], bool]


class Total(NamedTuple):
    """What a round comes to. For the curator alone."""

    values: np.ndarray  # uint32 [length]: the sum of the reports modulo 2^b
    devices: list[int]  # those whose reports are in it

    def __repr__(self) -> str:
        return f"<sum of {len(self.devices)} reports>"


class ServerRound:
    """The server in one round. Devices' messages are taken one by one, from whom the network says they come; a stage ends when what it
    comes to is asked for, and whoever has not been heard by then has dropped out. A message that is `Refused` counts as none."""

    def __init__(self, terms: Terms, identity: Identity) -> None:
        terms.check()
        self._terms, self._identity, self._stage = terms, identity, ADVERTISE
        self._adverts: dict[int, Advert] = {}
        self._cohort, self._degree = b"", Degree(0, 0)
        self._neighbours: dict[int, frozenset[int]] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._sum = np.zeros(terms.length, masks.words(terms.modulus_bits))
        self._reported: set[int] = set()
        self._answers: dict[int, Unmasking] = {}
        self._unfit: set[tuple[int, int]] = set()  # holder and owner of a share that is missing or wrong
        self._spoilt: set[int] = set()  # owners of secrets that the shares do not give

    def take_advert(self, device: int, advert: Advert) -> None:
        self._check_first(ADVERTISE, device, self._adverts)
        if len(self._adverts) == self._terms.most:
            raise Unneeded(f"{self._terms.most} devices are there already")
        if advert.device != device or not self._identity.verify(device, advert.signed(self._terms), advert.signature):
            raise Refused(f"these keys are not signed by device {device} for this round")
        try:
            masks.agreed(masks.new_secret(), advert.mask_key, b"")
            masks.agreed(masks.new_secret(), advert.share_key, b"")
        except ValueError as weak:
            raise Refused(f"device {device}: {weak}") from None  # its neighbours would all have to leave
        self._adverts[device] = advert

    def rosters(self) -> dict[int, Roster]:
        """Ends the first stage: who is whose neighbour."""
        expect(self._stage, ADVERTISE)
        self._check_enough(self._adverts, "advertised")
        try:
            self._degree = degree(len(self._adverts), self._terms.dropouts, self._terms.corrupt)
        except ValueError as impossible:
            raise FailedRound(str(impossible)) from None
        devices = {advert.digest(): device for device, advert in self._adverts.items()}
        everyone = Roster(tuple(sorted(devices)), ())
        self._cohort = everyone.cohort(self._terms)
        order = ring(self._cohort, devices)
        for place, digest in enumerate(order):
            near = neighbours(order, place, self._degree.neighbours)
            self._neighbours[devices[digest]] = frozenset(devices[one] for one in near)
        self._stage = SHARE
        return {
            device: everyone._replace(adverts=tuple(self._adverts[peer] for peer in sorted(near)))
            for device, near in self._neighbours.items()
        }

    def take_shares(self, device: int, sealed: SealedShares) -> None:
        self._check_first(SHARE, device, self._sealed)
        check_cohort(self._cohort, sealed.cohort)
        if sealed.shares.keys() != self._neighbours[device]:
            raise Refused(f"device {device} has not sent a share for each of its neighbours and nobody else")
        self._sealed[device] = sealed.shares

    def deliveries(self) -> dict[int, SealedShares]:
        """Ends the second stage: to each device that shared its secrets, its shares of those of its neighbours."""
        expect(self._stage, SHARE)
        self._check_enough(self._sealed, "shared their secrets")
        self._stage = MASK
        return {
            device: SealedShares(self._cohort, {peer: self._sealed[peer][device] for peer in sorted(self._peers(device))})
            for device in self._sealed
        }

    def take_report(self, device: int, report: MaskedReport) -> None:
        """Adds it at once: no single report is kept."""
        self._check_first(MASK, device, self._reported)
        check_cohort(self._cohort, report.cohort)
        try:
            values = unpack(report.packed, self._terms.length, self._terms.modulus_bits)
        except ValueError as wrong:
            raise Refused(f"the report of device {device} is none: {wrong}") from None
        self._sum += values.astype(self._sum.dtype, copy=False)
        self._reported.add(device)

    def requests(self) -> dict[int, UnmaskRequest]:
        """Ends the third stage: whose reports are in the sum."""
        expect(self._stage, MASK)
        self._check_enough(self._reported, "reported")
        self._stage = UNMASK
        lists = {device: (self._peers(device) & self._reported) | {device} for device in self._reported}
        return {
            device: UnmaskRequest(self._cohort, frozenset(alive), frozenset(self._peers(device) - alive)) for device, alive in lists.items()
        }

    def take_answer(self, device: int, answer: Unmasking) -> None:
        self._check_first(UNMASK, device, self._answers)
        check_cohort(self._cohort, answer.cohort)
        asked = self._peers(device)
        if not (answer.seeds.keys() <= asked & self._reported and answer.mask_keys.keys() <= asked - self._reported):
            raise Refused(f"device {device} answers what it was not asked")
        try:
            for share in (*answer.seeds.values(), *answer.mask_keys.values()):
                shamir.number(share)
        except ValueError as wrong:
            raise Refused(f"device {device}: {wrong}") from None
        self._answers[device] = answer

    def total(self) -> Total:
        """Ends the round: puts secrets together and takes the masks off, all at once, so that no single report is ever without them."""
        expect(self._stage, UNMASK)
        self._spoilt.clear()
        survivors = {gone: self._peers(gone) & self._reported for gone in self._sealed.keys() - self._reported}
        seeds = {device: answer.seeds for device, answer in self._answers.items()}
        mask_keys = {device: answer.mask_keys for device, answer in self._answers.items()}
        own = self._secrets(self._reported, seeds, _is_seed)
        pairs = self._secrets([gone for gone, left in survivors.items() if left], mask_keys, _is_mask_key)
        minus = [own_mask_key(seed, self._cohort) for seed in own.values()]
        plus = []
        for gone, secret in pairs.items():
            for survivor in sorted(survivors[gone]):
                # The survivor's report has this mask with its own sign, and nothing is there to cancel it.
                undo = minus if survivor < gone else plus
                undo.append(pair_mask_key(secret, self._adverts[survivor], gone, self._cohort))
        masks.add_masks(self._sum, plus, minus)
        self._stage = DONE
        return Total(residue(self._sum, self._terms), sorted(self._reported))

    @property
    def broke(self) -> dict[int, str]:
        """Devices that broke the protocol, as far as their shares show it, and how: for a private note."""
        enough = max(2, 1 + int(self._terms.corrupt * len(self._adverts)))  # of whom one at least is honest
        shares = dict.fromkeys(at_fault(self._unfit, enough), "shares that it cut or held are missing or wrong")
        secrets = dict.fromkeys(few_of(self._spoilt, self._sealed), "its shares are not of the secret that it named")
        return shares | secrets

    def _peers(self, device: int) -> frozenset[int]:
        """The neighbours with which a device has masks, and of which it has shares: those that shared their secrets."""
        return self._neighbours[device] & self._sealed.keys()

    def _secrets(self, owners: Collection[int], answers: Mapping[int, Mapping[int, bytes]], is_right: _IsRight) -> dict[int, Secret]:
        """From shares by holder and owner. All are tried before it fails, so that it is known whose are wrong."""
        found, failed = {}, []
        for owner in sorted(owners):
            try:
                found[owner] = self._secret(owner, answers, is_right)
            except FailedRound as reason:
                failed.append(reason)
        if failed:
            raise failed[0]
        return found

    def _secret(self, owner: int, answers: Mapping[int, Mapping[int, bytes]], is_right: _IsRight) -> Secret:
        """Tried with one set of shares after another: if some of them are wrong, others have what it takes."""
        places = {holder: place for place, holder in enumerate(sorted(self._neighbours[owner]), 1)}
        answered = sorted(places.keys() & answers.keys())
        self._unfit |= {(holder, owner) for holder in answered if owner not in answers[holder]}
        doubted = {holder for holder, _ in self._unfit}
        holders = sorted((one for one in answered if owner in answers[one]), key=lambda one: one in doubted)
        shares = {places[holder]: answers[holder][owner] for holder in holders}
        needed, found = self._degree.threshold, len(shares)
        if found < needed:
            raise FailedRound(f"{found} neighbours of a device answered for it, and {needed} are needed to take a mask off")
        order = list(shares)
        for attempt in range(found + TRIES if found > needed else 1):
            # From different ends first, which is sure to get round one that is wrong; then at random, which mostly does round several.
            some = (order * 2)[attempt : attempt + needed] if attempt < found else random.sample(order, needed)
            chosen = {place: shares[place] for place in some}
            try:
                secret = Secret(shamir.reconstruct(chosen))
            except ValueError:
                continue
            if is_right(secret, self._adverts[owner]):
                for holder in holders if attempt else doubted & set(holders):  # where somebody's share was wrong
                    if not shamir.fits(chosen, places[holder], answers[holder][owner]):
                        self._unfit.add((holder, owner))
                return secret
        if found > needed:  # or one holder could spoil it
            self._spoilt.add(owner)
        raise FailedRound("shares of a secret do not fit together: a device has sent wrong ones")

    def _check_first(self, stage: str, device: int, heard: Collection[int]) -> None:
        expect(self._stage, stage)
        before = {SHARE: self._adverts, MASK: self._sealed, UNMASK: self._reported}
        if stage in before and device not in before[stage]:
            raise Refused(f"device {device} is not in this round, or has dropped out of it")
        if device in heard:
            raise Refused(f"device {device} was heard already")

    def _check_enough(self, devices: Collection[int], done: str) -> None:
        if len(devices) < self._terms.least:
            raise FailedRound(f"{len(devices)} devices have {done}, and {self._terms.least} are needed")


def _is_seed(secret: Secret, advert: Advert) -> bool:
    return commitment(secret) == advert.commitment


def _is_mask_key(secret: Secret, advert: Advert) -> bool:
    return masks.public_key(secret) == advert.mask_key
