"""A run from its first round to its last.

`train_run` starts it, any moment may interrupt it, and `resume_run` resumes it.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from dp_accounting import NonPrivateDpEvent

from taciturn import randomness
from taciturn.core import Participation
from taciturn.errors import TaciturnError
from taciturn.evaluation.accuracy import Scores
from taciturn.files import from_json, new_folder, write_atomically
from taciturn.fleets.devices.fleet import ConnectedDevices
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.simulation.availability import TooFewDevices
from taciturn.people import open_ledger
from taciturn.privacy.ledger.account import BudgetExhausted
from taciturn.privacy.ledger.cohort_log import CohortLog
from taciturn.privacy.ledger.guarantee import Guarantee, is_noise_known
from taciturn.privacy.ledger.ledger import FILE_NAME, LedgerError
from taciturn.privacy.ledger.ledger_key import open_key
from taciturn.privacy.ledger.signed_rows import write_signature
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
    check_new_run,
    delete_secrets,
    hide_times,
    load_root,
    lock_run,
    recipe_of,
    save_root,
)
from taciturn.runs.metrics import Metrics, RoundTimes, Row, measure_row
from taciturn.runs.page import STOPPED, write_report
from taciturn.runs.provenance import has_people
from taciturn.runs.run import Run
from taciturn.runs.watch import KeptModel, Sightings, Watch, explain
from taciturn.training import TrainState, rounds, start

LOG = logging.getLogger("taciturn")
# Called with rounds done, rounds in all, and the last metrics.
Progress = Callable[[int, int, Row], None]


class TrainedRun(FinishedRun):
    """A run in the process that trained it, which knows more than its folder."""

    def __init__(
        self,
        folder: Path,
        *,
        before: Scores,
        scores: Scores,
        stopped: str | None,
        clip_estimate: float | None,
        minutes: int,
    ) -> None:
        super().__init__(folder)
        # Scores of the parameters that it started, or was resumed, from.
        self.before = before
        # Scores of its own parameters.
        self.scores = scores
        # Why it ended before its last round, if it did.
        self.stopped = stopped
        # Where an adaptive clip norm ended.
        self.clip_estimate = clip_estimate
        # That its rounds took, without measuring. No finer figure leaves: it would depend on who
        # took part.
        self.minutes = minutes


def train_run(
    recipe: Recipe | str | Path,
    folder: str | Path,
    progress: Progress = ignore_progress,
    connected: ConnectedDevices | None = None,
) -> TrainedRun:
    """Train a model as a recipe says.

    Every round is charged in the population's ledger before its result is used.

    Args:
        recipe: a recipe, or a file in TOML.
        folder: a new one, of the run. One process at a time works in it.
        progress: called after every round with the rounds done, all rounds, and the last
            measurements by name. If it raises, the run is interrupted there.
        connected: the devices of a fleet, where the recipe is for one.

    Returns:
        The finished run: its guarantee, its accuracy, and its exports.

    Example:
        def show(done, rounds, row):
            print(done, row["epsilon"])

        run = tt.train("recipe.toml", "runs/first", show)
        assert run.guarantee.is_private
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(Path(recipe))
    folder = Path(folder)
    check_new_run(folder)
    run = Run(folder, recipe, _draw_root(recipe.run.seed), connected=connected)
    run.account.check_budget()
    _make_folder(run, seeded=recipe.run.seed is not None)
    with lock_run(folder):
        _open_account(run)
        return _Training(run, run.initial_state(), progress).complete()


def _draw_root(seed: int | None) -> bytes:
    """Return the root of all randomness of a run, from its seed if it has one."""
    if seed is None:
        return randomness.root_from_entropy()
    return randomness.root_from_seed(seed)


def _make_folder(run: Run, seeded: bool) -> None:
    """Make the folder of a new run, with what it resumes from."""
    words = [f"{word}\n" for word in run.vocabulary.words]
    with new_folder(run.folder, "choose another `folder`") as new:
        save_root(new, run.root, seeded)
        write_atomically(new / "vocabulary.txt", "".join(words).encode())
        save_recipe(run.recipe, new / "recipe.toml")


def _open_account(run: Run) -> None:
    """Declare a new run; a refused one leaves nothing to resume."""
    try:
        run.account.open()
    except LedgerError:
        # Where there is a model, another process has resumed the run meanwhile.
        if not (run.folder / "model.safetensors").exists():
            shutil.rmtree(run.folder)
        raise


def resume_run(
    folder: str | Path,
    progress: Progress = ignore_progress,
    connected: ConnectedDevices | None = None,
) -> TrainedRun:
    """Resume an interrupted run and show nothing; `tt.resume` describes the arguments."""
    folder = Path(folder)
    recipe = recipe_of(folder)
    with lock_run(folder):
        _close_if_finished(folder, recipe)
        root, seeded = load_root(folder, has_people(folder))
        run = Run(folder, recipe, root, seeded=seeded, connected=connected)
        return _Training(run, _reopen(run), progress).complete()


def _reopen(run: Run) -> TrainState:
    """Reopen a run's account, and return the state from which the run resumes."""
    state_file = run.folder / "private" / "state.safetensors"
    if state_file.exists():
        fresh = start(run.algorithm, run.initial_params(), ledger_head="")
        saved, about = load_state(state_file, like=_savable(fresh))
        run.account.reopen(about["ledger_head"])
        return TrainState(
            round=int(about["round"]),
            server=saved["server"],
            mechanism=saved["mechanism"],
            ledger_head=about["ledger_head"],
        )
    was_declared = bool(run.account.ledger.run_rows(run.folder.name))
    if was_declared:
        run.account.reopen(None)
    else:
        run.account.open()
    return run.initial_state()


def _close_if_finished(folder: Path, recipe: Recipe) -> None:
    """Close a run that crashed between deleting its secrets and recording that in its ledger.

    Nothing else still can.
    """
    statement_file = folder / "guarantee.json"
    has_secrets = (folder / "private" / "root").exists()
    if has_secrets or not statement_file.exists():
        return
    # Without its ledger there is nothing to close.
    with suppress(TaciturnError):
        ledger = open_ledger(build.population(recipe))
        name = from_json(statement_file.read_text())["run"]
        is_open = ledger.run_rows(name) and not ledger.is_closed(name)
        if is_open:
            hide_times(folder)
            ledger.close(name)


class _Training:
    """A run while it trains: its state, what was measured of it, and the time that it took."""

    def __init__(self, run: Run, state: TrainState, progress: Progress) -> None:
        self._run = run
        self._state = state
        self._progress = progress
        self._metrics = Metrics(run.folder, state.round)
        self._times = RoundTimes(run.folder, state.round)
        scores = run.evaluate(state.server.params)
        # Scores of the state that was measured last, and the round of that state.
        self._scores = scores
        self._measured_at = state.round
        # Scores of the state with which this process began.
        self._before = scores
        # Scores of the run's first parameters, if this process began with them.
        self._first = scores if state.round == 0 else None
        sightings = _load_sightings(run, state)
        self._watch = Watch(run, state, scores=scores, sightings=sightings)

    def complete(self) -> TrainedRun:
        """Train to the last round, or as long as the run can, and finish the run."""
        if not self._metrics.rows:
            self._save()
            self._add_metrics()
        self._show_progress()
        stopped = self._do_rounds()
        if self._measured_at != self._state.round:
            self._measure()
        if self._watch.kept_model is not None:
            worse = self._take_back(self._watch.kept_model)
            stopped = f"{stopped}; and {worse}" if stopped else worse
        self._finish()
        return TrainedRun(
            folder=self._run.folder,
            before=self._before.together,
            scores=self._scores.together,
            stopped=stopped,
            clip_estimate=self._last_row.get("clip_estimate"),
            minutes=self._times.minutes,
        )

    def _take_back(self, kept: KeptModel) -> str:
        """End with the last model that was not worse than the start; say why."""
        words = explain(self._run, self._state, self._metrics.rows, kept)
        write_atomically(self._run.folder / STOPPED, f"{words}.\n".encode())
        self._scores = self._run.evaluate(kept.params)
        return words

    @property
    def _last_row(self) -> Row:
        return self._metrics.rows[-1]

    def _do_rounds(self) -> str | None:
        """Do all rounds that are left, unless the run gets worse.

        Returns:
            Why they ended before the last one, if something outside ended them.
        """
        all_rounds = self._run.recipe.run.rounds
        training = rounds(self._run.algorithm, self._run.curator, self._state)
        while self._state.round < all_rounds and not self._watch.has_seen_enough:
            try:
                self._do_round(training)
            except (BudgetExhausted, TooFewDevices) as reason:
                return str(reason)
            # There are no devices for now: keep what was done.
            except LinkError:
                self._save()
                raise
            if self._is_due(self._run.recipe.run.evaluate_every):
                self._measure()
            elif self._watch.is_due(self._state.round):
                self._watch.look(self._state)
            if self._is_due(self._run.recipe.run.save_every):
                self._save()
            self._show_progress()
        return None

    def _is_due(self, every: int) -> bool:
        """Tell whether what is done every few rounds, and after the last, is to be done now."""
        is_last = self._state.round == self._run.recipe.run.rounds
        return is_last or self._state.round % every == 0

    def _do_round(self, training: Iterator[TrainState]) -> None:
        before = self._state
        observers = self._run.observers
        began = time.perf_counter()
        for observer in observers:
            observer.begin(before.round)
        self._state = next(training)
        jax.block_until_ready(self._state.server)
        self._times.add(time.perf_counter() - began)
        for observer in observers:
            observer.observe(before, self._state)

    def _measure(self) -> None:
        self._scores = self._run.evaluate(self._state.server.params)
        self._measured_at = self._state.round
        self._watch.look_at_scores(self._state, self._scores)
        self._add_metrics()

    def _add_metrics(self) -> None:
        self._metrics.add(measure_row(self._run, self._state, self._scores))
        self._times.save(self._state.round)

    def _show_progress(self) -> None:
        all_rounds = self._run.recipe.run.rounds
        row = _latest_row(self._run, self._last_row)
        self._progress(self._state.round, all_rounds, row)

    @property
    def _model(self) -> KeptModel:
        """Return the model for the run's folder: the newest, unless the run got worse."""
        newest = KeptModel(self._state.round, self._state.server.params)
        return self._watch.kept_model or newest

    def _save(self) -> None:
        # First, as the state decides where a run resumes.
        _save_sightings(self._run, self._state, self._watch.sightings)
        _save(self._run, self._state, self._model)
        _forget_earlier_sightings(self._run, self._state)

    def _finish(self) -> None:
        # A run that is interrupted from here on resumes from the state that is saved now.
        _save_sightings(self._run, self._state, self._watch.sightings)
        _finish(self._run, self._state, self._model, scores=self._scores, first=self._first)


def _sightings_file(run: Run, round: int) -> Path:
    """Return where what the watch saw is saved, beside the state after this round."""
    return run.folder / "private" / f"sightings-{round}.safetensors"


def _save_sightings(run: Run, state: TrainState, sightings: Sightings) -> None:
    """Save what the watch saw, unless that is only that this very state is good."""
    kept = sightings.kept
    if kept.round == state.round:
        return
    about = {
        "kept": str(kept.round),
        "bad_since": "" if sightings.bad_since is None else str(sightings.bad_since),
        "has_seen_enough": "yes" if sightings.has_seen_enough else "",
    }
    save_state(_sightings_file(run, state.round), kept.params, about)


def _load_sightings(run: Run, state: TrainState) -> Sightings | None:
    path = _sightings_file(run, state.round)
    if not path.exists():
        return None
    params, about = load_state(path, like=run.initial_params())
    bad_since = about["bad_since"]
    return Sightings(
        kept=KeptModel(int(about["kept"]), jax.tree.map(jax.numpy.asarray, params)),
        bad_since=int(bad_since) if bad_since else None,
        has_seen_enough=bool(about["has_seen_enough"]),
    )


def _forget_earlier_sightings(run: Run, state: TrainState) -> None:
    for path in (run.folder / "private").glob("sightings-*.safetensors"):
        if path != _sightings_file(run, state.round):
            path.unlink()


def _latest_row(run: Run, measured: Row) -> Row:
    """Return the last evaluation, and for real devices what was spent and sent since."""
    # Older versions did not measure it.
    row = {**measured, "delta": run.recipe.delta}
    if run.recipe.fleet.kind != "devices":
        return row
    failed = run.log.failed_cohorts if run.log else 0
    return {
        **row,
        **run.fleet.stats(),
        "epsilon": run.account.guarantee().epsilon,
        "failed_rounds": failed,
    }


def _save(run: Run, state: TrainState, model: KeptModel) -> None:
    """Save a run: its observers, then its state, then its model.

    Observers come first, as what they saw would be gone once the state is on disk. The model comes
    last, as the state decides where a run resumes.
    """
    mode = _model_mode(run)
    for observer in run.observers:
        observer.save(run.folder, mode)
    head = _record_model(run, model)
    _save_state(run, state, head)
    card = run.describe_model(model.round, head)
    save_model(run.folder / "model.safetensors", model.params, card, mode)
    _write_own_rows(run)


def _write_own_rows(run: Run) -> None:
    """Write the run's own copy of its rows in the ledger."""
    rows = [json.dumps(row, sort_keys=True) + "\n" for row in run.account.rows]
    write_atomically(run.folder / FILE_NAME, "".join(rows).encode())


def _record_model(run: Run, model: KeptModel) -> str:
    """Record the model in the ledger, and return the ledger's head."""
    card = run.describe_model(model.round, ledger_head="")
    return run.account.record_model(
        round=model.round,
        digest=params_digest(model.params),
        card=card_digest(card),
        key=open_key(run.account.ledger).fingerprint,
    )


def _save_state(run: Run, state: TrainState, ledger_head: str) -> None:
    """Save what the run resumes from; the curator then forgets what led to it."""
    path = run.folder / "private" / "state.safetensors"
    about = {"round": str(state.round), "ledger_head": ledger_head}
    save_state(path, _savable(state), about)
    run.curator.forget_records(before=state.round)


def _model_mode(run: Run) -> int:
    """Return the mode of the model's file: only its owner may read one without privacy."""
    terms = run.account.terms
    costs = (*terms.lineage, run.account.release)
    has_no_privacy = any(isinstance(cost, NonPrivateDpEvent) for cost in costs)
    is_open = has_no_privacy or is_noise_known(terms.randomness, terms.unit)
    return 0o600 if is_open else 0o644


def _savable(state: TrainState) -> dict[str, Any]:
    return {"server": state.server, "mechanism": state.mechanism}


def _finish(
    run: Run, state: TrainState, model: KeptModel, *, scores: Scores, first: Scores | None
) -> None:
    """Say what the run promises, delete its secrets, and write its page.

    Args:
        run: what has ended.
        state: in which it ended.
        model: that it ends with.
        scores: of this model.
        first: scores of the run's start, where they are known.
    """
    _save(run, state, model)
    # Before the secrets go: whatever is interrupted until then is done again.
    key = open_key(run.account.ledger)
    write_signature(run.folder, run.account.ledger, key, run.account.head)
    guarantee = replace(run.account.promise(), ledger_key=key.fingerprint)
    _write_statements(run, state, guarantee)
    # With them goes all that could remove the noise.
    delete_secrets(run.folder)
    # Before it is closed: nothing would do it after a crash in what follows.
    hide_times(run.folder)
    # The run can no longer be resumed.
    run.account.close()
    try:
        _write_page(run, guarantee, scores, first)
    # Whatever it is: the run is finished, and must not look as if it should be resumed.
    except Exception as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        LOG.warning(
            "the run is finished; only its page could not be written (%s): taciturn report %s",
            why,
            run.folder,
        )
    hide_times(run.folder)


def _write_statements(run: Run, state: TrainState, guarantee: Guarantee) -> None:
    public_text = run.describe_model(state.round, guarantee.head).public_text
    stats = run.fleet.stats()
    observed = _describe_participation(run.log, run.algorithm.participation, stats)
    words = statement(guarantee, public_text, observed)
    write_atomically(run.folder / "guarantee.txt", words.encode())
    content = statement_json(guarantee, public_text)
    write_atomically(run.folder / "guarantee.json", content.encode())


def _write_page(run: Run, guarantee: Guarantee, scores: Scores, first: Scores | None) -> None:
    write_report(
        run.folder,
        guarantee=guarantee,
        ledger=run.account.ledger,
        texts=run.held_out.texts,
        vocabulary=run.vocabulary,
        model=scores,
        start=first or run.evaluate(run.initial_params()),
    )


def _describe_participation(
    log: CohortLog | None, participation: Participation, stats: Mapping[str, float]
) -> str:
    """Report the recorded participation, beside the claim (Xu et al. 2023).

    Nothing is reported where who took part is secret.
    """
    if log is None or participation.sampled_by_curator:
        return ""
    separation, times = log.observed_limits
    words = (
        "nobody took part twice"
        if separation is None
        else f"at least {separation} rounds between two participations"
    )
    words += f", at most {times} participations of a user"
    if "days" in stats:
        words += (
            f", counting all who were asked; {stats['days']:.1f} simulated days,"
            f" {log.failed_cohorts} failed rounds"
        )
    if "staleness" in stats and times:
        words += (
            f"; reports were about models {stats['staleness']:.1f} rounds old, at most"
            f" {stats['largest_staleness']}"
        )
    return words
