"""What a round of secure sums costs, in CPU seconds: a device, and the server with all processes
that work for it.

    .venv/bin/python benchmarks/secure_sum.py [--devices 1000] [--length 10000] [--bits 26] [--gone
    0.05]

Values are random; every message goes through bytes. All devices run in this process, so that of a
device the mean is told.
"""

import argparse
import resource
import time
from collections import defaultdict

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

STAGES = [stage.value for stage in Stage if stage is not Stage.DONE]
SPENT: dict[str, list[float]] = defaultdict(list)
SIZES: dict[str, tuple[int, int]] = {}  # down and up


def timed(name, call, *arguments):
    start = time.process_time()
    result = call(*arguments)
    SPENT[name].append(time.process_time() - start)
    return result


def answer(device: DeviceRound, stage: str, content: bytes, values: np.ndarray) -> bytes:
    match stage:
        case "advertise":
            return device.advertise().to_bytes()
        case "share":
            return device.share(Roster.from_bytes(content)).to_bytes()
        case "mask":
            return device.mask(SealedShares.from_bytes(content), values).to_bytes()
        case "sign":
            return device.sign(Survivors.from_bytes(content))
        case _:
            return device.unmask(UnmaskRequest.from_bytes(content)).to_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--length", type=int, default=10_000)
    parser.add_argument("--bits", type=int, default=26)
    parser.add_argument(
        "--gone", type=float, default=0.05, help="the share of devices that never report"
    )
    given = parser.parse_args()
    count, bits = given.devices, given.bits
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
        length=given.length,
        dropouts=0.3,
        corrupt=0.05,
        least=2,
        most=1 << 16,
    )
    keys = {one: Ed25519PrivateKey.generate() for one in range(count)}
    certificates = {
        one: signing_authority.certify(
            one, key.public_key().public_bytes_raw(), now, now + 86400, 0
        )
        for one, key in keys.items()
    }
    server = ServerRound(terms, authority, dismissed)
    devices = {
        one: DeviceRound(
            terms=terms,
            key=key,
            certificate=certificates[one],
            authority=authority,
            dismissed=dismissed,
        )
        for one, key in keys.items()
    }
    generator = np.random.default_rng(0)
    gone, plain = (
        set(generator.choice(count, int(given.gone * count), replace=False).tolist()),
        np.zeros(given.length, np.uint64),
    )

    questions, wall = dict.fromkeys(devices, b""), 0.0
    for stage in STAGES:
        answers = {}
        for one, question in questions.items():
            if stage == "mask" and one in gone:
                continue
            values = generator.integers(
                0, 1 << bits, given.length if stage == "mask" else 1, np.uint32
            )
            answers[one] = timed(
                stage, answer, devices[one], stage, question + server.shared, values
            )
            SIZES[stage] = len(question + server.shared), len(answers[one])
            if stage == "mask":
                plain += values
        began = time.monotonic()
        assert not timed(f"server: {stage}", server.take, answers)
        questions = timed(f"server: {stage}", server.questions) if stage != "unmask" else {}
        wall += time.monotonic() - began
    total = timed("server: total", server.total)
    assert len(total.devices) == count - len(gone)
    assert (total.values == plain % (1 << bits)).all()

    sizes = sorted({len(cell.adverts) for cell in server._cells})
    print(
        f"{count} devices in {len(server._cells)} cells of {sizes}, {len(gone)} gone half-way,"
        f" {given.length:,} numbers of {bits} bits"
    )
    for stage in STAGES:
        down, up = SIZES[stage]
        print(
            f"  a device: {stage:<12}{np.mean(SPENT[stage]):8.3f} s   {down / 1e6:8.3f} MB down"
            f" {up / 1e6:8.3f} MB up"
        )
    for stage in (*STAGES, "total"):
        print(f"  server:   {stage:<12}{sum(SPENT[f'server: {stage}']):8.3f} s")
    workers._workers().shutdown()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    here, there = (
        sum(sum(spent) for name, spent in SPENT.items() if name.startswith("server")),
        used.ru_utime + used.ru_stime,
    )
    print(
        f"  server in all {here + there:.2f} s: {here:.2f} s here, {there:.2f} s in other"
        f" processes; {wall:.1f} s on the clock"
    )
    print("  the sum is right to the last bit")


if __name__ == "__main__":
    main()
