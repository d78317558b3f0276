"""What a finished run reveals: how well audit users can be told apart, beside the claim, and what
its model knows of planted secrets.
"""

import math
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taciturn.audit import audit_users, canaries
from taciturn.audit.audit_users import AuditScores
from taciturn.audit.canaries import Canary, load_canaries
from taciturn.audit.matched_filter import filters, noise_rows
from taciturn.audit.one_run import Audit, audit_scores
from taciturn.audit.secret_sharer import Finding, measure
from taciturn.core import WordModel
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.evaluation.accuracy import Scores
from taciturn.privacy.accounting.conversions import gaussian_epsilon
from taciturn.privacy.ledger.ledger import Guarantee
from taciturn.privacy.noise.sensitivity import segments
from taciturn.progress import Progress
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe


class CanaryResults(NamedTuple):
    """What the model memorised of each planted canary."""

    findings: list[Finding]
    # how often the training saw each, in expectation; local epochs not counted
    seen: dict[Canary, float]

    def kinds(self) -> list[tuple[int, int, list[Finding]]]:
        """Group by (n_u, n_e), as in Ramaswamy et al. 2020, Table 4; the best remembered first."""
        ranked = sorted(
            self.findings, key=lambda one: (one.canary.users, one.canary.copies, one.rank)
        )
        return [
            (*kind, list(some))
            for kind, some in groupby(ranked, lambda one: (one.canary.users, one.canary.copies))
        ]


class MembershipResults(NamedTuple):
    """How well audit users who took part can be told from those who did not, beside the claim."""

    audit: Audit
    delta: float
    # of one user, at most
    turns: int
    # the μ of the run's claim about every person, where it is one of μ-GDP
    whole: float | None
    # claimed, of each user
    mu: np.ndarray
    included: np.ndarray

    def epsilon(self, times: float = 1.0) -> float:
        """Return ε of the user with the most turns, were the noise `times` times smaller than
        claimed.
        """
        return gaussian_epsilon(times * self.audit.mu, self.delta) if times > 0 else 0.0


def rows_of_noise(recipe: Recipe) -> np.ndarray:
    """Work out the rows by definition (audit/matched_filter.py), not by the code that draws the
    noise.
    """
    return noise_rows(
        recipe.noise, segments(recipe.most_releases, recipe.restart_rounds), recipe.privacy.strategy
    )


def canary_results(
    folder: Path,
    model: WordModel,
    vocabulary: Vocabulary,
    releases: int,
    references: int,
    progress: Progress,
) -> CanaryResults | None:
    """Look for a run's canaries, if it has any, in its model after this many releases."""
    if not (path := folder / canaries.FILE_NAME).exists():
        return None
    seen = load_canaries(path, vocabulary)
    findings = measure(model, vocabulary, list(seen), references, progress=progress)
    return CanaryResults(findings, {canary: often * releases for canary, often in seen.items()})


def membership_results(folder: Path, recipe: Recipe) -> MembershipResults | None:
    """Score a run's audit users, if it has any, by the best attack on all that it released."""
    if not (folder / audit_users.FILE_NAME).exists():
        return None
    seen, multiplier = AuditScores(folder), recipe.privacy.noise_multiplier
    # worked out before the run began
    assert multiplier
    turns = np.stack([np.isin(seen.rounds, pattern) for pattern in seen.patterns], axis=1).astype(
        float
    )
    by_pattern, apart = filters(
        rows_of_noise(recipe)[seen.rows], turns, multiplier, seen.bystanders
    )
    pattern = np.arange(len(seen.included)) % len(seen.patterns)
    scores = np.einsum("ri,ri->i", by_pattern[:, pattern], seen.products)
    # a run that ended early never reached the turns of the others
    came = apart[pattern] > 0
    mu, included = apart[pattern][came], seen.included[came]
    try:
        found = audit_scores(scores[came], mu, included)
    except ValueError as error:
        raise DataError(f"{folder} cannot be audited: {error}") from None
    participation, whole = build.participation(recipe), None
    if participation.limits and not participation.sampled_by_curator:
        squared = build.noise(recipe, multiplier).strategy.sensitivity_squared(
            len(seen.rows), *participation.limits
        )
        whole = math.sqrt(squared) / multiplier
    return MembershipResults(found, recipe.delta, max(map(len, seen.patterns)), whole, mu, included)


class AuditResults(NamedTuple):
    """All that can be said about a run from outside."""

    guarantee: Guarantee
    # on held-out users: a model that learned nothing remembers nothing
    scores: Scores
    canaries: CanaryResults | None
    membership: MembershipResults | None


def rank_text(rank: int) -> str:
    """Print a rank as the paper does.

    >>> [rank_text(rank) for rank in (1, 762, 1_640, 41_200, 1_551_000)]
    ['1', '762', '1.6k', '41k', '1.55M']
    """
    if rank < 1_000_000:
        return str(rank) if rank < 1000 else f"{rank / 1000:.{1 if rank < 10_000 else 0}f}k"
    return f"{rank / 1e6:.{2 if math.floor(rank / 1e4) % 100 else 1}f}M"
