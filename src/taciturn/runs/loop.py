"""A run from its first round to its last: started by `train_run`, interrupted at any moment,
resumed by `resume_run`.
"""

import csv
import io
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
from dp_accounting import NonPrivateDpEvent

from taciturn import randomness
from taciturn.core import Participation, PyTree
from taciturn.errors import TaciturnError
from taciturn.evaluation.accuracy import METRICS, Scores
from taciturn.files import from_json, new_folder, to_json, write_atomically
from taciturn.fleets.devices.fleet import ConnectedDevices
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.simulation.availability import TooFewDevices
from taciturn.people import open_ledger
from taciturn.privacy.bounding.adaptive_clip import Norms
from taciturn.privacy.bounding.secagg_encoding import Rotation
from taciturn.privacy.ledger.account import BudgetExhausted
from taciturn.privacy.ledger.cohort_log import CohortLog
from taciturn.privacy.ledger.ledger import FILE_NAME, LedgerError
from taciturn.progress import ignore_progress
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import load_recipe, save_recipe
from taciturn.release.model_file import (
    card_digest,
    load_state,
    params_digest,
    save_model,
    save_state,
)
from taciturn.release.privacy_statement import statement, statement_json
from taciturn.runs.finished import FinishedRun
from taciturn.runs.folder import (
    alone_in,
    check_new_run,
    delete_secrets,
    load_root,
    recipe_of,
    save_root,
)
from taciturn.runs.page import write_report
from taciturn.runs.run import Run
from taciturn.training import TrainState, rounds, start

LOG = logging.getLogger("taciturn")
# evaluations (McMahan et al. 2018, §3)
SMOOTHED_OVER = 5
# column → value
Row = dict[str, Any]
# rounds done, rounds in all, last metrics
Progress = Callable[[int, int, Row], None]


class Metrics:
    """metrics.jsonl and metrics.csv; rows of rounds lost in a crash are dropped when the run is
    resumed.
    """

    def __init__(self, folder: Path, round: int) -> None:
        self.folder = folder
        path = folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = [row for row in map(from_json, lines) if row["round"] <= round]

    def add(self, row: Row) -> None:
        recent = [one["accuracy_top1"] for one in (*self.rows, row)[-SMOOTHED_OVER:]]
        row = row | {"accuracy_top1_smoothed": sum(recent) / len(recent)}
        self.rows.append(row)
        write_atomically(
            self.folder / "metrics.jsonl",
            "".join(f"{to_json(one)}\n" for one in self.rows).encode(),
        )
        table = io.StringIO()
        writer = csv.DictWriter(table, list(row))
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.folder / "metrics.csv", table.getvalue().encode())


class TrainedRun(FinishedRun):
    """A run in the process that trained it, which knows more than its folder."""

    def __init__(
        self,
        folder: Path,
        before: Scores,
        scores: Scores,
        stopped: str | None,
        clip_estimate: float | None,
    ) -> None:
        super().__init__(folder)
        # of the parameters it started (or was resumed) from, and of its own
        self.before, self.scores = (
            before,
            scores,
        )
        # why it ended before its last round, if it did
        self.stopped = stopped
        # where an adaptive clip norm ended
        self.clip_estimate = clip_estimate


def train_run(
    recipe: Recipe | str | Path,
    folder: str | Path,
    progress: Progress = ignore_progress,
    connected: ConnectedDevices | None = None,
) -> TrainedRun:
    """Train a model as a recipe says. Every round is charged in the population's ledger before its
    result is used.

    Args:
        recipe: a recipe, or a file in TOML.
        folder: a new one, of the run. One process at a time works in it.
        progress: called after every round with the rounds done, all rounds, and the last
            measurements by name. If it raises, the run
            is interrupted there.
        connected: the devices of a fleet, where the recipe is for one.

    Returns:
        The finished run: its guarantee, its accuracy, and its exports.

    Example:
        run = tt.train("recipe.toml", "runs/first", lambda done, rounds, row: print(done, row["epsilon"]))
        assert run.guarantee.is_private
    """
    recipe, folder = (
        recipe if isinstance(recipe, Recipe) else load_recipe(Path(recipe)),
        Path(folder),
    )
    check_new_run(folder)
    seed = recipe.run.seed
    root = randomness.root_from_entropy() if seed is None else randomness.root_from_seed(seed)
    run = Run(folder, recipe, root, connected=connected)
    run.account.check_budget()
    with new_folder(folder, "choose another --run") as made:
        save_root(made, root, seed is not None)
        write_atomically(
            made / "vocabulary.txt", "".join(f"{word}\n" for word in run.vocabulary.words).encode()
        )
        save_recipe(run.recipe, made / "recipe.toml")
    with alone_in(folder):
        try:
            run.account.open()
        except LedgerError:
            if not (
                folder / "model.safetensors"
                # otherwise another process has resumed it meanwhile
            ).exists():
                # a refused run leaves nothing to resume
                shutil.rmtree(folder)
            raise
        return _train_loop(run, run.fresh_state(), progress)


def resume_run(
    folder: str | Path,
    progress: Progress = ignore_progress,
    connected: ConnectedDevices | None = None,
) -> TrainedRun:
    """Resume an interrupted run; it ends with the same model as if it had not been interrupted.

    Args:
        folder: of the run, with its own recipe and secrets in it.
        progress, connected: as for a new run.

    Returns:
        The finished run.

    Example:
        try:
            run = tt.resume("runs/first")
        except tt.TaciturnError as error:
            print(error)  # it is already finished
    """
    folder = Path(folder)
    recipe, state_file = recipe_of(folder), folder / "private" / "state.safetensors"
    with alone_in(folder):
        _close_if_finished(folder, recipe)
        root, seeded = load_root(folder)
        run = Run(folder, recipe, root, seeded, connected)
        if state_file.exists():
            saved, about = load_state(
                state_file, _savable(start(run.algorithm, run.initial_params(), ""))
            )
            run.account.reopen(about["ledger_head"])
            state = TrainState(
                int(about["round"]), saved["server"], saved["mechanism"], about["ledger_head"]
            )
            return _train_loop(run, state, progress)
        if run.account.ledger.run_rows(folder.name):
            run.account.reopen(None)
        else:
            # interrupted before it was declared
            run.account.open()
        return _train_loop(run, run.fresh_state(), progress)


def _close_if_finished(folder: Path, recipe: Recipe) -> None:
    """Close a run that crashed after its secrets were deleted and before its ledger recorded that:
    nothing else still can.
    """
    if (folder / "private" / "root").exists() or not (folder / "guarantee.json").exists():
        return
    # without its ledger there is nothing to close
    with suppress(TaciturnError):
        ledger, name = (
            open_ledger(build.population(recipe)),
            from_json((folder / "guarantee.json").read_text())["run"],
        )
        if ledger.run_rows(name) and not ledger.is_closed(name):
            ledger.close(name)


def _train_loop(run: Run, state: TrainState, progress: Progress) -> TrainedRun:
    section, metrics = run.recipe.run, Metrics(run.folder, state.round)
    before = scores = run.evaluate(state.server.params)
    first = before if state.round == 0 else None
    if not metrics.rows:
        _save(run, state)
        metrics.add(_row(run, state, scores, 0.0))
    progress(state.round, section.rounds, _latest_row(run, metrics.rows))
    stopped, measured_at, seconds = None, state.round, metrics.rows[-1]["seconds"]
    training = rounds(run.algorithm, run.curator, state)
    while state.round < section.rounds and stopped is None:
        began, last = time.perf_counter(), state
        for observer in run.observers:
            observer.begin(state.round)
        try:
            state = next(training)
        except (BudgetExhausted, TooFewDevices) as reason:
            stopped = str(reason)
            break
        # no devices for now: keep what was done
        except LinkError:
            _save(run, state)
            raise
        jax.block_until_ready(state.server)
        seconds += time.perf_counter() - began
        for observer in run.observers:
            observer.observe(last, state)
        if state.round % section.evaluate_every == 0 or state.round == section.rounds:
            scores, measured_at = run.evaluate(state.server.params), state.round
            metrics.add(_row(run, state, scores, seconds))
            stopped = _diverged(metrics.rows)
        if state.round % section.save_every == 0 or state.round == section.rounds:
            _save(run, state)
        progress(state.round, section.rounds, _latest_row(run, metrics.rows))
    if measured_at != state.round:
        scores = run.evaluate(state.server.params)
        metrics.add(_row(run, state, scores, seconds))
    _finish(run, state, scores, first)
    return TrainedRun(
        run.folder, before.together, scores.together, stopped, metrics.rows[-1].get("clip_estimate")
    )


def _row(run: Run, state: TrainState, scores: Scores, seconds: float) -> Row:
    """Make a row of metrics.csv. Where the claim rests on who was drawn, the number of reports is
    secret: the expected one is used.
    """
    guarantee, stats, params = run.account.guarantee(), run.fleet.stats(), state.server.params
    uploads = stats.get("uploads", round(guarantee.releases * run.recipe.participation.cohort))
    found = {
        "round": state.round,
        "releases": guarantee.releases,
        "epsilon": guarantee.epsilon,
        "rho": guarantee.rho,
    }
    found |= {metric: scores.together[metric].value for metric in METRICS}
    found |= {
        "accuracy_top1_margin": scores.together["accuracy_top1"].margin
    } | run.evaluate_general(params)
    found |= _norms(run.algorithm.mechanism.public(state.mechanism))
    found |= {
        "uploads": uploads,
        "upload_bytes": uploads * build.upload_size(run.recipe, params),
        "seconds": round(seconds, 3),
    }
    return found | ({"staleness": round(stats["staleness"], 3)} if "staleness" in stats else {})


def _latest_row(run: Run, rows: list[Row]) -> Row:
    """Return the last evaluation; for real devices also what has been spent and sent since, which
    is known at once.
    """
    if run.recipe.fleet.kind != "devices":
        return rows[-1]
    failed = run.log.failed if run.log else 0
    return {
        **rows[-1],
        **run.fleet.stats(),
        "epsilon": run.account.guarantee().epsilon,
        "failed_rounds": failed,
    }


def _diverged(rows: list[Row]) -> str | None:
    """Say why a run that only gets worse on held-out users should not spend the rest of its
    budget.
    """
    first, last = rows[0]["loss"], rows[-1]["loss"]
    if last < 1.5 * first:
        return None
    to_do = (
        "Lower server.momentum or server.learning_rate (noise adds up in momentum), or take larger"
        " cohorts"
    )
    return (
        f"the loss on held-out users rose from {first:.1f} to {last:.1f}: the run diverges. {to_do}"
    )


def _save(run: Run, state: TrainState) -> None:
    """Save the state before the model, as it decides where a run resumes; and observers before
    both, as their estimates are then gone.
    """
    costs = (*run.account.terms.lineage, run.account.release)
    mode = 0o600 if any(isinstance(cost, NonPrivateDpEvent) for cost in costs) else 0o644
    for observer in run.observers:
        observer.save(run.folder, mode)
    digest = card_digest(run.card(state.round, ""))
    head = run.account.record_model(state.round, params_digest(state.server.params), digest)
    about = {"round": str(state.round), "ledger_head": head}
    save_state(run.folder / "private" / "state.safetensors", _savable(state), about)
    run.curator.saved(state.round)
    save_model(
        run.folder / "model.safetensors", state.server.params, run.card(state.round, head), mode
    )
    rows = "".join(json.dumps(row, sort_keys=True) + "\n" for row in run.account.rows)
    write_atomically(run.folder / FILE_NAME, rows.encode())


def _savable(state: TrainState) -> dict[str, Any]:
    return {"server": state.server, "mechanism": state.mechanism}


def _finish(run: Run, state: TrainState, scores: Scores, first: Scores | None) -> None:
    """Say what the run promises, delete its secrets, and write its page; `first` are the scores of
    its start, where they are known.
    """
    _save(run, state)
    guarantee = run.account.guarantee()
    card = run.card(state.round, guarantee.head)
    observed = _observed_participation(run.log, run.algorithm.participation, run.fleet.stats())
    words = statement(guarantee, card.public_text, observed)
    write_atomically(run.folder / "guarantee.txt", words.encode())
    write_atomically(
        run.folder / "guarantee.json", statement_json(guarantee, card.public_text).encode()
    )
    # and with them all that could remove the noise
    delete_secrets(run.folder)
    # it can no longer be resumed
    run.account.close()
    try:
        start = first or run.evaluate(run.initial_params())
        write_report(
            run.folder,
            guarantee,
            run.account.ledger,
            run.held_out.texts,
            run.vocabulary,
            scores,
            start,
        )
    except (
        Exception
        # whatever it is: the run is finished, and must not look as if it should be resumed
    ) as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        LOG.warning(
            "the run is finished; only its page could not be written (%s): taciturn report %s",
            why,
            run.folder,
        )


def _norms(public: PyTree) -> dict[str, float]:
    """Return the clip norm in force, and the estimate it follows where it adapts; both are
    public.
    """
    if isinstance(public, Norms):
        return {"clip_norm": float(public.clip_norm), "clip_estimate": float(public.estimate)}
    return {"clip_norm": float(public.clip_norm if isinstance(public, Rotation) else public)}


def _observed_participation(
    log: CohortLog | None, participation: Participation, stats: Mapping[str, float]
) -> str:
    """Report the recorded participation, beside the claim (Xu et al. 2023); not where who took part
    is secret.
    """
    if log is None or participation.sampled_by_curator:
        return ""
    separation, times = log.observed
    rest = (
        "nobody took part twice"
        if separation is None
        else f"at least {separation} rounds between two participations"
    )
    came = f"{rest}, at most {times} participations of a user"
    if "days" in stats:
        came += (
            f", counting all who were asked; {stats['days']:.1f} simulated days, {log.failed}"
            " failed rounds"
        )
    if "staleness" in stats and times:
        came += (
            f"; reports were about models {stats['staleness']:.1f} rounds old, at most"
            f" {stats['largest_staleness']}"
        )
    return came
