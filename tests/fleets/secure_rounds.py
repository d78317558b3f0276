"""Secure sums of a few devices, every message of which goes through bytes, and from which devices vanish when they are told to."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn.fleets.secure_aggregation.device_side import DeviceRound
from taciturn.fleets.secure_aggregation.identities import EnrolledKeys
from taciturn.fleets.secure_aggregation.messages import Terms
from taciturn.fleets.secure_aggregation.protocol import ADVERTISE, MASK, SHARE, UNMASK
from taciturn.fleets.secure_aggregation.server_side import ServerRound, Total

STAGES = ADVERTISE, SHARE, MASK, UNMASK
TERMS = Terms(b"round 1", bytes(32), b"fingerprint", 20, 50, dropouts=0.3, corrupt=0.1, least=2, most=1000)


def carried(message):
    """As it arrives on the other side."""
    return type(message).from_bytes(message.to_bytes())


def plain_sum(values, devices, bits):
    return sum(values[device].astype(np.uint64) for device in devices) % 2**bits


class Cohort:
    """`devices` and `server` in one round; `run` takes them through it, or up to the end of a stage."""

    def __init__(self, count: int, terms: Terms = TERMS, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.terms = terms
        ids = sorted(int(one) for one in generator.choice(2**62, count, replace=False))
        keys = {one: Ed25519PrivateKey.generate() for one in ids}
        self.enrolled = {one: key.public_key() for one, key in keys.items()}
        self.identities = {one: EnrolledKeys(self.enrolled, key) for one, key in keys.items()}
        self.values = {one: generator.integers(0, 2**terms.modulus_bits, terms.length).astype(np.uint32) for one in ids}
        self.start(terms)

    def start(self, terms: Terms) -> None:
        self.terms = terms
        self.devices = {one: DeviceRound(terms, one, identity) for one, identity in self.identities.items()}
        self.server = ServerRound(terms, EnrolledKeys(self.enrolled))
        self.said: dict[str, dict] = {}  # what devices sent in each stage
        self.heard: dict[str, dict] = {}  # and what they were sent

    @property
    def ids(self) -> list[int]:
        return list(self.devices)

    def gone(self, share: float, seed: int = 0) -> set[int]:
        count = int(share * len(self.ids) + 1e-9)
        return {int(one) for one in np.random.default_rng(seed).choice(self.ids, count, replace=False)}

    def run(self, gone: dict[str, set[int]] | None = None, until: str = UNMASK) -> None:
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
                self._take(stage)(one, carried(answer))

    def total(self) -> Total:
        return self.server.total()

    def plain(self, devices) -> np.ndarray:
        return plain_sum(self.values, devices, self.terms.modulus_bits)

    def _ask(self, stage: str) -> dict:
        if stage == ADVERTISE:
            return dict.fromkeys(self.ids)
        return {SHARE: self.server.rosters, MASK: self.server.deliveries, UNMASK: self.server.requests}[stage]()

    def _say(self, stage: str, one: int, asked):
        device = self.devices[one]
        if stage == ADVERTISE:
            return device.advertise()
        if stage == MASK:
            return device.mask(asked, self.values[one])
        return device.share(asked) if stage == SHARE else device.unmask(asked)

    def _take(self, stage: str):
        server = self.server
        return {ADVERTISE: server.take_advert, SHARE: server.take_shares, MASK: server.take_report, UNMASK: server.take_answer}[stage]
