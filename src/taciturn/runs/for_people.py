"""Work out a recipe for people, an ε and this machine; recipe/autoplan.py has the rules.

Of the people who will be protected only their number is read: rounded down it is in the recipe, and
so no longer secret, unless the caller states another, which is compared with it. How much they
write, and so how fast a round is, is measured on held-out users, who have no guarantee.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn import trees
from taciturn.algorithms.pretraining import Schedule, fit_schedule
from taciturn.core import Params
from taciturn.data.population import HeldOutUsers, Population
from taciturn.data.public import PublicCorpus
from taciturn.data.token_shards import Texts
from taciturn.data.vocabulary import Vocabulary
from taciturn.evaluation.accuracy import evaluate
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.models.registry import KINDS
from taciturn.privacy.accounting.rounding_up import pair_text
from taciturn.privacy.participation import default_delta, round_for_publication
from taciturn.progress import ignore_progress
from taciturn.recipe import build
from taciturn.recipe.autoplan import (
    ROUNDS,
    Limit,
    Plan,
    PlannedSetting,
    Task,
    choose_plan,
    find_limit,
    planned_settings,
    recipe_content,
)
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import ModelSection
from taciturn.recipe.text import RecipeError, parse_recipe
from taciturn.release.model_file import SHIPPED, ModelCard, load_model
from taciturn.runs.display import Announce, Display
from taciturn.runs.pretrain import CHECKPOINT, pretrain_model
from taciturn.runs.timing import best_time, round_stopwatch

# Held-out users in a timed round.
CPU_SAMPLE = 48
ACCELERATOR_SAMPLE = 1000
# Of all held-out users, between the first and the last; fewer, where these would take more than a
# tenth of the time.
MORE_MEASUREMENTS = 4
# Of public text that two CPU cores learn, which is only said beforehand.
TWO_CORES_TOKENS_PER_S = 20_000
# Share of the time kept in reserve.
UNFORESEEN = 0.1
# To work out how much noise plans need.
PLANNING_S = 5.0
# Two measurements of the speed agree if they are at most this far apart.
AGREE_WITHIN = 0.15
# Of the speed; if no two of them agree, it is uncertain.
MOST_MEASUREMENTS = 5
# Share of the time after which the speed is not measured again.
MOST_TIMING = 0.1
# Rounds that take fewer seconds are timed three times for one measurement.
SHORT_ROUND = 1.0
# Long writers among held-out users; if there are fewer, all held-out users are timed.
LEAST_SAMPLE = 4
# How many times too many or too few people may be stated.
FARTHEST_STATED = 2
# For the settings that a machine is timed with, which do not depend on the plan.
PLACEHOLDER = Plan(rounds=ROUNDS[-1], cohort=10, server_rate=1.0, noise_multiplier=1.0, gain=0.0)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How fast this machine trains and measures."""

    # To compile a round.
    compile_s: float
    users_per_s: float
    # Of a round, besides training: noise, record, charge.
    overhead_s: float
    # To measure a model: on the sample that was timed, or on all held-out users.
    evaluate_s: float
    # Every measurement of the speed, in users per second.
    speeds: tuple[float, ...] = ()
    # Whether two of them agreed.
    is_certain: bool = True


@dataclass(frozen=True, kw_only=True)
class AutoPlan:
    """A recipe for people, and how it was worked out."""

    task: Task
    plan: Plan
    # With the reason for each.
    settings: list[PlannedSetting]
    # Of these settings, and of those that the caller wished to win over them.
    recipe: Recipe
    timing: Timing
    # That the whole command is expected to take.
    minutes: float
    limit: Limit


class Pace(NamedTuple):
    """One measurement of the speed."""

    round_s: float
    # What one user more adds to a round.
    user_s: float


class Sample(NamedTuple):
    """Held-out users who stand for those who will be trained on."""

    texts: Texts


def plan_recipe(
    folder: Path,
    epsilon: float,
    start: str,
    minutes: float,
    users: int | None = None,
    announce: Announce = ignore_progress,
    settings: Sequence[str] = (),
) -> AutoPlan:
    """Work out a recipe for the people in a folder.

    Args:
        folder: the population.
        epsilon: of the guarantee.
        start: the model of public text to start from.
        minutes: that the whole command may take.
        users: how many people there are, as publicly stated; otherwise counted, and rounded down.
            A number that is far from theirs is refused.
        announce: called with each step that begins.
        settings: `section.key=value`, which win over what is worked out.
    """
    began = time.perf_counter()
    population = Population(folder)
    held_out = HeldOutUsers(folder)
    params, card = load_model(Path(start))
    _check_start(start, card, folder, population.vocabulary.words)
    check_people(folder, users)
    is_counted = users is None
    users = users or round_for_publication(len(population))
    task = Task(
        users=users,
        epsilon=epsilon,
        delta=default_delta(users),
        parameters=trees.size(params),
        seconds=60 * minutes,
        # Until it is measured.
        users_per_second=1.0,
    )
    plan_settings = partial(
        planned_settings,
        population=str(folder),
        start=start,
        architecture=card.architecture,
        on_cpu=_is_on_cpu(),
        is_counted=is_counted,
    )
    draft_settings = plan_settings(task, PLACEHOLDER, measurements=0)
    draft = parse_recipe(recipe_content(draft_settings))
    # Settings that do not fit are refused before anything is timed.
    parse_recipe(recipe_content(draft_settings), settings=settings)
    measure_again_until = time.perf_counter() + MOST_TIMING * 60 * minutes
    timing = _time_machine(draft, population, held_out, params, announce, measure_again_until)
    measurements = int(min(MORE_MEASUREMENTS, 6 * minutes / timing.evaluate_s))
    measuring_s = (2 + measurements) * timing.evaluate_s
    aside = time.perf_counter() - began + PLANNING_S + timing.compile_s + measuring_s
    task = replace(
        task,
        seconds=_seconds_left(minutes, aside),
        users_per_second=timing.users_per_s,
        round_seconds=timing.overhead_s,
    )
    announce("working out the noise")
    plan = _choose_plan(task)
    twice_the_time = replace(task, seconds=_seconds_left(2 * minutes, aside))
    twice_the_people = replace(task, users=2 * users, delta=default_delta(2 * users))
    limit = find_limit(task, plan, twice_the_time, twice_the_people)
    chosen = plan_settings(task, plan, measurements=measurements)
    return AutoPlan(
        task=task,
        plan=plan,
        settings=chosen,
        recipe=parse_recipe(recipe_content(chosen), settings=settings),
        timing=timing,
        minutes=(aside + task.duration(plan.rounds, plan.cohort)) / 60,
        limit=limit,
    )


def check_people(folder: Path, users: int | None) -> None:
    """Refuse people that no recipe can be worked out for, and a number that cannot be theirs.

    Args:
        folder: the population.
        users: how many people there are, as publicly stated; otherwise they are counted.
    """
    people = Population(folder)
    HeldOutUsers(folder).check_enough()
    if not len(people):
        raise RecipeError(
            f"the people of {folder} have their text on devices: write a recipe, and train with"
            " taciturn fleet serve"
        )
    if users is None:
        return
    is_near = len(people) <= FARTHEST_STATED * users and users <= FARTHEST_STATED * len(people)
    if not is_near:
        # It would be in the recipe if none were stated, so that no more is revealed here.
        there = round_for_publication(len(people))
        raise RecipeError(
            f"{folder} has about {there:,} people, and {users:,} are stated: rounds would be of"
            " another size than planned. State `users` within a factor of two of it, or leave it"
            " out"
        )


def _is_on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _time_machine(
    draft: Recipe,
    population: Population,
    held_out: HeldOutUsers,
    params: Params,
    announce: Announce,
    measure_again_until: float,
) -> Timing:
    """Time rounds of held-out users, and estimate how long it takes to measure all of them."""
    least_tokens = population.manifest["about"].get("least_tokens", 0)
    most = CPU_SAMPLE if _is_on_cpu() else ACCELERATOR_SAMPLE
    sample = draw_sample(held_out, least_tokens, most)
    timing = measure_speed(draft, sample, params, announce, measure_again_until)
    evaluate_s = timing.evaluate_s * (held_out.texts.tokens / sample.texts.tokens)
    return replace(timing, evaluate_s=evaluate_s)


def _seconds_left(minutes: float, aside: float) -> float:
    """Return the time for the rounds, where `aside` seconds go to everything else."""
    seconds = (1 - UNFORESEEN) * 60 * minutes - aside
    if seconds < 0:
        least = math.ceil(aside / 60 / (1 - UNFORESEEN))
        raise RecipeError(
            f"compiling and measuring take {aside / 60:.1f} minutes by themselves on this machine:"
            f" allow more `minutes`, {least + 1} at least"
        )
    return seconds


def _choose_plan(task: Task) -> Plan:
    try:
        return choose_plan(task)
    # Some ε need no noise, and some are reached by none.
    except ValueError as error:
        raise RecipeError(str(error)) from None


def _check_start(start: str, card: ModelCard, folder: Path, words: tuple[str, ...]) -> None:
    if card.run is not None or card.personal:
        raise RecipeError(
            f"{start} learned from people, and a recipe is worked out only for starts of public"
            " text; write your own"
        )
    if card.architecture.get("kind") not in KINDS:
        raise RecipeError(
            f"{start} is not a neural model: private training starts from one; name another"
        )
    if card.vocabulary != words:
        # Those of the start that comes with the package need no name.
        named = "" if start == SHIPPED else f", vocabulary={start}"
        raise RecipeError(
            f"{start} knows other words than {folder}. Build the people with its words"
            f" (`tt.build_population(TEXT, FOLDER{named})`), or keep theirs, and prepare public"
            f" text in them, to learn first: taciturn data public TEXT --vocabulary {folder} --out"
            " PUBLIC, then `public=PUBLIC`"
        )


def draw_sample(held_out: HeldOutUsers, least_tokens: int, most: int) -> Sample:
    """Draw held-out users who wrote as much as those who will be trained on."""
    texts = held_out.texts
    writers = [user for user in range(len(texts)) if len(texts[user])]
    long_writers = [user for user in writers if len(texts[user]) >= least_tokens]
    enough = long_writers if len(long_writers) >= LEAST_SAMPLE else writers
    shuffled = np.random.default_rng(0).permutation(enough)
    drawn = [texts[user] for user in shuffled[:most]]
    return Sample(Texts.of(drawn, 2**31))


def measure_speed(
    draft: Recipe,
    sample: Sample,
    params: Params,
    announce: Announce,
    measure_again_until: float,
) -> Timing:
    """Time rounds of all users in a sample and of fewer, and a measurement of a model.

    Args:
        draft: the recipe, as far as it is known.
        sample: whom to train.
        params: of the model.
        announce: called with each step that begins.
        measure_again_until: by `time.perf_counter`; the speed is measured twice at least.
    """
    users = len(sample.texts)
    fewer = users // 4
    vocabulary = build.population(draft).vocabulary
    params = jax.tree.map(jax.numpy.asarray, params)
    recipe = draft.with_settings("privacy", epsilon=None, noise_multiplier=1.0, delta=1e-9)
    recipe = recipe.with_settings("participation", users=users, cohort=users)
    make_stopwatch = partial(_make_stopwatch, recipe, vocabulary, params)
    with (
        make_stopwatch(sample) as time_round,
        make_stopwatch(_take_first(sample, fewer)) as time_smaller_round,
    ):
        announce("compiling a round, to time it")
        compile_s = time_round()
        announce("compiling a smaller round")
        time_smaller_round()

        def measure_pace() -> Pace:
            round_s = _time(time_round)
            saved_s = max(round_s - _time(time_smaller_round), 0.1 * round_s)
            return Pace(round_s, saved_s / (users - fewer))

        paces = measure_until_two_agree(measure_pace, announce, measure_again_until)
    pace = choose_pace(paces)
    announce("compiling and timing a measurement")
    model = build.language_model(recipe.model, len(vocabulary))
    return Timing(
        compile_s=max(compile_s - paces[0].round_s, 0.0),
        users_per_s=1 / pace.user_s,
        overhead_s=max(pace.round_s - users * pace.user_s, 0.0),
        evaluate_s=best_time(lambda: evaluate(model, params, sample.texts), 1),
        speeds=tuple(1 / one.user_s for one in paces),
        is_certain=_find_agreeing(paces) is not None,
    )


def _make_stopwatch(
    recipe: Recipe, vocabulary: Vocabulary, params: Params, sample: Sample
) -> AbstractContextManager[Callable[[], float]]:
    layout = build.layout(recipe, vocabulary)
    fleet = SimulatedFleet(sample, layout, cohort=recipe.participation.users)
    return round_stopwatch(recipe, fleet, params, words=len(vocabulary))


def _time(time_round: Callable[[], float]) -> float:
    """Return the seconds of a round; of a short one those of the fastest of three."""
    round_s = time_round()
    if round_s >= SHORT_ROUND:
        return round_s
    return min(round_s, time_round(), time_round())


def _take_first(sample: Sample, users: int) -> Sample:
    first = [sample.texts[user] for user in range(users)]
    return Sample(Texts.of(first, 2**31))


def measure_until_two_agree(
    measure_pace: Callable[[], Pace],
    announce: Announce,
    measure_again_until: float,
) -> list[Pace]:
    """Measure the speed twice, and again until two measurements agree, or time or tries are up.

    Other work on the machine can make a round three times as slow, and a recipe on which ε is spent
    depends on it.
    """
    announce("timing rounds")
    paces = [measure_pace()]
    while len(paces) < MOST_MEASUREMENTS and _find_agreeing(paces) is None:
        is_late = time.perf_counter() > measure_again_until
        if is_late and len(paces) >= 2:
            break
        announce(f"timing rounds again, after {1 / paces[-1].user_s:,.0f} people a second")
        paces.append(measure_pace())
    return paces


def choose_pace(paces: list[Pace]) -> Pace:
    """Return the slower of two that agree, or the median."""
    agreeing = _find_agreeing(paces)
    if agreeing is not None:
        return max(agreeing, paces[-1], key=lambda pace: pace.user_s)
    by_speed = sorted(paces, key=lambda pace: pace.user_s)
    # Of two in the middle the slower.
    return by_speed[len(by_speed) // 2]


def _find_agreeing(paces: list[Pace]) -> Pace | None:
    """Return the measurement before the last that agrees with it, if any does."""
    *earlier, last = paces
    for pace in earlier:
        faster, slower = sorted((pace.user_s, last.user_s))
        if slower <= (1 + AGREE_WITHIN) * faster:
            return pace
    return None


def pretrain_for(people: Path, public: Path, out: Path, display: Display) -> Path:
    """Return a model of this public text, from which training on these people can start.

    It is trained from the shipped start where the words are the same. A training that was
    interrupted is resumed, and a model that is there is used again; where `public` is a model, it
    is returned itself.
    """
    if (public / "model.safetensors").exists():
        return public
    corpus = PublicCorpus.load(public)
    words = corpus.vocabulary.words
    _, shipped = load_model(Path(SHIPPED))
    if words != Population(people).vocabulary.words:
        raise RecipeError(
            f"{public} and {people} have different vocabularies: make it with taciturn data public"
            f" TEXT --vocabulary {people} --out FOLDER"
        )
    was_interrupted = (out / CHECKPOINT).exists()
    if was_interrupted or not (out / "model.safetensors").exists():
        with display.pretraining(out, describe_pretraining(corpus, out)) as show:
            pretrain_model(
                corpus=corpus,
                settings=ModelSection(kind="cifg"),
                schedule=Schedule(),
                out=out,
                progress=show,
                resume=was_interrupted,
                start=Path(SHIPPED) if words == shipped.vocabulary else None,
            )
        return out
    _, card = load_model(out)
    if corpus.source not in card.public_sources:
        raise RecipeError(
            f"{out} was pretrained on other text than {public}: delete it, or choose another"
            " `folder`"
        )
    return out


# What was chosen, in sentences.


def describe_pretraining(corpus: PublicCorpus, out: Path) -> str:
    """Say what is learned before a recipe is worked out, and how long that takes."""
    tokens = corpus.documents.tokens
    # Its epochs do not depend on how the model is scaled.
    epochs = fit_schedule(Schedule(), tokens, unit_norm=False).epochs
    minutes = math.ceil(epochs * tokens / TWO_CORES_TOKENS_PER_S / 60)
    return (
        f"Learning public text first, which `minutes` does not count: {corpus.source},"
        f" {tokens:,} tokens, up to {epochs} times. On two CPU cores that takes about"
        f" {minutes} min; the time left here is shown once the first steps are done. What was"
        f" learned is kept in {out}, and used again."
    )


def describe_plan(auto_plan: AutoPlan, is_counted: bool, minutes: float) -> list[str]:
    """Say whom a recipe is for, how it spends the minutes, and what limits it."""
    task = auto_plan.task
    plan = auto_plan.plan
    how_known = "as you state"
    if is_counted:
        how_known = "counted, and rounded down; state another number with `users`"
    promise = pair_text(task.epsilon, task.delta)
    training_minutes = task.duration(plan.rounds, plan.cohort) / 60
    return [
        f"{task.users:,} people ({how_known}), {promise} (1/users²).",
        f"This machine trains {task.users_per_second:,.0f} of them a second.",
        f"{plan.rounds} rounds of {plan.cohort:,}, noise multiplier {plan.noise_multiplier:.2f},"
        f" server rate {plan.server_rate:g}: about {training_minutes:.1f} minutes of training,"
        f" {auto_plan.minutes:.1f} of {minutes:g} in all.",
        describe_limit(auto_plan.limit),
    ]


def describe_limit(limit: Limit) -> str:
    """Say what keeps a plan from gaining more."""
    if limit.is_time:
        return (
            "The time limits what it gains: twice the minutes would be worth"
            f" {_describe_points(limit.more_in_time)} of AccuracyTop1 more."
        )
    if limit.is_people:
        return (
            "The number of people limits what it gains at this ε, not the time: twice as many would"
            f" be worth {_describe_points(limit.more_with_people)} of AccuracyTop1 more."
        )
    return "Neither twice the minutes nor twice the people would be worth much more."


def _describe_points(gain: float) -> str:
    return f"about {gain:.2f} points"


def describe_doubt(timing: Timing) -> str | None:
    """Say why the time that a plan takes is uncertain, if it is."""
    if timing.is_certain:
        return None
    speeds = ", ".join(f"{speed:,.0f}" for speed in timing.speeds)
    return (
        "How long it takes is uncertain: the speed changed while it was measured"
        f" ({speeds} people a second). If other work slows down this machine, wait for its end, and"
        " plan again."
    )
