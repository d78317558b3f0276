"""The rule of `taciturn train PEOPLE --epsilon …`, fitted on the runs of runs.csv.

python experiments/keyboard/fitting/fit.py
"""

import csv
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

PARAMETERS = 2_412_000
# What the rule is not about: runs that differ from these are left out.
USUAL = {
    "algorithm": "dp-fedavg",
    "server": "momentum",
    "local_epochs": "1",
    "start": "pilot",
    "falls_to": "",
    "frozen": "",
    "weight_cap": "",
}


class Measurement(NamedTuple):
    """What a round of a run says of the rule."""

    # How far the model could go.
    way: float
    # How far noise took it.
    noise: float
    # The points of AccuracyTop1 that it gained.
    gain: float


def measurements() -> list[Measurement]:
    """Return all rounds that were measured in private runs that differ in nothing but what the rule
    is about.
    """
    found = []
    with open(Path(__file__).with_name("runs.csv")) as file:
        for row in csv.DictReader(file):
            is_usual = all(row[name] == value for name, value in USUAL.items())
            if is_usual:
                found.append(_measure(row))
    return found


def _measure(row: dict[str, str]) -> Measurement:
    rounds = int(row["round"])
    rate = float(row["server_rate"])
    clip_norm = float(row["clip_norm"])
    # The rounds that momentum takes to reach its full length.
    building_up = 1 / (1 - float(row["momentum"]))
    reach = rate * clip_norm * building_up
    noise_multiplier = float(row["noise_multiplier"])
    cohort = float(row["cohort"])
    noise_of_a_round = reach * noise_multiplier / cohort
    return Measurement(
        way=reach * (rounds - building_up + 1),
        noise=noise_of_a_round * math.sqrt(rounds * PARAMETERS),
        gain=float(row["top1"]) - float(row["before_top1"]),
    )


def main() -> None:
    way, noise, gain = np.array(measurements()).T

    def residuals(rule: np.ndarray) -> np.ndarray:
        a, b, c = rule
        return a * np.log1p(way / b) - c * (noise / 50) ** 1.5 - gain

    fitted = least_squares(residuals, [0.4, 0.5, 0.2], bounds=(0.001, 10.0))
    a, b, c = fitted.x
    root_mean_square = np.sqrt(np.mean(fitted.fun**2))
    worst = np.max(np.abs(fitted.fun))
    best_noise = 50 * (a / 1.5 / c) ** (2 / 3)
    print(
        f"{len(gain)} measurements: gain = {a:.3f} · ln(1 + way / {b:.3f}) − {c:.3f} · (noise /"
        " 50)^1.5"
    )
    print(f"root mean square {root_mean_square:.3f} points, worst {worst:.2f}")
    print(f"best noise where rounds are free: {best_noise:.0f}")


if __name__ == "__main__":
    main()
