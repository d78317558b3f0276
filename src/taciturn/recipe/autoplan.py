"""Choose a recipe for people and a machine: cohort, rounds and server rate by a rule fitted on
other people (docs/choosing.md).

Every update is longer than the clip norm, so people give a direction, and the server's rate decides
how far the model goes in it. Two lengths decide what a training is worth: how far the model could
go if all pulled the same way, and how far noise carries it meanwhile. 49 measurements, ε from 0.5
to 8, agree with `expected_gain` to 0.06 points (root mean square; experiments/keyboard/fitting).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from taciturn import trees
from taciturn.privacy.accounting.accountant import Budget, noise_for_budget, repeat
from taciturn.privacy.accounting.conversions import gaussian_epsilon
from taciturn.recipe.sections import MOST_A_ROUND, ModelSection
from taciturn.recipe.text import RecipeError, to_toml

CLIP_NORM, MOMENTUM, UNROLL = 0.25, 0.9, 80
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
# server rate; without clipping, a run at twice this rate diverged
FASTEST = 1.0
# how far noise may carry the model: a little less than the best, since too much costs more than too
# little
LOUDEST = 45.0
ROUNDS = (25, 50, 100, 200, 400)
# of the people in a cohort; more gains nothing that more rounds would not
SHARES = (
    0.03,
    0.1,
    0.3,
)
# points of AccuracyTop1 that are not worth a longer training
ENOUGH = 0.03
LEAST_COHORT = 10


@dataclass(frozen=True)
class Task:
    """What is asked for, and the means for it."""

    # as publicly stated
    users: int
    epsilon: float
    delta: float
    parameters: int
    # allowed for the rounds
    seconds: float
    # trained on this machine
    users_per_second: float
    # of a round besides training: noise, record, charge
    round_seconds: float = 0.0

    def duration(self, rounds: int, cohort: int) -> float:
        return rounds * (self.round_seconds + cohort / self.users_per_second)


class Plan(NamedTuple):
    """How to spend them."""

    rounds: int
    cohort: int
    server_rate: float
    noise_multiplier: float
    # points of AccuracyTop1 over the start, by the rule
    gain: float


def expected_gain(way: float, noise: float) -> float:
    """Return the points of AccuracyTop1 over a good start, for a model that could go `way` far and
    that noise carries `noise` far.

    >>> round(expected_gain(250.0, 50.0), 2)  # 100 rounds at rate 1
    2.12
    """
    return 0.365 * math.log1p(way / 0.414) - 0.218 * (noise / 50) ** 1.5


def best_plan(task: Task) -> Plan:
    """Return the shortest plan that fits the time and comes within `ENOUGH` of the best. `exactly`
    works out its noise.

    >>> plan = best_plan(Task(9_000, 4.0, 9_000**-1.1, 2_400_000, seconds=300, users_per_second=2_000))
    >>> plan.rounds, plan.cohort
    (100, 2700)
    """
    if SHARES[-1] * task.users < LEAST_COHORT:
        raise RecipeError(
            f"{task.users} people are too few: there is no cohort of {LEAST_COHORT} to hide in;"
            " build a larger population"
        )
    mu = _mu(task)
    plans = [
        _plan(task, rounds, cohort, _about(mu, cohort / task.users, rounds))
        for rounds, cohort in _sizes(task)
    ]
    if not plans:
        minutes = task.duration(ROUNDS[0], LEAST_COHORT) / 60
        shortest = (
            f"the shortest training, {ROUNDS[0]} rounds of {LEAST_COHORT}, takes {minutes:.1f}"
            " minutes on this machine"
        )
        raise RecipeError(f"{shortest} without compiling and measuring. Allow more --minutes")
    best = max(plan.gain for plan in plans)
    return min(
        (plan for plan in plans if plan.gain > best - ENOUGH),
        key=lambda plan: task.duration(plan.rounds, plan.cohort),
    )


def exactly(task: Task, plan: Plan) -> Plan:
    """Return the plan with the noise that its rounds need, and the matching server rate."""

    def cost(noise_multiplier: float) -> DpEvent:
        return repeat(
            PoissonSampledDpEvent(plan.cohort / task.users, GaussianDpEvent(noise_multiplier)),
            plan.rounds,
        )

    return _plan(
        task,
        plan.rounds,
        plan.cohort,
        noise_for_budget(cost, Budget(task.delta, task.epsilon), "pld"),
    )


def _sizes(task: Task) -> Iterator[tuple[int, int]]:
    """Yield rounds and cohorts that fit the time, the largest possible cohorts among them."""
    for rounds in ROUNDS:
        fit = (task.seconds / rounds - task.round_seconds) * task.users_per_second
        most = int(min(fit, SHARES[-1] * task.users, MOST_A_ROUND))
        cohorts = {most, *(int(share * task.users) for share in SHARES)}
        yield from (
            (rounds, cohort) for cohort in sorted(cohorts) if LEAST_COHORT <= cohort <= most
        )


def _mu(task: Task) -> float:
    """Return the μ of Gaussian differential privacy with the requested ε."""
    low, high = 1e-6, 1e3
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high)
            if gaussian_epsilon(middle, task.delta) <= task.epsilon
            else (low, middle)
        )
    return low


def _about(mu: float, share: float, rounds: int) -> float:
    """Return the noise multiplier in the limit of many rounds (Bu et al. 2019), off by up to a
    third: only to compare plans.
    """
    return 1 / math.sqrt(math.log1p((mu / share) ** 2 / rounds))


def _plan(task: Task, rounds: int, cohort: int, noise_multiplier: float) -> Plan:
    # of a round at rate 1, when momentum has built up
    reach = CLIP_NORM / (1 - MOMENTUM)
    noise = reach * noise_multiplier / cohort * math.sqrt(rounds * task.parameters)
    way = reach * (rounds - 1 / (1 - MOMENTUM) + 1)
    fastest = min(FASTEST, LOUDEST / noise)
    # with very few people less is more
    rates = [fastest * 0.8**slower for slower in range(30)]
    rate = float(f"{max(rates, key=lambda rate: expected_gain(rate * way, rate * noise)):.2g}")
    return Plan(rounds, cohort, rate, noise_multiplier, expected_gain(rate * way, rate * noise))


class Choice(NamedTuple):
    # "" for those above all sections
    section: str
    key: str
    value: Any
    why: str


def choices(
    task: Task,
    plan: Plan,
    population: str,
    start: str,
    architecture: dict[str, Any],
    on_cpu: bool,
    measured: int,
) -> list[Choice]:
    """List the whole recipe. `architecture` is that of the start; the model is `measured` so often
    between its start and its end.
    """
    defaults = ModelSection().model_dump(mode="json")
    built = {name: value for name, value in architecture.items() if value != defaults[name]}
    whole = "as the start is; all of it is trained: freezing lost more than it saved in noise"
    minutes = task.duration(plan.rounds, plan.cohort) / 60
    fast = f"{plan.rounds * plan.cohort:,} user trainings, {minutes:.1f} minutes on this machine"
    return [
        Choice(
            "",
            "algorithm",
            "dp-fedavg",
            "cohorts that the curator draws, fresh noise; BLT noise did as well at equal ε",
        ),
        Choice("data", "population", population, "whose text it is"),
        Choice(
            "data",
            "tokens_per_user",
            1600,
            "of what one person wrote; 400 of twice as many people did as well",
        ),
        Choice("model", "warm_start", start, "public text; nothing in it is private"),
        *(Choice("model", name, value, whole) for name, value in built.items()),
        Choice(
            "local",
            "batch_size",
            2 if on_cpu else 4,
            "rows; 2 and 4 do equally well; which is faster depends on the machine",
        ),
        Choice(
            "local",
            "learning_rate",
            0.5 if on_cpu else 0.7,
            "goes with the batch; between 0.2 and 1 it hardly matters",
        ),
        Choice("local", "unroll", UNROLL, "words of a row; 20 lost 0.1 points, 160 gained nothing"),
        Choice(
            "local",
            "loss_power",
            LOSS_POWER,
            "unpredictable words count less: 0.06 points, for 1.7 % of perplexity",
        ),
        Choice("local", "precision", "float32" if on_cpu else "mixed", "what is faster here"),
        Choice("server", "optimizer", "momentum", "Adam did no better under noise"),
        Choice("server", "momentum", MOMENTUM, "0.95 did worse"),
        Choice(
            "server",
            "learning_rate",
            plan.server_rate,
            f"as far as noise allows, {FASTEST:g} at most; a falling rate did not help",
        ),
        Choice(
            "participation",
            "users",
            task.users,
            "as publicly stated: this number is no longer secret",
        ),
        Choice("participation", "cohort", plan.cohort, fast),
        Choice(
            "privacy",
            "epsilon",
            task.epsilon,
            f"what you asked for; noise is made for it, z = {plan.noise_multiplier:.2f}",
        ),
        Choice("privacy", "delta", task.delta, "users^-1.1, as in McMahan et al. 2018"),
        *_clipping(architecture),
        Choice(
            "run",
            "rounds",
            plan.rounds,
            f"the shortest training within {ENOUGH} points of the best that fits the time",
        ),
        Choice(
            "run",
            "evaluate_every",
            math.ceil(plan.rounds / (measured + 1)),
            "measuring takes time too",
        ),
    ]


def _clipping(architecture: dict[str, Any]) -> list[Choice]:
    short = (
        f"{CLIP_NORM} in all: shorter than any update, so that each gives a direction; 0.1 and 0.5"
        " do as well"
    )
    if architecture.get("kind") != "cifg" or architecture.get("tied"):
        return [Choice("privacy", "clip_norm", CLIP_NORM, short)]
    norms = {
        layer: float(f"{CLIP_NORM * math.sqrt(share):.4f}") for layer, share in LAYER_SHARES.items()
    }
    each = [
        Choice("privacy.layer_clip_norms", layer, norm, f"√{LAYER_SHARES[layer]} of it")
        for layer, norm in norms.items()
    ]
    return [
        Choice(
            "privacy", "clipping", "per-layer", f"{short}. Divided over layers it gains 0.05 points"
        ),
        *each,
    ]


def content_of(choices: list[Choice]) -> dict[str, Any]:
    """Return the content that `parse_recipe` takes."""
    return trees.nest(
        {"/".join(filter(None, [*one.section.split("."), one.key])): one.value for one in choices}
    )


def commented_toml(choices: list[Choice], title: str) -> str:
    """Write the recipe as a file, with a reason behind every setting.

    >>> print(commented_toml([Choice("", "algorithm", "dp-fedavg", "why"), Choice("run", "rounds", 50, "why not")], "Chosen"))
    # Chosen
    algorithm = "dp-fedavg"  # why
    <BLANKLINE>
    [run]
    rounds = 50  # why not
    <BLANKLINE>
    """
    return f"# {title}\n" + to_toml(
        content_of(choices), {(one.section, one.key): one.why for one in choices}
    )
