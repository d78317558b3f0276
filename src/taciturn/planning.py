"""What a guarantee would take before anything is trained: the questions of Xu et al. 2023, §2.5,
answered from the accounting alone.

Nothing here touches users: a plan is made of public constants. Its error is that of the noise in
the model, the sum of the noise of all rounds so far, as a root mean square over rounds and in units
of the clip norm, for a server with learning rate 1.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import get_args

import numpy as np

from taciturn.core import Participation, Strategy
from taciturn.errors import TaciturnError
from taciturn.fleets.simulation.availability import Devices, Habits, Rounds, simulate_rounds
from taciturn.names import AccountantName, MechanismName
from taciturn.privacy.accounting.accountant import Budget, epsilon, noise_for_budget
from taciturn.privacy.accounting.events import repeat
from taciturn.privacy.accounting.zero_concentrated import rho
from taciturn.privacy.noise.sensitivity import (
    blt_coefficients,
    independent,
    most_participations,
    toeplitz,
    tree,
)
from taciturn.privacy.noise.strategies import optimal_bands, optimal_blt
from taciturn.privacy.participation import (
    CyclicPoisson,
    MinSeparation,
    PoissonSampling,
    default_delta,
)
from taciturn.progress import Progress, StageProgress, ignore_progress

MECHANISMS: tuple[MechanismName, ...] = get_args(MechanismName)
BANDS = 32
# hours; a fleet whose devices rest for longer takes months
LONGEST_TIMER = 14 * 24
# with fewer no δ makes sense: even 1/N² is a real chance of failure
LEAST_POPULATION = 10
SIMULATED_DEVICES, LEAST_GOAL = 20_000, 20


class PlanError(TaciturnError):
    """A plan that cannot be met, and why."""


@dataclass(frozen=True, kw_only=True)
class Question:
    population: int
    rounds: int
    report_goal: int
    delta: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    rho: float | None = None
    min_separation: int | None = None
    max_participations: int | None = None
    accountant: AccountantName = "pld"

    def __post_init__(self) -> None:
        if self.population < LEAST_POPULATION:
            fails = (
                "even at δ = 1/N² it would fail for someone with a probability of"
                f" {1 / max(self.population, 1):.2g}"
            )
            raise PlanError(
                f"{self.population} users are too few for a guarantee: {fails}. Plan for"
                f" {LEAST_POPULATION} or more"
            )
        if not 0 < self.report_goal <= self.population:
            raise PlanError(
                f"a report goal of {self.report_goal} cannot be met by {self.population} users:"
                " lower --report-goal"
            )
        if self.rounds < 1:
            raise PlanError("a run has at least one round: raise --rounds")
        if sum(one is not None for one in (self.noise_multiplier, self.epsilon, self.rho)) != 1:
            raise PlanError(
                "give exactly one of --noise-multiplier, --epsilon and --rho; the others follow"
                " from it"
            )
        given = self.noise_multiplier or self.epsilon or self.rho
        if given is None or not 0 < given < math.inf:
            raise PlanError(
                "--noise-multiplier, --epsilon and --rho must be positive and finite: give another"
                " number"
            )
        if self.delta is not None and not 0 < self.delta < 1 / self.population:
            raise PlanError(
                f"--delta must be below one over the number of users, {1 / self.population:.1g},"
                f" not {self.delta:g}: lower it"
            )
        if (
            self.min_separation is not None
            and not 0 <= self.min_separation <= self.possible_separation
        ):
            rest = (
                f"a user cannot rest {self.min_separation} rounds: lower --min-separation to"
                f" {self.possible_separation}"
            )
            raise PlanError(
                f"with {self.population:,} users and {self.report_goal:,} a round, {rest}"
            )

    @property
    def at_delta(self) -> float:
        return self.delta or default_delta(self.population)

    @property
    def possible_separation(self) -> int:
        """Return ⌊N/m⌋ − 1: the rest of users who all take turns."""
        return self.population // self.report_goal - 1

    @property
    def separation(self) -> int:
        return self.possible_separation if self.min_separation is None else self.min_separation

    @property
    def participations(self) -> int:
        possible = most_participations(self.rounds, self.separation)
        return (
            possible if self.max_participations is None else min(possible, self.max_participations)
        )


@dataclass(frozen=True)
class Answer:
    mechanism: MechanismName
    noise_multiplier: float
    rho: float
    epsilon: float
    # of the sum of all updates so far, in clip norms
    error: float
    # of the strategy under the claim; 1 where a curator samples, and each round or turn counts by
    # itself
    sensitivity_squared: float


def plan(question: Question, mechanism: MechanismName) -> Answer:
    strategy, participation = _noise_and_turns(question, mechanism)
    multiplier = question.noise_multiplier or _noise(question, strategy, participation)
    cost = repeat(participation.event(multiplier, strategy), question.rounds)
    error = (
        multiplier
        * math.sqrt(float(np.mean(strategy.prefix_variance(question.rounds))))
        / question.report_goal
    )
    limits = question.rounds, question.separation, question.participations
    squared = 1.0 if participation.sampled_by_curator else strategy.sensitivity_squared(*limits)
    return Answer(
        mechanism,
        multiplier,
        rho(cost),
        epsilon(cost, question.at_delta, question.accountant),
        error,
        squared,
    )


def _noise(question: Question, strategy: Strategy, participation: Participation) -> float:
    # ρ falls with the square of z
    if question.rho is not None:
        return math.sqrt(
            rho(repeat(participation.event(1.0, strategy), question.rounds)) / question.rho
        )
    budget = Budget(delta=question.at_delta, epsilon=question.epsilon)
    try:
        return noise_for_budget(
            lambda z: repeat(participation.event(z, strategy), question.rounds),
            budget,
            question.accountant,
        )
    except ValueError as error:
        raise PlanError(str(error)) from None


def _noise_and_turns(
    question: Question, mechanism: MechanismName
) -> tuple[Strategy, Participation]:
    rounds, share = question.rounds, question.report_goal / question.population
    # at most the rounds between two turns of a user
    bands = min(BANDS, rounds, question.separation + 1)
    turns = MinSeparation(
        question.report_goal, question.separation, question.participations, rounds
    )
    match mechanism:
        case "poisson":
            return independent(rounds), PoissonSampling(share)
        case "independent":
            return independent(rounds), turns
        case "tree" | "honaker":
            return tree(rounds, honaker=mechanism == "honaker"), turns
        case "banded" | "cyclic-poisson":
            coefficients = np.pad(optimal_bands(rounds, bands)["bands"], (0, rounds - bands))
            drawn = turns if mechanism == "banded" else CyclicPoisson(share * bands, bands, rounds)
            return toeplitz(f"{bands}-banded Toeplitz", coefficients), drawn
        case "blt":
            found = optimal_blt(rounds, question.separation, question.participations)
            return (
                toeplitz(
                    "BLT", blt_coefficients(tuple(found["decay"]), tuple(found["scale"]), rounds)
                ),
                turns,
            )


def simulated_timer(
    population: int,
    rounds: int,
    report_goal: int,
    timer_hours: float,
    progress: Progress = ignore_progress,
) -> Rounds:
    """Return what a timer on every device amounts to, simulated on a smaller fleet with the same
    share of devices in a round.
    """
    if not timer_hours > 0:
        raise PlanError("--timer-hours must be more than 0: give another number")
    scale = min(1.0, max(SIMULATED_DEVICES / population, LEAST_GOAL / report_goal))
    devices = Devices(max(int(population * scale), 1), Habits())
    came = simulate_rounds(
        devices, rounds, max(int(report_goal * scale), 1), timer_hours, progress=progress
    )
    if came.succeeded < rounds:
        few = (
            f"only {came.succeeded} of {rounds} rounds succeeded in {came.hours / 24:.0f} days:"
            " there are too few users"
        )
        raise PlanError(
            f"with a timer of {timer_hours:g} hours {few}. Lower --timer-hours or --report-goal"
        )
    # in the whole population; where no device came twice, nothing contradicts it
    possible = population // report_goal - 1
    seen = possible if came.min_separation is None else came.min_separation
    return replace(came, min_separation=min(seen, possible))


@dataclass(frozen=True)
class Grown:
    """How a small trial that was good enough becomes a large private run (Xu et al. 2023, §2.5)."""

    # with the report goal, noise and separation to use
    question: Question
    answer: Answer
    timer_hours: int
    # in a simulated fleet with that timer
    came: Rounds
    # relative to the trial; above 1 the model will be worse than it
    more_noise: float


def grow_to_rho(
    trial: Question,
    target: float,
    largest_goal: int,
    mechanism: MechanismName,
    progress: StageProgress,
) -> Grown:
    """Raise report goal and noise together, so that accuracy stays, until ρ is `target` with the
    rest that a timer of whole days gives devices; where the largest goal is not enough, raise the
    noise alone.
    """
    tried = trial.noise_multiplier
    if tried is None or not 0 < target < math.inf:
        raise PlanError(
            "give the trial (--report-goal and --noise-multiplier), and a positive ρ to reach"
            " (--grow-to-rho)"
        )
    if not trial.report_goal <= largest_goal <= trial.population // 2:
        raise PlanError(
            "--largest-goal must lie between --report-goal and half of the users, not"
            f" {largest_goal:,}"
        )
    steps = (
        math.ceil(math.log(largest_goal / trial.report_goal, 1.25))
        if largest_goal > trial.report_goal
        else 0
    )
    goals, tried_goals = (
        [min(int(trial.report_goal * 1.25**step), largest_goal) for step in range(steps + 1)],
        count(),
    )

    def with_goal(goal: int) -> Question:
        return replace(trial, report_goal=goal, noise_multiplier=tried * goal / trial.report_goal)

    def is_enough(goal: int) -> bool:
        progress("report goals", next(tried_goals), len(goals).bit_length())
        return plan(with_goal(goal), mechanism).rho <= target

    def rested(goal: int, hours: int) -> Grown:
        hours, came = _longest_rest(with_goal(goal), hours, progress)
        question = replace(with_goal(goal), min_separation=came.min_separation)
        return Grown(question, plan(question, mechanism), hours, came, 1.0)

    # if everyone rested as long as possible
    first = min(bisect_left(goals, True, key=is_enough), steps)
    found = rested(goals[first], 24)
    for goal in goals[first + 1 :]:
        if found.answer.rho <= target:
            return found
        # rounds take longer, so the timer cannot be shorter
        found = rested(goal, found.timer_hours)
    if found.answer.rho <= target:
        return found
    louder = math.sqrt(found.answer.rho / target)
    question = replace(found.question, noise_multiplier=louder * found.answer.noise_multiplier)
    return replace(found, question=question, answer=plan(question, mechanism), more_noise=louder)


def _longest_rest(question: Question, hours: int, progress: StageProgress) -> tuple[int, Rounds]:
    """Try timers of whole days, starting at `hours`, while they lengthen the shortest rest."""
    timed: list[tuple[int, Rounds]] = []
    for tried in range(hours, LONGEST_TIMER + 1, 24):
        shown = partial(progress, f"{question.report_goal:,} reports, {tried} h")
        try:
            came = simulated_timer(
                question.population, question.rounds, question.report_goal, float(tried), shown
            )
        # so long that too few devices are available
        except PlanError:
            if not timed:
                raise
            break
        if timed and (came.min_separation or 0) <= (timed[-1][1].min_separation or 0):
            break
        timed.append((tried, came))
    return timed[-1]
