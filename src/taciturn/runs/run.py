"""A run: a folder, from recipe to released model. Started with `train`, cut off at any moment, gone on with by `resume`.

RUN/
  recipe.toml  vocabulary.txt  ledger.jsonl (this run's rows)  canaries.json, audit_users.json and .npy (where there are some)
  metrics.jsonl  metrics.csv  progress.png
  model.safetensors  guarantee.txt  guarantee.json
  private/   root (of all randomness), state (to resume from), who took part, devices' own state; mode 0700, deleted when the run ends
"""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from dp_accounting import DpEvent, NonPrivateDpEvent

from taciturn import randomness, trees
from taciturn.audit.audit_users import audit_users
from taciturn.audit.planting import planted, with_planted
from taciturn.core import LanguageModel, Params
from taciturn.data.population import HeldOutUsers, Population
from taciturn.data.texts import Texts
from taciturn.evaluation.accuracy import Scores, evaluate
from taciturn.files import check_new_folder, new_folder, write_atomically
from taciturn.fleets import assemble
from taciturn.fleets.devices.transport import LinkError
from taciturn.fleets.host_process import dismiss_hosts
from taciturn.fleets.simulation.availability import TooFewDevices
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.fleets.simulation.many_hosts import ManyHosts, announced
from taciturn.fleets.simulation.synthetic_users import WithSyntheticUsers
from taciturn.population_ledger import open_ledger
from taciturn.privacy.account import Account, BudgetExhausted, RunTerms
from taciturn.privacy.curator import Curator
from taciturn.privacy.figures import delta_text
from taciturn.privacy.ledger import FILE_NAME, Guarantee, LedgerError
from taciturn.privacy.participation_log import ParticipationLog
from taciturn.privacy.records import Records
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import AUDITED_AT_ONCE
from taciturn.recipe.solve import with_noise
from taciturn.recipe.text import RecipeError, save_recipe
from taciturn.release.model_file import ModelCard, card_digest, load_state, params_digest, save_model, save_state
from taciturn.release.plots import plot_run
from taciturn.release.privacy_statement import statement, statement_json
from taciturn.runs.folder import NOT_NEW, alone_in, delete_secrets, load_root, recipe_of, save_root
from taciturn.runs.metrics import Metrics, measured, observed, so_far
from taciturn.runs.warm_start import load_warm_start
from taciturn.train import TrainState, start, train

if TYPE_CHECKING:
    from taciturn.fleets.devices.fleet import Connected

Progress = Callable[[int, int, dict[str, Any]], None]  # rounds done, rounds in all, last metrics


@dataclass
class Finished:
    """What a run came to."""

    folder: Path
    recipe: Recipe  # with its noise worked out
    params: Params
    before: Scores  # of the parameters it started (or went on) from
    scores: Scores
    guarantee: Guarantee
    stopped: str | None  # why it ended before its last round, if it did
    clip_estimate: float | None  # where an adaptive clip norm went


class Run:
    """The objects of a run, built and checked before anything is spent."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        root: bytes,
        seeded: bool | None = None,
        connected: "Connected | None" = None,
    ) -> None:
        self.folder, self.root = folder, root
        self.population = build.population(recipe)
        self.held_out = HeldOutUsers(self.population.folder)
        ledger = open_ledger(self.population)
        self.warm_start = load_warm_start(recipe, self.population.vocabulary, ledger)
        lineage, lineage_distance = (
            (self.warm_start.lineage, self.warm_start.distance) if self.warm_start else ((), 0.0)
        )
        words = len(self.population.vocabulary)
        simulated = recipe.run.seed is not None or seeded or bool(self.warm_start and self.warm_start.seeded)
        has_budget = recipe.privacy.epsilon is not None or recipe.privacy.rho is not None
        if has_budget and any(isinstance(cost, NonPrivateDpEvent) for cost in lineage):
            raise RecipeError(
                "[model] warm_start has no privacy (ε = ∞), so nothing that starts from it can meet a budget"
            )
        try:
            self.recipe = with_noise(build.with_general_text(recipe), lineage, lineage_distance, words)
            self.model: LanguageModel = build.language_model(recipe.model, words)
            self.general, self.general_test = build.general_text(recipe), build.general_test(recipe)
            for name, corpus in (("general", self.general), ("general_test", self.general_test)):
                if corpus and corpus.vocabulary.words != self.population.vocabulary.words:
                    raise ValueError(
                        f"[data] {name} has other words than the population; make it with --vocabulary POPULATION"
                    )
            self.algorithm = build.algorithm(self.recipe, words)
            self.planted = planted(self.recipe, self.population.vocabulary, root)
            first = self.initial_params()
            self.audit = audit_users(self.recipe, self.algorithm, first, root)
            participation = self.algorithm.participation
            release = self.algorithm.mechanism.event(participation)
        except ValueError as error:  # values that are each in range and do not go together
            raise RecipeError(str(error)) from None
        self._check(lineage, max(len(self.population), len(connected.enrolled) if connected else 0))
        terms = RunTerms(
            name=folder.name,
            recipe=self.recipe.fingerprint,
            population=self.population.id,
            adjacency=participation.adjacency,
            randomness="seeded simulation" if simulated else "operating system",
            accountant=recipe.privacy.accountant,
            budget=build.budget(self.recipe),
            rounds=recipe.run.rounds,
            unit=unit_of(self.population, "one device" if recipe.fleet.kind == "devices" else "one user"),
            start=params_digest(first),
            lineage=lineage,
            lineage_distance=lineage_distance,
            distance=self.algorithm.mechanism.distance(trees.size(first), build.rows(self.recipe)),
        )
        self.account = Account(ledger, terms, release)
        limits = participation.limits
        self.log = (
            ParticipationLog(
                folder / "private" / "participation.log", *limits, randomness.derive(root, "participation log", 0)
            )
            if limits
            else None
        )
        if jax.process_count() > 1:
            told = self.recipe.with_settings("run", seed=None)  # of which the root of a simulation is made
            announced(json.dumps(told.model_dump(mode="json")))
        coins = int.from_bytes(randomness.derive(root, "devices", 0), "big")
        if recipe.fleet.kind == "devices":
            from taciturn.fleets.assemble import device_fleet  # whose cryptography a simulation does without

            vocabulary, private = self.population.vocabulary, folder / "private"
            self.fleet = device_fleet(self.recipe, vocabulary, private, connected, self.account)
        else:
            self.fleet = assemble.fleet(self.recipe, self.population, folder / "private", coins)
        most_reports = self.algorithm.mechanism.most_reports
        room = most_reports - min(recipe.audit.users, AUDITED_AT_ONCE)
        everyone = with_planted(self.fleet, self.planted, self.recipe, self.population.vocabulary, room)
        if self.audit:
            everyone = WithSyntheticUsers(everyone, self.audit, self.audit.chosen, most_reports, kind=2)
        records = Records(folder / "private" / "releases", randomness.derive(root, "records", 0))
        self.curator = Curator(self.algorithm, everyone, self.account, root, self.log, records)

    def _check(self, lineage: tuple[DpEvent, ...], people: int) -> None:
        """What only shows once recipe, users and model are seen together."""
        users, adjacency = self.recipe.participation.users, self.algorithm.participation.adjacency
        if self.recipe.participation.kind == "fixed" and len(self.population) < users:
            raise RecipeError(
                f"[participation] users: fixed-size rounds are accounted for {users} users, but the population has fewer; the "
                "cost would be understated, so lower the number"
            )
        if self.recipe.delta * people >= 1:
            raise RecipeError(
                f"[participation] users: with {users} users δ is {delta_text(self.recipe.delta)}, more than one over the number of users "
                "that are there; raise the number, or set [privacy] delta"
            )
        self.held_out.check_enough()
        if self.warm_start and lineage and self.warm_start.adjacency != adjacency:
            raise RecipeError(
                f"[model] warm_start came from a run under the adjacency «{self.warm_start.adjacency}», this one is under "
                f"«{adjacency}»; no one guarantee covers both, so use the same participation"
            )
        try:
            self.algorithm.mechanism.init(self.initial_params())
        except ValueError as error:  # per-layer clip norms for other layers than the model's
            raise RecipeError(f"[privacy] layer_clip_norms: {error}") from None

    def initial_params(self) -> Params:
        if self.warm_start:
            return jax.tree.map(jax.numpy.asarray, self.warm_start.params)
        return self.model.init(randomness.jax_keys(randomness.derive(self.root, "init", 0), 1)[0])

    def evaluate(self, params: Params) -> Scores:
        return self._scores(params, self.held_out.texts)

    def evaluate_general(self, params: Params) -> dict[str, float]:
        """What of the general language is known, where the recipe names a text to see by."""
        if self.general_test is None:
            return {}
        scores = self._scores(params, self.general_test.documents)
        return {f"general_{metric}": scores[metric].value for metric in ("perplexity", "accuracy_top1")}

    def _scores(self, params: Params, texts: Texts) -> Scores:
        return evaluate(self.model, params, texts, build.evaluation_cut(self.recipe, self.population.vocabulary))

    def fresh_state(self) -> TrainState:
        return start(self.algorithm, self.initial_params(), self.account.head)

    def card(self, round: int, ledger_head: str) -> ModelCard:
        return ModelCard(
            architecture=self.recipe.model.model_dump(mode="json", exclude={"warm_start"}),
            vocabulary=self.population.vocabulary.words,
            text=self.population.vocabulary.about,
            run=self.account.terms.name,
            ledger_head=ledger_head,
            round=round,
            public_sources=self.public_sources,
            sentences=self.recipe.data.layout == "sentences",
        )

    def uploads(self, releases: int) -> int:
        """Reports that devices sent. Where the claim rests on who was drawn, their number is a secret: there it is what to expect."""
        if not isinstance(self.fleet, SimulatedFleet | ManyHosts):
            return self.fleet.uploads
        return round(releases * self.recipe.participation.cohort)

    @property
    def public_sources(self) -> tuple[str, ...]:
        rehearsed = (self.general.source,) if self.general else ()
        if self.planted:
            beside = f"what {len(self.planted.users)} synthetic users wrote, who took part beside the people ({self.planted.source})"
            rehearsed = (*rehearsed, beside)
        if self.audit:
            rehearsed = (*rehearsed, f"random directions of {self.audit.count} made-up users, who audit the run")
        before = self.warm_start.card.public_sources if self.warm_start else ()
        return tuple(dict.fromkeys((*before, *rehearsed)))  # each is named once


def train_run(recipe: Recipe, folder: Path, progress: Progress, connected: "Connected | None" = None) -> Finished:
    """A new run in a new folder."""
    check_new_folder(folder, NOT_NEW)
    seed = recipe.run.seed
    root = randomness.root_from_entropy() if seed is None else randomness.root_from_seed(seed)
    run = Run(folder, recipe, root, connected=connected)
    run.account.check_budget()
    with new_folder(folder, NOT_NEW) as made:
        save_root(made, root, seed is not None)
        words = "".join(f"{word}\n" for word in run.population.vocabulary.words)
        write_atomically(made / "vocabulary.txt", words.encode())
        save_recipe(run.recipe, made / "recipe.toml")
        if run.planted:
            run.planted.save(made, run.recipe, run.population.vocabulary)
    with alone_in(folder):
        try:
            run.account.open()
        except LedgerError:
            shutil.rmtree(folder)  # a run that was refused leaves nothing to resume
            raise
        return _go_on(run, run.fresh_state(), progress)


def resume_run(folder: Path, progress: Progress, connected: "Connected | None" = None) -> Finished:
    """Go on with a run that was cut off."""
    recipe, state_file = recipe_of(folder), folder / "private" / "state.safetensors"
    with alone_in(folder):
        root, seeded = load_root(folder)
        run = Run(folder, recipe, root, seeded, connected)
        if not run.account.ledger.run_rows(folder.name) and not state_file.exists():
            run.account.open()  # cut off before it was declared
            return _go_on(run, run.fresh_state(), progress)
        if not state_file.exists():
            run.account.reopen(None)
            return _go_on(run, run.fresh_state(), progress)
        saved, about = load_state(state_file, _savable(start(run.algorithm, run.initial_params(), "")))
        run.account.reopen(about["ledger_head"])
        state = TrainState(int(about["round"]), saved["server"], saved["mechanism"], about["ledger_head"])
        return _go_on(run, state, progress)


def _go_on(run: Run, state: TrainState, progress: Progress) -> Finished:
    section = run.recipe.run
    metrics = Metrics(run.folder, state.round)
    before = scores = run.evaluate(state.server.params)
    if not metrics.rows:
        _save(run, state)
        metrics.add(measured(run, state, run.account.guarantee(), scores, 0.0, metrics.rows))
    progress(state.round, section.rounds, so_far(run, metrics.rows))
    stopped, measured_at, seconds = None, state.round, metrics.rows[-1]["seconds"]
    rounds = train(run.algorithm, run.curator, state)
    while state.round < section.rounds and stopped is None:
        began, before_round = time.perf_counter(), state
        if run.audit:
            run.audit.begin(state.round)
        try:
            state = next(rounds)
        except (BudgetExhausted, TooFewDevices) as reason:
            stopped = str(reason)
            break
        except LinkError:  # nobody comes for now: what was done need not be done again
            _save(run, state)
            raise
        jax.block_until_ready(state.server)
        seconds += time.perf_counter() - began
        if run.audit:
            run.audit.observe(before_round, state)
        if state.round % section.evaluate_every == 0 or state.round == section.rounds:
            scores, measured_at = run.evaluate(state.server.params), state.round
            metrics.add(measured(run, state, run.account.guarantee(), scores, seconds, metrics.rows))
            stopped = _diverged(metrics.rows)
        if state.round % section.save_every == 0 or state.round == section.rounds:
            _save(run, state)
        progress(state.round, section.rounds, so_far(run, metrics.rows))
    if measured_at != state.round:
        scores = run.evaluate(state.server.params)
        metrics.add(measured(run, state, run.account.guarantee(), scores, seconds, metrics.rows))
    dismiss_hosts()
    return _finish(run, state, metrics, before, scores, stopped)


def _diverged(rows: list[dict[str, Any]]) -> str | None:
    """A run that only gets worse should not spend the rest of its budget. Judged on held-out users, who are not protected."""
    first, last = rows[0]["loss"], rows[-1]["loss"]
    if last < 1.5 * first:
        return None
    return (
        f"the loss on held-out users rose from {first:.1f} to {last:.1f}: the run diverges. Lower server.momentum or "
        "server.learning_rate (noise adds up in momentum), or take larger cohorts"
    )


def _save(run: Run, state: TrainState) -> None:
    """State first: it decides where a resumed run goes on; all else is made again from it. But for what was seen of audit users, which is
    there before it, since the estimates it was read from are gone."""
    costs = (*run.account.terms.lineage, run.account.release)
    mode = 0o600 if any(isinstance(cost, NonPrivateDpEvent) for cost in costs) else 0o644
    if run.audit:
        run.audit.save(run.folder, mode)
    digest = card_digest(run.card(state.round, ""))
    head = run.account.record_model(state.round, params_digest(state.server.params), digest)
    about = {"round": str(state.round), "ledger_head": head}
    save_state(run.folder / "private" / "state.safetensors", _savable(state), about)
    run.curator.saved(state.round)
    save_model(run.folder / "model.safetensors", state.server.params, run.card(state.round, head), mode)
    rows = "".join(json.dumps(row, sort_keys=True) + "\n" for row in run.account.rows)
    write_atomically(run.folder / FILE_NAME, rows.encode())


def _savable(state: TrainState) -> dict[str, Any]:
    return {"server": state.server, "mechanism": state.mechanism}


def _finish(
    run: Run, state: TrainState, metrics: Metrics, before: Scores, scores: Scores, stopped: str | None
) -> Finished:
    _save(run, state)
    guarantee = run.account.guarantee()
    card = run.card(state.round, guarantee.head)
    words = statement(guarantee, card.public_text, observed(run))
    write_atomically(run.folder / "guarantee.txt", words.encode())
    write_atomically(run.folder / "guarantee.json", statement_json(guarantee, card.public_text).encode())
    plot_run(run.folder / "progress.png", metrics.rows, f"{run.folder.name} ({run.recipe.algorithm})")
    delete_secrets(run.folder)  # with them goes all that could take the noise off
    run.account.close()  # it cannot go on any more
    estimate = metrics.rows[-1].get("clip_estimate")
    return Finished(run.folder, run.recipe, state.server.params, before, scores, guarantee, stopped, estimate)


def unit_of(population: Population, person: str = "one user") -> str:
    """Whom the guarantee protects, in words."""
    simulated = population.manifest["about"].get("simulated")
    return f"one simulated user ({simulated})" if simulated else person
