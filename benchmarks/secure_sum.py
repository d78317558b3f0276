"""What a secure sum costs, in CPU seconds: a device with 100 neighbours, and a server with 100 devices of which one in ten is gone.

    .venv/bin/python benchmarks/secure_sum.py [--length 2400000] [--bits 26] [--devices 101]

Values are random; every message goes through bytes. All devices run in this process, so that of a device the mean is told.
"""

import argparse
import time
from collections import defaultdict

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taciturn.fleets.secure_aggregation.device_side import DeviceRound
from taciturn.fleets.secure_aggregation.identities import EnrolledKeys
from taciturn.fleets.secure_aggregation.messages import MaskedReport, Roster, SealedShares, Terms, Unmasking
from taciturn.fleets.secure_aggregation.server_side import ServerRound

SPENT: dict[str, list[float]] = defaultdict(list)


def timed(name, call, *arguments):
    start = time.process_time()
    result = call(*arguments)
    SPENT[name].append(time.process_time() - start)
    return result


def row(name: str, upload: float = 0.0, note: str = "") -> None:
    seconds = SPENT[name]
    size = f"{upload / 1e6:10.3f} MB" if upload else " " * 13
    print(f"  {name:<22}{np.mean(seconds):9.3f} s each {sum(seconds):9.2f} s in all{size}  {note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=2_400_000)
    parser.add_argument("--bits", type=int, default=26)
    parser.add_argument("--devices", type=int, default=101)
    parser.add_argument("--gone", type=float, default=0.1)
    arguments = parser.parse_args()
    count, length, bits = arguments.devices, arguments.length, arguments.bits
    terms = Terms(b"cost", bytes(32), b"cost", bits, length, dropouts=0.3, corrupt=0.05, least=2, most=1 << 16)
    keys = {one: Ed25519PrivateKey.generate() for one in range(count)}
    enrolled = {one: key.public_key() for one, key in keys.items()}
    server = ServerRound(terms, EnrolledKeys(enrolled))
    devices = {one: DeviceRound(terms, one, EnrolledKeys(enrolled, key)) for one, key in keys.items()}
    values = np.random.default_rng(0).integers(0, 1 << bits, length, np.uint32, endpoint=False)
    gone = set(range(0, count, round(1 / arguments.gone))) if arguments.gone else set()

    for one, device in devices.items():
        timed("server: advert", server.take_advert, one, timed("advertise", device.advertise))
    rosters = {one: roster.to_bytes() for one, roster in timed("server: rosters", server.rosters).items()}
    for one, roster in rosters.items():
        sealed = timed("share", lambda one=one, roster=roster: devices[one].share(Roster.from_bytes(roster)).to_bytes())
        server.take_shares(one, SealedShares.from_bytes(sealed))
    deliveries = timed("server: deliveries", server.deliveries)
    for one, delivery in deliveries.items():
        if one not in gone:
            report = timed("mask and pack", lambda one=one, delivery=delivery: devices[one].mask(delivery, values).to_bytes())
            timed("server: add a report", server.take_report, one, MaskedReport.from_bytes(report))
    for one, request in timed("server: requests", server.requests).items():
        answer = timed("unmask", lambda one=one, request=request: devices[one].unmask(request).to_bytes())
        server.take_answer(one, Unmasking.from_bytes(answer))
    total = timed("server: unmask", server.total)
    expected = values.astype(np.uint64) * len(total.devices) % (1 << bits)
    assert len(total.devices) == count - len(gone)
    assert (total.values == expected).all()

    neighbours = len(sealed) // 102
    print(f"{count} devices, {neighbours} neighbours, {len(gone)} gone before they report, {length:,} numbers of {bits} bits")
    row("advertise", len(roster) / count)
    row("share", len(sealed), f"download {len(roster) / 1e6:.3f} MB")
    row("mask and pack", len(report), f"{len(report) / length:.3f} bytes a number")
    row("unmask", len(answer))
    for name in ("advert", "rosters", "deliveries", "add a report", "requests", "unmask"):
        row(f"server: {name}")
    server_spent = sum(sum(spent) for name, spent in SPENT.items() if name.startswith("server"))
    print(f"  server in all {server_spent:.2f} s; the sum is right to the last bit")


if __name__ == "__main__":
    main()
