"""From messages to a private keyboard model, in Python.

    python examples/quickstart.py

The messages are made up, so that it runs anywhere; with your own, name your file of (user, text) in
`build_population`.
"""

import csv
import random
import sys
import tempfile
from pathlib import Path

import taciturn as tt

USERS = 200
PHRASES = (
    "see you at the station",
    "see you tomorrow",
    "are you at home",
    "i am on my way",
    "thank you so much",
)


def made_up_messages(path: Path) -> Path:
    chosen = random.Random(0)
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "text"])
        for user in range(USERS):
            rows.writerows(
                [f"user {user}", ", ".join(chosen.sample(PHRASES, 3)) + "."] for _ in range(20)
            )
    return path


def main(folder: Path) -> tt.FinishedRun:
    people = tt.build_population(
        made_up_messages(folder / "messages.csv"), folder / "people", vocabulary=500
    )
    recipe = tt.Recipe(
        data={"population": str(people.folder), "tokens_per_user": 80},
        model={"kind": "cifg", "width": 16, "units": 24},
        local={"learning_rate": 1.0, "batch_size": 8},
        server={"optimizer": "momentum", "learning_rate": 1.0, "momentum": 0.9},
        participation={"users": USERS, "cohort": 40},
        privacy={"clip_norm": 0.5, "epsilon": 8.0},
        run={"rounds": 15, "evaluate_every": 15},
    )
    run = tt.train(
        recipe,
        folder / "run",
        lambda done, rounds, row: print(f"round {done} of {rounds}", end="\r"),
    )
    print(
        f"\nε = {run.guarantee.epsilon:.2f} at δ = {run.guarantee.delta:.1e}, for each user and all"
        " they wrote"
    )
    print(
        f"the next word is right {run.evaluate().accuracy_top1:.1%} of the time, for people it"
        " never met"
    )
    print(f"after «see you »: {run.predictor().suggest('see you ').words}")
    print("files to pass on:", *(path.name for path in run.export(folder / "model").files))
    return run


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else folder))
