"""The rule of `taciturn train PEOPLE --epsilon …`, fitted on the runs of runs.csv.

python experiments/keyboard/fitting/fit.py
"""

import csv
import math
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

PARAMETERS = 2_412_000


def measurements() -> list[tuple[float, float, float]]:
    """How far the model could go, how far noise took it, and the points of AccuracyTop1 that it
    gained: of all rounds that were measured in private runs that differ in nothing but what the
    rule is about.
    """
    found = []
    with open(Path(__file__).with_name("runs.csv")) as file:
        for row in csv.DictReader(file):
            plain = (row["algorithm"], row["server"], row["local_epochs"]) == (
                "dp-fedavg",
                "momentum",
                "1",
            )
            if (
                not plain
                or row["start"] != "pilot"
                or any(row[name] for name in ("falls_to", "frozen", "weight_cap"))
            ):
                continue
            rounds, building_up = int(row["round"]), 1 / (1 - float(row["momentum"]))
            reach = float(row["server_rate"]) * float(row["clip_norm"]) * building_up
            noise = (
                reach
                * float(row["noise_multiplier"])
                / float(row["cohort"])
                * math.sqrt(rounds * PARAMETERS)
            )
            found.append(
                (
                    reach * (rounds - building_up + 1),
                    noise,
                    float(row["top1"]) - float(row["before_top1"]),
                )
            )
    return found


def main() -> None:
    way, noise, gain = np.array(measurements()).T

    def differs(rule: np.ndarray) -> np.ndarray:
        return rule[0] * np.log1p(way / rule[1]) - rule[2] * (noise / 50) ** 1.5 - gain

    fitted = least_squares(differs, [0.4, 0.5, 0.2], bounds=(0.001, 10.0))
    a, b, c = fitted.x
    print(
        f"{len(gain)} measurements: gain = {a:.3f} · ln(1 + way / {b:.3f}) − {c:.3f} · (noise /"
        " 50)^1.5"
    )
    print(
        f"root mean square {np.sqrt(np.mean(fitted.fun**2)):.3f} points, worst"
        f" {np.max(np.abs(fitted.fun)):.2f}"
    )
    print(f"best noise where rounds are free: {50 * (a / 1.5 / c) ** (2 / 3):.0f}")


if __name__ == "__main__":
    main()
