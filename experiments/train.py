"""Runs what is missing of the papers' tables and figures.

    python experiments/train.py --list                        what there is, and what is missing
    python experiments/train.py mcmahan2018/noise --minutes 9 --side-by-side 3
    python experiments/train.py                               everything

A run that is finished leaves PAPER/results/RUN.json and is not run again; one that was interrupted
resumes where it was, as long as local/papers is there. With --minutes no run begins that would not
end in time, by its estimate (lib/time_estimate.py), so that on a machine that is lent for ten
minutes nothing is left half done. Each has its own copy of its people, so that a ledger speaks only
of that run. Recipes name their people and starts under local/, which experiments/README.md says how
to make; they are not part of this repository.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lib.results import Result, save
from lib.run_lists import HERE, ListedRun, ListError, choose_runs

# JAX is loaded only where it is needed: estimates are made on a CPU, and the process of a run
# decides for itself where it computes.
if TYPE_CHECKING:
    from taciturn.recipe.recipe import Recipe
    from taciturn.runs.finished import FinishedRun
    from taciturn.runs.loop import Progress, TrainedRun

# Runs on their way.
WORK = Path("local/papers")
# The columns of metrics that a result keeps.
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
# Random continuations that a canary is ranked among.
REFERENCES = 2_000_000
# Held-out users, who have no guarantee: whom a clip shortens is a secret of the others.
CLIPPED_ON = 200
# How often a process that runs beside others is looked at.
LOOK_SECONDS = 0.2


def train(run: ListedRun, *more: str) -> Result:
    """Train, or resume, and measure. `more` settings win over those of the list."""
    folder = WORK / run.paper / run.id
    people = folder.with_name(f"{run.id}-people")
    _remove_trained(folder, people)
    copy_people(Path(run.load_recipe(*more).data.population), people)
    recipe = run.load_recipe(*more, f"data.population={people}")
    watcher = ClippedWatcher(recipe, folder) if "clipped" in run.measures else None
    is_begun = (folder / "recipe.toml").exists()
    began = time.perf_counter()
    finished = _train_or_resume(recipe, folder, watcher)
    seconds = time.perf_counter() - began
    result = describe_run(run, finished)
    result["seconds"] = None if is_begun else seconds
    if watcher and watcher.shares:
        result["clipped"] = watcher.shares
    result |= measure(run, finished)
    shutil.rmtree(people)
    return result


def _remove_trained(folder: Path, people: Path) -> None:
    """Remove a run that was trained, and interrupted before all was measured."""
    if folder.exists() and not (folder / "private").exists():
        shutil.rmtree(folder)
        shutil.rmtree(people, ignore_errors=True)


def _train_or_resume(
    recipe: "Recipe", folder: Path, watcher: "ClippedWatcher | None"
) -> "TrainedRun":
    from taciturn import resume
    from taciturn import train as begin
    from taciturn.progress import ignore_progress

    progress: Progress = watcher or ignore_progress
    if (folder / "recipe.toml").exists():
        return resume(folder, progress)
    return begin(recipe, folder, progress)


def describe_run(run: ListedRun, finished: "TrainedRun") -> Result:
    """Return what a run was, how it went and what it guarantees."""
    import jax

    guarantee = finished.guarantee
    return {
        "paper": run.paper,
        "group": run.group,
        "name": run.name,
        "seed": run.seed,
        "settings": list(run.settings),
        "fingerprint": finished.recipe.fingerprint,
        "rounds": finished.recipe.run.rounds,
        "noise_multiplier": finished.recipe.privacy.noise_multiplier,
        "stopped": finished.stopped,
        "rows": read_rows(finished.folder),
        "ledger_head": guarantee.head,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "rho": guarantee.rho,
        "machine": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "commit": find_commit(),
    }


def measure(run: ListedRun, finished: "FinishedRun") -> Result:
    """Return what its list asks for besides accuracy, of a run that is trained."""
    measured: Result = {}
    if "head-words" in run.measures:
        from head_words import count_for_run

        measured["head_words"] = count_for_run(finished).tolist()
    if "canaries" in run.measures:
        measured["canaries"] = list_canaries(finished)
    if "audit" in run.measures and finished.recipe.audit.users:
        measured["audit"] = audit_users(finished)
    if "typed" in run.measures:
        from keystrokes import measure_typing

        measured["typed"] = measure_typing(finished.folder)
    return measured


def copy_people(population: Path, copy: Path) -> None:
    """Copy a population, unless that is done; a copy that was interrupted is made anew."""
    if copy.exists():
        return
    incomplete = copy.with_name(f"{copy.name}-incomplete")
    shutil.rmtree(incomplete, ignore_errors=True)
    shutil.copytree(population, incomplete)
    incomplete.rename(copy)


def read_rows(folder: Path) -> list[dict[str, float]]:
    """Return the rows of a run's metrics, with the columns that results keep."""
    from taciturn.files import from_json

    rows = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = from_json(line)
        rows.append({key: row[key] for key in KEPT if row.get(key) is not None})
    return rows


class ClippedWatcher:
    """Measures at every evaluation whom of some held-out users the clip norm would shorten."""

    def __init__(self, recipe: "Recipe", folder: Path) -> None:
        import jax
        import jax.numpy as jnp

        from taciturn import trees
        from taciturn.core import Message, Public
        from taciturn.data.population import HeldOutUsers
        from taciturn.recipe import build

        population = build.population(recipe)
        layout = build.layout(recipe, population.vocabulary)
        algorithm = build.algorithm(recipe, len(population.vocabulary))
        texts = HeldOutUsers(Path(recipe.data.population)).texts
        count = min(CLIPPED_ON, len(texts))
        # Updates are not bounded here: what is measured is how long they would be.
        public = Public(clip_norm=jnp.float32(jnp.inf))

        def update_norm(params: Any, user: Any) -> jax.Array:
            message = Message(params, public)
            update = algorithm.user_update(message, user, jax.random.key(0))
            return trees.norm_upper_bound(update)

        # The share of them after each evaluation, by round.
        self.shares: dict[str, float] = {}
        self._recipe = recipe
        self._folder = folder
        self._users = [layout.user_data(texts[user]) for user in range(count)]
        self._norm = jax.jit(update_norm)

    def __call__(self, done: int, rounds: int, row: dict[str, Any]) -> None:
        if done % self._recipe.run.evaluate_every == 0:
            self.shares[str(done)] = self._measure_share()

    def _measure_share(self) -> float:
        """Return the share of users whose updates are longer than the clip norm."""
        import jax
        import jax.numpy as jnp

        from taciturn.release.model_file import load_model

        params, _ = load_model(self._folder / "model.safetensors")
        params = jax.tree.map(jnp.asarray, params)
        clip_norm = self._recipe.privacy.clip_norm
        # One for all layers and rounds: the lists measure no other.
        assert isinstance(clip_norm, float)
        clipped = 0
        for user in self._users:
            clipped += float(self._norm(params, user)) > clip_norm
        return clipped / len(self._users)


def list_canaries(finished: "FinishedRun") -> list[list[int | bool]]:
    """Return of each canary n_u, n_e, how often it was met, its rank, and whether a beam search
    finds it.
    """
    canaries = finished.audit(REFERENCES).canaries
    assert canaries is not None
    rows = []
    for finding in canaries.findings:
        is_found = finding.place is not None
        seen = int(finding.seen)
        rows.append([finding.users, finding.copies, seen, int(finding.rank), is_found])
    return rows


def audit_users(finished: "FinishedRun") -> dict[str, float | bool]:
    """Return what they say of the claim, in multiples of the μ that is claimed, and how small noise
    would have to be to be noticed.
    """
    from taciturn.audit.results import audit_membership

    membership = audit_membership(finished.folder, finished.recipe)
    assert membership is not None
    audit = membership.audit
    return {
        "users": audit.included + audit.left_out,
        "mu": audit.mu,
        "times": audit.times,
        "times_at_least": audit.times_at_least,
        "caught_at_80_percent": audit.caught[0],
        "refuted": audit.is_refuted,
    }


def find_commit() -> str:
    """Return the commit of the code that ran; who takes it to a machine without its history names
    it there.
    """
    named = os.environ.get("TACITURN_COMMIT")
    if named:
        return named
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class RunningRun(NamedTuple):
    """A run in a process of its own."""

    run: ListedRun
    process: subprocess.Popen[bytes]
    log: Path


def run_side_by_side(runs: list[ListedRun], at_once: int, seconds: float) -> int:
    """Run each in a process of its own, on one GPU or none, as long as it would end in time.

    Args:
        runs: what is run.
        at_once: the number of runs at a time.
        seconds: the time there is for all of them.

    Returns:
        how many failed.
    """
    from lib.time_estimate import estimate

    takes = {run: estimate(run).beside(at_once - 1) for run in runs}
    # Within a turn the longest first: begun late, they would not end in time.
    waiting = sorted(runs, key=lambda run: (run.turn[:2], -takes[run]))
    running: list[RunningRun] = []
    failed = 0
    stop = time.monotonic() + seconds

    def next_that_fits() -> ListedRun | None:
        left = stop - time.monotonic()
        return next((run for run in waiting if takes[run] <= left), None)

    while running or next_that_fits():
        while len(running) < at_once and (run := next_that_fits()):
            waiting.remove(run)
            running.append(_begin(run, memory=0.9 / at_once))
        for one in list(running):
            if one.process.poll() is not None:
                running.remove(one)
                failed += one.process.returncode != 0
                _print_end(one)
        time.sleep(LOOK_SECONDS)
    if waiting:
        print(f"out of time: {len(waiting)} not begun")
    return failed


def _begin(run: ListedRun, memory: float) -> RunningRun:
    """Begin a run with its share of a GPU's memory."""
    log = WORK / run.paper / f"{run.id}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    name = f"{run.paper}/{run.id}"
    environment = {**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{memory:.2f}"}
    process = subprocess.Popen(
        [sys.executable, __file__, "--one", name],
        stdout=log.open("a"),
        stderr=subprocess.STDOUT,
        env=environment,
    )
    print(f"{name} begins", flush=True)
    return RunningRun(run, process, log)


def _print_end(ended: RunningRun) -> None:
    run = ended.run
    if ended.process.returncode == 0:
        outcome = f"done: {run.result.name}"
    else:
        outcome = f"FAILED, see {ended.log}: {ended.log.read_text()[-500:]}"
    print(f"{run.paper}/{run.id} {outcome}", flush=True)


def absent_folders(run: ListedRun) -> tuple[str, ...]:
    """Return the people, start and public text that a run needs and that are not here."""
    recipe = run.load_recipe()
    needed = (recipe.data.population, recipe.model.warm_start, recipe.canaries.text)
    return tuple(name for name in needed if name and not _is_here(name))


def _is_here(name: str) -> bool:
    return name.startswith("taciturn:") or Path(name).exists()


def print_list(runs: list[ListedRun], missing: list[ListedRun], at_once: int) -> None:
    """Print every run with its estimated seconds with a GPU to itself, and of the missing runs of
    each group what they take together.
    """
    from lib.time_estimate import estimate, estimate_together

    takes = {run: estimate(run) for run in runs}
    for run in runs:
        seconds = takes[run].alone
        state = f"{seconds:5.0f} s" if run in missing else "   done"
        print(f"{state}  {run.paper}/{run.id}  {' '.join(run.settings)}")
    for group in _group_by_item(missing):
        first = group[0]
        seconds = estimate_together([takes[run] for run in group], at_once)
        print(
            f"item {first.item:2}  {seconds:5.0f} s for {len(group):2} runs, {at_once}"
            f" at a time  {first.paper}/{first.group}"
        )
    minutes = estimate_together([takes[run] for run in missing], at_once) / 60
    print(f"{minutes:.0f} minutes in all, {at_once} at a time")


def _group_by_item(runs: list[ListedRun]) -> list[list[ListedRun]]:
    """Return the runs of each group, in the order of their items."""
    by_group: dict[tuple[str, str], list[ListedRun]] = {}
    for run in sorted(runs, key=lambda run: run.item):
        by_group.setdefault((run.paper, run.group), []).append(run)
    return list(by_group.values())


def _print_absent(absent_of: dict[ListedRun, tuple[str, ...]]) -> None:
    """Print how many runs wait for which folders."""
    for absent in dict.fromkeys(absent_of.values()):
        count = list(absent_of.values()).count(absent)
        print(f"{count} runs wait for {', '.join(absent)} (experiments/README.md)")


def parse_arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help="PAPER or PAPER/GROUP (default: everything)")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="begin no run that would not end within these minutes",
    )
    parser.add_argument(
        "--side-by-side", type=int, default=1, metavar="N", help="runs at a time (default: 1)"
    )
    parser.add_argument("--one", metavar="PAPER/RUN", help=argparse.SUPPRESS)
    return parser, parser.parse_args()


def _train_one(name: str) -> None:
    """Train the run PAPER/RUN in this process, and save its result."""
    paper, _, id = name.partition("/")
    run = next(run for run in choose_runs([paper]) if run.id == id)
    save(run, train(run))


def main() -> int:
    parser, options = parse_arguments()
    if options.one:
        _train_one(options.one)
        return 0
    try:
        runs = choose_runs(options.what)
    except ListError as error:
        parser.error(str(error))
    missing = [run for run in runs if not run.result.exists()]
    if options.list:
        print_list(runs, missing, options.side_by_side)
    print(f"{len(runs) - len(missing)} of {len(runs)} runs are done")
    if options.list:
        return 0
    absent_of = {run: absent_folders(run) for run in missing}
    ready = [run for run, absent in absent_of.items() if not absent]
    _print_absent({run: absent for run, absent in absent_of.items() if absent})
    return run_side_by_side(ready, options.side_by_side, 60 * options.minutes)


if __name__ == "__main__":
    sys.exit(main())
