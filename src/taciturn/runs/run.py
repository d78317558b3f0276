"""Build what a run is made of: recipe with its noise, model, algorithm, account, fleet, curator.

loop.py trains it. The folder of a run:

RUN/
  recipe.toml, vocabulary.txt
  ledger.jsonl              this run's rows
  signature.json            of them, by a key of the ledger
  canaries.json             where there are canaries
  audit_users.json, .npy    where there are audit users
  audit_noise.json, .npy    the estimates of the first rounds, where there are audit users
  metrics.jsonl, metrics.csv, report.html
  model.safetensors, guarantee.txt, guarantee.json
  stopped.txt               where the run got worse, and was stopped
  private/                  the root of all randomness, the state to resume from, who took part, how
                            long rounds took, and devices' own state; mode 0700, deleted when the
                            run ends
"""

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
from taciturn.privacy.ledger.guarantee import SECRET, SEEDED, SIMULATED_USER
from taciturn.privacy.ledger.releases import Releases
from taciturn.privacy.schemes import SCHEMES
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
        *,
        seeded: bool = False,
        connected: ConnectedDevices | None = None,
    ) -> None:
        """Build and check everything.

        Args:
            folder: of the run.
            recipe: what to train.
            root: of all its randomness.
            seeded: whether the root comes from a seed, although the recipe has none.
            connected: the devices of a fleet, where the recipe is for one.
        """
        self.folder = folder
        self.root = root
        self._private = folder / "private"
        self.population = build.population(recipe)
        self.vocabulary = self.population.vocabulary
        self.held_out = HeldOutUsers(self.population.folder)
        ledger = open_ledger(self.population)
        self.warm_start = load_warm_start(recipe, self.vocabulary, ledger)
        self.lineage = self.warm_start.lineage if self.warm_start else ()
        self.lineage_distance = self.warm_start.distance if self.warm_start else 0.0
        try:
            self._build_training(recipe)
            first = self.initial_params()
            self.observers = run_observers(
                recipe=self.recipe,
                vocabulary=self.vocabulary,
                algorithm=self.algorithm,
                params=first,
                root=root,
            )
            release = self.algorithm.mechanism.event(self.algorithm.participation)
        # Values that are in range may still not go together.
        except ValueError as error:
            raise RecipeError(str(error)) from None
        people = self._count_people(connected)
        self._check_enough_people(people)
        self._check_warm_start_adjacency()
        self._check_clip_norms(first)
        terms = self._declare_terms(first, seeded, people)
        self.account = Account(ledger=ledger, terms=terms, release=release)
        self.log = self._open_cohort_log()
        self.fleet = self._build_fleet(connected)
        self.curator = self._build_curator()

    def _build_training(self, recipe: Recipe) -> None:
        """Work out what the recipe leaves open, and build what trains and measures."""
        words = len(self.vocabulary)
        self.recipe = self._solve_noise(recipe)
        self.cut = build.evaluation_cut(recipe, self.vocabulary)
        self.model = build.language_model(recipe.model, words)
        self.general = build.general_text(recipe)
        self.general_test = build.general_text(recipe, to_test=True)
        self._check_general_texts()
        self.algorithm = build.algorithm(self.recipe, words)

    def _solve_noise(self, recipe: Recipe) -> Recipe:
        has_budget = recipe.privacy.epsilon is not None or recipe.privacy.rho is not None
        if has_budget and any(isinstance(cost, NonPrivateDpEvent) for cost in self.lineage):
            raise RecipeError(
                "[model] warm_start has no privacy (ε = ∞), so nothing that starts from it can meet"
                " a budget"
            )
        recipe = solve.with_general_text(recipe)
        return solve.with_noise(
            recipe,
            vocabulary=len(self.vocabulary),
            lineage=self.lineage,
            lineage_distance=self.lineage_distance,
        )

    def _check_general_texts(self) -> None:
        if self.general:
            self.general.check_words(self.vocabulary, "[data] general")
        if self.general_test:
            self.general_test.check_words(self.vocabulary, "[data] general_test")

    def _count_people(self, connected: ConnectedDevices | None) -> int:
        """Count the people with text here, or the enrolled devices where these are more."""
        enrolled = len(connected.enrolled().certificates) if connected else 0
        return max(len(self.population), enrolled)

    def _check_enough_people(self, people: int) -> None:
        """Refuse a recipe that counts on more people than there are."""
        users = self.recipe.participation.users
        scheme = SCHEMES[self.recipe.participation.kind]
        if scheme.needs_all_users and len(self.population) < users:
            raise RecipeError(
                f"[participation] users: fixed-size rounds are accounted for {users} users, but the"
                " population has fewer; the cost would be understated, so lower the number"
            )
        delta = self.recipe.delta
        if delta * people >= 1:
            raise RecipeError(
                f"[participation] users: with {users} users δ is {delta_text(delta)},"
                " more than one over the number of users that are there; raise the number, or set"
                " [privacy] delta"
            )
        self.held_out.check_enough()

    def _check_warm_start_adjacency(self) -> None:
        """Refuse a private start whose guarantee is under another adjacency."""
        adjacency = self.algorithm.participation.adjacency
        if self.warm_start and self.lineage and self.warm_start.adjacency != adjacency:
            raise RecipeError(
                "[model] warm_start came from a run under the adjacency"
                f" «{self.warm_start.adjacency}», this one is under «{adjacency}»; no one guarantee"
                " covers both, so use the same participation"
            )

    def _check_clip_norms(self, params: Params) -> None:
        """Refuse clip norms for other layers than the model's."""
        try:
            self.algorithm.mechanism.init(params)
        except ValueError as error:
            raise RecipeError(f"[privacy] layer_clip_norms: {error}") from None

    def _declare_terms(self, first: Params, seeded: bool, people: int) -> RunTerms:
        """Return what the ledger records when the run is opened."""
        recipe = self.recipe
        starts_from_simulation = self.warm_start is not None and self.warm_start.seeded
        simulated = recipe.run.seed is not None or seeded or starts_from_simulation
        drawn = SEEDED if simulated else SECRET
        person = "one device" if recipe.fleet.kind == "devices" else "one user"
        distance = self.algorithm.mechanism.distance(trees.size(first), recipe.most_releases)
        return RunTerms(
            name=self.folder.name,
            recipe=recipe.fingerprint,
            population=self.population.id,
            adjacency=self.algorithm.participation.adjacency,
            randomness=drawn,
            accountant=recipe.privacy.accountant,
            budget=build.budget(recipe),
            rounds=recipe.run.rounds,
            start=params_digest(first),
            lineage=self.lineage,
            unit=self._whom_it_protects(person),
            distance=distance,
            lineage_distance=self.lineage_distance,
            people=people,
        )

    def _whom_it_protects(self, person: str) -> str:
        """Return the unit of the guarantee.

        Where pieces of public text play the users, it is that of the start: those who hide in its
        parameters.
        """
        unit = unit_of(self.population, person)
        of_start = self.warm_start.unit if self.warm_start else ""
        return of_start if of_start and unit.startswith(SIMULATED_USER) else unit

    def _open_cohort_log(self) -> CohortLog | None:
        """Open the record of cohorts, where the claim is about how often users take part."""
        limits = self.algorithm.participation.limits
        if not limits:
            return None
        min_separation, max_participations = limits
        return CohortLog(
            path=self._private / "participation.log",
            min_separation=min_separation,
            max_participations=max_participations,
            key=randomness.derive(self.root, "participation log", 0),
        )

    def _build_fleet(self, connected: ConnectedDevices | None) -> FleetWithStats:
        if self.recipe.fleet.kind == "devices":
            return assemble.device_fleet(
                recipe=self.recipe,
                vocabulary=self.vocabulary,
                folder=self._private,
                connected=connected,
                account=self.account,
            )
        coins = int.from_bytes(randomness.derive(self.root, "devices", 0), "big")
        return assemble.fleet(
            recipe=self.recipe,
            population=self.population,
            devices=self._private,
            coins=coins,
        )

    def _build_curator(self) -> Curator:
        most_reports = self.algorithm.mechanism.most_reports
        fleet = with_observers(self.fleet, self.observers, most_reports)
        records_key = randomness.derive(self.root, "records", 0)
        records = Releases(self._private / "releases", records_key)
        return Curator(
            algorithm=self.algorithm,
            fleet=fleet,
            account=self.account,
            root=self.root,
            log=self.log,
            records=records,
        )

    def initial_params(self) -> Params:
        """Return the parameters that the run starts from."""
        if self.warm_start:
            return jax.tree.map(jax.numpy.asarray, self.warm_start.params)
        secret = randomness.derive(self.root, "init", 0)
        return self.model.init(randomness.jax_key(secret))

    def initial_state(self) -> TrainState:
        """Return the state of a run before its first round."""
        return start(self.algorithm, self.initial_params(), self.account.head)

    def evaluate(self, params: Params) -> Scores:
        """Measure with a column for each held-out user; `together` gives what is shown."""
        return evaluate_each(self.model, params, self.held_out.texts, self.cut)

    def evaluate_general(self, params: Params) -> Scores | None:
        """Measure how well the model knows the general language, where the recipe has a text."""
        if self.general_test is None:
            return None
        return evaluate_each(self.model, params, self.general_test.documents, self.cut).together

    def describe_model(self, round: int, ledger_head: str) -> ModelCard:
        """Make the card of the model after this number of rounds, at this row of the ledger."""
        sources: list[str] = []
        if self.warm_start:
            sources += self.warm_start.card.public_sources
        if self.general:
            sources.append(self.general.source)
        sources += [observer.source for observer in self.observers]
        architecture = self.recipe.model.model_dump(mode="json", exclude={"warm_start"})
        return ModelCard(
            architecture=architecture,
            vocabulary=self.vocabulary.words,
            text=self.vocabulary.about,
            run=self.account.terms.name,
            ledger_head=ledger_head,
            round=round,
            # Each source is named once, in the order in which they came.
            public_sources=tuple(dict.fromkeys(sources)),
            sentences=self.recipe.data.layout == "sentences",
        )


def unit_of(population: Population, person: str = "one user") -> str:
    """Say whom the guarantee protects."""
    simulated = population.manifest["about"].get("simulated")
    return f"{SIMULATED_USER} ({simulated})" if simulated else person
