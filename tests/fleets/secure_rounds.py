"""Secure sums of a few devices, every message of which goes through bytes, and from which devices
vanish when they are told to.
"""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from enrolling import AUTHORITY, NONE_DISMISSED, certificate
from taciturn.fleets.secure_aggregation import masks, shamir
from taciturn.fleets.secure_aggregation.bit_packing import unpack
from taciturn.fleets.secure_aggregation.device_side import DeviceRound
from taciturn.fleets.secure_aggregation.masks import Secret
from taciturn.fleets.secure_aggregation.messages import Terms
from taciturn.fleets.secure_aggregation.server_cell import ServerCell, Total
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.fleets.secure_aggregation.stages import Stage

STAGES = tuple(Stage)[:-1]
TERMS = Terms(
    round=b"round 1",
    message=bytes(32),
    dismissed=NONE_DISMISSED.digest(),
    fingerprint=b"fingerprint",
    modulus_bits=20,
    length=50,
    dropouts=0.3,
    corrupt=0.1,
    least=2,
    most=1000,
)


def carried(message):
    """As it arrives on the other side."""
    return type(message).from_bytes(message.to_bytes())


def plain_sum(values, devices, bits):
    return sum(values[device].astype(np.uint64) for device in devices) % 2**bits


def enter_round(terms, key, signed, dismissed=NONE_DISMISSED) -> DeviceRound:
    """A device at the start of a round, with the certificate that the authority signed for it."""
    return DeviceRound(
        terms=terms, key=key, certificate=signed, authority=AUTHORITY, dismissed=dismissed
    )


class Cohort:
    """`devices` and `server` in one round; `run` takes them through it, or up to the end of a
    stage.
    """

    def __init__(self, count: int, terms: Terms = TERMS, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.terms = terms
        ids = sorted(int(one) for one in generator.choice(2**62, count, replace=False))
        self.keys = {one: Ed25519PrivateKey.generate() for one in ids}
        self.values = {
            one: generator.integers(0, 2**terms.modulus_bits, terms.length).astype(np.uint32)
            for one in ids
        }
        self.start(terms)

    def start(self, terms: Terms) -> None:
        self.terms = terms
        self.devices = {one: self.member(one, terms) for one in self.keys}
        self.server = ServerRound(terms, AUTHORITY, NONE_DISMISSED)
        self.said: dict[Stage, dict] = {}  # what devices sent in each stage
        self.heard: dict[Stage, dict] = {}  # and what they were sent

    def member(self, one: int, terms: Terms = TERMS) -> DeviceRound:
        """A device, as it is when it comes into a round."""
        return enter_round(terms, self.keys[one], certificate(one, self.keys[one]))

    @property
    def cell(self) -> ServerCell:
        """The only one."""
        (cell,) = self.server._cells
        return cell

    @property
    def ids(self) -> list[int]:
        return list(self.devices)

    def gone(self, share: float, seed: int = 0) -> set[int]:
        count = int(share * len(self.ids) + 1e-9)
        return {
            int(one) for one in np.random.default_rng(seed).choice(self.ids, count, replace=False)
        }

    def run(self, gone: dict[Stage, set[int]] | None = None, until: Stage = Stage.UNMASK) -> None:
        """`gone`: who vanishes before it sends what it would in a stage."""
        vanished: set[int] = set()
        for stage in STAGES[: STAGES.index(until) + 1]:
            vanished |= (gone or {}).get(stage, set())
            self.heard[stage] = self._ask(stage)
            self.said[stage] = {
                one: self._say(stage, one, carried(asked) if asked else None)
                for one, asked in self.heard[stage].items()
                if one not in vanished
            }
            for one, answer in self.said[stage].items():
                self._take(stage)(one, answer if stage == Stage.SIGN else carried(answer))

    def total(self) -> Total:
        return self.cell.total()

    def plain(self, devices) -> np.ndarray:
        return plain_sum(self.values, devices, self.terms.modulus_bits)

    def _ask(self, stage: Stage) -> dict:
        if stage in (Stage.ADVERTISE, Stage.SHARE):
            return dict.fromkeys(self.ids) if stage == Stage.ADVERTISE else self.server.rosters()
        return {
            Stage.MASK: self.cell.deliveries,
            Stage.SIGN: self.cell.survivors,
            Stage.UNMASK: self.cell.requests,
        }[stage]()

    def _say(self, stage: Stage, one: int, asked):
        device = self.devices[one]
        if stage == Stage.ADVERTISE:
            return device.advertise()
        if stage == Stage.MASK:
            return device.mask(asked, self.values[one])
        return {Stage.SHARE: device.share, Stage.SIGN: device.sign, Stage.UNMASK: device.unmask}[
            stage
        ](asked)

    def _take(self, stage: Stage):
        if stage == Stage.ADVERTISE:
            return self.server.take_advert
        cell = self.cell
        return {
            Stage.SHARE: cell.take_shares,
            Stage.MASK: cell.take_report,
            Stage.SIGN: cell.take_signature,
            Stage.UNMASK: cell.take_answer,
        }[stage]


def put_together(cohort, owner, kind, answers, given=()):
    """A secret from all shares that a server has, those that corrupt devices gave it among them, or
    None where they are too few.
    """
    order = sorted(cohort.ids)
    shares = {
        one: getattr(answer, kind)[owner]
        for one, answer in answers.items()
        if owner in getattr(answer, kind)
    }
    shares |= {
        one: cohort.devices[one]._held[owner][("seeds", "mask_keys").index(kind)] for one in given
    }
    needed = cohort.cell.threshold
    if len(shares) < needed:
        return None
    return Secret(
        shamir.reconstruct({order.index(one) + 1: shares[one] for one in list(shares)[:needed]})
    )


def stripped(cohort, one, report, keys):
    """A report without the masks of the keys, which are by peer; None stands for the device's
    own.
    """
    words = unpack(report.packed, cohort.terms.length, cohort.terms.modulus_bits).astype(
        masks.words(cohort.terms.modulus_bits)
    )
    plus = [key for peer, key in keys.items() if peer is None or one < peer]
    minus = [key for peer, key in keys.items() if peer is not None and one > peer]
    masks.add_masks(words, minus, plus)
    return words & words.dtype.type(2**cohort.terms.modulus_bits - 1)
