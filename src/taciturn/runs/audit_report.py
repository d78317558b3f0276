"""What a finished run gives away: whether its audit users are told apart better than is claimed, and secrets that were planted in it,
looked for in its model. The ledger's word stands beside both."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from taciturn.audit import audit_users, planting
from taciturn.audit.audit_users import Seen
from taciturn.audit.canaries import Canary, load_canaries
from taciturn.audit.matched_filter import as_columns, filters, noise_rows
from taciturn.audit.one_run import Audit, audited
from taciturn.audit.secret_sharer import REFERENCES, Finding, measure
from taciturn.data.population import HeldOutUsers
from taciturn.evaluation.accuracy import Scores, evaluate
from taciturn.export.word_model import load_word_model
from taciturn.privacy.accounting import gaussian_epsilon
from taciturn.privacy.ledger import Guarantee
from taciturn.privacy.sensitivity import segments
from taciturn.progress import Progress
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.runs.finished import guarantee_of
from taciturn.runs.folder import RunError, recipe_of


@dataclass(frozen=True)
class Remembered:
    """Of canaries."""

    findings: list[Finding]
    seen: dict[Canary, float]  # how often the training met each, as was to be expected; local epochs not counted

    def kinds(self) -> list[tuple[int, int, list[Finding]]]:
        """By (n_u, n_e), as in Ramaswamy et al. 2020, Table 4; the best remembered first."""
        kinds = sorted({(one.canary.users, one.canary.copies) for one in self.findings})
        return [(users, copies, self._of(users, copies)) for users, copies in kinds]

    def _of(self, users: int, copies: int) -> list[Finding]:
        mine = (one for one in self.findings if (one.canary.users, one.canary.copies) == (users, copies))
        return sorted(mine, key=lambda one: one.rank)


@dataclass(frozen=True)
class Attacked:
    """Of audit users: whether they can be told apart better than is claimed."""

    audit: Audit
    delta: float
    turns: int  # of one user, at most
    whole: float | None  # the μ of the run's claim about every person, where it is one of μ-GDP
    scores: np.ndarray
    mu: np.ndarray  # claimed, of each user
    included: np.ndarray

    def epsilon(self, times: float = 1.0) -> float:
        """Of the user with the most turns, if noise were so many times smaller than is claimed."""
        return gaussian_epsilon(times * self.audit.mu, self.delta) if times > 0 else 0.0


def rows_of_noise(recipe: Recipe) -> np.ndarray:
    """As its definition has them (audit/matched_filter.py), and not the code that draws it."""
    lengths = segments(build.rows(recipe), recipe.restart_rounds)
    return noise_rows(recipe.noise, lengths, recipe.privacy.strategy)


def attacked(folder: Path, recipe: Recipe) -> Attacked:
    """The scores of a run's audit users, by the best attack on all that it released."""
    seen, multiplier = Seen(folder), recipe.privacy.noise_multiplier
    assert multiplier  # worked out before the run began
    turns = as_columns(recipe.run.rounds, seen.patterns)[seen.rounds]
    by_pattern, apart = filters(rows_of_noise(recipe)[seen.rows], turns, multiplier, seen.bystanders)
    pattern = np.arange(len(seen.included)) % len(seen.patterns)
    scores = np.einsum("ri,ri->i", by_pattern[:, pattern], seen.products)
    came = apart[pattern] > 0  # a run that ended early never came to the turns of the others
    scores, mu, included = scores[came], apart[pattern][came], seen.included[came]
    try:
        found = audited(scores, mu, included)
    except ValueError as error:
        raise RunError(f"{folder} cannot be audited: {error}") from None
    participation, whole = build.participation(recipe), None
    if participation.limits and not participation.sampled_by_curator:
        squared = build.noise(recipe, multiplier).strategy.sensitivity_squared(len(seen.rows), *participation.limits)
        whole = math.sqrt(squared) / multiplier
    return Attacked(found, recipe.delta, max(map(len, seen.patterns)), whole, scores, mu, included)


@dataclass(frozen=True)
class Page:
    guarantee: Guarantee
    scores: Scores  # on held-out users: a model that learned nothing remembers nothing
    remembered: Remembered | None
    attacked: Attacked | None


def page(folder: Path, references: int = REFERENCES, progress: Progress = lambda done, all: None) -> Page:
    """All that can be said about a run; a RunError if it was trained with nothing to audit it by."""
    has_canaries, has_users = (folder / planting.FILE_NAME).exists(), (folder / audit_users.FILE_NAME).exists()
    if not has_canaries and not has_users:
        raise RunError(
            f"nothing was put into {folder} to audit it by: train with --audit 1000 (users of random directions), or with [canaries] "
            "text = a folder of public text (shared secrets), and look then"
        )
    loaded, recipe = load_word_model(folder), recipe_of(folder)
    guarantee = guarantee_of(loaded)
    network = build.language_model(recipe.model, len(loaded.vocabulary))
    people = HeldOutUsers(build.population(recipe).folder)
    people.check_enough()
    scores = evaluate(network, loaded.params, people.texts, build.evaluation_cut(recipe, loaded.vocabulary))
    remembered = None
    if has_canaries:
        seen = load_canaries(folder / planting.FILE_NAME, loaded.vocabulary)
        findings = measure(loaded.model, loaded.vocabulary, list(seen), references, progress=progress)
        in_all = {canary: often * guarantee.releases for canary, often in seen.items()}
        remembered = Remembered(findings, in_all)
    return Page(guarantee, scores, remembered, attacked(folder, recipe) if has_users else None)


def rank_text(rank: int) -> str:
    """As the paper prints it.

    >>> [rank_text(rank) for rank in (1, 762, 1_640, 41_200, 1_551_000)]
    ['1', '762', '1.6k', '41k', '1.55M']
    """
    if rank < 1000:
        return str(rank)
    if rank < 1_000_000:
        return f"{rank / 1000:.{1 if rank < 10_000 else 0}f}k"
    return f"{rank / 1e6:.{2 if math.floor(rank / 1e4) % 100 else 1}f}M"
