"""From messages to a private keyboard model, in Python.

    python examples/quickstart.py

The messages are simulated, so that it runs anywhere; with your own, name your file of (user, text)
in `build_population`. The recipe is a small one, for a minute; for messages in English
`tt.train(people, epsilon=4)` works out one for your people and your machine.
"""

import csv
import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import taciturn as tt

USERS = 200
MESSAGES = 20
PHRASES = (
    "see you at the station",
    "see you tomorrow",
    "are you at home",
    "i am on my way",
    "thank you so much",
)


def simulate_messages(path: Path) -> Path:
    """Write messages of three phrases each."""
    generator = random.Random(0)
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "text"])
        for user in range(USERS):
            for _ in range(MESSAGES):
                phrases = generator.sample(PHRASES, 3)
                rows.writerow([f"user {user}", ", ".join(phrases) + "."])
    return path


def make_recipe(population: Path) -> tt.Recipe:
    sections: dict[str, Any] = {
        "data": {"population": str(population), "tokens_per_user": 80},
        "model": {"kind": "cifg", "width": 16, "units": 24},
        "local": {"learning_rate": 1.0, "batch_size": 8},
        "server": {"optimizer": "momentum", "learning_rate": 1.0, "momentum": 0.9},
        "participation": {"users": USERS, "cohort": 40},
        "privacy": {"clip_norm": 0.5, "epsilon": 8.0},
        "run": {"rounds": 15, "evaluate_every": 15},
    }
    return tt.Recipe(**sections)


def print_round(done: int, rounds: int, row: dict[str, Any]) -> None:
    print(f"round {done} of {rounds}", end="\r")


def main(folder: Path) -> tt.FinishedRun:
    messages = simulate_messages(folder / "messages.csv")
    people = tt.build_population(messages, folder / "people", vocabulary=500)
    run = tt.train(make_recipe(people.folder), folder / "run", print_round)
    guarantee = run.guarantee
    # Rounded up: a promise may be stated too weak, not too strong.
    epsilon = math.ceil(100 * guarantee.epsilon) / 100
    print(f"\nε = {epsilon} at δ = {guarantee.delta:.3g}, for each user and all they wrote")
    accuracy = run.evaluate().accuracy_top1
    print(f"the next word is right {accuracy:.1%} of the time, for people it never met")
    print(f"after «see you »: {run.predictor().suggest('see you ').words}")
    files = run.export(folder / "model").files
    print("files to pass on:", *(path.name for path in files))
    return run


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else folder))
