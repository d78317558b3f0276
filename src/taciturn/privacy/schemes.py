"""Every participation scheme, in one table: how it is built, and what the rest must know of it.

A scheme is what a recipe names as `participation.kind`. Its object, with the claim it makes, is in
privacy/participation.py; what it goes with in a recipe follows from its row here
(recipe/rules.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

from taciturn.core import Participation
from taciturn.names import NoiseName, SchemeName
from taciturn.privacy.noise.registry import LEAST_ERROR, UNCORRELATED
from taciturn.privacy.participation import CyclicPoisson, FixedSize, MinSeparation, PoissonSampling


@dataclass(frozen=True, kw_only=True)
class SchemeSettings:
    """What schemes are built from; each takes what it needs."""

    # m, expected or exact.
    cohort: float
    # As publicly stated.
    users: int
    rounds: int
    # Rounds from one turn of a user to the next, where users take turns; else 1.
    cycle: int
    # Of taking part in a round, or in the user's turn.
    probability: float
    # MinS and MaxP, where they are claimed.
    min_separation: int
    max_participations: int
    # Devices asked for each report that is needed.
    over_selection: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What the rest of Taciturn must know of a scheme."""

    build: Callable[[SchemeSettings], Participation]
    # Whether the curator draws cohorts, and the cost counts on it. Else the claim is how often a
    # user takes part, and devices may come on their own.
    claims_sampling: bool
    # Whether the cost is that of all rounds together, so that their noise may be correlated.
    allows_correlation: bool
    # Whether the size of a cohort is drawn too; else it is exact.
    varies_in_size: bool
    # Whether users take turns, every `privacy.bands` rounds.
    takes_turns: bool = False
    # Whether there must be as many users as are stated, or the cost would be understated.
    needs_all_users: bool = False
    # Whether cohorts are smaller than stated, in proportion, where there are fewer users.
    shrinks_with_users: bool = False
    # The noise of dp-ftrl, where a recipe names none.
    default_noise: NoiseName = LEAST_ERROR
    # Its own row in a plan, if any: the title, and the noise that the row is about.
    plan_title: str | None = None
    plan_noise: NoiseName = UNCORRELATED
    # What it is, where it only serves to reproduce papers.
    for_papers: str | None = None


def _poisson(settings: SchemeSettings) -> Participation:
    return PoissonSampling(settings.probability)


def _fixed_size(settings: SchemeSettings) -> Participation:
    return FixedSize(int(settings.cohort), settings.users)


def _min_separation(settings: SchemeSettings) -> Participation:
    return MinSeparation(
        size=int(settings.cohort),
        min_separation=settings.min_separation,
        max_participations=settings.max_participations,
        rounds=settings.rounds,
        over_selection=settings.over_selection,
    )


def _cyclic_poisson(settings: SchemeSettings) -> Participation:
    return CyclicPoisson(
        probability=settings.probability, cycle=settings.cycle, rounds=settings.rounds
    )


# In the order of `names.SchemeName`.
SCHEMES: dict[SchemeName, Scheme] = {
    "poisson": Scheme(
        build=_poisson,
        claims_sampling=True,
        allows_correlation=False,
        varies_in_size=True,
        shrinks_with_users=True,
        plan_title="poisson (dp-fedavg)",
    ),
    "fixed": Scheme(
        build=_fixed_size,
        claims_sampling=True,
        allows_correlation=False,
        varies_in_size=False,
        needs_all_users=True,
        for_papers="cohorts of one size, drawn without replacement",
    ),
    "min-separation": Scheme(
        build=_min_separation,
        claims_sampling=False,
        allows_correlation=True,
        varies_in_size=False,
    ),
    "cyclic-poisson": Scheme(
        build=_cyclic_poisson,
        claims_sampling=True,
        allows_correlation=True,
        varies_in_size=True,
        takes_turns=True,
        default_noise="banded",
        plan_title="cyclic-poisson",
        plan_noise="banded",
    ),
}
# The scheme of a plan's rows that are named after a noise.
UNSAMPLED = SCHEMES["min-separation"]


def schemes_with(condition: Callable[[Scheme], bool]) -> tuple[SchemeName, ...]:
    """Return the names of the schemes that meet a condition."""
    return tuple(name for name, scheme in SCHEMES.items() if condition(scheme))
