"""The server in a round of secure sums (protocol.py): who is in which cell, what was signed, and
the sum of all cells.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from taciturn.core import FailedRound
from taciturn.fleets.secure_aggregation import masks
from taciturn.fleets.secure_aggregation.cells import cell_name, cells
from taciturn.fleets.secure_aggregation.identities import (
    Authority,
    DismissedDevices,
    is_signed_by,
)
from taciturn.fleets.secure_aggregation.messages import Advert, Roster, Terms
from taciturn.fleets.secure_aggregation.protocol import (
    ADVERTISE,
    DONE,
    MASK,
    SHARE,
    SIGN,
    STAGES,
    Refused,
    Unneeded,
    expect,
    residue,
)
from taciturn.fleets.secure_aggregation.server_cell import ServerCell, Total, refusals
from taciturn.fleets.secure_aggregation.workers import for_each


class ServerRound:
    """The server in one round, in bytes: `questions` to devices, then `take` their answers. A
    failed cell loses its devices.
    """

    def __init__(self, terms: Terms, authority: Authority, dismissed: DismissedDevices) -> None:
        terms.check()
        self._terms = terms
        self._authority = authority
        self._dismissed = dismissed
        self._stage = ADVERTISE
        self._adverts: dict[int, Advert] = {}
        # as the last stage left them
        self._cells: list[ServerCell] = []
        # what follows every question
        self.shared = b""

    def take_advert(self, device: int, advert: Advert) -> None:
        expect(self._stage, ADVERTISE)
        if device in self._adverts:
            raise Refused(f"device {device} was already heard")
        if len(self._adverts) == self._terms.most:
            raise Unneeded(f"{self._terms.most} devices are already there")
        why_not = self._authority.why_not_device(advert.certificate, self._dismissed)
        if why_not:
            raise Refused(why_not)
        if advert.device != device or not is_signed_by(
            advert.certificate.key, advert.signed(self._terms), advert.signature
        ):
            raise Refused(f"these keys are not signed by device {device} for this round")
        for key in (advert.mask_key, advert.share_key):
            # refused if it is weak: its whole cell would have to leave
            masks.agree_on_key(masks.new_secret(), key, b"")
        self._adverts[device] = advert

    def rosters(self) -> dict[int, Roster]:
        """End the first stage: return who is in which cell."""
        expect(self._stage, ADVERTISE)
        if len(self._adverts) < self._terms.least:
            raise FailedRound(
                f"{len(self._adverts)} devices have advertised, and {self._terms.least} are needed"
            )
        by_digest = {advert.digest(): advert for advert in self._adverts.values()}
        everyone = Roster((), {advert.device: digest for digest, advert in by_digest.items()})
        cohort, rosters = everyone.cohort(self._terms), {}
        for cell in cells(cohort, by_digest):
            adverts = {
                advert.device: advert
                for advert in sorted(
                    (by_digest[digest] for digest in cell), key=lambda one: one.device
                )
            }
            try:
                self._cells.append(
                    ServerCell(self._terms, cell_name(cohort, cell), adverts, len(by_digest))
                )
            except ValueError as impossible:
                raise FailedRound(str(impossible)) from None
            for device in adverts:
                rosters[device] = everyone._replace(
                    adverts=tuple(one for one in adverts.values() if one.device != device)
                )
        self._stage = SHARE
        return rosters

    def take(self, answers: Mapping[int, bytes]) -> dict[int, str]:
        """End a stage with what devices sent in it; return whose answers were refused, and why."""
        if self._stage == ADVERTISE:
            return refusals(
                answers, lambda device, answer: self.take_advert(device, Advert.from_bytes(answer))
            )
        failed, going = (
            [cell for cell in self._cells if cell.failed],
            [cell for cell in self._cells if not cell.failed],
        )
        refused = {} if self._stage != SIGN else self._unsigned(going, answers)
        theirs = [
            {
                device: answers[device]
                for device in cell.adverts
                if device in answers and device not in refused
            }
            for cell in going
        ]
        # sending a report to another process takes as long as adding it
        each = map if self._stage in (MASK, SIGN) else for_each
        ended = list(each(ServerCell.end_stage, going, theirs))
        self._cells = failed + ended
        self._stage = STAGES[STAGES.index(self._stage) + 1]
        return refused | {device: why for cell in ended for device, why in cell.refused.items()}

    def _unsigned(
        self, going: Sequence[ServerCell], answers: Mapping[int, bytes]
    ) -> dict[int, str]:
        """Return which devices have not signed the survivors of their cells: no device would unmask
        under a wrong signature.
        """
        signed = {
            device: cell.list_of_survivors.signed() for cell in going for device in cell.adverts
        }

        def check(device: int, answer: bytes) -> None:
            if device not in signed or not is_signed_by(
                self._adverts[device].certificate.key, signed[device], answer
            ):
                raise Refused("it has not signed who reported")

        return refusals(answers, check)

    def questions(self) -> dict[int, bytes]:
        """Return the next stage's question to each device; `shared` follows each. Raises
        FailedRound if too few devices are left.
        """
        if self._stage == ADVERTISE:
            parts = {device: roster.parts() for device, roster in self.rosters().items()}
            self.shared = next(iter(parts.values()))[1]
            return {device: own for device, (own, _) in parts.items()}
        self._check_enough()
        self.shared = b""
        return {
            device: question
            for cell in self._cells
            if isinstance(cell.result, dict)
            for device, question in cell.result.items()
        }

    def total(self) -> Total:
        expect(self._stage, DONE)
        self._check_enough()
        totals = [cell.result for cell in self._cells if isinstance(cell.result, Total)]
        values = sum((total.values for total in totals), np.uint32(0))
        return Total(
            residue(np.asarray(values), self._terms),
            sorted(device for total in totals for device in total.devices),
        )

    @property
    def reports(self) -> int:
        """Count the reports that have arrived, and can be added."""
        return sum(cell.devices for cell in self._cells)

    @property
    def failed_cells(self) -> list[str]:
        return [cell.failed for cell in self._cells if cell.failed]

    @property
    def broke(self) -> dict[int, str]:
        """Return the devices that broke the protocol, in all cells, and how."""
        return {device: how for cell in self._cells for device, how in cell.broke.items()}

    def _check_enough(self) -> None:
        least, left = (
            self._terms.least,
            sum(cell.devices for cell in self._cells if not cell.failed),
        )
        if self.reports < least:
            done = "shared their secrets" if self._stage == MASK else "reported"
            raise FailedRound(f"{self.reports} devices have {done}, and {least} are needed")
        if left < least:
            raise FailedRound(
                f"{left} devices are in cells that continue, and {least} are needed:"
                f" {self.failed_cells[-1]}"
            )
