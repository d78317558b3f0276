"""Runs what is missing of the papers' tables and figures.

    python experiments/train.py --list                        what there is, and what is missing
    python experiments/train.py mcmahan2018/noise --minutes 9 --side-by-side 3
    python experiments/train.py                               everything

A run that is finished leaves PAPER/results/RUN.json and is not run again; one that was interrupted
resumes where it was, as long as local/papers is there. With --minutes no run begins that would not
end in time, by its estimate (lib/time_estimate.py), so that on a machine that is lent for ten minutes
nothing is left half done. Each has its own copy of its people, so that a ledger speaks of that run
alone. Recipes name their people and starts under local/, which experiments/README.md says how to
make; they are not part of this repository.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.results import Result, save
from lib.run_lists import HERE, ListedRun, ListError, choose_runs

WORK = Path("local/papers")  # runs on their way
KEPT = (
    "round",
    "accuracy_top1",
    "accuracy_top1_margin",
    "accuracy_top3",
    "loss",
    "epsilon",
    "rho",
    "clip_norm",
    "clip_estimate",
    "general_perplexity",
    "upload_bytes",
    "staleness",
)
REFERENCES = 2_000_000  # random continuations that a canary is ranked among
CLIPPED_ON = (
    200  # held-out users, who have no guarantee: whom a clip shortens is a secret of the others
)


def train(run: ListedRun, *more: str) -> Result:
    """Train, or go on, and measure. `more` settings win over those of the list."""
    import jax

    from taciturn import resume
    from taciturn import train as begin

    folder = WORK / run.paper / run.id
    people = folder.with_name(f"{run.id}-people")
    if (
        folder.exists() and not (folder / "private").exists()
    ):  # trained, and interrupted before all was measured
        shutil.rmtree(folder)
        shutil.rmtree(people, ignore_errors=True)
    copy_people(Path(run.loaded(*more).data.population), people)
    recipe = run.loaded(*more, f"data.population={people}")
    clipped: dict[int, float] = {}
    share_clipped = clipped_share(recipe) if "clipped" in run.measures else None

    def watch(done: int, rounds: int, row: dict[str, Any]) -> None:
        if share_clipped and done % recipe.run.evaluate_every == 0:
            clipped[done] = share_clipped(folder)

    began = time.perf_counter()
    is_begun = (folder / "recipe.toml").exists()
    finished = resume(folder, watch) if is_begun else begin(recipe, folder, watch)
    seconds = time.perf_counter() - began
    guarantee = finished.guarantee
    result: Result = {
        "paper": run.paper,
        "group": run.group,
        "name": run.name,
        "seed": run.seed,
        "settings": list(run.settings),
        "fingerprint": finished.recipe.fingerprint,
        "rounds": finished.recipe.run.rounds,
        "noise_multiplier": finished.recipe.privacy.noise_multiplier,
        "seconds": None if is_begun else seconds,
        "stopped": finished.stopped,
        "rows": rows(folder),
        "ledger_head": guarantee.head,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "rho": guarantee.rho,
        "machine": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "commit": commit(),
    }
    if clipped:
        result["clipped"] = {str(round): share for round, share in clipped.items()}
    if "head-words" in run.measures:
        from head_words import of_run

        result["head_words"] = of_run(finished).tolist()
    if "canaries" in run.measures:
        result["canaries"] = [list(found) for found in canary_ranks(finished)]
    if "audit" in run.measures and recipe.audit.users:
        result["audit"] = audit_users(finished)
    if "typed" in run.measures:
        from keystrokes import measured

        result["typed"] = measured(folder)
    shutil.rmtree(people)
    return result


def copy_people(population: Path, copy: Path) -> None:
    """Copy a population, unless that is done; a copy that was interrupted is made anew."""
    if copy.exists():
        return
    incomplete = copy.with_name(f"{copy.name}-incomplete")
    shutil.rmtree(incomplete, ignore_errors=True)
    shutil.copytree(population, incomplete)
    incomplete.rename(copy)


def rows(folder: Path) -> list[dict[str, float]]:
    from taciturn.files import from_json

    found = [from_json(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in KEPT if row.get(key) is not None} for row in found]


def clipped_share(recipe: Any) -> Callable[[Path], float]:
    """Return a function of a run's folder: the share of some held-out users whose updates are
    longer than the clip norm.
    """
    import jax
    import jax.numpy as jnp

    from taciturn import trees
    from taciturn.core import Message
    from taciturn.data.population import HeldOutUsers
    from taciturn.recipe import build
    from taciturn.release.model_file import load_model

    population = build.population(recipe)
    layout, algorithm = (
        build.layout(recipe, population.vocabulary),
        build.algorithm(recipe, len(population.vocabulary)),
    )
    texts = HeldOutUsers(Path(recipe.data.population)).texts
    users = [layout.user_data(texts[user]) for user in range(min(CLIPPED_ON, len(texts)))]
    norm = jax.jit(
        lambda params, user: trees.norm_upper_bound(
            algorithm.user_update(Message(params, ()), user, jax.random.key(0))
        )
    )

    def share(folder: Path) -> float:
        params = jax.tree.map(jnp.asarray, load_model(folder / "model.safetensors")[0])
        return sum(
            float(norm(params, user)) > float(recipe.privacy.clip_norm) for user in users
        ) / len(users)

    return share


def canary_ranks(finished: Any) -> list[tuple[int, int, int, int, bool]]:
    """n_u, n_e, how often it was met, its rank, and whether a beam search finds it."""
    results = finished.audit(REFERENCES).canaries
    return [
        (
            one.users,
            one.copies,
            int(one.seen),
            int(one.rank),
            one.place is not None,
        )
        for one in results.findings
    ]


def audit_users(finished: Any) -> dict[str, float | bool]:
    """Return what they say of the claim, in multiples of the μ that is claimed, and how small noise
    would have to be to be noticed.
    """
    from taciturn.audit.results import audit_membership

    found = audit_membership(finished.folder, finished.recipe).audit
    return {
        "users": found.included + found.left_out,
        "mu": found.mu,
        "times": found.times,
        "times_at_least": found.times_at_least,
        "caught_at_80_percent": found.caught[0],
        "refuted": found.is_refuted,
    }


def commit() -> str:
    """The code that ran: said by whoever took it to a machine without its history."""
    said = os.environ.get("TACITURN_COMMIT")
    return (
        said
        or subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True
        ).stdout.strip()
    )


def run_side_by_side(runs: list[ListedRun], at_once: int, seconds: float) -> int:
    """Run each in a process of its own, on one GPU or none, as long as it would end within so many
    seconds. Return how many failed.
    """
    from lib.time_estimate import estimate

    takes = {run: estimate(run).beside(at_once - 1) for run in runs}
    # Within a turn the longest first: begun late, they would not end in time.
    waiting = dict(sorted(takes.items(), key=lambda one: (one[0].turn[:2], -one[1])))
    going, failed, stop = {}, 0, time.monotonic() + seconds
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / at_once:.2f}"}

    def next_that_fits() -> ListedRun | None:
        return next(
            (run for run, takes in waiting.items() if time.monotonic() + takes <= stop), None
        )

    while going or next_that_fits():
        while len(going) < at_once and (run := next_that_fits()):
            waiting.pop(run)
            log = WORK / run.paper / f"{run.id}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, __file__, "--one", f"{run.paper}/{run.id}"]
            going[run] = (
                subprocess.Popen(
                    command,
                    stdout=log.open("a"),
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **memory},
                ),
                log,
            )
            print(f"{run.paper}/{run.id} begins", flush=True)
        for run, (process, log) in list(going.items()):
            if process.poll() is not None:
                going.pop(run)
                failed += process.returncode != 0
                said = (
                    f"done: {run.result.name}"
                    if process.returncode == 0
                    else f"FAILED, see {log}: {log.read_text()[-500:]}"
                )
                print(f"{run.paper}/{run.id} {said}", flush=True)
        time.sleep(0.2)
    if waiting:
        print(f"out of time: {len(waiting)} not begun")
    return failed


def absent_folders(run: ListedRun) -> tuple[str, ...]:
    """Return the people, start and public text that a run needs and that are not here."""
    recipe = run.loaded()
    needed = (recipe.data.population, recipe.model.warm_start, recipe.canaries.text)
    return tuple(
        one for one in needed if one and not one.startswith("taciturn:") and not Path(one).exists()
    )


def print_list(runs: list[ListedRun], missing: list[ListedRun], at_once: int) -> None:
    """Print every run with its estimated seconds alone on a GPU, and of the missing runs of each
    group what they take together.
    """
    from lib.time_estimate import estimate, together

    takes = {run: estimate(run) for run in runs}
    for run in runs:
        state = f"{takes[run].alone:5.0f} s" if run in missing else "   done"
        print(f"{state}  {run.paper}/{run.id}  {' '.join(run.settings)}")
    for group in dict.fromkeys(
        (run.item, run.paper, run.group) for run in sorted(missing, key=lambda run: run.item)
    ):
        own = [takes[run] for run in missing if (run.item, run.paper, run.group) == group]
        print(
            f"item {group[0]:2}  {together(own, at_once):5.0f} s for {len(own):2} runs, {at_once}"
            f" at a time  {group[1]}/{group[2]}"
        )
    print(
        f"{together([takes[run] for run in missing], at_once) / 60:.0f} minutes in all, {at_once}"
        " at a time"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help="PAPER or PAPER/GROUP (default: everything)")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="begin no run that would not end within so many",
    )
    parser.add_argument(
        "--side-by-side", type=int, default=1, metavar="N", help="runs at a time (default: 1)"
    )
    parser.add_argument("--one", metavar="PAPER/RUN", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        paper, _, id = asked.one.partition("/")
        run = next(run for run in choose_runs([paper]) if run.id == id)
        save(run, train(run))
        return 0
    try:
        runs = choose_runs(asked.what)
    except ListError as error:
        parser.error(str(error))
    missing = [run for run in runs if not run.result.exists()]
    if asked.list:
        print_list(runs, missing, asked.side_by_side)
    print(f"{len(runs) - len(missing)} of {len(runs)} runs are done")
    if asked.list:
        return 0
    lacking = {run: absent for run in missing if (absent := absent_folders(run))}
    for absent in dict.fromkeys(lacking.values()):
        print(
            f"{sum(one == absent for one in lacking.values())} runs wait for {', '.join(absent)}"
            " (experiments/README.md)"
        )
    return run_side_by_side(
        [run for run in missing if run not in lacking], asked.side_by_side, 60 * asked.minutes
    )


if __name__ == "__main__":
    sys.exit(main())
