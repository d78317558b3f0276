"""What a run is made of: its recipe with the noise worked out, model, algorithm, account, fleet and
curator. loop.py trains it.

RUN/
  recipe.toml  vocabulary.txt  ledger.jsonl (this run's rows)  canaries.json, audit_users.json and
  .npy (where there are some) metrics.jsonl  metrics.csv  report.html model.safetensors
  guarantee.txt  guarantee.json private/   root (of all randomness), state (to resume from), who
  took part, devices' own state; mode 0700, deleted when the run ends
"""

from dataclasses import replace
from pathlib import Path

import jax
from dp_accounting import NonPrivateDpEvent

from taciturn import randomness, trees
from taciturn.audit.observers import run_observers, with_observers
from taciturn.core import FleetWithStats, Params
from taciturn.data.population import HeldOutUsers, Population
from taciturn.evaluation.accuracy import Scores, evaluate_each
from taciturn.fleets import assemble
from taciturn.fleets.devices.fleet import ConnectedDevices
from taciturn.people import open_ledger
from taciturn.privacy.accounting.rounding_up import delta_text
from taciturn.privacy.curator import Curator
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.cohort_log import CohortLog
from taciturn.privacy.ledger.releases import Releases
from taciturn.recipe import build, solve
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import RecipeError
from taciturn.release.model_file import ModelCard, params_digest
from taciturn.runs.warm_start import load_warm_start
from taciturn.training import TrainState, start


class Run:
    """The objects of a run, built and checked before anything is spent."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        root: bytes,
        seeded: bool = False,
        connected: ConnectedDevices | None = None,
    ) -> None:
        """`seeded` says that the root comes from a seed, although the recipe has none."""
        self.folder, self.root, self._private = folder, root, folder / "private"
        self.population = build.population(recipe)
        self.vocabulary = self.population.vocabulary
        self.held_out = HeldOutUsers(self.population.folder)
        ledger = open_ledger(self.population)
        self.warm_start = load_warm_start(recipe, self.vocabulary, ledger)
        self.lineage = self.warm_start.lineage if self.warm_start else ()
        self.lineage_distance = self.warm_start.distance if self.warm_start else 0.0
        try:
            self.recipe = self._with_noise(recipe)
            self.cut = build.evaluation_cut(recipe, self.vocabulary)
            self.model = build.language_model(recipe.model, len(self.vocabulary))
            self.general, self.general_test = (
                build.general_text(recipe),
                build.general_text(recipe, to_test=True),
            )
            for name, corpus in (("general", self.general), ("general_test", self.general_test)):
                if corpus:
                    corpus.check_words(self.vocabulary, f"[data] {name}")
            self.algorithm = build.algorithm(self.recipe, len(self.vocabulary))
            first = self.initial_params()
            self.observers = run_observers(
                self.recipe, self.vocabulary, self.algorithm, first, root
            )
            release = self.algorithm.mechanism.event(self.algorithm.participation)
        # values that are in range but do not go together
        except ValueError as error:
            raise RecipeError(str(error)) from None
        self._check(
            first,
            max(len(self.population), len(connected.enrolled().certificates) if connected else 0),
        )
        self.account = Account(ledger, self._terms(first, seeded), release)
        # where the claim is about how often users take part
        limits, key = (
            self.algorithm.participation.limits,
            randomness.derive(root, "participation log", 0),
        )
        self.log = CohortLog(self._private / "participation.log", *limits, key) if limits else None
        self.fleet = self._fleet(connected)
        everyone = with_observers(self.fleet, self.observers, self.algorithm.mechanism.most_reports)
        records = Releases(self._private / "releases", randomness.derive(root, "records", 0))
        self.curator = Curator(self.algorithm, everyone, self.account, root, self.log, records)

    def _with_noise(self, recipe: Recipe) -> Recipe:
        has_budget = recipe.privacy.epsilon is not None or recipe.privacy.rho is not None
        if has_budget and any(isinstance(cost, NonPrivateDpEvent) for cost in self.lineage):
            raise RecipeError(
                "[model] warm_start has no privacy (ε = ∞), so nothing that starts from it can meet"
                " a budget"
            )
        recipe = solve.with_general_text(recipe)
        return solve.with_noise(recipe, len(self.vocabulary), self.lineage, self.lineage_distance)

    def _check(self, first: Params, people: int) -> None:
        """Refuse what shows only when recipe, users and model are seen together."""
        users, adjacency = self.recipe.participation.users, self.algorithm.participation.adjacency
        if self.recipe.participation.kind == "fixed" and len(self.population) < users:
            few = f"fixed-size rounds are accounted for {users} users, but the population has fewer"
            raise RecipeError(
                f"[participation] users: {few}; the cost would be understated, so lower the number"
            )
        if self.recipe.delta * people >= 1:
            more = (
                f"with {users} users δ is {delta_text(self.recipe.delta)}, more than one over the"
                " number of users that are there"
            )
            raise RecipeError(
                f"[participation] users: {more}; raise the number, or set [privacy] delta"
            )
        self.held_out.check_enough()
        if self.warm_start and self.lineage and self.warm_start.adjacency != adjacency:
            under = (
                f"came from a run under the adjacency «{self.warm_start.adjacency}», this one is"
                f" under «{adjacency}»"
            )
            raise RecipeError(
                f"[model] warm_start {under}; no one guarantee covers both, so use the same"
                " participation"
            )
        try:
            self.algorithm.mechanism.init(first)
        # per-layer clip norms for other layers than the model's
        except ValueError as error:
            raise RecipeError(f"[privacy] layer_clip_norms: {error}") from None

    def _terms(self, first: Params, seeded: bool) -> RunTerms:
        """Return what the ledger records when the run is opened."""
        recipe = self.recipe
        simulated = (
            recipe.run.seed is not None
            or seeded
            or bool(self.warm_start and self.warm_start.seeded)
        )
        drawn = "seeded simulation" if simulated else "operating system"
        of = (
            self.folder.name,
            recipe.fingerprint,
            self.population.id,
            self.algorithm.participation.adjacency,
            drawn,
        )
        may_cost = recipe.privacy.accountant, build.budget(recipe), recipe.run.rounds
        unit = unit_of(
            self.population, "one device" if recipe.fleet.kind == "devices" else "one user"
        )
        distance = self.algorithm.mechanism.distance(trees.size(first), recipe.most_releases)
        terms = RunTerms(*of, *may_cost, start=params_digest(first), unit=unit, distance=distance)
        return replace(terms, lineage=self.lineage, lineage_distance=self.lineage_distance)

    def _fleet(self, connected: ConnectedDevices | None) -> FleetWithStats:
        if self.recipe.fleet.kind == "devices":
            return assemble.device_fleet(
                self.recipe, self.vocabulary, self._private, connected, self.account
            )
        coins = int.from_bytes(randomness.derive(self.root, "devices", 0), "big")
        return assemble.fleet(self.recipe, self.population, self._private, coins)

    def initial_params(self) -> Params:
        if self.warm_start:
            return jax.tree.map(jax.numpy.asarray, self.warm_start.params)
        return self.model.init(randomness.jax_key(randomness.derive(self.root, "init", 0)))

    def evaluate(self, params: Params) -> Scores:
        """Measure with a column for each held-out user; `together` gives what is shown."""
        return evaluate_each(self.model, params, self.held_out.texts, self.cut)

    def evaluate_general(self, params: Params) -> dict[str, float]:
        """Measure how well the model knows the general language, where the recipe names a text for
        it.
        """
        if self.general_test is None:
            return {}
        scores = evaluate_each(self.model, params, self.general_test.documents, self.cut).together
        return {
            f"general_{metric}": scores[metric].value for metric in ("perplexity", "accuracy_top1")
        }

    def fresh_state(self) -> TrainState:
        return start(self.algorithm, self.initial_params(), self.account.head)

    def card(self, round: int, ledger_head: str) -> ModelCard:
        before = self.warm_start.card.public_sources if self.warm_start else ()
        rehearsed = (self.general.source,) if self.general else ()
        sources = (*before, *rehearsed, *(one.source for one in self.observers))
        model = (
            self.recipe.model.model_dump(mode="json", exclude={"warm_start"}),
            self.vocabulary.words,
            self.vocabulary.about,
        )
        once, sentences = tuple(dict.fromkeys(sources)), self.recipe.data.layout == "sentences"
        return ModelCard(
            *model,
            self.account.terms.name,
            ledger_head,
            round,
            public_sources=once,
            sentences=sentences,
        )


def unit_of(population: Population, person: str = "one user") -> str:
    """Say whom the guarantee protects."""
    simulated = population.manifest["about"].get("simulated")
    return f"one simulated user ({simulated})" if simulated else person
