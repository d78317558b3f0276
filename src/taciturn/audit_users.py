"""Made-up users by whom a training is audited (Steinke et al. 2023, "Privacy auditing with one (1) training run").

Each writes a sentence of random words over and over, and belongs to one round, in which it takes part if a fair coin falls so. They come
in groups, beside a round's people and outside their claim. Whoever sees all released models asks in which direction such a user would have
moved a round's model, and how far it went there: the *alignment*. What the others of its group and the people pull together is taken off
first. Whoever sees the last model alone has its loss on what the user wrote. evaluation/one_run.py makes a bound on ε of both.

What is claimed for such a user is a single release, at a weight that makes the claim small: a bound from N users does not get much
above log N, so it could never be above what is claimed for a report of full weight under little noise.

RUN/audit_users.json has every user's round, coin and scores. All of it is made of public numbers: released models, random words.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn import build, keys, tree
from taciturn.config import Recipe
from taciturn.core import END, Algorithm, Key, LanguageModel, Message, Params, UserData, UserIds
from taciturn.data.layout import Cut
from taciturn.data.texts import Texts
from taciturn.data.vocabulary import DataError, Vocabulary
from taciturn.evaluation.accuracy import user_losses
from taciturn.evaluation.canaries import canary_words
from taciturn.files import write_atomically
from taciturn.fleets.simulated import SimulatedFleet
from taciturn.privacy.accounting import gaussian_epsilon
from taciturn.sections import AUDITED_AT_ONCE
from taciturn.train import TrainState

FILE_NAME = "audit_users.json"
ALL_MODELS, LAST_MODEL, CALIBRATED = "all models", "last model", "last model, calibrated"  # what an attack sees
SENTENCE_WORDS = 5
MOST_DELTA = 1e-5  # at which ε is bounded: a bound from N users says nothing where δ is not far below 1/N
LEAST_POWER = 0.3  # of what parameters are taken to have moved, in all: so that none is trusted beyond measure
RIDGE = 0.1  # without it noise would decide, where users are much alike
TELLING = 0.5  # the μ to claim; at δ = 1e-5 that is ε = 1.99, which scores that tell all pass from some 60 users on


class Claim(NamedTuple):
    """About one audit user's part in a run: one release, Gaussian noise."""

    weight: float  # of its report, where a person's is up to 1
    mu: float  # how far it moves the release, in standard deviations of the noise; infinite where there is none

    def epsilon(self, delta: float) -> float:
        return gaussian_epsilon(self.mu, delta) if math.isfinite(self.mu) else math.inf


def claim(recipe: Recipe) -> Claim:
    """`recipe` has its noise worked out."""
    multiplier = recipe.privacy.noise_multiplier
    if not multiplier:
        return Claim(1.0, math.inf)
    strategy = build.noise(recipe, multiplier).strategy
    alone = math.sqrt(strategy.sensitivity_squared(strategy.rows, 0, 1)) / multiplier  # a report of weight 1, once
    # An adaptive clip norm also counts who is within it, where every report counts alike; rounded to residues, light ones grow.
    whole = recipe.privacy.clipping == "adaptive" or recipe.privacy.encoding == "modular"
    weight = 1.0 if whole else min(1.0, TELLING / alone)
    # A total that becomes floats is rounded by its size, whatever the weight of one report; noise covers it for a weight of 1.
    rounding = build.most_reports(recipe) * 2.0**-21
    return Claim(weight, alone * (weight + rounding) / (1 + rounding))


def audit_users(
    recipe: Recipe, vocabulary: Vocabulary, algorithm: Algorithm, start: Params, root: bytes
) -> "AuditUsers | None":
    if not recipe.audit.users:
        return None
    if jax.process_count() > 1:
        raise ValueError("[audit] is for runs on one host")
    return AuditUsers(recipe, vocabulary, algorithm, start, root)


class AuditUsers:
    """Those of one run, from its root; `begin` and `observe` are told of every round."""

    def __init__(
        self, recipe: Recipe, vocabulary: Vocabulary, algorithm: Algorithm, start: Params, root: bytes
    ) -> None:
        """`start` are the parameters that the run begins with."""
        count, layout = recipe.audit.users, build.layout(recipe, vocabulary)
        generator = np.random.default_rng(int.from_bytes(keys.derive(root, "audit users", 0), "big"))
        self.claim, self._delta, self._algorithm = claim(recipe), min(recipe.delta, MOST_DELTA), algorithm
        self._groups = _groups(count, recipe.run.rounds)
        self._included = generator.random(count) < 0.5
        # One local step of it: more would teach a device so much of so little that its training runs away, and its report is nothing.
        length = min(layout.batch_size * layout.cut.length, recipe.data.tokens_per_user)
        self.texts = Texts.of([_random_text(vocabulary, length, generator) for _ in range(count)], len(vocabulary))
        cap = len(self.texts[0]) / self.claim.weight  # they are all of one length
        self.fleet = SimulatedFleet(self, layout, cap, AUDITED_AT_ONCE)
        self._layout, self._start = layout, start
        self._key = keys.jax_keys(keys.derive(root, "scores of audit users", 0), 1)[0]
        self._alignments = jax.jit(self._aligned)
        self._rows: dict[int, dict[str, Any]] = {}
        self._round = 0

    def begin(self, round: int) -> None:
        self._round = round

    def chosen(self, coins: Key) -> UserIds:
        """Who of them takes part now: those of the round on whom the coin fell, however often it is summed."""
        del coins
        group = self._groups.get(self._round, np.arange(0))
        return group[self._included[group]]

    def observe(self, before: TrainState, after: TrainState) -> None:
        """Score those of a round that is over, whether they were in or not."""
        group = self._groups.get(before.round)
        if group is None:
            return
        # Where the server would be, had the estimate been zero, is known to whoever knows its optimiser and the models before.
        still = self._algorithm.server_update(before.server, tree.zeros_like(before.server.params))
        moved = tree.subtract(after.server.params, still.params)
        gone = tree.subtract(before.server.params, self._start)
        message = Message(before.server.params, self._algorithm.mechanism.public(before.mechanism))
        batches = np.stack([self._layout.batches(self.texts[user]) for user in group])
        steps = np.sum(np.any(batches, axis=(2, 3)), axis=1, dtype=np.int32)
        users = UserData(jnp.asarray(batches), jnp.ones(len(group)), jnp.asarray(steps))
        found = self._alignments(message, moved, gone, users, jnp.asarray(group, jnp.uint32))
        for user, score in zip(group.tolist(), _told_apart(*map(np.asarray, found)), strict=True):
            self._rows[user] = {
                "round": before.round,
                "included": bool(self._included[user]),
                "alignment": float(score),
            }

    def _aligned(
        self, message: Message, moved: Params, gone: Params, users: UserData, ids: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """How far the model went in the direction of each user's update, how far each points in the direction of each other, and how far it
        would have gone there with a report of norm 1."""
        trust = _trust(gone)

        def direction(user_and_id: tuple[UserData, jax.Array]) -> tuple[Params, jax.Array]:
            user, id = user_and_id
            update = self._algorithm.user_update(message, user, jax.random.fold_in(self._key, id))
            # If it is not, its report is nothing, and must not hide what the others are.
            finite = jnp.isfinite(tree.dot(update, update))
            update = jax.tree.map(lambda layer: jnp.where(finite, layer, 0.0), update)
            trusted = jax.tree.map(jnp.multiply, update, trust)
            norm, whole = (jnp.sqrt(jnp.maximum(tree.dot(one, one), 1e-30)) for one in (trusted, update))
            return tree.scale(trusted, 1 / norm), norm / whole

        directions, sizes = jax.lax.map(direction, (users, ids))
        each = jax.tree.map(lambda leaf: leaf.reshape(len(ids), -1), directions)
        trusted = jax.tree.map(lambda one, weight: jnp.ravel(one * weight), moved, trust)
        products = sum(jax.tree.leaves(jax.tree.map(jnp.matmul, each, trusted)), jnp.zeros(()))
        return products, sum((leaf @ leaf.T for leaf in jax.tree.leaves(each)), jnp.zeros(())), sizes

    def remember_losses(self, model: LanguageModel, end: Params, cut: Cut) -> None:
        """Of the first and the last model on what each user wrote; the first is the reference by which the last is read."""
        before, after = (user_losses(model, params, self.texts, cut) for params in (self._start, end))
        for user, row in self._rows.items():
            row |= {"loss_before": float(before[user]), "loss_after": float(after[user])}

    def save(self, folder: Path, mode: int) -> None:
        """`mode` is the model's: where that is for its owner alone, so is what was read from the models on the way."""
        mu = self.claim.mu if math.isfinite(self.claim.mu) else "infinity"  # JSON knows none
        content = {"delta": self._delta, "weight": self.claim.weight, "mu": mu, "users": self._rows}
        write_atomically(folder / FILE_NAME, json.dumps(content, indent=1).encode(), mode)

    def go_on(self, folder: Path, round: int) -> None:
        """With the scores of the rounds that are done."""
        if (folder / FILE_NAME).exists():
            rows = json.loads((folder / FILE_NAME).read_text())["users"]
            self._rows = {int(user): row for user, row in rows.items() if row["round"] < round}


class Scored(NamedTuple):
    """What a run wrote down of its audit users."""

    claim: Claim
    delta: float
    included: np.ndarray
    scores: dict[str, np.ndarray]  # by attack; high ones say that a user was in


def load_scores(folder: Path) -> Scored:
    try:
        content = json.loads((folder / FILE_NAME).read_text())
        rows = list(content["users"].values()) or [{}]  # nobody: it was cut off before anything was scored
        found = {name: np.array([row[name] for row in rows]) for name in ("alignment", "loss_before", "loss_after")}
        claimed = Claim(float(content["weight"]), float(content["mu"]))
        included = np.array([row["included"] for row in rows], bool)
        delta = float(content["delta"])
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{folder / FILE_NAME} is damaged, or its run has not come to its end") from None
    scores = {
        ALL_MODELS: found["alignment"],
        LAST_MODEL: -found["loss_after"],
        CALIBRATED: found["loss_before"] - found["loss_after"],
    }
    return Scored(claimed, delta, included, scores)


def _trust(gone: Params) -> Params:
    """For each parameter, how much of what moves it may be one user's: where the run has gone far, people pull together, and one more
    pull is hard to see. Of a word all parameters are trusted alike. Under noise that drowns people, all are."""
    squares = jax.tree.map(jnp.square, gone)
    typical = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(squares)) / tree.size(gone)

    def of_a_layer(squares: jax.Array) -> jax.Array:
        rows = squares if squares.ndim < 2 else jnp.mean(squares, axis=-1, keepdims=True)
        trusted = jax.lax.rsqrt(rows / jnp.maximum(typical, 1e-30) + LEAST_POWER)
        return jnp.broadcast_to(trusted, squares.shape)

    return jax.tree.map(of_a_layer, squares)


def _told_apart(products: np.ndarray, likeness: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """What of a step is each user's own: all who write at random pull much the same way, and those who are in hide those who are not."""
    ridge = likeness + RIDGE * np.eye(len(products))
    shares = np.linalg.solve(ridge.astype(np.float64), products.astype(np.float64))
    return (shares - shares.mean()) / np.maximum(sizes, 1e-12)


def _groups(users: int, rounds: int) -> dict[int, UserIds]:
    """Groups of about one size, in rounds that are spread over the run."""
    count = math.ceil(users / AUDITED_AT_ONCE)
    groups = np.array_split(np.arange(users), count)
    return {(2 * number + 1) * rounds // (2 * count): group for number, group in enumerate(groups)}


def _random_text(vocabulary: Vocabulary, length: int, generator: np.random.Generator) -> np.ndarray:
    """One sentence of random words, over and over: what such a user teaches a model is taught by nobody else."""
    sentence = [*generator.choice(canary_words(vocabulary), SENTENCE_WORDS), END]
    return np.resize(np.array(sentence, np.int32), length)
