"""Work out a recipe for people and a machine: cohort, rounds and server rate.

They follow from a rule that was fitted on other people (docs/choosing.md).

Every update is longer than the clip norm, so people give a direction, and the server's rate decides
how far the model goes in it. Two lengths decide what a training is worth: how far the model could
go if all pulled the same way, and how far noise carries it meanwhile. 49 measurements, ε from 0.5
to 8, agree with `expected_gain` to 0.06 points (root mean square; experiments/keyboard/fitting).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from taciturn import trees
from taciturn.privacy.accounting.accountant import Budget, noise_for_budget
from taciturn.privacy.accounting.conversions import gaussian_epsilon
from taciturn.privacy.accounting.events import repeat
from taciturn.recipe.sections import MOST_A_ROUND, ModelSection
from taciturn.recipe.text import RecipeError, to_toml

CLIP_NORM = 0.25
MOMENTUM = 0.9
UNROLL = 80
LOSS_POWER = 0.05
# Of the square of the clip norm, by layer of a CIFG: most of an update (65 % is in the projection)
# is not where most is learned.
LAYER_SHARES = {
    "word_embedding": 0.37,
    "projection": 0.30,
    "recurrent": 0.13,
    "embedding": 0.10,
    "input": 0.05,
    "word_bias": 0.03,
    "gate_bias": 0.02,
}
# The highest server rate: without clipping, a run at twice this rate diverged.
FASTEST = 1.0
# How far noise may carry the model: a little less than the best, since too much costs more than
# too little.
LOUDEST = 45.0
ROUNDS = (25, 50, 100, 200, 400)
# Of the people in a cohort; more gains nothing that more rounds would not.
SHARES = (0.03, 0.1, 0.3)
LARGEST_SHARE = SHARES[-1]
# Points of AccuracyTop1 that are not worth a longer training.
ENOUGH = 0.03
LEAST_COHORT = 10


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is asked for, and the means for it."""

    # As publicly stated, or counted and rounded down.
    users: int
    epsilon: float
    delta: float
    # Of the model.
    parameters: int
    # That the rounds may take together.
    seconds: float
    # That this machine trains.
    users_per_second: float
    # Of a round besides training: noise, record, charge.
    round_seconds: float = 0.0

    def duration(self, rounds: int, cohort: int) -> float:
        """Return the seconds that these rounds take."""
        return rounds * (self.round_seconds + cohort / self.users_per_second)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to spend the means of a task."""

    rounds: int
    cohort: int
    server_rate: float
    noise_multiplier: float
    # Points of AccuracyTop1 over the start, by the rule.
    gain: float


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What keeps a plan from gaining more, in points of AccuracyTop1."""

    # With twice the minutes.
    more_in_time: float
    # With twice the people; looked at only where more minutes gain nothing.
    more_with_people: float = 0.0

    @property
    def is_time(self) -> bool:
        return self.more_in_time > ENOUGH

    @property
    def is_people(self) -> bool:
        return not self.is_time and self.more_with_people > ENOUGH


def expected_gain(way: float, noise: float) -> float:
    """Return how many points of AccuracyTop1 a model gains over a good start.

    Args:
        way: how far the model could go.
        noise: how far noise carries it.

    >>> round(expected_gain(250.0, 50.0), 2)  # 100 rounds at rate 1
    2.12
    """
    return 0.365 * math.log1p(way / 0.414) - 0.218 * (noise / 50) ** 1.5


def choose_plan(task: Task) -> Plan:
    """Return the shortest plan that fits the time and gains within `ENOUGH` of the best.

    Raises:
        ValueError: if the ε needs no noise, or is reached by none.

    >>> from taciturn.privacy.participation import default_delta
    >>> task = Task(
    ...     users=9_000,
    ...     epsilon=4.0,
    ...     delta=default_delta(9_000),
    ...     parameters=2_400_000,
    ...     seconds=100,
    ...     users_per_second=2_000,
    ... )
    >>> plan = choose_plan(task)
    >>> plan.rounds, plan.cohort, round(plan.noise_multiplier, 2)
    (200, 900, 2.21)
    """
    if LARGEST_SHARE * task.users < LEAST_COHORT:
        raise RecipeError(
            f"{task.users} people are too few: there is no cohort of {LEAST_COHORT} to hide in;"
            " build a larger population"
        )
    estimates = _list_plans(task)
    if not estimates:
        minutes = task.duration(ROUNDS[0], LEAST_COHORT) / 60
        raise RecipeError(
            f"the shortest training, {ROUNDS[0]} rounds of {LEAST_COHORT}, takes {minutes:.1f}"
            " minutes on this machine without compiling and measuring. Allow more `minutes`"
        )
    best_plan = _best_plan(task, estimates)
    least_gain = best_plan.gain - ENOUGH
    estimates.sort(key=lambda plan: task.duration(plan.rounds, plan.cohort))
    for estimate in estimates:
        # Most need not be worked out: an estimate promises more than there is.
        if estimate.gain > least_gain:
            plan = with_exact_noise(task, estimate)
            if plan.gain > least_gain:
                return plan
    return best_plan


def find_limit(task: Task, plan: Plan, twice_the_time: Task, twice_the_people: Task) -> Limit:
    """Find what limits a plan: the time for it, or how many people there are at this ε.

    By estimates of noise, which take no time. Those of similar tasks are too small by the same
    factor, to a few per cent, and the plan's own says by which.
    """
    estimate = _approximate_noise(_gaussian_mu(task), plan.cohort / task.users, plan.rounds)
    factor = plan.noise_multiplier / estimate
    gain = _estimate_gain(task, factor)
    more_in_time = _estimate_gain(twice_the_time, factor) - gain
    if more_in_time > ENOUGH:
        return Limit(more_in_time=more_in_time)
    more_with_people = _estimate_gain(twice_the_people, factor) - gain
    return Limit(more_in_time=more_in_time, more_with_people=more_with_people)


def _estimate_gain(task: Task, factor: float) -> float:
    """Estimate what the best plan gains, with this many times the estimated noise."""
    gains = []
    for plan in _list_plans(task):
        noise_multiplier = factor * plan.noise_multiplier
        gains.append(_plan_with_noise(task, plan.rounds, plan.cohort, noise_multiplier).gain)
    return max(gains)


def _best_plan(task: Task, estimates: list[Plan]) -> Plan:
    """Return the plan that gains most, with its exact noise."""
    by_gain = sorted(estimates, key=lambda plan: plan.gain, reverse=True)
    best = with_exact_noise(task, by_gain[0])
    for estimate in by_gain[1:]:
        # Those after it promise no more, and there is less than they promise.
        if estimate.gain <= best.gain:
            break
        plan = with_exact_noise(task, estimate)
        if plan.gain > best.gain:
            best = plan
    return best


def _list_plans(task: Task) -> list[Plan]:
    """List plans that fit the time, with an estimate of their noise."""
    mu = _gaussian_mu(task)
    plans = []
    for rounds, cohort in _sizes_that_fit(task):
        share = cohort / task.users
        noise_multiplier = _approximate_noise(mu, share, rounds)
        plan = _plan_with_noise(task, rounds, cohort, noise_multiplier)
        plans.append(plan)
    return plans


def with_exact_noise(task: Task, plan: Plan) -> Plan:
    """Return the plan with the noise that its rounds need, and the matching server rate."""
    budget = Budget(delta=task.delta, epsilon=task.epsilon)
    noise_multiplier = _exact_noise(budget, plan.cohort / task.users, plan.rounds)
    return _plan_with_noise(task, plan.rounds, plan.cohort, noise_multiplier)


# It takes most of a second.
@cache
def _exact_noise(budget: Budget, share: float, rounds: int) -> float:
    def cost(noise_multiplier: float) -> DpEvent:
        gaussian = GaussianDpEvent(noise_multiplier)
        return repeat(PoissonSampledDpEvent(share, gaussian), rounds)

    return noise_for_budget(cost, budget, "pld")


def _sizes_that_fit(task: Task) -> Iterator[tuple[int, int]]:
    """Yield rounds and cohorts that fit the time, the largest possible cohorts among them."""
    sizes = {int(share * task.users) for share in SHARES}
    for rounds in ROUNDS:
        largest = _largest_cohort(task, rounds)
        for cohort in sorted(sizes | {largest}):
            if LEAST_COHORT <= cohort <= largest:
                yield rounds, cohort


def _largest_cohort(task: Task, rounds: int) -> int:
    training_s = task.seconds / rounds - task.round_seconds
    in_time = training_s * task.users_per_second
    return int(min(in_time, LARGEST_SHARE * task.users, MOST_A_ROUND))


def _gaussian_mu(task: Task) -> float:
    """Return the μ of Gaussian differential privacy that the requested ε allows."""
    low = 1e-6
    high = 1e3
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        if gaussian_epsilon(middle, task.delta) <= task.epsilon:
            low = middle
        else:
            high = middle
    return low


def _approximate_noise(mu: float, share: float, rounds: int) -> float:
    """Return the noise multiplier in the limit of many rounds (Bu et al. 2019).

    It is too small, by up to a third: only to see which plans are worth working out.
    """
    return 1 / math.sqrt(math.log1p((mu / share) ** 2 / rounds))


def _plan_with_noise(task: Task, rounds: int, cohort: int, noise_multiplier: float) -> Plan:
    """Complete a plan by the server rate that gains most, within `FASTEST` and `LOUDEST`."""
    # How far a round goes at rate 1, when momentum has built up.
    reach = CLIP_NORM / (1 - MOMENTUM)
    # At rate 1: how far noise carries the model, and how far it could go.
    noise = reach * noise_multiplier / cohort * math.sqrt(rounds * task.parameters)
    way = reach * (rounds - 1 / (1 - MOMENTUM) + 1)

    def gain_at(rate: float) -> float:
        return expected_gain(rate * way, rate * noise)

    fastest = min(FASTEST, LOUDEST / noise)
    # With very few people a lower rate gains more.
    rates = [fastest * 0.8**slower for slower in range(30)]
    best_rate = float(f"{max(rates, key=gain_at):.2g}")
    return Plan(
        rounds=rounds,
        cohort=cohort,
        server_rate=best_rate,
        noise_multiplier=noise_multiplier,
        gain=gain_at(best_rate),
    )


# The recipe, with a reason for every setting.


@dataclass(frozen=True)
class PlannedSetting:
    """A setting of a recipe that was worked out, and why it has this value."""

    # `section.name`, or only the name above all sections.
    path: str
    value: Any
    reason: str


def planned_settings(
    task: Task,
    plan: Plan,
    *,
    population: str,
    start: str,
    architecture: dict[str, Any],
    on_cpu: bool,
    measurements: int,
    is_counted: bool = False,
) -> list[PlannedSetting]:
    """List the settings of the whole recipe.

    Args:
        task: what was asked for.
        plan: how to spend the means for it.
        population: the folder of the people.
        start: the model of public text that training starts from.
        architecture: of the start.
        on_cpu: whether the rounds are trained on a CPU.
        measurements: how often the model is measured between its start and its end.
        is_counted: whether the number of people is theirs, rounded down, and not a stated one.
    """
    return [
        PlannedSetting(
            "algorithm",
            "dp-fedavg",
            "cohorts that the curator draws, fresh noise; BLT noise did as well at equal ε",
        ),
        *_data_settings(population),
        *_model_settings(start, architecture),
        *_local_settings(on_cpu),
        *_server_settings(plan),
        *_participation_settings(task, plan, is_counted),
        *_privacy_settings(task, plan, architecture),
        *_run_settings(plan, measurements),
    ]


def _data_settings(population: str) -> list[PlannedSetting]:
    return [
        PlannedSetting("data.population", population, "whose text it is"),
        PlannedSetting(
            "data.tokens_per_user",
            1600,
            "of what one person wrote; 400 of twice as many people did as well",
        ),
    ]


def _model_settings(start: str, architecture: dict[str, Any]) -> list[PlannedSetting]:
    """List the start, and what of its architecture differs from the defaults."""
    settings = [PlannedSetting("model.warm_start", start, "public text; nothing in it is private")]
    defaults = ModelSection().model_dump(mode="json")
    reason = "as the start is; all of it is trained: freezing lost more than it saved in noise"
    for name, value in architecture.items():
        if value != defaults[name]:
            settings.append(PlannedSetting(f"model.{name}", value, reason))
    return settings


def _local_settings(on_cpu: bool) -> list[PlannedSetting]:
    return [
        PlannedSetting(
            "local.batch_size",
            2 if on_cpu else 4,
            "rows; 2 and 4 do equally well; which is faster depends on the machine",
        ),
        PlannedSetting(
            "local.learning_rate",
            0.5 if on_cpu else 0.7,
            "goes with the batch; between 0.2 and 1 it hardly matters",
        ),
        PlannedSetting(
            "local.unroll", UNROLL, "words of a row; 20 lost 0.1 points, 160 gained nothing"
        ),
        PlannedSetting(
            "local.loss_power",
            LOSS_POWER,
            "unpredictable words count less: 0.06 points, for 1.7 % of perplexity",
        ),
        PlannedSetting("local.precision", "float32" if on_cpu else "mixed", "what is faster here"),
    ]


def _server_settings(plan: Plan) -> list[PlannedSetting]:
    return [
        PlannedSetting("server.optimizer", "momentum", "Adam did no better under noise"),
        PlannedSetting("server.momentum", MOMENTUM, "0.95 did worse"),
        PlannedSetting(
            "server.learning_rate",
            plan.server_rate,
            f"as far as noise allows, {FASTEST:g} at most; a falling rate did not help",
        ),
    ]


def _participation_settings(task: Task, plan: Plan, is_counted: bool) -> list[PlannedSetting]:
    trainings = plan.rounds * plan.cohort
    minutes = task.duration(plan.rounds, plan.cohort) / 60
    how_known = "counted, and rounded down" if is_counted else "as publicly stated"
    return [
        PlannedSetting(
            "participation.users",
            task.users,
            f"{how_known}: this number is no longer secret",
        ),
        PlannedSetting(
            "participation.cohort",
            plan.cohort,
            f"{trainings:,} user trainings, {minutes:.1f} minutes on this machine",
        ),
    ]


def _privacy_settings(task: Task, plan: Plan, architecture: dict[str, Any]) -> list[PlannedSetting]:
    return [
        PlannedSetting(
            "privacy.epsilon",
            task.epsilon,
            f"what you asked for; noise is made for it, z = {plan.noise_multiplier:.2f}",
        ),
        PlannedSetting(
            "privacy.delta",
            task.delta,
            "1/users²: the promise fails for any of them with a probability of at most 1/users",
        ),
        *_clip_settings(architecture),
    ]


def _clip_settings(architecture: dict[str, Any]) -> list[PlannedSetting]:
    """List the clip norm, or those of the layers where the start is a CIFG that has them all."""
    reason = (
        f"{CLIP_NORM} in all: shorter than any update, so that each gives a direction; 0.1 and 0.5"
        " do as well"
    )
    if architecture.get("kind") != "cifg" or architecture.get("tied"):
        return [PlannedSetting("privacy.clip_norm", CLIP_NORM, reason)]
    by_layer = f"{reason}. Divided over layers it gains 0.05 points"
    settings = [PlannedSetting("privacy.clipping", "per-layer", by_layer)]
    for layer, share in LAYER_SHARES.items():
        path = f"privacy.layer_clip_norms.{layer}"
        norm = float(f"{CLIP_NORM * math.sqrt(share):.4f}")
        settings.append(PlannedSetting(path, norm, f"√{share} of it"))
    return settings


def _run_settings(plan: Plan, measurements: int) -> list[PlannedSetting]:
    return [
        PlannedSetting(
            "run.rounds",
            plan.rounds,
            f"the shortest training within {ENOUGH} points of the best that fits the time",
        ),
        PlannedSetting(
            "run.evaluate_every",
            math.ceil(plan.rounds / (measurements + 1)),
            "measuring takes time too",
        ),
    ]


def recipe_content(settings: list[PlannedSetting]) -> dict[str, Any]:
    """Return the content that `parse_recipe` takes."""
    values = {setting.path.replace(".", "/"): setting.value for setting in settings}
    return trees.nest(values)


def commented_toml(settings: list[PlannedSetting], title: str) -> str:
    """Write the recipe as a file, with a reason behind every setting.

    >>> algorithm = PlannedSetting("algorithm", "dp-fedavg", "why")
    >>> rounds = PlannedSetting("run.rounds", 50, "why not")
    >>> print(commented_toml([algorithm, rounds], "Worked out"))
    # Worked out
    algorithm = "dp-fedavg"  # why
    <BLANKLINE>
    [run]
    rounds = 50  # why not
    <BLANKLINE>
    """
    reasons = {}
    for setting in settings:
        section, _, name = setting.path.rpartition(".")
        reasons[section, name] = setting.reason
    return f"# {title}\n" + to_toml(recipe_content(settings), reasons)
