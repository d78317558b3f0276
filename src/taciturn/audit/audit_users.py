"""Synthetic users that audit a training: each sends a random direction (Andrew et al. 2023,
"One-shot empirical privacy estimation for federated learning"; a single training tests all of them,
as in Steinke, Nasr and Jagielski 2023).

docs/audit.md describes the method. A run records how far each released estimate went in the
direction of each user, whether it took part or not, and in some directions that no user sends
(`FILE_NAME`), and who took part (`COINS`). Directions are Walsh functions of the shuffled
parameters, times random signs that all users share: orthogonal (exactly, where one clip norm covers
all layers), and an estimate's products with 10,000 of them are one fast transform.
"""

import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from taciturn import randomness, trees
from taciturn.core import Algorithm, Fleet, Key, Message, Params, Program, PyTree, Report, UserIds
from taciturn.data.vocabulary import DataError
from taciturn.files import write_atomically
from taciturn.fleets.simulation.synthetic_users import WithSyntheticUsers
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import AUDITED_AT_ONCE
from taciturn.training import TrainState

FILE_NAME, COINS = "audit_users.npy", "audit_users.json"
# of a direction before it is bounded: longer than clip norms, shorter than what counts as diverged
LENGTH = 5e5
# directions that no user sends, for each that a user may send: they show what people do to all
# directions
BYSTANDERS = 0.25
MOST_BESIDE = (
    # of a cohort, where its people are counted: by an adaptive clip norm, or in a denominator
    0.1
)


class AuditUsers:
    """A fleet of audit users for one run, and a `RunObserver`: the run calls `begin` and `observe`
    in every round.
    """

    everyone_reports = True

    def __init__(self, recipe: Recipe, algorithm: Algorithm, params: Params, root: bytes) -> None:
        """Make those of a recipe whose noise is worked out. `params` may be any of the model's
        shape.
        """
        self.count, self._rounds = recipe.audit.users, recipe.run.rounds
        self.most_at_once = min(self.count, AUDITED_AT_ONCE)
        self.source = f"random directions of {self.count} synthetic users, who audit the run"
        generator = np.random.default_rng(
            int.from_bytes(randomness.derive(root, "audit users", 0), "big")
        )
        self.included = generator.random(self.count) < 0.5
        self.patterns = patterns(recipe)
        self._at_once = math.ceil(self.count / len(self.patterns))
        self._columns = self.count + math.ceil(BYSTANDERS * self.count)
        self._directions = Directions(params, _lengths(recipe, params), self._columns, generator)
        self._mechanism, self._unit = algorithm.mechanism, _unit(recipe)
        self._add = jax.jit(self._added)
        self._pattern_of = {
            round: number for number, pattern in enumerate(self.patterns) for round in pattern
        }
        # not written yet
        self._round, self._seen = 0, dict[int, np.ndarray]()

    def beside(self, fleet: Fleet, most_reports: int) -> Fleet:
        return WithSyntheticUsers(
            fleet, synthetic=self, choose=self.chosen, most_reports=most_reports, key_slot=2
        )

    def begin(self, round: int) -> None:
        self._round = round

    def chosen(self, coins: Key) -> UserIds:
        """Return who takes part now: those whose turn it is and whose coin says so, however often
        the round is summed.
        """
        del coins
        everyone = np.arange(self.count)
        turn = everyone % len(self.patterns) == self._pattern_of.get(self._round, -1)
        return everyone[turn & self.included]

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return eligible(np.arange(self.count))

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        """Sum their directions; they train nothing, so the devices' program is not used."""
        del program
        ids = np.zeros(self._at_once, np.uint32)
        ids[: len(cohort)] = cohort
        return self._add(
            self._directions.vectors, message.public, jnp.asarray(ids), len(cohort), key
        )

    def _added(
        self, vectors: "Vectors", public: PyTree, ids: jax.Array, count: jax.Array, key: Key
    ) -> Report:
        def report(place: jax.Array) -> Report:
            update = self._directions.update(vectors, ids[place])
            return self._mechanism.bound(
                public, update, jnp.float32(1), jax.random.fold_in(key, ids[place])
            )

        nothing = trees.zeros_like(jax.eval_shape(report, jnp.int32(0)))
        return jax.lax.fori_loop(
            0, count, lambda place, total: trees.add(total, report(place)), nothing
        )

    def observe(self, before: TrainState, after: TrainState) -> None:
        """Record how far a round's estimate went in each direction, in units of a report of full
        length.
        """
        public = self._mechanism.public(before.mechanism)
        clip_norm = float(getattr(public, "clip_norm", public))
        products = self._directions.products(after.estimate)
        # of the noise: after a crash it may differ from the round
        row = int(after.mechanism.round) - 1
        self._seen[before.round] = np.append(row, products / (self._unit * clip_norm))

    def save(self, folder: Path, mode: int) -> None:
        """Save. `mode` is that of the model's file: readings are as private. A round repeated after
        a crash overwrites its row.
        """
        path = folder / FILE_NAME
        if not path.exists():
            coins = {"included": self.included.astype(int).tolist(), "rounds": self.patterns}
            write_atomically(folder / COINS, json.dumps(coins).encode(), mode)
            nothing = io.BytesIO()
            np.save(nothing, np.full((self._rounds, 1 + self._columns), np.nan, np.float32))
            write_atomically(path, nothing.getvalue(), mode)
        written = np.lib.format.open_memmap(path, "r+")
        for round, values in self._seen.items():
            written[round] = values
        written.flush()
        self._seen.clear()


class Vectors(NamedTuple):
    """What directions are made of, for each parameter."""

    # the random sign that all users share, times the size that every direction has there
    signed: jax.Array
    # uint32: its argument of the Walsh functions
    places: jax.Array
    # int32: the parameters that are used, shuffled, so that places are 0, 1, 2, …, 0, 1, …
    order: jax.Array
    # a sign for each direction; without it, those of a round would add up in a few parameters
    own: jax.Array


class Directions:
    """Orthogonal directions in the space of the parameters."""

    def __init__(
        self,
        params: Params,
        lengths: Sequence[float] | None,
        count: int,
        generator: np.random.Generator,
    ) -> None:
        """Draw `count` directions. `lengths` has the length in each layer of one of length 1;
        without, all parameters count alike.
        """
        sizes, self._shaped = (
            [leaf.size for leaf in jax.tree.leaves(params)],
            ravel_pytree(params)[1],
        )
        size = sum(sizes)
        self.block = 1 << (count - 1).bit_length()
        if self.block > size:
            most = int((1 << (size.bit_length() - 1)) / (1 + BYSTANDERS))
            raise ValueError(
                f"[audit] a model of {size} parameters can tell at most {most} users apart: lower"
                " audit.users"
            )
        self._fold = jax.jit(self._folded)
        # Shuffled, so that each place has parameters of every layer; those left over would leave
        # directions not quite orthogonal.
        order = generator.permutation(size)[: size - size % self.block]
        signs, places = np.zeros(size), np.zeros(size)
        signs[order] = 1.0 - 2.0 * generator.integers(0, 2, len(order))
        places[order] = np.arange(len(order)) % self.block
        used = [float(np.linalg.norm(layer)) for layer in np.split(signs, np.cumsum(sizes)[:-1])]
        alike = [norm / math.sqrt(len(order)) for norm in used]
        each = np.repeat(
            [length / max(norm, 1.0) for length, norm in zip(lengths or alike, used, strict=True)],
            sizes,
        )
        own = 1.0 - 2.0 * generator.integers(0, 2, count)
        typed = (
            (signs * each, jnp.float32),
            (places, jnp.uint32),
            (order, jnp.int32),
            (own, jnp.float32),
        )
        self.vectors = Vectors(*(jnp.asarray(values, kind) for values, kind in typed))

    def update(self, vectors: Vectors, user: jax.Array) -> Params:
        """Return what a user sends, before it is bounded. (`vectors` are these directions' own, as
        arguments of a compiled program.)
        """
        odd = (jax.lax.population_count(vectors.places & user) & 1).astype(jnp.float32)
        return self._shaped(vectors.signed * (LENGTH * vectors.own[user] * (1 - 2 * odd)))

    def products(self, estimate: PyTree) -> np.ndarray:
        """Return the inner product of an estimate with every direction."""
        folded = np.asarray(self._fold(self.vectors, estimate), np.float64)
        return walsh(folded)[: len(self.vectors.own)] * np.asarray(self.vectors.own)

    def _folded(self, vectors: Vectors, estimate: PyTree) -> jax.Array:
        """Sum what has the same place, for `walsh` to make products of."""
        shuffled = (ravel_pytree(estimate)[0] * vectors.signed)[vectors.order]
        return jnp.sum(shuffled.reshape(-1, self.block), axis=0)


def walsh(values: np.ndarray) -> np.ndarray:
    """Return Σ_k (−1)^popcount(i & k) · values[k], for every i.

    >>> walsh(np.array([1.0, 2.0, 3.0, 4.0]))
    array([10., -2., -4.,  0.])
    """
    turned, step = values, 1
    while step < len(values):
        first, second = np.moveaxis(turned.reshape(-1, 2, step), 1, 0)
        turned, step = np.stack([first + second, first - second], axis=1).ravel(), 2 * step
    return turned


def patterns(recipe: Recipe) -> list[list[int]]:
    """Return users' turns: each round belongs to at most one pattern, and user i has pattern i
    modulo their number. As many turns as the claim allows, or, without such a claim, as make μ
    about 1; fewer, where too many users would join a round.
    """
    rounds, limits, multiplier = (
        recipe.run.rounds,
        build.participation(recipe).limits,
        recipe.privacy.noise_multiplier,
    )
    # the recipe is refused otherwise
    assert multiplier
    # for whom a total has room
    at_once = AUDITED_AT_ONCE
    if _people_are_counted(recipe):
        at_once = min(at_once, max(1, int(MOST_BESIDE * recipe.participation.cohort)))
    most = limits[1] if limits else math.ceil(multiplier**2)
    apart = limits[0] + 1 if limits else max(1, rounds // most)
    for turns in range(min(most, -(-rounds // apart)), 0, -1):
        found = _patterns(rounds, apart, turns)
        if recipe.audit.users <= at_once * len(found):
            return found
    beside = (
        f"{rounds} rounds of {recipe.participation.cohort:g} people, who are counted, and audit"
        " users with them"
    )
    raise ValueError(
        f"[audit] {recipe.audit.users} users are too many for {beside}: take at most"
        f" {at_once * rounds}"
    )


def _people_are_counted(recipe: Recipe) -> bool:
    """Return whether people are counted, not only added: where updates are long, or in a
    denominator. Audit users are counted with them.
    """
    return recipe.privacy.clipping == "adaptive" or recipe.privacy.least_weight is not None


def _patterns(rounds: int, apart: int, turns: int) -> list[list[int]]:
    """Leave out patterns with less than half of the turns, which would tell little."""
    each = [list(range(first, rounds, apart)) for first in range(min(apart, rounds))]
    found = [one[start : start + turns] for one in each for start in range(0, len(one), turns)]
    return [one for one in found if 2 * len(one) >= turns]


def _lengths(recipe: Recipe, params: Params) -> list[float] | None:
    """Return the length in each layer where layers are clipped separately, so that the clip does
    not change a direction.
    """
    if recipe.privacy.clipping != "per-layer":
        return None
    given = recipe.privacy.layer_clip_norms
    norms = np.array([given[name] if given else 1.0 for name in trees.layer_names(params)])
    return (norms / np.linalg.norm(norms)).tolist()


def _unit(recipe: Recipe) -> float:
    """Return how far a report of clip norm 1 can move an estimate: what the noise must hide."""
    if recipe.privacy.least_weight is not None:
        return 2 / (recipe.participation.probability * recipe.privacy.least_weight)
    goal = (
        recipe.participation.cohort
        if recipe.algorithm == "dp-ftrl"
        else recipe.participation.expected_weight
    )
    return 1 / goal


class AuditScores:
    """What a run recorded of its audit users."""

    def __init__(self, folder: Path) -> None:
        try:
            coins: dict[str, Any] = json.loads((folder / COINS).read_text())
            self.included = np.array(coins["included"], bool)
            self.patterns: list[list[int]] = coins["rounds"]
            values = np.load(folder / FILE_NAME)
            self.rounds = np.flatnonzero(~np.isnan(values[:, 0]))
            self.rows, products = (
                values[self.rounds, 0].astype(int),
                values[self.rounds, 1:].astype(np.float64),
            )
            self.products, self.bystanders = np.split(products, [len(self.included)], axis=1)
            if self.products.shape[1:] != self.included.shape or not len(self.rounds):
                raise ValueError
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            raise DataError(
                f"the files {COINS} and {FILE_NAME} of {folder} are damaged, or no round was done"
            ) from None
