"""The server in one cell of a secure sum (protocol.py): pass on what it cannot read, add, remove
masks (Bonawitz et al. 2017, Figure 4). It knows nothing about other cells, and so can run in any
process (workers.py).
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Self

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

# sets of shares of a secret, at random
TRIES = 200
# of those whose secrets were needed
FEW = 1 / 3

_IsRight = Callable[[Secret, Advert], bool]


class Total(NamedTuple):
    """The sum of a round, or of one of its cells. For the curator only."""

    # uint32 [length]: the sum of the reports modulo 2^b
    values: np.ndarray
    # those whose reports are in it
    devices: list[int]

    def __repr__(self) -> str:
        return f"<sum of {len(self.devices)} reports>"


def at_fault(unfit: Collection[tuple[int, int]], enough: int) -> list[int]:
    """Blame the devices whose shares do not fit with those of `enough` others, the worst first.
    `unfit` are holder and owner of each such
    share: one of the two is at fault. A device wrongly blamed loses its part in a run; one wrongly
    spared could cost everybody the run.
    """
    left, found = set(unfit), []
    while left:
        (worst, count), *_ = Counter(device for pair in left for device in pair).most_common(1)
        if count < enough:
            break
        found.append(worst)
        left = {pair for pair in left if worst not in pair}
    return found


def few_of(spoilt: Collection[int], all: Collection[int]) -> list[int]:
    """Blame the owners of secrets that cannot be reconstructed, if they are few: a holder could
    spoil anyone's.
    """
    return sorted(spoilt) if len(spoilt) <= FEW * len(all) else []


def refusals(answers: Mapping[int, bytes], take: Callable[[int, bytes], None]) -> dict[int, str]:
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
    """The server in one cell. A stage ends when its result is asked for: a device not heard by then
    has dropped out.
    """

    def __init__(
        self, terms: Terms, name: bytes, adverts: Mapping[int, Advert], cohort: int
    ) -> None:
        """Start a cell; ValueError if this many devices, of a cohort of this size, make no secure
        sum.
        """
        self.threshold = threshold(cohort, len(adverts), terms.dropouts, terms.corrupt)
        # of whom at least one is honest
        self._suspects = max(2, 1 + colluders(cohort, len(adverts), terms.corrupt))
        self._terms, self._name, self.adverts, self._stage = terms, name, adverts, protocol.SHARE
        # of each device's shares
        self._places = {device: place for place, device in enumerate(sorted(adverts), 1)}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._shared: frozenset[int] = frozenset()
        self._sum = np.zeros(terms.length, masks.words(terms.modulus_bits))
        self._reported: set[int] = set()
        self._signatures: dict[int, bytes] = {}
        self._answers: dict[int, Unmasking] = {}
        # holder and owner of a share that is missing or wrong
        self._unfit: set[tuple[int, int]] = set()
        # owners of secrets that their shares do not give
        self._spoilt: set[int] = set()
        # whose reports are in its sum, or may be
        self.devices = 0
        # whose answers were refused in the last stage, and why
        self.refused: dict[int, str] = {}
        self.result: (
            Total | dict[int, bytes]
            # of the last stage: questions of the next, or the sum
        ) = {}
        # why it has failed
        self.failed = ""

    def end_stage(self, answers: Mapping[int, bytes]) -> Self:
        """Take what devices sent in a stage, and end it. The cell itself is returned, for it may
        come from another process.
        """
        read, take, end = _STAGES[self._stage]
        self.refused = refusals(answers, lambda device, answer: take(self, device, read(answer)))
        self.devices = len(self._sealed if self._stage == protocol.SHARE else self._reported)
        try:
            result = end(self)
            self.result = (
                result
                if isinstance(result, Total)
                else {device: message.to_bytes() for device, message in result.items()}
            )
        except FailedRound as reason:
            self.failed, self.result = str(reason), {}
        return self

    def take_shares(self, device: int, sealed: SealedShares) -> None:
        self._check_first(protocol.SHARE, device, self._sealed, sealed.cell)
        if sealed.shares.keys() != self.adverts.keys() - {device}:
            raise Refused(
                f"device {device} has not sent a share for each of the others in its cell and"
                " nobody else"
            )
        self._sealed[device] = sealed.shares

    def deliveries(self) -> dict[int, SealedShares]:
        """End the second stage: return to each device that shared its secrets its shares of those
        of the others.
        """
        protocol.expect(self._stage, protocol.SHARE)
        self._check_enough(self._sealed, "shared their secrets")
        sealed, self._sealed, self._stage = self._sealed, {}, protocol.MASK
        self._shared = frozenset(sealed)
        others = {
            device: {peer: shares[device] for peer, shares in sealed.items() if peer != device}
            for device in sealed
        }
        return {device: SealedShares(self._name, shares) for device, shares in others.items()}

    def take_report(self, device: int, report: MaskedReport) -> None:
        """Add a report at once: no single one is kept."""
        self._check_first(protocol.MASK, device, self._reported, report.cell)
        values = unpack(report.packed, self._terms.length, self._terms.modulus_bits)
        self._sum += values.astype(self._sum.dtype, copy=False)
        self._reported.add(device)

    def survivors(self) -> dict[int, Survivors]:
        """End the third stage: return whose reports are in the sum."""
        protocol.expect(self._stage, protocol.MASK)
        self._check_enough(self._reported, "reported")
        self._stage = protocol.SIGN
        return dict.fromkeys(sorted(self._reported), self.list_of_survivors)

    @property
    def list_of_survivors(self) -> Survivors:
        return Survivors(self._name, frozenset(self._reported))

    def take_signature(self, device: int, signature: bytes) -> None:
        """Take a survivor's signature; the caller, who knows devices' keys, has verified it."""
        self._check_first(protocol.SIGN, device, self._signatures, self._name)
        self._signatures[device] = signature

    def requests(self) -> dict[int, UnmaskRequest]:
        """End the fourth stage: return to each signer as many signatures as needed."""
        protocol.expect(self._stage, protocol.SIGN)
        self._check_enough(self._signatures, "signed who reported")
        self._stage = protocol.UNMASK
        enough = dict(sorted(self._signatures.items())[: self.threshold])
        return dict.fromkeys(sorted(self._signatures), UnmaskRequest(self._name, enough))

    def take_answer(self, device: int, answer: Unmasking) -> None:
        self._check_first(protocol.UNMASK, device, self._answers, answer.cell)
        if not (
            answer.seeds.keys() <= self._reported
            and answer.mask_keys.keys() <= self._shared - self._reported
        ):
            raise Refused(f"device {device} answers a question that it was not asked")
        for share in (*answer.seeds.values(), *answer.mask_keys.values()):
            shamir.number(share)
        self._answers[device] = answer

    def total(self) -> Total:
        """End the cell: reconstruct secrets and remove all masks at once, so that no single report
        is ever without them.
        """
        protocol.expect(self._stage, protocol.UNMASK)
        self._spoilt.clear()
        seeds = {device: answer.seeds for device, answer in self._answers.items()}
        mask_keys = {device: answer.mask_keys for device, answer in self._answers.items()}
        own = self._secrets(
            self._reported,
            seeds,
            lambda seed, advert: protocol.commitment(seed) == advert.commitment,
        )
        gone = self._shared - self._reported
        pairs = self._secrets(
            gone, mask_keys, lambda key, advert: masks.public_key(key) == advert.mask_key
        )
        minus = [protocol.own_mask_key(seed, self._name) for seed in own.values()]
        plus = []
        for lost, secret in pairs.items():
            for survivor in sorted(self._reported):
                # The survivor's report has this mask with its own sign, and nothing cancels it.
                undo = minus if survivor < lost else plus
                undo.append(
                    protocol.pair_mask_key(secret, self.adverts[survivor], lost, self._name)
                )
        masks.add_masks(self._sum, plus, minus)
        self._stage = protocol.DONE
        return Total(protocol.residue(self._sum, self._terms), sorted(self._reported))

    @property
    def broke(self) -> dict[int, str]:
        """Return the devices that broke the protocol, as far as shares show it, and how: for a
        private note.
        """
        shares = dict.fromkeys(
            at_fault(self._unfit, self._suspects), "shares that it cut or held are missing or wrong"
        )
        secrets = dict.fromkeys(
            few_of(self._spoilt, self._shared), "its shares are not of the secret that it named"
        )
        return shares | secrets

    def _secrets(
        self,
        owners: Collection[int],
        answers: Mapping[int, Mapping[int, bytes]],
        is_right: _IsRight,
    ) -> dict[int, Secret]:
        """Reconstruct secrets from shares by holder and owner. All are tried before it fails, to
        find out whose are wrong.
        """
        found, failed = {}, []
        for owner in sorted(owners):
            try:
                found[owner] = self._secret(owner, answers, is_right)
            except FailedRound as reason:
                failed.append(reason)
        if failed:
            raise failed[0]
        return found

    def _secret(
        self, owner: int, answers: Mapping[int, Mapping[int, bytes]], is_right: _IsRight
    ) -> Secret:
        """Try one set of shares after another: if some of them are wrong, others may suffice."""
        places, answered = self._places, sorted(answers)
        self._unfit |= {(holder, owner) for holder in answered if owner not in answers[holder]}
        doubted = {holder for holder, _ in self._unfit}
        holders = sorted(
            (one for one in answered if owner in answers[one]), key=lambda one: one in doubted
        )
        shares = {places[holder]: answers[holder][owner] for holder in holders}
        needed, found = self.threshold, len(shares)
        if found < needed:
            raise FailedRound(
                f"{found} devices of a cell answered for one of its members, and {needed} are"
                " needed to remove a mask"
            )
        order = list(shares)
        for attempt in range(found + TRIES if found > needed else 1):
            # From different ends first, which avoids any single wrong one; then at random, which
            # mostly avoids several.
            some = (
                (order * 2)[attempt : attempt + needed]
                if attempt < found
                else random.sample(order, needed)
            )
            chosen = {place: shares[place] for place in some}
            try:
                secret = Secret(shamir.reconstruct(chosen))
            except ValueError:
                continue
            if is_right(secret, self.adverts[owner]):
                for holder in (
                    holders if attempt else doubted & set(holders)
                    # where somebody's share was wrong
                ):
                    if not shamir.fits(chosen, places[holder], answers[holder][owner]):
                        self._unfit.add((holder, owner))
                return secret
        # or one holder could spoil it
        if found > needed:
            self._spoilt.add(owner)
        raise FailedRound("shares of a secret do not fit together: a device has sent wrong ones")

    def _check_first(self, stage: str, device: int, heard: Collection[int], cell: bytes) -> None:
        protocol.expect(self._stage, stage)
        before = self.adverts, self._shared, self._reported, self._signatures
        if device not in before[protocol.STAGES.index(stage) - 1]:
            raise Refused(f"device {device} is not in this round, or has dropped out of it")
        if device in heard:
            raise Refused(f"device {device} was already heard")
        protocol.check_cell(self._name, cell)

    def _check_enough(self, devices: Collection[int], done: str) -> None:
        if len(devices) < self.threshold:
            raise FailedRound(
                f"{len(devices)} devices of a cell have {done}, and {self.threshold} are needed"
            )


_STAGES = {
    protocol.SHARE: (SealedShares.from_bytes, ServerCell.take_shares, ServerCell.deliveries),
    protocol.MASK: (MaskedReport.from_bytes, ServerCell.take_report, ServerCell.survivors),
    protocol.SIGN: (bytes, ServerCell.take_signature, ServerCell.requests),
    protocol.UNMASK: (Unmasking.from_bytes, ServerCell.take_answer, ServerCell.total),
}
