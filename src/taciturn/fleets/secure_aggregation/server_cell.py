"""The server in one cell of a secure sum (protocol.py).

It passes on what it cannot read, adds reports, and removes masks (Bonawitz et al. 2017, Figure 4).
It knows nothing about other cells, and so can run in any process (workers.py).
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from taciturn.core import FailedRound
from taciturn.fleets.secure_aggregation import masks, protocol, shamir
from taciturn.fleets.secure_aggregation.bit_packing import unpack
from taciturn.fleets.secure_aggregation.cells import colluders, threshold
from taciturn.fleets.secure_aggregation.masks import Secret
from taciturn.fleets.secure_aggregation.messages import (
    Advert,
    MaskedReport,
    SealedShares,
    Survivors,
    Terms,
    Unmasking,
    UnmaskRequest,
)
from taciturn.fleets.secure_aggregation.protocol import Refused, Unneeded
from taciturn.fleets.secure_aggregation.stages import Stage

# Sets of shares of a secret that are tried at random.
TRIES = 200
# Of the owners whose secrets were needed, the share that may be blamed for secrets that cannot be
# reconstructed.
FEW = 1 / 3

_IsRight = Callable[[Secret, Advert], bool]
# By holder, and by the owner of the secret that each is a share of.
_SharesByHolder = Mapping[int, Mapping[int, bytes]]


class Total(NamedTuple):
    """The sum of a round, or of one of its cells. For the curator only."""

    # uint32 [length]: the sum of the reports modulo 2^b.
    values: np.ndarray
    # Those whose reports are in it.
    devices: list[int]

    def __repr__(self) -> str:
        return f"<sum of {len(self.devices)} reports>"


class Unfit(NamedTuple):
    """A share that is missing or wrong: one of these two is at fault."""

    holder: int
    owner: int


def blame_for_shares(unfit: Collection[tuple[int, int]], enough: int) -> list[int]:
    """Return the devices whose shares do not fit with those of `enough` others, the worst first.

    A device wrongly blamed loses its part in a run; one wrongly cleared could cost everybody the
    run.

    Args:
        unfit: holder and owner of each share that does not fit, of whom one is at fault.
        enough: the number of others, enough that one of them is honest.
    """
    left = set(unfit)
    blamed = []
    while left:
        counts = Counter(device for pair in left for device in pair)
        worst, count = counts.most_common(1)[0]
        if count < enough:
            break
        blamed.append(worst)
        left = {pair for pair in left if worst not in pair}
    return blamed


def blame_for_secrets(spoilt: Collection[int], owners: Collection[int]) -> list[int]:
    """Return the owners of secrets that cannot be reconstructed, if they are few.

    A holder could spoil anyone's.
    """
    return sorted(spoilt) if len(spoilt) <= FEW * len(owners) else []


def collect_refusals(
    answers: Mapping[int, bytes], take: Callable[[int, bytes], None]
) -> dict[int, str]:
    """Take what devices sent; return whose answers were refused, and why: they count as missing."""
    refused = {}
    for device, answer in answers.items():
        try:
            take(device, answer)
        except Unneeded:
            continue
        except ValueError as wrong:
            refused[device] = str(wrong)
    return refused


class ServerCell:
    """The server in one cell.

    A stage ends when its result is asked for: a device not heard by then has dropped out.
    """

    def __init__(
        self, *, terms: Terms, name: bytes, adverts: Mapping[int, Advert], cohort: int
    ) -> None:
        """Start a cell.

        Args:
            terms: what all in the round agree on.
            name: of the cell, which follows from all adverts of the round.
            adverts: of the devices in it.
            cohort: the number of devices in the round.

        Raises:
            ValueError: this many devices, of a cohort of this size, make no secure sum.
        """
        devices = sorted(adverts)
        self.threshold = threshold(
            cohort=cohort,
            cell=len(devices),
            dropouts=terms.dropouts,
            corrupt=terms.corrupt,
        )
        corrupt = colluders(
            cohort=cohort,
            cell=len(devices),
            corrupt=terms.corrupt,
        )
        # This number of devices, of whom at least one is honest.
        self._suspects = max(2, 1 + corrupt)
        self._terms = terms
        self._name = name
        self.adverts = adverts
        self._stage = Stage.SHARE
        # Of each device's shares.
        self._places = {device: place for place, device in enumerate(devices, 1)}
        # By sender, and by receiver.
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._shared: frozenset[int] = frozenset()
        word = masks.words(terms.modulus_bits)
        self._sum = np.zeros(terms.length, word)
        self._reported: set[int] = set()
        self._signatures: dict[int, bytes] = {}
        self._answers: dict[int, Unmasking] = {}
        # Of shares that are missing or wrong.
        self._unfit: set[Unfit] = set()
        # Owners of secrets that their shares do not give.
        self._spoilt: set[int] = set()
        # The number whose reports are in its sum, or may be.
        self.devices = 0
        # Whose answers were refused in the last stage, and why.
        self.refused: dict[int, str] = {}
        # Of the last stage: the questions of the next one, or the sum.
        self.result: Total | dict[int, bytes] = {}
        # Why it has failed.
        self.failed = ""

    def end_stage(self, answers: Mapping[int, bytes]) -> Self:
        """Take what devices sent in a stage, and end it.

        The cell itself is returned, for it may come from another process.
        """
        stage = _STAGES[self._stage]
        self.refused = collect_refusals(
            answers, lambda device, answer: stage.take(self, device, stage.read(answer))
        )
        heard = self._sealed if self._stage == Stage.SHARE else self._reported
        self.devices = len(heard)
        try:
            result = stage.end(self)
        except FailedRound as reason:
            self.failed = str(reason)
            self.result = {}
            return self
        if isinstance(result, Total):
            self.result = result
        else:
            self.result = {device: message.to_bytes() for device, message in result.items()}
        return self

    def take_shares(self, device: int, sealed: SealedShares) -> None:
        """Take a device's shares for each of the others, which the server cannot read."""
        self._check_first(
            Stage.SHARE,
            device,
            heard=self._sealed,
            cell=sealed.cell,
        )
        if sealed.shares.keys() != self.adverts.keys() - {device}:
            raise Refused(
                f"device {device} has not sent a share for each of the others in its cell and"
                " nobody else"
            )
        self._sealed[device] = sealed.shares

    def deliveries(self) -> dict[int, SealedShares]:
        """End the second stage: return the shares of the others' secrets that are for each device.

        Only devices that shared their own secrets get any.
        """
        protocol.expect(self._stage, Stage.SHARE)
        self._check_enough(self._sealed, "shared their secrets")
        sealed = self._sealed
        self._sealed = {}
        self._stage = Stage.MASK
        self._shared = frozenset(sealed)
        deliveries = {}
        for device in sealed:
            others = {}
            for sender, shares in sealed.items():
                if sender != device:
                    others[sender] = shares[device]
            deliveries[device] = SealedShares(self._name, others)
        return deliveries

    def take_report(self, device: int, report: MaskedReport) -> None:
        """Add a report at once: no single one is kept."""
        self._check_first(
            Stage.MASK,
            device,
            heard=self._reported,
            cell=report.cell,
        )
        values = unpack(
            report.packed,
            length=self._terms.length,
            bits=self._terms.modulus_bits,
        )
        self._sum += values.astype(self._sum.dtype, copy=False)
        self._reported.add(device)

    def survivors(self) -> dict[int, Survivors]:
        """End the third stage: return whose reports are in the sum."""
        protocol.expect(self._stage, Stage.MASK)
        self._check_enough(self._reported, "reported")
        self._stage = Stage.SIGN
        return dict.fromkeys(sorted(self._reported), self.list_of_survivors)

    @property
    def list_of_survivors(self) -> Survivors:
        """Return what each survivor signs."""
        return Survivors(self._name, frozenset(self._reported))

    def take_signature(self, device: int, signature: bytes) -> None:
        """Take a survivor's signature; the caller, who knows devices' keys, has verified it."""
        self._check_first(
            Stage.SIGN,
            device,
            heard=self._signatures,
            cell=self._name,
        )
        self._signatures[device] = signature

    def requests(self) -> dict[int, UnmaskRequest]:
        """End the fourth stage: return to each signer as many signatures as needed."""
        protocol.expect(self._stage, Stage.SIGN)
        self._check_enough(self._signatures, "signed who reported")
        self._stage = Stage.UNMASK
        signers = sorted(self._signatures)
        enough = {device: self._signatures[device] for device in signers[: self.threshold]}
        return dict.fromkeys(signers, UnmaskRequest(self._name, enough))

    def take_answer(self, device: int, answer: Unmasking) -> None:
        """Take a device's shares of secrets, each of one of the two that the owner has."""
        self._check_first(
            Stage.UNMASK,
            device,
            heard=self._answers,
            cell=answer.cell,
        )
        gone = self._shared - self._reported
        seeds = answer.seeds
        mask_keys = answer.mask_keys
        if not (seeds.keys() <= self._reported and mask_keys.keys() <= gone):
            raise Refused(f"device {device} answers a question that it was not asked")
        for shares in (seeds, mask_keys):
            _check_shares(shares.values())
        self._answers[device] = answer

    def total(self) -> Total:
        """End the cell: reconstruct secrets and remove all masks at once.

        No single report is ever without its masks.
        """
        protocol.expect(self._stage, Stage.UNMASK)
        self._spoilt.clear()
        answers = self._answers
        seeds = self._reconstruct_all(
            owners=self._reported,
            shares={device: answers[device].seeds for device in answers},
            is_right=_is_committed_seed,
        )
        secrets_of_gone = self._reconstruct_all(
            owners=self._shared - self._reported,
            shares={device: answers[device].mask_keys for device in answers},
            is_right=_is_mask_secret,
        )
        self._remove_masks(seeds, secrets_of_gone)
        self._stage = Stage.DONE
        values = protocol.residue(self._sum, self._terms)
        return Total(values, sorted(self._reported))

    def _remove_masks(
        self, seeds: Mapping[int, Secret], secrets_of_gone: Mapping[int, Secret]
    ) -> None:
        """Subtract survivors' own masks, and those that they have with devices that have gone."""
        minus = [protocol.own_mask_key(seed, self._name) for seed in seeds.values()]
        plus = []
        for gone, secret in secrets_of_gone.items():
            for survivor in sorted(self._reported):
                mask_key = protocol.pair_mask_key(
                    secret,
                    peer=self.adverts[survivor],
                    device=gone,
                    cell=self._name,
                )
                # The survivor's report has this mask with its own sign, and nothing cancels it.
                if survivor < gone:
                    minus.append(mask_key)
                else:
                    plus.append(mask_key)
        masks.add_masks(
            self._sum,
            plus=plus,
            minus=minus,
        )

    @property
    def offenders(self) -> dict[int, str]:
        """Return the devices that broke the protocol, as far as shares show it, and how.

        This is for a private note.
        """
        offenders = {}
        for device in blame_for_shares(self._unfit, self._suspects):
            offenders[device] = "shares that it cut or held are missing or wrong"
        for device in blame_for_secrets(self._spoilt, self._shared):
            offenders[device] = "its shares are not of the secret that it named"
        return offenders

    def _reconstruct_all(
        self, *, owners: Collection[int], shares: _SharesByHolder, is_right: _IsRight
    ) -> dict[int, Secret]:
        """Reconstruct the secrets of these owners.

        All are tried before it fails, to find out whose shares are wrong.
        """
        secrets = {}
        failures = []
        for owner in sorted(owners):
            try:
                secrets[owner] = self._reconstruct(owner, shares, is_right)
            except FailedRound as reason:
                failures.append(reason)
        if failures:
            raise failures[0]
        return secrets

    def _reconstruct(self, owner: int, shares: _SharesByHolder, is_right: _IsRight) -> Secret:
        """Try one set of shares after another: if some of them are wrong, others may suffice."""
        holders = self._find_holders(owner, shares)
        by_place = {}
        for holder in holders:
            by_place[self._places[holder]] = shares[holder][owner]
        found = len(by_place)
        if found < self.threshold:
            raise FailedRound(
                f"{found} devices of a cell answered for one of its members, and"
                f" {self.threshold} are needed to remove a mask"
            )
        doubted = {pair.holder for pair in self._unfit}
        sets = _sets_to_try(list(by_place), self.threshold)
        for attempt, places in enumerate(sets):
            chosen = {place: by_place[place] for place in places}
            secret = _reconstruct_or_none(chosen)
            if secret is None or not is_right(secret, self.adverts[owner]):
                continue
            # Where an attempt failed before, somebody's share was wrong.
            suspects = holders if attempt else doubted & set(holders)
            for holder in suspects:
                place = self._places[holder]
                if not shamir.fits(chosen, place, by_place[place]):
                    self._unfit.add(Unfit(holder, owner))
            return secret
        # With no share to spare, one holder could spoil it.
        if found > self.threshold:
            self._spoilt.add(owner)
        raise FailedRound("shares of a secret do not fit together: a device has sent wrong ones")

    def _find_holders(self, owner: int, shares: _SharesByHolder) -> list[int]:
        """Return who sent a share of an owner's secret; those whom nothing speaks against first.

        A share that is missing speaks against its holder.
        """
        answered = sorted(shares)
        holders = [holder for holder in answered if owner in shares[holder]]
        self._unfit |= {Unfit(holder, owner) for holder in answered if owner not in shares[holder]}
        doubted = {pair.holder for pair in self._unfit}
        return sorted(holders, key=lambda holder: holder in doubted)

    def _check_first(
        self, stage: Stage, device: int, *, heard: Collection[int], cell: bytes
    ) -> None:
        """Refuse what comes in another stage, from one who dropped out, twice, or elsewhere."""
        protocol.expect(self._stage, stage)
        heard_before: dict[Stage, Collection[int]] = {
            Stage.SHARE: self.adverts,
            Stage.MASK: self._shared,
            Stage.SIGN: self._reported,
            Stage.UNMASK: self._signatures,
        }
        if device not in heard_before[stage]:
            raise Refused(f"device {device} is not in this round, or has dropped out of it")
        if device in heard:
            raise Refused(f"device {device} was already heard")
        protocol.check_cell(self._name, cell)

    def _check_enough(self, devices: Collection[int], done: str) -> None:
        """Fail the cell if fewer devices have done this than the threshold."""
        if len(devices) < self.threshold:
            raise FailedRound(
                f"{len(devices)} devices of a cell have {done}, and {self.threshold} are needed"
            )


def _check_shares(shares: Iterable[bytes]) -> None:
    """Refuse what is not a share of a secret."""
    for share in shares:
        shamir.number(share)


def _is_committed_seed(seed: Secret, advert: Advert) -> bool:
    return protocol.commitment(seed) == advert.commitment


def _is_mask_secret(secret: Secret, advert: Advert) -> bool:
    return masks.public_key(secret) == advert.mask_key


def _sets_to_try(places: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield sets of this size of the places, in the order in which they are tried."""
    if len(places) == size:
        yield list(places)
        return
    # From different ends first, which avoids any single wrong one.
    for start in range(len(places)):
        yield [*places, *places][start : start + size]
    # Then at random, which mostly avoids several.
    for _ in range(TRIES):
        yield random.sample(places, size)


def _reconstruct_or_none(shares: Mapping[int, bytes]) -> Secret | None:
    try:
        return Secret(shamir.reconstruct(shares))
    except ValueError:
        return None


class _StageOfCell(NamedTuple):
    """How a cell reads and takes a device's answer in a stage, and what ends the stage."""

    read: Callable[[bytes], Any]
    take: Callable[[ServerCell, int, Any], None]
    end: Callable[[ServerCell], Any]


_STAGES = {
    Stage.SHARE: _StageOfCell(
        read=SealedShares.from_bytes,
        take=ServerCell.take_shares,
        end=ServerCell.deliveries,
    ),
    Stage.MASK: _StageOfCell(
        read=MaskedReport.from_bytes,
        take=ServerCell.take_report,
        end=ServerCell.survivors,
    ),
    Stage.SIGN: _StageOfCell(
        read=bytes,
        take=ServerCell.take_signature,
        end=ServerCell.requests,
    ),
    Stage.UNMASK: _StageOfCell(
        read=Unmasking.from_bytes,
        take=ServerCell.take_answer,
        end=ServerCell.total,
    ),
}
