"""Say what a finished run reveals, seen from outside.

Audit users show how well people could be told apart, beside the claim; planted secrets show what
the model remembers.
"""

import math
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taciturn.audit import audit_users, canaries, first_estimates, repeated_noise
from taciturn.audit.audit_users import AuditScores
from taciturn.audit.canaries import load_canaries
from taciturn.audit.first_estimates import load_first_estimates
from taciturn.audit.matched_filter import best_filters, noise_rows
from taciturn.audit.one_run import LIKELY, Audit, audit_scores, count_needed_users
from taciturn.audit.repeated_noise import Distance, NoiseAudit, audit_noise
from taciturn.audit.secret_sharer import measure
from taciturn.core import WordModel
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.evaluation.intervals import Interval
from taciturn.privacy.accounting.conversions import gaussian_epsilon
from taciturn.privacy.accounting.rounding_up import epsilon_text
from taciturn.privacy.noise.sensitivity import segments
from taciturn.progress import Progress
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe

# An audit says how many users it takes to catch noise that is this many times too small.
WORTH_CATCHING = 1.5


@dataclass(frozen=True, kw_only=True)
class CanaryFinding:
    """What the model memorised of one planted canary."""

    # n_u and n_e of Ramaswamy et al. 2020.
    users: int
    copies: int
    # Among the references, by random sampling; 1 where none is as likely as the canary.
    rank: int
    references: int
    # In bits.
    exposure: float
    # How often the training saw it, in expectation; local epochs are not counted.
    seen: float
    # Among the continuations that beam search found, from 1; None if absent.
    place: int | None

    def to_json(self) -> dict[str, Any]:
        return {
            "users": self.users,
            "copies": self.copies,
            "rank": self.rank,
            "references": self.references,
            "exposure": self.exposure,
            "seen": self.seen,
            "beam_search": self.place,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "CanaryFinding":
        place = content["beam_search"]
        return cls(
            users=content["users"],
            copies=content["copies"],
            rank=content["rank"],
            references=content["references"],
            exposure=content["exposure"],
            seen=content["seen"],
            # What was null is read as NaN.
            place=place if isinstance(place, int) else None,
        )


class CanaryKind(NamedTuple):
    """Canaries with the same numbers of users and of copies, the best remembered first."""

    users: int
    copies: int
    findings: list[CanaryFinding]


@dataclass(frozen=True)
class CanaryResults:
    """What the model memorised of all planted canaries."""

    findings: list[CanaryFinding]

    def to_json(self) -> list[dict[str, Any]]:
        return [finding.to_json() for finding in self.findings]

    @classmethod
    def from_json(cls, content: list[dict[str, Any]]) -> "CanaryResults":
        return cls([CanaryFinding.from_json(finding) for finding in content])

    def kinds(self) -> list[CanaryKind]:
        """Group by (n_u, n_e), as in Ramaswamy et al. 2020, Table 4."""
        ranked = sorted(self.findings, key=lambda finding: (*_kind_of(finding), finding.rank))
        kinds = []
        for (users, copies), findings in groupby(ranked, _kind_of):
            kinds.append(CanaryKind(users, copies, list(findings)))
        return kinds


def _kind_of(finding: CanaryFinding) -> tuple[int, int]:
    return finding.users, finding.copies


@dataclass(frozen=True, kw_only=True)
class MembershipResults:
    """How well audit users who took part can be told from those who did not, beside the claim."""

    audit: Audit
    delta: float
    # Of one user, at most.
    turns: int
    # ε of the user with the most turns: as claimed, as found, and at least.
    claimed_epsilon: float
    epsilon: float
    epsilon_at_least: float
    # The μ of the run's claim about every person, where it is one of μ-GDP.
    whole: float | None
    # What the first estimates say; older versions kept none.
    noise: NoiseAudit | None = None

    @property
    def is_refuted(self) -> bool:
        """Tell whether the claim cannot be true, by the audit users or by the noise itself."""
        return self.audit.is_refuted or (self.noise is not None and self.noise.is_refuted)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return μ and ε in words: as claimed, as found, and at least.

        What is claimed is rounded up, and what is certain is rounded down.
        """
        audit = self.audit
        return [
            ("claimed", round_up(audit.mu), epsilon_text(self.claimed_epsilon)),
            ("found", _nearest(audit.times * audit.mu), _nearest(self.epsilon)),
            (
                "found, at least (99.9 % confidence)",
                round_down(audit.times_at_least * audit.mu),
                round_down(self.epsilon_at_least),
            ),
        ]

    def verdict(self) -> str:
        """Say whether the claim can be true."""
        accusations = []
        if self.audit.is_refuted:
            accusations.append(_describe_refutation(self.audit))
        if self.noise:
            accusations += _describe_bad_noise(self.noise)
        if accusations:
            return f"BROKEN: {'; '.join(accusations)}. Trust no model of this run."
        return "Nothing contradicts the claim. That proves nothing about what an audit cannot see."

    def power(self) -> list[str]:
        """Say what this audit could have noticed, in sentences."""
        sentences = [_describe_power(self.audit)]
        if self.whole is not None:
            share = math.floor(100 * min(1.0, self.audit.mu / self.whole))
            sentences.append(
                f"These turns test {share} % of the μ that is claimed for a person's whole part in"
                " the run."
            )
        if self.noise is None:
            sentences.append(
                "It kept no estimates, as an older version trained it: noise that is repeated"
                " within a round was not looked for."
            )
        else:
            sentences.append(_describe_power_over_noise(self.noise))
        return sentences

    def to_json(self) -> dict[str, Any]:
        likely = [str(probability) for probability in LIKELY]
        content = {
            "delta": self.delta,
            "turns": self.turns,
            "claimed_epsilon": self.claimed_epsilon,
            "epsilon": self.epsilon,
            "epsilon_at_least": self.epsilon_at_least,
            "mu_of_the_whole_claim": self.whole,
            "refuted": self.is_refuted,
            "included": self.audit.included,
            "left_out": self.audit.left_out,
            "mu": self.audit.mu,
            "times": self.audit.times,
            "times_at_least": self.audit.times_at_least,
            "signal": self.audit.signal,
            "spread": self.audit.spread,
            "caught": dict(zip(likely, self.audit.caught, strict=True)),
        }
        if self.noise:
            content["noise"] = _noise_to_json(self.noise)
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "MembershipResults":
        audit = Audit(
            included=content["included"],
            left_out=content["left_out"],
            mu=content["mu"],
            times=content["times"],
            times_at_least=content["times_at_least"],
            signal=content["signal"],
            spread=content["spread"],
            caught=tuple(content["caught"].values()),
        )
        whole = content["mu_of_the_whole_claim"]
        return cls(
            audit=audit,
            delta=content["delta"],
            turns=content["turns"],
            claimed_epsilon=content["claimed_epsilon"],
            epsilon=content["epsilon"],
            epsilon_at_least=content["epsilon_at_least"],
            # What was null is read as NaN.
            whole=None if math.isnan(whole) else whole,
            noise=_noise_from_json(content["noise"]) if "noise" in content else None,
        )


def round_up(value: float) -> str:
    """Write a number that is not to be flattered, with two digits after the point.

    >>> round_up(1.231), round_down(1.239)
    ('1.24', '1.23')
    """
    return f"{math.ceil(100 * value) / 100:.2f}" if math.isfinite(value) else "∞"


def round_down(value: float) -> str:
    """Write a lower bound, with two digits after the point."""
    return f"{math.floor(100 * value) / 100:.2f}" if math.isfinite(value) else "∞"


def _nearest(value: float) -> str:
    return f"{value:.2f}"


def _describe_refutation(audit: Audit) -> str:
    return (
        f"there is at least {round_down(audit.times_at_least)} times less noise than is claimed, or"
        f" reports are as much longer (found: noise {audit.spread:.2f} and reports"
        f" {audit.signal:.2f} times what is claimed)"
    )


def _describe_bad_noise(noise: NoiseAudit) -> list[str]:
    words = []
    if noise.repeated:
        words.append(_describe_repeated(noise))
    if noise.times_at_least > 1:
        words.append(
            f"all noise of the first rounds is at least {round_down(noise.times_at_least)} times"
            " smaller than is claimed"
        )
    if noise.quiet:
        words.append(
            f"{noise.quiet:,} of {noise.parameters:,} parameters have less noise than is claimed"
        )
    return words


def _describe_repeated(noise: NoiseAudit) -> str:
    assert noise.distance
    how = "subtracts" if noise.distance.sign > 0 else "adds"
    return (
        f"of {noise.parameters:,} parameters, {noise.repeated:,} share their noise with others,"
        f" mostly {noise.distance.between:,} places apart, and who {how} these is rid of it"
    )


def _describe_power(audit: Audit) -> str:
    caught = []
    for likely, factor in zip(LIKELY, audit.caught, strict=True):
        if math.isfinite(factor):
            caught.append(f"{round_up(factor)} times too small with a probability of {likely:.0%}")
    if not caught:
        words = "Its users would not have caught noise that is missing altogether."
    else:
        words = f"Its users would have caught noise that is {', '.join(caught)}."
    if audit.caught[0] <= WORTH_CATCHING:
        return words
    needed = count_needed_users(audit, times=WORTH_CATCHING, likely=LIKELY[0])
    if needed is None:
        return f"{words} No number of them would catch noise {WORTH_CATCHING} times too small."
    return (
        f"{words} It takes {needed:,} users to catch noise {WORTH_CATCHING} times too small with a"
        f" probability of {LIKELY[0]:.0%}."
    )


def _describe_power_over_noise(noise: NoiseAudit) -> str:
    smaller = "would not have shown noise that is missing altogether"
    if math.isfinite(noise.caught):
        times = round_up(noise.caught)
        smaller = (
            f"would have shown noise that is {times} times too small with a probability of"
            f" {repeated_noise.LIKELY:.0%}"
        )
    share = math.floor(100 * noise.noticed)
    return (
        f"The estimates of the first {noise.rounds} rounds {smaller}. They would have shown noise"
        f" that repeats in the same order within a round in {share} % of the model: of two whole"
        f" layers, or of {noise.noticed_from:,} parameters in a row. They accuse one in a million"
        " sound mechanisms."
    )


def _noise_to_json(noise: NoiseAudit) -> dict[str, Any]:
    content = noise._asdict()
    content["refuted"] = noise.is_refuted
    if noise.distance:
        content["distance"] = noise.distance._asdict()
    return content


def _noise_from_json(content: dict[str, Any]) -> NoiseAudit:
    fields = {name: content[name] for name in NoiseAudit._fields}
    # What was null is read as NaN.
    is_repeated = isinstance(content["distance"], dict)
    fields["distance"] = Distance(**content["distance"]) if is_repeated else None
    return NoiseAudit(**fields)


@dataclass(frozen=True, kw_only=True)
class AuditResults:
    """All that can be said about a run from outside.

    Only this type knows the JSON of audit.json.
    """

    # The run's folder, as it was named.
    run: str
    # Claimed for every person.
    epsilon: float
    delta: float
    # On held-out users: a model that learned nothing remembers nothing. The file has no margin.
    accuracy_top1: Interval
    membership: MembershipResults | None
    canaries: CanaryResults | None

    def to_json(self) -> dict[str, Any]:
        """Return the content of audit.json, for `files.to_json`."""
        content: dict[str, Any] = {
            "run": self.run,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accuracy_top1": self.accuracy_top1.value,
        }
        if self.membership:
            content["audit"] = self.membership.to_json()
        if self.canaries:
            content["canaries"] = self.canaries.to_json()
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "AuditResults":
        """Return what audit.json holds, as `files.from_json` reads it."""
        membership = None
        if "audit" in content:
            membership = MembershipResults.from_json(content["audit"])
        canary_results = None
        if "canaries" in content:
            canary_results = CanaryResults.from_json(content["canaries"])
        return cls(
            run=content["run"],
            epsilon=content["epsilon"],
            delta=content["delta"],
            accuracy_top1=Interval(content["accuracy_top1"], math.nan),
            membership=membership,
            canaries=canary_results,
        )


def find_canaries(
    folder: Path,
    model: WordModel,
    vocabulary: Vocabulary,
    releases: int,
    references: int,
    progress: Progress,
) -> CanaryResults | None:
    """Look for a run's canaries, if it has any, in its model after this many releases."""
    path = folder / canaries.FILE_NAME
    if not path.exists():
        return None
    seen_a_round = load_canaries(path, vocabulary)
    measured = measure(
        model,
        vocabulary,
        canaries=list(seen_a_round),
        references=references,
        progress=progress,
    )
    findings = []
    for finding in measured:
        canary = finding.canary
        canary_finding = CanaryFinding(
            users=canary.users,
            copies=canary.copies,
            rank=finding.rank,
            references=finding.references,
            exposure=finding.exposure,
            seen=seen_a_round[canary] * releases,
            place=finding.place,
        )
        findings.append(canary_finding)
    return CanaryResults(findings)


class UserScores(NamedTuple):
    """Scores of the audit users whose turns came, in standard deviations of the claimed noise."""

    scores: np.ndarray
    # How far being in moves each of them, as claimed.
    mu: np.ndarray
    # Who was in.
    included: np.ndarray


def score_audit_users(recipe: Recipe, recorded: AuditScores) -> UserScores:
    """Score audit users by the best attack on all that a run released."""
    multiplier = recipe.privacy.noise_multiplier
    # It was worked out before the run began.
    assert multiplier
    turns = [np.isin(recorded.rounds, pattern) for pattern in recorded.patterns]
    filters = best_filters(
        noise=rows_of_noise(recipe)[recorded.rows],
        turns=np.stack(turns, axis=1).astype(float),
        multiplier=multiplier,
        bystanders=recorded.bystanders,
    )
    pattern_of_user = np.arange(len(recorded.included)) % len(recorded.patterns)
    weights = filters.weights[:, pattern_of_user]
    scores = np.einsum("ri,ri->i", weights, recorded.products)
    mu = filters.mu[pattern_of_user]
    # A run that ended early never reached the turns of the others.
    had_turns = mu > 0
    return UserScores(
        scores=scores[had_turns],
        mu=mu[had_turns],
        included=recorded.included[had_turns],
    )


def rows_of_noise(recipe: Recipe) -> np.ndarray:
    """Work out the rows by definition, not by the code that draws the noise.

    The definition is that of audit/matched_filter.py.
    """
    lengths = segments(recipe.most_releases, recipe.restart_rounds)
    return noise_rows(recipe.noise, lengths, recipe.privacy.strategy)


def audit_membership(folder: Path, recipe: Recipe) -> MembershipResults | None:
    """Test the claim of a run by its audit users, if it has any."""
    if not (folder / audit_users.FILE_NAME).exists():
        return None
    recorded = AuditScores(folder)
    users = score_audit_users(recipe, recorded)
    try:
        audit = audit_scores(
            scores=users.scores,
            mu=users.mu,
            included=users.included,
        )
    except ValueError as error:
        raise DataError(f"{folder} cannot be audited: {error}") from None
    delta = recipe.delta
    most_turns = max(len(pattern) for pattern in recorded.patterns)
    mu_at_least = audit.times_at_least * audit.mu
    return MembershipResults(
        audit=audit,
        delta=delta,
        turns=most_turns,
        claimed_epsilon=_epsilon(audit.mu, delta),
        epsilon=_epsilon(audit.times * audit.mu, delta),
        epsilon_at_least=_epsilon(mu_at_least, delta),
        whole=_claimed_mu(recipe, len(recorded.rows)),
        noise=_audit_noise(folder, recipe, recorded),
    )


def _audit_noise(folder: Path, recipe: Recipe, recorded: AuditScores) -> NoiseAudit | None:
    """Audit the noise of the first rounds, if the run kept their estimates.

    Args:
        folder: the run's.
        recipe: of the run.
        recorded: of the same rounds; it names their rows of noise.
    """
    try:
        kept = load_first_estimates(folder)
    except (OSError, EOFError, ValueError, TypeError):
        raise DataError(
            f"the files {first_estimates.LAYERS} and {first_estimates.FILE_NAME} of {folder} are"
            " damaged"
        ) from None
    if kept is None:
        return None
    both = min(len(kept.rows), len(recorded.rounds))
    # A crash may have come between the files, and then one has more rounds than the other.
    are_first = recorded.rounds[:both] == np.arange(both)
    rows = recorded.rows[:both][are_first]
    if not len(rows):
        return None
    return audit_noise(
        estimates=kept.rows[: len(rows)],
        noise=rows_of_noise(recipe)[rows],
        layers=kept.layers,
        is_kept=kept.is_kept,
    )


def _epsilon(mu: float, delta: float) -> float:
    return gaussian_epsilon(mu, delta) if mu > 0 else 0.0


def _claimed_mu(recipe: Recipe, rows: int) -> float | None:
    """Return the μ claimed for a person over this number of rows, where the claim is of μ-GDP."""
    multiplier = recipe.privacy.noise_multiplier
    participation = build.participation(recipe)
    if not multiplier or not participation.limits:
        return None
    if participation.sampled_by_curator:
        return None
    min_separation, max_participations = participation.limits
    strategy = build.noise(recipe, multiplier).strategy
    squared = strategy.sensitivity_squared(
        rows,
        min_separation,
        max_participations,
    )
    return math.sqrt(squared) / multiplier


def rank_text(rank: int) -> str:
    """Print a rank as the paper does.

    >>> [rank_text(rank) for rank in (1, 762, 1_640, 41_200, 1_551_000)]
    ['1', '762', '1.6k', '41k', '1.55M']
    """
    if rank < 1000:
        return str(rank)
    if rank < 1_000_000:
        digits = 1 if rank < 10_000 else 0
        return f"{rank / 1000:.{digits}f}k"
    digits = 2 if math.floor(rank / 1e4) % 100 else 1
    return f"{rank / 1e6:.{digits}f}M"
