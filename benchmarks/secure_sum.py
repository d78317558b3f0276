"""What a round of secure sums costs, in CPU seconds: a device, and the server with all processes
that work for it.

    .venv/bin/python benchmarks/secure_sum.py [--devices 1000] [--length 10000] [--bits 26] [--gone
    0.05]

Values are random; every message goes through bytes. All devices run in this process, so that for a
device the mean is printed.
"""

import argparse
import resource
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn.fleets.secure_aggregation import workers
from taciturn.fleets.secure_aggregation.device_side import DeviceRound
from taciturn.fleets.secure_aggregation.identities import SigningAuthority
from taciturn.fleets.secure_aggregation.messages import (
    Roster,
    SealedShares,
    Survivors,
    Terms,
    UnmaskRequest,
)
from taciturn.fleets.secure_aggregation.server_side import ServerRound
from taciturn.fleets.secure_aggregation.stages import Stage

STAGES = [stage for stage in Stage if stage is not Stage.DONE]
# Seconds for which certificates are valid.
VALID_SECONDS = 86_400
Result = TypeVar("Result")


def answer(device: DeviceRound, stage: Stage, content: bytes, values: np.ndarray) -> bytes:
    """Let a device answer the question of a stage."""
    match stage:
        case Stage.ADVERTISE:
            return device.advertise().to_bytes()
        case Stage.SHARE:
            return device.share(Roster.from_bytes(content)).to_bytes()
        case Stage.MASK:
            return device.mask(SealedShares.from_bytes(content), values).to_bytes()
        case Stage.SIGN:
            return device.sign(Survivors.from_bytes(content))
        case _:
            return device.unmask(UnmaskRequest.from_bytes(content)).to_bytes()


class MeasuredRound:
    """A secure sum in this process, with what each part of it costs."""

    def __init__(self, *, devices: int, length: int, bits: int, gone_share: float) -> None:
        self._bits = bits
        self._length = length
        self._generator = np.random.default_rng(0)
        self.server, self.devices = _make_round(devices, length, bits)
        gone_count = int(gone_share * devices)
        gone = self._generator.choice(devices, gone_count, replace=False)
        # Devices that never report.
        self.gone = set(gone.tolist())
        # CPU seconds of the devices and of the server, by stage.
        self.device_seconds: dict[str, list[float]] = defaultdict(list)
        self.server_seconds: dict[str, list[float]] = defaultdict(list)
        # Bytes down and up, of a device.
        self.sizes: dict[str, tuple[int, int]] = {}
        # On the clock, of the server.
        self.wall_seconds = 0.0

    def run(self) -> None:
        """Go through all stages; check the sum against the plain one."""
        plain = np.zeros(self._length, np.uint64)
        questions = dict.fromkeys(self.devices, b"")
        for stage in STAGES:
            answers = {}
            for number, question in questions.items():
                if stage is Stage.MASK and number in self.gone:
                    continue
                values = self._draw_values(stage)
                answers[number] = self._ask(number, stage, question, values)
                if stage is Stage.MASK:
                    plain += values
            questions = self._take(stage, answers)
        total = self._time(self.server_seconds["total"], self.server.total)
        assert len(total.devices) == len(self.devices) - len(self.gone)
        assert (total.values == plain % (1 << self._bits)).all()

    def _draw_values(self, stage: Stage) -> np.ndarray:
        """Draw what a device reports; a single value where nothing is reported."""
        length = self._length if stage is Stage.MASK else 1
        return self._generator.integers(0, 1 << self._bits, length, np.uint32)

    def _ask(self, number: int, stage: Stage, question: bytes, values: np.ndarray) -> bytes:
        content = question + self.server.shared
        device = self.devices[number]
        seconds = self.device_seconds[stage.value]
        sent = self._time(seconds, lambda: answer(device, stage, content, values))
        self.sizes[stage.value] = (len(content), len(sent))
        return sent

    def _take(self, stage: Stage, answers: dict[int, bytes]) -> dict[int, bytes]:
        """Let the server read the answers of a stage; return the questions of the next."""
        seconds = self.server_seconds[stage.value]
        began = time.monotonic()
        refused = self._time(seconds, lambda: self.server.take(answers))
        assert not refused
        questions = {}
        if stage is not Stage.UNMASK:
            questions = self._time(seconds, self.server.questions)
        self.wall_seconds += time.monotonic() - began
        return questions

    def _time(self, seconds: list[float], work: Callable[[], Result]) -> Result:
        start = time.process_time()
        result = work()
        seconds.append(time.process_time() - start)
        return result


def _make_round(count: int, length: int, bits: int) -> tuple[ServerRound, dict[int, DeviceRound]]:
    """Make the two sides of a round, with the devices enrolled."""
    signing_authority = SigningAuthority(bytes(16), Ed25519PrivateKey.generate())
    authority = signing_authority.authority
    dismissed = signing_authority.dismiss(0, ())
    now = int(time.time())
    terms = Terms(
        round=b"cost",
        message=bytes(32),
        dismissed=dismissed.digest(),
        fingerprint=b"cost",
        modulus_bits=bits,
        length=length,
        dropouts=0.3,
        corrupt=0.05,
        least=2,
        most=1 << 16,
    )
    devices = {}
    for number in range(count):
        key = Ed25519PrivateKey.generate()
        certificate = signing_authority.certify(
            device=number,
            key=key.public_key().public_bytes_raw(),
            begins=now,
            ends=now + VALID_SECONDS,
            after=0,
        )
        devices[number] = DeviceRound(
            terms=terms,
            key=key,
            certificate=certificate,
            authority=authority,
            dismissed=dismissed,
        )
    return ServerRound(terms, authority, dismissed), devices


def print_round(measured: MeasuredRound, length: int, bits: int) -> None:
    """Print what each stage costs a device, and the server."""
    cells = measured.server._cells
    sizes = sorted({len(cell.adverts) for cell in cells})
    print(
        f"{len(measured.devices)} devices in {len(cells)} cells of {sizes}, {len(measured.gone)}"
        f" gone before they report, {length:,} numbers of {bits} bits"
    )
    for stage, seconds in measured.device_seconds.items():
        down, up = measured.sizes[stage]
        print(
            f"  a device: {stage:<12}{np.mean(seconds):8.3f} s   {down / 1e6:8.3f} MB down"
            f" {up / 1e6:8.3f} MB up"
        )
    for stage, seconds in measured.server_seconds.items():
        print(f"  server:   {stage:<12}{sum(seconds):8.3f} s")
    # Only the seconds of processes that have ended are known.
    workers._workers().shutdown()
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    there = others.ru_utime + others.ru_stime
    here = sum(sum(seconds) for seconds in measured.server_seconds.values())
    print(
        f"  server in all {here + there:.2f} s: {here:.2f} s here, {there:.2f} s in other"
        f" processes; {measured.wall_seconds:.1f} s on the clock"
    )
    print("  the sum is right to the last bit")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--length", type=int, default=10_000)
    parser.add_argument("--bits", type=int, default=26)
    parser.add_argument(
        "--gone", type=float, default=0.05, help="the share of devices that never report"
    )
    options = parser.parse_args()
    measured = MeasuredRound(
        devices=options.devices,
        length=options.length,
        bits=options.bits,
        gone_share=options.gone,
    )
    measured.run()
    print_round(measured, options.length, options.bits)


if __name__ == "__main__":
    main()
