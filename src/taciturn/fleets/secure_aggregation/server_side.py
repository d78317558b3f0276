"""The server in a round of secure sums (protocol.py).

It knows who is in which cell and what was signed, and adds the sums of all cells.
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
from taciturn.fleets.secure_aggregation.protocol import Refused, Unneeded, expect, residue
from taciturn.fleets.secure_aggregation.server_cell import ServerCell, Total, collect_refusals
from taciturn.fleets.secure_aggregation.stages import Stage
from taciturn.fleets.secure_aggregation.workers import for_each


class ServerRound:
    """The server in one round, in bytes: `questions` to devices, then `take` their answers.

    A failed cell loses its devices.
    """

    def __init__(self, terms: Terms, authority: Authority, dismissed: DismissedDevices) -> None:
        """Start a round under these terms, which name the list of dismissed devices."""
        terms.check()
        self._terms = terms
        self._authority = authority
        self._dismissed = dismissed
        self._stage = Stage.ADVERTISE
        self._adverts: dict[int, Advert] = {}
        # As the last stage left them.
        self._cells: list[ServerCell] = []
        # What follows every question.
        self.shared = b""

    def take_advert(self, device: int, advert: Advert) -> None:
        """Take a device's advert, or refuse one that would be refused by its cell."""
        expect(self._stage, Stage.ADVERTISE)
        if device in self._adverts:
            raise Refused(f"device {device} was already heard")
        if len(self._adverts) == self._terms.most:
            raise Unneeded(f"{self._terms.most} devices are already there")
        certificate = advert.certificate
        why_not = self._authority.why_not_device(certificate, self._dismissed)
        if why_not:
            raise Refused(why_not)
        is_signed = is_signed_by(
            certificate.key,
            content=advert.signed_content(self._terms),
            signature=advert.signature,
        )
        if advert.device != device or not is_signed:
            raise Refused(f"these keys are not signed by device {device} for this round")
        for key in (advert.mask_key, advert.share_key):
            # Refused if it is weak: its whole cell would have to leave.
            masks.agree_on_key(masks.new_secret(), key, purpose=b"")
        self._adverts[device] = advert

    def _take_advert_bytes(self, device: int, content: bytes) -> None:
        self.take_advert(device, Advert.from_bytes(content))

    def rosters(self) -> dict[int, Roster]:
        """End the first stage: return who is in which cell."""
        expect(self._stage, Stage.ADVERTISE)
        devices = len(self._adverts)
        if devices < self._terms.least:
            raise FailedRound(
                f"{devices} devices have advertised, and {self._terms.least} are needed"
            )
        digests = {device: advert.digest() for device, advert in self._adverts.items()}
        device_of = {digest: device for device, digest in digests.items()}
        cohort = Roster((), digests).cohort(self._terms)
        rosters = {}
        for cell in cells(cohort, device_of):
            name = cell_name(cohort, cell)
            members = sorted(device_of[digest] for digest in cell)
            adverts = [self._adverts[device] for device in members]
            self._start_cell(name, adverts)
            for advert in adverts:
                others = tuple(other for other in adverts if other is not advert)
                rosters[advert.device] = Roster(others, digests)
        self._stage = Stage.SHARE
        return rosters

    def _start_cell(self, name: bytes, adverts: Sequence[Advert]) -> None:
        try:
            cell = ServerCell(
                terms=self._terms,
                name=name,
                adverts={advert.device: advert for advert in adverts},
                cohort=len(self._adverts),
            )
        except ValueError as impossible:
            raise FailedRound(str(impossible)) from None
        self._cells.append(cell)

    def take(self, answers: Mapping[int, bytes]) -> dict[int, str]:
        """End a stage with what devices sent in it; return whose answers were refused, and why."""
        if self._stage == Stage.ADVERTISE:
            return collect_refusals(answers, self._take_advert_bytes)
        failed = [cell for cell in self._cells if cell.failed]
        going = [cell for cell in self._cells if not cell.failed]
        refused = {}
        if self._stage == Stage.SIGN:
            refused = self._refuse_unsigned(going, answers)
        accepted = dict(answers)
        for device in refused:
            del accepted[device]
        ended = self._end_stage(going, accepted)
        self._cells = failed + ended
        self._stage = self._stage.next
        for cell in ended:
            refused |= cell.refused
        return refused

    def _end_stage(
        self, going: Sequence[ServerCell], answers: Mapping[int, bytes]
    ) -> list[ServerCell]:
        """End a stage in each cell; return the cells, which may come from other processes."""
        by_cell = []
        for cell in going:
            heard = [device for device in cell.adverts if device in answers]
            by_cell.append({device: answers[device] for device in heard})
        # Sending a report to another process takes as long as adding it.
        if self._stage in (Stage.MASK, Stage.SIGN):
            return list(map(ServerCell.end_stage, going, by_cell))
        return for_each(ServerCell.end_stage, going, by_cell)

    def _refuse_unsigned(
        self, going: Sequence[ServerCell], answers: Mapping[int, bytes]
    ) -> dict[int, str]:
        """Return which devices have not signed the survivors of their cells.

        No device would unmask under a wrong signature.
        """
        contents = {}
        for cell in going:
            content = cell.list_of_survivors.signed_content()
            contents |= dict.fromkeys(cell.adverts, content)

        def check(device: int, signature: bytes) -> None:
            if device not in contents or not self._has_signed(device, contents[device], signature):
                raise Refused("it has not signed who reported")

        return collect_refusals(answers, check)

    def _has_signed(self, device: int, content: bytes, signature: bytes) -> bool:
        key = self._adverts[device].certificate.key
        return is_signed_by(
            key,
            content=content,
            signature=signature,
        )

    def questions(self) -> dict[int, bytes]:
        """Return the next stage's question to each device; `shared` follows each.

        Raises:
            FailedRound: too few devices are left.
        """
        if self._stage == Stage.ADVERTISE:
            return self._send_rosters()
        self._check_enough()
        self.shared = b""
        questions = {}
        for cell in self._cells:
            if isinstance(cell.result, dict):
                questions |= cell.result
        return questions

    def _send_rosters(self) -> dict[int, bytes]:
        """Return each device's part of its roster; the part that all have in common is shared."""
        questions = {}
        for device, roster in self.rosters().items():
            questions[device], self.shared = roster.parts()
        return questions

    def total(self) -> Total:
        """Return the sum of all cells that have one."""
        expect(self._stage, Stage.DONE)
        self._check_enough()
        totals = [cell.result for cell in self._cells if isinstance(cell.result, Total)]
        values = sum((total.values for total in totals), np.uint32(0))
        devices = sorted(device for total in totals for device in total.devices)
        return Total(residue(np.asarray(values), self._terms), devices)

    @property
    def reports(self) -> int:
        """Count the reports that have arrived, and can be added."""
        return sum(cell.devices for cell in self._cells)

    @property
    def failed_cells(self) -> list[str]:
        """Return why each of the cells failed that did."""
        return [cell.failed for cell in self._cells if cell.failed]

    @property
    def offenders(self) -> dict[int, str]:
        """Return the devices that broke the protocol, in all cells, and how."""
        offenders = {}
        for cell in self._cells:
            offenders |= cell.offenders
        return offenders

    def _check_enough(self) -> None:
        """Fail the round if fewer devices are left than the terms name."""
        least = self._terms.least
        reports = self.reports
        if reports < least:
            done = "shared their secrets" if self._stage == Stage.MASK else "reported"
            raise FailedRound(f"{reports} devices have {done}, and {least} are needed")
        going = [cell for cell in self._cells if not cell.failed]
        left = sum(cell.devices for cell in going)
        if left < least:
            raise FailedRound(
                f"{left} devices are in cells that continue, and {least} are needed:"
                f" {self.failed_cells[-1]}"
            )
