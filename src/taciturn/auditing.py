"""What a finished run gives away: secrets that were planted in it, looked for in its model, and a lower bound on ε from its audit users.
The ledger's word stands beside both."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from taciturn import audit_users, build, planting
from taciturn.audit_users import ALL_MODELS, Scored, load_scores
from taciturn.data.population import HeldOutUsers
from taciturn.evaluation.accuracy import Scores, evaluate
from taciturn.evaluation.canaries import Canary, load_canaries
from taciturn.evaluation.one_run import Audit, audited, curve
from taciturn.evaluation.secret_sharer import REFERENCES, Finding, measure
from taciturn.loading import guarantee_of, load_word_model
from taciturn.privacy.ledger import Guarantee
from taciturn.run_folder import RunError, recipe_of

Progress = Callable[[int, int], None]


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
    """Of audit users: what each attack found out about who was in."""

    scored: Scored
    audits: dict[str, Audit]  # by attack

    @property
    def claimed(self) -> float:
        """ε for a user who takes part as these did."""
        return self.scored.claim.epsilon(self.scored.delta)

    @property
    def bound(self) -> float:
        """The one figure that is compared with it. Whoever sees all models sees the most; and as Gaussian noise is claimed, the bound may
        assume that shape."""
        return self.audits[ALL_MODELS].epsilon_fdp

    @property
    def curves(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Of each attack: false and true positives."""
        return {name: curve(values, self.scored.included) for name, values in self.scored.scores.items()}

    @property
    def breaks_the_claim(self) -> bool:
        return self.bound > self.claimed


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
            f"nothing was put into {folder} to audit it by: train with --audit 1000 (users of random words), or with [canaries] text = a "
            "folder of public text (shared secrets), and look then"
        )
    loaded, recipe = load_word_model(folder), recipe_of(folder)
    guarantee = guarantee_of(loaded)
    network = build.language_model(recipe.model, len(loaded.vocabulary))
    people = HeldOutUsers(build.population(recipe).folder)
    people.check_enough()
    scores = evaluate(network, loaded.params, people.texts, build.evaluation_cut(recipe, loaded.vocabulary))
    remembered = attacked = None
    if has_users:
        scored = load_scores(folder)
        try:
            audits = {name: audited(values, scored.included, scored.delta) for name, values in scored.scores.items()}
        except ValueError as error:
            raise RunError(f"{folder} cannot be audited: {error}") from None
        attacked = Attacked(scored, audits)
    if has_canaries:
        seen = load_canaries(folder / planting.FILE_NAME, loaded.vocabulary)
        findings = measure(loaded.model, loaded.vocabulary, list(seen), references, progress=progress)
        in_all = {canary: often * guarantee.releases for canary, often in seen.items()}
        remembered = Remembered(findings, in_all)
    return Page(guarantee, scores, remembered, attacked)


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
