"""Notice that a run gets worse before it has spent its budget, and say what the cause may be.

Judged are released models only, on held-out users, who have no guarantee: to look costs nobody
anything, and to stop for what was seen is post-processing. What was charged stays charged.

A model is *worse than its start* where its loss is above the start's by more than `MARGIN`, or is
not a number. A run stops where that is so at two looks in a row, or at once where the loss is not
a number. Looks come after 1, 2, 4, 8, … rounds, up to the distance of two measurements, and at each
measurement. So the second of two looks has seen as many rounds again as the first, or a whole
distance more: a model that only overshoots has had the time to come back. Of 209 runs of our
experiments, 207 were never above their start by more than 0.09; the other two did not recover.
"""

import math
from typing import NamedTuple

import jax
import numpy as np

from taciturn import trees
from taciturn.core import Params
from taciturn.data.population import LEAST_HELD_OUT
from taciturn.data.token_shards import Texts
from taciturn.evaluation.accuracy import Scores, evaluate_each
from taciturn.privacy.accounting.rounding_up import delta_text, epsilon_text
from taciturn.runs.metrics import Row
from taciturn.runs.run import Run
from taciturn.training import TrainState

# Nats: on average each word is e times less likely than it was to the start.
MARGIN = 1.0
# Looks in a row.
PATIENCE = 2
# A look reads about as many, so that it takes little time.
TOKENS = 10_000
# A model that moved further than reports can have moved it by this factor was moved by noise.
NOISE = 2.0


class KeptModel(NamedTuple):
    """A model of the run that was not worse than its start when it was looked at."""

    # After which it was released.
    round: int
    params: Params


class Watch:
    """Looks at the models of a run, and keeps the last that was not worse than the start."""

    def __init__(self, run: Run, state: TrainState, scores: Scores, kept: KeptModel) -> None:
        """Take a first look.

        Args:
            run: what is watched.
            state: with which this process begins.
            scores: of this state, a column for each held-out user.
            kept: what stays if this state is worse than the run's start.
        """
        self._run = run
        self._users = _count_users(run.held_out.texts)
        first_users = [run.held_out.texts[user] for user in range(self._users)]
        self._texts = Texts.of(first_users, len(run.vocabulary))
        self._limit = MARGIN + self._loss_of_start(state, scores)
        self._bad_looks = 0
        self._kept = kept
        self._look(state, self._loss(scores))

    def _loss_of_start(self, state: TrainState, scores: Scores) -> float:
        if state.round == 0:
            return self._loss(scores)
        return self._measure(self._run.initial_params())

    @property
    def kept(self) -> KeptModel | None:
        """Return the model to keep, where the newest is worse than the run's start."""
        return self._kept if self._bad_looks else None

    @property
    def has_seen_enough(self) -> bool:
        """Tell whether the run should end."""
        return self._bad_looks >= PATIENCE

    def is_due(self, round: int) -> bool:
        """Tell whether to look after this many rounds, besides at measurements."""
        is_power_of_two = round & (round - 1) == 0
        return is_power_of_two and round < self._run.recipe.run.evaluate_every

    def look(self, state: TrainState) -> None:
        """Look at a model that is not measured now."""
        self._look(state, self._measure(state.server.params))

    def look_at_scores(self, state: TrainState, scores: Scores) -> None:
        """Look at a model that was just measured."""
        self._look(state, self._loss(scores))

    def _look(self, state: TrainState, loss: float) -> None:
        if not math.isfinite(loss):
            self._bad_looks += PATIENCE
        elif loss > self._limit:
            self._bad_looks += 1
        else:
            self._bad_looks = 0
            self._kept = KeptModel(state.round, state.server.params)

    def _measure(self, params: Params) -> float:
        run = self._run
        return self._loss(evaluate_each(run.model, params, self._texts, run.cut))

    def _loss(self, scores: Scores) -> float:
        """Return the loss of the users that looks read."""
        loss = np.sum(scores.loss[: self._users])
        tokens = np.sum(scores.tokens[: self._users])
        return float(loss / tokens)


def _count_users(texts: Texts) -> int:
    """Return how many of the first users looks read.

    No fewer than figures may be published of, since a run that stops shows how they fared.
    """
    tokens = 0
    writers = 0
    for user in range(len(texts)):
        tokens += len(texts[user])
        writers += len(texts[user]) > 0
        if tokens >= TOKENS and writers >= LEAST_HELD_OUT:
            return user + 1
    return len(texts)


def explain(run: Run, state: TrainState, rows: list[Row], kept: KeptModel) -> str:
    """Say that a run got worse, what may be the cause, what is kept and what was spent.

    All of it follows from the recipe and from released models.
    """
    all_rounds = run.recipe.run.rounds
    kept_model = f"the model of round {kept.round}" if kept.round else "the model it started from"
    return (
        f"the run gets worse: the loss on held-out users was {rows[0]['loss']:.1f} at its start and"
        f" is {rows[-1]['loss']:.1f} after {state.round} of {all_rounds} rounds."
        f" {_name_cause(run, state, rows)}. Kept is {kept_model}. {_name_cost(run, state)}. This"
        " run has ended: start another with other settings, from this model"
        f" (model.warm_start={run.folder}) or anew"
    )


def _name_cost(run: Run, state: TrainState) -> str:
    guarantee = run.account.guarantee()
    pair = f"ε = {epsilon_text(guarantee.epsilon)} at δ = {delta_text(guarantee.delta)}"
    left = run.recipe.run.rounds - state.round
    unspent = f"; what the other {left} rounds would have cost is not spent" if left else ""
    return f"{pair} is charged, and stays so{unspent}"


def _name_cause(run: Run, state: TrainState, rows: list[Row]) -> str:
    recipe = run.recipe
    reach = _reach_of_reports(run, state, rows)
    moved = _distance(state.server.params, run.initial_params())
    slower = "lower server.learning_rate or server.momentum"
    may_lie = ""
    if recipe.fleet.kind == "devices":
        may_lie = ". A device that does not send what it was asked for can do the same"
    if recipe.privacy.noise_multiplier and moved > NOISE * reach:
        parameters = trees.size(state.server.params)
        return (
            f"It has moved by {moved:.3g}, and {recipe.participation.cohort:g} reports a round can"
            f" have moved it by {reach:.3g}: the rest is noise, which is too loud for so few people"
            f" (noise multiplier {recipe.privacy.noise_multiplier:.3g}, {parameters:,} parameters)."
            " Take larger cohorts, which need more people, or a smaller model; or"
            f" {slower}, which keeps more of the start{may_lie}"
        )
    return (
        f"Noise does not explain it, so a learning rate is probably too high: {slower}, or"
        f" local.learning_rate, or set local.max_gradient_norm{may_lie}"
    )


def _reach_of_reports(run: Run, state: TrainState, rows: list[Row]) -> float:
    """Return how far reports can have moved the model: if all pointed one way, in all rounds."""
    server = run.recipe.server
    longest = max(float(row["clip_norm"]) for row in rows)
    if server.optimizer == "adam":
        # Its steps are as long as its rate wants, whatever reports are.
        return math.inf
    momentum = 0.0 if server.optimizer == "sgd" else server.momentum
    looks_ahead = server.optimizer == "nesterov"
    steps = np.arange(1, state.round + 1) + looks_ahead
    # Σ over rounds of 1 + β + β² + …
    weight = np.sum((1 - momentum**steps) / (1 - momentum))
    return server.learning_rate * longest * float(weight)


def _distance(params: Params, start: Params) -> float:
    square = 0.0
    for leaf in jax.tree.leaves(trees.subtract(params, start)):
        square += float(np.sum(np.square(np.asarray(leaf, np.float64))))
    return math.sqrt(square)
