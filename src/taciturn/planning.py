"""What a guarantee would take before anything is trained.

These are the questions of Xu et al. 2023, §2.5, answered only from the accounting.

Nothing here touches users: a plan is made of public constants. Its error is that of the noise in
the model, the sum of the noise of all rounds so far, as a root mean square over rounds and in units
of the clip norm, for a server with learning rate 1.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import numpy as np
from dp_accounting import DpEvent

from taciturn.core import Participation, Strategy
from taciturn.errors import TaciturnError
from taciturn.fleets.simulation.availability import Devices, Habits, Rounds, simulate_rounds
from taciturn.names import AccountantName, MechanismName, NoiseName
from taciturn.privacy.accounting.accountant import Budget, epsilon, noise_for_budget
from taciturn.privacy.accounting.events import repeat
from taciturn.privacy.accounting.zero_concentrated import rho
from taciturn.privacy.noise.registry import NOISES, Search, Segment
from taciturn.privacy.noise.sensitivity import most_participations
from taciturn.privacy.participation import default_delta
from taciturn.privacy.schemes import SCHEMES, UNSAMPLED, Scheme, SchemeSettings
from taciturn.progress import Progress, StageProgress, ignore_progress

MECHANISMS: tuple[MechanismName, ...] = get_args(MechanismName)
BANDS = 32
# A fleet whose devices rest for more hours takes months.
LONGEST_TIMER = 14 * 24
# With fewer no δ makes sense: even 1/N² is a real probability of failure.
LEAST_POPULATION = 10
SIMULATED_DEVICES = 20_000
LEAST_GOAL = 20
# Each report goal that is tried is so much larger than the one before it.
GOAL_STEP = 1.25


class PlanError(TaciturnError):
    """A plan that cannot be met, and why."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a guarantee is wanted for.

    Raises:
        PlanError: It cannot be met, or has too few or too many numbers.
    """

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
        self._check_users()
        self._check_target()
        self._check_delta()
        self._check_separation()

    def _check_users(self) -> None:
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
                " lower `report_goal`"
            )
        if self.rounds < 1:
            raise PlanError("a run has at least one round: raise `rounds`")

    def _check_target(self) -> None:
        targets = (self.noise_multiplier, self.epsilon, self.rho)
        if targets.count(None) != len(targets) - 1:
            raise PlanError(
                "give exactly one of `noise_multiplier`, `epsilon` and `rho`; the others follow"
                " from it"
            )
        target = self.noise_multiplier or self.epsilon or self.rho
        if target is None or not 0 < target < math.inf:
            raise PlanError(
                "`noise_multiplier`, `epsilon` and `rho` must be positive and finite: give another"
                " number"
            )

    def _check_delta(self) -> None:
        if self.delta is not None and not 0 < self.delta < 1 / self.population:
            raise PlanError(
                f"`delta` must be below one over the number of users, {1 / self.population:.1g},"
                f" not {self.delta:g}: lower it"
            )

    def _check_separation(self) -> None:
        if self.min_separation is None:
            return
        if not 0 <= self.min_separation <= self.possible_separation:
            raise PlanError(
                f"with {self.population:,} users and {self.report_goal:,} a round, a user cannot"
                f" rest {self.min_separation} rounds: lower `min_separation` to"
                f" {self.possible_separation}"
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
        if self.min_separation is None:
            return self.possible_separation
        return self.min_separation

    @property
    def participations(self) -> int:
        possible = most_participations(self.rounds, self.separation)
        if self.max_participations is None:
            return possible
        return min(possible, self.max_participations)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the guarantee takes with one mechanism."""

    mechanism: MechanismName
    noise_multiplier: float
    rho: float
    epsilon: float
    # Of the sum of all updates so far, in clip norms.
    error: float
    # Of the strategy under the claim; 1 where a curator samples, and each round or turn counts by
    # itself.
    sensitivity_squared: float


def plan(question: Question, mechanism: MechanismName) -> Answer:
    """Return what a guarantee would take with this mechanism.

    Raises:
        PlanError: No noise is enough for it.
    """
    planned = _describe_run(question, mechanism)
    multiplier = question.noise_multiplier or _find_noise(question, planned)
    cost = planned.cost(multiplier)
    mean_variance = float(np.mean(planned.strategy.prefix_variance(question.rounds)))
    return Answer(
        mechanism=mechanism,
        noise_multiplier=multiplier,
        rho=rho(cost),
        epsilon=epsilon(cost, question.at_delta, question.accountant),
        error=multiplier * math.sqrt(mean_variance) / question.report_goal,
        sensitivity_squared=_sensitivity_squared(question, planned),
    )


@dataclass(frozen=True, kw_only=True)
class _PlannedRun:
    """The noise of a run and who takes part in it, as far as its cost depends on them."""

    rounds: int
    strategy: Strategy
    participation: Participation

    def cost(self, noise_multiplier: float) -> DpEvent:
        """Return the cost of all rounds."""
        event = self.participation.event(noise_multiplier, self.strategy)
        return repeat(event, self.rounds)


def _sensitivity_squared(question: Question, planned: _PlannedRun) -> float:
    if planned.participation.sampled_by_curator:
        return 1.0
    return planned.strategy.sensitivity_squared(
        question.rounds, question.separation, question.participations
    )


def _find_noise(question: Question, planned: _PlannedRun) -> float:
    """Return the noise multiplier that the wanted ε or ρ takes."""
    if question.rho is not None:
        # ρ falls with the square of z.
        return math.sqrt(rho(planned.cost(1.0)) / question.rho)
    budget = Budget(delta=question.at_delta, epsilon=question.epsilon)
    try:
        return noise_for_budget(planned.cost, budget, question.accountant)
    except ValueError as error:
        raise PlanError(str(error)) from None


def _describe_run(question: Question, mechanism: MechanismName) -> _PlannedRun:
    scheme, noise = _find_row(mechanism)
    # At most the rounds between two turns of a user.
    bands = min(BANDS, question.rounds, question.separation + 1)
    cycle = bands if scheme.takes_turns else 1
    settings = SchemeSettings(
        cohort=question.report_goal,
        users=question.population,
        rounds=question.rounds,
        cycle=cycle,
        probability=question.report_goal / question.population * cycle,
        min_separation=question.separation,
        max_participations=question.participations,
    )
    return _PlannedRun(
        rounds=question.rounds,
        strategy=_best_strategy(question, noise, bands),
        participation=scheme.build(settings),
    )


def _find_row(mechanism: MechanismName) -> tuple[Scheme, NoiseName]:
    """Return the scheme and the noise that a row of the plan is about."""
    for name, scheme in SCHEMES.items():
        if name == mechanism:
            return scheme, scheme.plan_noise
    for noise in NOISES:
        if noise == mechanism:
            return UNSAMPLED, noise
    raise AssertionError(f"{mechanism} is not a row of a plan")


def _best_strategy(question: Question, noise: NoiseName, bands: int) -> Strategy:
    kind = NOISES[noise]
    coefficients = {}
    if kind.optimize is not None:
        search = Search(
            rows=question.rounds,
            min_separation=question.separation,
            max_participations=question.participations,
            bands=bands,
        )
        coefficients = kind.optimize(search)
    return kind.strategy(Segment(rows=question.rounds, coefficients=coefficients))


def simulate_timer(
    *,
    population: int,
    rounds: int,
    report_goal: int,
    timer_hours: float,
    progress: Progress = ignore_progress,
) -> Rounds:
    """Return what a timer on every device amounts to.

    It is simulated on a smaller fleet with the same share of devices in a round.

    Raises:
        PlanError: The fleet is too small for this timer.
    """
    if not timer_hours > 0:
        raise PlanError("`timer_hours` must be more than 0: give another number")
    scale = min(1.0, max(SIMULATED_DEVICES / population, LEAST_GOAL / report_goal))
    devices = Devices(_scale(population, scale), Habits())
    simulated = simulate_rounds(
        devices,
        rounds=rounds,
        report_goal=_scale(report_goal, scale),
        timer_hours=timer_hours,
        progress=progress,
    )
    if simulated.succeeded < rounds:
        days = simulated.hours / 24
        raise PlanError(
            f"with a timer of {timer_hours:g} hours only {simulated.succeeded} of {rounds} rounds"
            f" succeeded in {days:.0f} days: there are too few users. Lower `timer_hours` or"
            " `report_goal`"
        )
    # Of the whole population.
    separation = population // report_goal - 1
    # Where no device came twice, nothing contradicts it.
    if simulated.min_separation is not None:
        separation = min(simulated.min_separation, separation)
    return replace(simulated, min_separation=separation)


def _scale(number: int, scale: float) -> int:
    return max(int(number * scale), 1)


@dataclass(frozen=True, kw_only=True)
class Grown:
    """How a small trial that was good enough becomes a large private run (Xu et al. 2023, §2.5)."""

    # With the report goal, noise and separation to use.
    question: Question
    answer: Answer
    timer_hours: int
    # The training of a fleet with that timer.
    simulated: Rounds
    # Relative to the trial; above 1 the model will be worse than it.
    more_noise: float = 1.0


def grow_to_rho(
    trial: Question,
    target: float,
    largest_goal: int,
    mechanism: MechanismName,
    progress: StageProgress,
) -> Grown:
    """Raise report goal and noise together, so that accuracy stays, until ρ is `target`.

    Devices rest as a timer of whole days has them rest. Where the largest goal is not enough, only
    the noise is raised further.

    Args:
        trial: With the report goal and the noise that were good enough.
        target: The ρ to reach.
        largest_goal: The most reports a round.
        mechanism: What correlates the noise.
        progress: Hears what is tried.

    Raises:
        PlanError: The trial has no noise, or a number makes no sense.
    """
    tried_noise = trial.noise_multiplier
    if tried_noise is None or not 0 < target < math.inf:
        raise PlanError(
            "give the trial (`report_goal` and `noise_multiplier`), and a positive ρ to reach"
            " (`target`)"
        )
    if not trial.report_goal <= largest_goal <= trial.population // 2:
        raise PlanError(
            "`largest_goal` must lie between `report_goal` and half of the users, not"
            f" {largest_goal:,}"
        )
    growth = _Growth(
        trial=trial,
        tried_noise=tried_noise,
        target=target,
        goals=_goals_to_try(trial.report_goal, largest_goal),
        mechanism=mechanism,
        progress=progress,
    )
    grown = growth.find_goal()
    if grown.answer.rho <= target:
        return grown
    return growth.raise_noise(grown)


def _goals_to_try(smallest: int, largest: int) -> list[int]:
    steps = 0
    if largest > smallest:
        steps = math.ceil(math.log(largest / smallest, GOAL_STEP))
    return [min(int(smallest * GOAL_STEP**step), largest) for step in range(steps + 1)]


class _Growth:
    """A trial on its way to a larger run."""

    def __init__(
        self,
        *,
        trial: Question,
        tried_noise: float,
        target: float,
        goals: list[int],
        mechanism: MechanismName,
        progress: StageProgress,
    ) -> None:
        self._trial = trial
        self._tried_noise = tried_noise
        self._target = target
        self._goals = goals
        self._mechanism: MechanismName = mechanism
        self._progress = progress
        # Goals that were tried.
        self._tries = 0

    def find_goal(self) -> Grown:
        """Return the smallest goal that is enough, or else the largest that may be."""
        # If everyone rested as long as possible.
        first = bisect_left(self._goals, True, key=self._is_enough)
        first = min(first, len(self._goals) - 1)
        goal, *larger_goals = self._goals[first:]
        grown = self._with_longest_rest(goal, shortest_timer=24)
        for goal in larger_goals:
            if grown.answer.rho <= self._target:
                return grown
            # Rounds take longer, so the timer cannot be shorter.
            grown = self._with_longest_rest(goal, shortest_timer=grown.timer_hours)
        return grown

    def raise_noise(self, grown: Grown) -> Grown:
        """Raise the noise until ρ is met, though the model will be worse than that of the trial."""
        more_noise = math.sqrt(grown.answer.rho / self._target)
        question = replace(
            grown.question,
            noise_multiplier=more_noise * grown.answer.noise_multiplier,
        )
        return replace(
            grown,
            question=question,
            answer=plan(question, self._mechanism),
            more_noise=more_noise,
        )

    def _with_goal(self, goal: int) -> Question:
        multiplier = self._tried_noise * goal / self._trial.report_goal
        return replace(self._trial, report_goal=goal, noise_multiplier=multiplier)

    def _is_enough(self, goal: int) -> bool:
        self._progress("report goals", self._tries, len(self._goals).bit_length())
        self._tries += 1
        return plan(self._with_goal(goal), self._mechanism).rho <= self._target

    def _with_longest_rest(self, goal: int, shortest_timer: int) -> Grown:
        question = self._with_goal(goal)
        timer_hours, simulated = _longest_rest(question, shortest_timer, self._progress)
        question = replace(question, min_separation=simulated.min_separation)
        return Grown(
            question=question,
            answer=plan(question, self._mechanism),
            timer_hours=timer_hours,
            simulated=simulated,
        )


def _longest_rest(
    question: Question, shortest_timer: int, progress: StageProgress
) -> tuple[int, Rounds]:
    """Try longer and longer timers, by whole days, while they lengthen the shortest rest.

    Returns:
        The hours of the best timer, and the training of a fleet with it.
    """
    best: tuple[int, Rounds] | None = None
    for hours in range(shortest_timer, LONGEST_TIMER + 1, 24):
        stage = f"{question.report_goal:,} reports, {hours} h"
        try:
            simulated = simulate_timer(
                population=question.population,
                rounds=question.rounds,
                report_goal=question.report_goal,
                timer_hours=float(hours),
                progress=partial(progress, stage),
            )
        except PlanError:
            # So long that too few devices are available.
            if best is None:
                raise
            break
        if best is not None and not _rests_longer(simulated, best[1]):
            break
        best = (hours, simulated)
    assert best is not None
    return best


def _rests_longer(simulated: Rounds, other: Rounds) -> bool:
    return (simulated.min_separation or 0) > (other.min_separation or 0)
