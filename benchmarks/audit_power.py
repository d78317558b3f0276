"""Measure what an audit notices, and how often it accuses a sound mechanism.

    python benchmarks/audit_power.py    # writes benchmarks/audit_power.json

The scores of audit users, and the noise of a run's first rounds, are drawn as a mechanism would
make them, sound or broken, and audited by the code that audits runs. docs/audit.md shows the
figures; a test compares them. That runs make such scores and such noise is tested in tests/audit.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taciturn.audit.one_run import Audit, audit_scores, least_caught
from taciturn.audit.repeated_noise import audit_noise

RESULTS = Path(__file__).with_name("audit_power.json")

# How many times too small noise is.
TIMES = (1.0, 1.5, 2.0)

LAYERS = [30_000, 10_000, 12, 300, 12, 20_000]
SIZE = sum(LAYERS)
HALF = SIZE // 2
ROUNDS = 8
NOISE_AUDITS = 40
# What people do to a parameter, in deviations of its noise.
FAR = 0.3
# Small ones, so that an accusation can be expected.
SMALL_LAYERS = [2000, 1000]
LOOSE_LEVEL = 0.1
LOOSE_AUDITS = 400


class Users(NamedTuple):
    """Audit users of μ = 1."""

    number: int
    # The variance that people add to their scores, in that of the noise as claimed.
    people: float
    audits: int


USERS = (
    Users(number=300, people=0.0, audits=1000),
    Users(number=300, people=0.3, audits=1000),
    Users(number=1000, people=0.0, audits=1000),
    Users(number=1000, people=0.3, audits=1000),
    Users(number=10_000, people=0.3, audits=200),
)


def audit_drawn_scores(users: Users, times: float, seed: int) -> Audit:
    """Audit a mechanism whose noise is this many times too small."""
    generator = np.random.default_rng([seed, users.number, int(100 * times)])
    included = generator.random(users.number) < 0.5
    spread = (times**-2 + users.people) ** 0.5
    scores = included + spread * generator.normal(size=users.number)
    return audit_scores(scores, np.ones(users.number), included)


def measure_users(users: Users) -> dict[str, Any]:
    """Return how often each noise is accused."""
    accused = {}
    for times in TIMES:
        found = [audit_drawn_scores(users, times, seed).is_refuted for seed in range(users.audits)]
        accused[str(times)] = sum(found)
    caught = least_caught(
        power=(users.number / 2) ** 0.5,
        freedom=users.number - 1,
        signal=1.0,
        people=users.people,
        likely=0.8,
    )
    return {
        "users": users.number,
        "people": users.people,
        "audits": users.audits,
        "accused": accused,
        "caught": caught,
    }


def copy(noise: np.ndarray, start: int, to: int, length: int) -> np.ndarray:
    """Repeat a part of the noise in another part."""
    noise = noise.copy()
    noise[:, to : to + length] = noise[:, start : start + length]
    return noise


def silence(noise: np.ndarray, start: int, length: int) -> np.ndarray:
    noise = noise.copy()
    noise[:, start : start + length] = 0.0
    return noise


class Kind(NamedTuple):
    """A mechanism, sound or broken."""

    name: str
    make: Callable[[np.ndarray], np.ndarray]


KINDS = (
    Kind("as claimed", lambda noise: noise),
    Kind("the same for two halves", lambda noise: copy(noise, 0, HALF, HALF)),
    Kind("the same for two layers of 10,000", lambda noise: copy(noise, 0, 30_000, 10_000)),
    Kind("one block of 1,024 twice", lambda noise: copy(noise, 1111, 33_333, 1024)),
    Kind("one block of 256 twice", lambda noise: copy(noise, 1111, 33_333, 256)),
    Kind("the same for two halves, in reverse order", lambda noise: _mirror(noise)),
    Kind("none in a layer of 300", lambda noise: silence(noise, 40_012, 300)),
    Kind("1.2 times too small", lambda noise: noise / 1.2),
    Kind("1.05 times too small", lambda noise: noise / 1.05),
)


def _mirror(noise: np.ndarray) -> np.ndarray:
    return np.hstack([noise[:, :HALF], noise[:, :HALF][:, ::-1]])


def draw_people(seed: int) -> np.ndarray:
    """Return what people do: partly the same each round, partly more or less of one direction."""
    generator = np.random.default_rng([seed, 1])
    steady = generator.normal(size=SIZE)
    changing = generator.normal(size=(ROUNDS, 1)) * generator.normal(size=SIZE)
    return FAR * (steady + changing) / 2**0.5


def measure_noise(kind: Kind, audits: int = NOISE_AUDITS) -> dict[str, Any]:
    """Return how often a kind of noise is accused."""
    accused = 0
    for seed in range(audits):
        noise = np.random.default_rng(seed).normal(size=(ROUNDS, SIZE))
        estimates = (kind.make(noise) + draw_people(seed)).astype(np.float16).astype(np.float32)
        accused += audit_noise(estimates, np.eye(ROUNDS), LAYERS).is_refuted
    return {
        "noise": kind.name,
        "audits": audits,
        "accused": accused,
    }


def measure_false_alarms() -> dict[str, Any]:
    """Return how often sound noise is accused at a level at which that can be seen."""
    accused = 0
    for seed in range(LOOSE_AUDITS):
        noise = np.random.default_rng(seed).normal(size=(1, sum(SMALL_LAYERS)))
        found = audit_noise(noise, np.eye(1), SMALL_LAYERS, level=LOOSE_LEVEL)
        accused += found.is_refuted
    return {
        "level": LOOSE_LEVEL,
        "audits": LOOSE_AUDITS,
        "accused": accused,
    }


def write_tables(results: dict[str, Any]) -> str:
    """Return the tables of docs/audit.md."""
    lines = [
        "| audit users, μ = 1 | variance that people add | noise as claimed: accused | 1.5 × too"
        " small: caught | 2 × too small: caught | caught at 80 %, as printed |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["users"]:
        counts = [f"{row['accused'][str(times)]:,} of {row['audits']:,}" for times in TIMES]
        cells = [f"{row['users']:,}", f"{row['people']:g}", *counts, f"{row['caught']:.2f} ×"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"| noise of the first {ROUNDS} rounds, {SIZE:,} parameters | accused |",
        "|---|---|",
    ]
    for row in results["noise"]:
        lines.append(f"| {row['noise']} | {row['accused']} of {row['audits']} |")
    loose = results["false_alarms"]
    lines.append(
        f"| as claimed, but at a level of {loose['level']:g} (one round, 3,000 parameters) |"
        f" {loose['accused']} of {loose['audits']} |"
    )
    return "\n".join(lines)


def main() -> None:
    results = {
        "users": [measure_users(users) for users in USERS],
        "noise": [measure_noise(kind) for kind in KINDS],
        "false_alarms": measure_false_alarms(),
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(write_tables(results))


if __name__ == "__main__":
    main()
