"""Your own loop in a folder, killed at each step of it: the steps, the loop, and what must hold.

    python tests/own_loops.py FOLDER ALGORITHM SEED ROUNDS STEP MOST

is a process that is killed, with SIGKILL, when it comes to a step, or has yielded the most states.
"""

import hashlib
import itertools
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import taciturn as tt
from taciturn import files
from taciturn.algorithms.dp_fedavg import federated_algorithm
from taciturn.privacy import loop_folder
from taciturn.privacy.bounding.clipping import flat_clip
from taciturn.privacy.bounding.estimators import fixed_denominator
from taciturn.privacy.curator import Curator
from taciturn.privacy.ledger.cohort_log import CohortLog
from taciturn.privacy.ledger.hash_chain import ChainedFile
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.ledger.releases import Releases
from taciturn.privacy.noise.correlated import Buffers, blt, tree
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.own_loop import OwnLoopError
from taciturn.privacy.participation import MinSeparation
from taciturn.privacy.simulation import UsersInMemory

USERS = [
    tt.UserData(np.full((1, 1, 3), number % 5, np.float32), np.float32(1), np.int32(1))
    for number in range(20)
]
START = {"mean": jnp.zeros(3)}
Step = Callable[[str], None]


def move(message, user, key):
    return {"mean": user.batches[0, 0] - message.params["mean"]}


def ftrl(noise, claim):
    private = mechanism(flat_clip(1.0), fixed_denominator(4.0), noise)
    return federated_algorithm(move, private, claim, optax.sgd(0.5, momentum=0.9))


def algorithms(rounds: int) -> dict[str, tt.Algorithm]:
    """DP-FedAvg with momentum and drawn cohorts; DP-FTRL with a tree, and with a BLT."""
    most = max(3, rounds // 3)
    claim = MinSeparation(size=4, min_separation=1, max_participations=most, rounds=rounds)
    return {
        "dp-fedavg": tt.private_averaging(
            move,
            clip_norm=1.0,
            noise_multiplier=1.0,
            users=20,
            cohort=10,
            server=optax.sgd(0.5, momentum=0.9),
        ),
        "dp-ftrl-tree": ftrl(tree(1.0, max(2, rounds // 2), 2 * rounds + 8), claim),
        "dp-ftrl-blt": ftrl(blt(1.0, Buffers(2 * rounds + 8, (0.9,), (0.4,))), claim),
    }


class Notes(NamedTuple):
    """What left, and under which names noise was drawn for it."""

    # (round, name of the noise, digest of the release), whether or not it was charged.
    releases: list[tuple[int, str, str]]
    # (round, digest of the parameters) of every state that was yielded.
    states: list[tuple[int, str]]


def digest(tree: Any) -> str:
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]
    return hashlib.sha256(b"".join(leaves)).hexdigest()


def put_steps(patch: Callable[[Any, str, Any], None], step: Step, notes: Notes) -> None:
    """Say when each thing that is on disk is about to be, is torn, and is there."""
    write_new, sync_folder = files._write_new, files.sync_folder
    flush, write_entry = ChainedFile._flush, CohortLog._write
    write_release, forget = Releases.write, Releases.forget
    sum_reports, keep_state = Curator._sum_reports, Curator.keep_state

    def torn_file(path, parts, mode):
        kind = path.name.removeprefix(".").split(".")[0].split("-")[0]
        content = b"".join(bytes(part) for part in parts)
        step(f"before the file {kind}")
        path.write_bytes(content[: len(content) // 2])
        step(f"torn file {kind}")
        path.unlink()
        write_new(path, [content], mode)
        step(f"before it is named {kind}")

    def named(folder):
        step("named")
        sync_folder(folder)

    def torn_row(ledger, file, data):
        kind = json.loads(data)["kind"] if data.strip() else "end"
        step(f"before the row {kind}")
        file.write(data[: len(data) // 2])
        file.flush()
        step(f"torn row {kind}")
        flush(ledger, file, data[len(data) // 2 :])
        step(f"after the row {kind}")

    def torn_entry(log, file, entry):
        step("before the entry")
        write_entry(log, file, entry[: len(entry) // 2])
        step("torn entry")
        write_entry(log, file, entry)
        step("after the entry")

    def noted(records, row, release, noise_name):
        notes.releases.append((row, noise_name, digest(release)))
        step("drawn")
        return write_release(records, row, release, noise_name)

    def around(name, function):
        def wrapped(*arguments, **named):
            step(f"before {name}")
            result = function(*arguments, **named)
            step(f"after {name}")
            return result

        return wrapped

    patch(files, "_write_new", torn_file)
    patch(files, "sync_folder", named)
    patch(loop_folder, "sync_folder", named)
    patch(ChainedFile, "_flush", torn_row)
    patch(CohortLog, "_write", torn_entry)
    patch(Releases, "write", noted)
    patch(Releases, "forget", around("records are forgotten", forget))
    patch(Curator, "_sum_reports", around("the sum", sum_reports))
    patch(Curator, "keep_state", around("the state", keep_state))
    rmtree = around("secrets are deleted", shutil.rmtree)
    patch(loop_folder, "shutil", SimpleNamespace(rmtree=rmtree))


def never_repeat_a_sum(patch: Callable[[Any, str, Any], None]) -> None:
    """Stand for a machine that rounds otherwise each time: no total comes out as before."""
    sum_reports = UsersInMemory.sum_reports
    differences = itertools.count(os.getpid())

    def other_sum(fleet, *arguments):
        total = sum_reports(fleet, *arguments)
        difference = np.int32(next(differences))
        return total._replace(update=jax.tree.map(lambda leaf: leaf + difference, total.update))

    patch(UsersInMemory, "sum_reports", other_sum)


def train(
    folder: Path, algorithm: tt.Algorithm, seed: int | None, rounds: int, step: Step, notes: Notes
) -> None:
    """Train to the end, from wherever the loop is."""
    try:
        curator = tt.Curator.for_simulation(
            algorithm,
            USERS,
            ledger=folder / "ledger.jsonl",
            folder=folder / "loop",
            rounds=rounds,
            seed=seed,
        )
    except OwnLoopError as error:
        if "is closed" in str(error):
            return
        raise
    for state in tt.rounds(algorithm, curator, START):
        notes.states.append((state.round, digest(state.server.params)))
        step("yielded")
        if state.round == rounds:
            break
    curator.close()


def check_what_left(folder: Path, rounds: int, notes: Notes) -> None:
    """Each round is charged once, none is lost, and no noise is in two releases."""
    ledger = Ledger(folder / "ledger.jsonl")
    charges = [row["round"] for row in ledger.run_rows("simulation-1") if row["kind"] == "charge"]
    assert charges == list(range(rounds)), charges
    assert ledger.runs() == ["simulation-1"]
    assert ledger.is_closed("simulation-1")
    assert sorted({round for round, _ in notes.states}) == list(range(1, rounds + 1))
    assert len(set(notes.states)) == rounds, "a round came out in two ways"
    drawn = Counter((round, name) for round, name, _ in set(notes.releases))
    assert max(drawn.values()) == 1, "noise was added to two sums"
    assert [path.name for path in (folder / "loop").iterdir() if path.name == "private"] == []


def parameters(folder: Path) -> bytes:
    return (folder / "loop" / "parameters.safetensors").read_bytes()


def main(folder: str, name: str, seed: str, rounds: str, place: str, most: str) -> None:
    """Run until the step, or until so many states were yielded; FOLDER gets notes of what left."""
    notes = Notes([], [])

    def note() -> None:
        with open(Path(folder) / "notes.jsonl", "a") as file:
            file.write(json.dumps(notes) + "\n")

    def step(at: str) -> None:
        if at == place or len(notes.states) == int(most):
            note()
            os.kill(os.getpid(), signal.SIGKILL)

    put_steps(setattr, step, notes)
    if seed == "none":
        never_repeat_a_sum(setattr)
    algorithm = algorithms(int(rounds))[name]
    seeded = None if seed == "none" else int(seed)
    train(Path(folder), algorithm, seeded, int(rounds), step, notes)
    note()


if __name__ == "__main__":
    main(*sys.argv[1:])
