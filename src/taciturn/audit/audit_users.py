"""Synthetic users that audit a training: each sends a random direction.

The method is that of Andrew et al. 2023, "One-shot empirical privacy estimation for federated
learning"; a single training tests all of them, as in Steinke, Nasr and Jagielski 2023.

docs/audit.md describes the method. A run records how far each released estimate went in the
direction of each user, whether it took part or not, and in some directions that no user sends
(`FILE_NAME`), and who took part (`COINS`). Directions are Walsh functions of the shuffled
parameters, times random signs that all users share: orthogonal (exactly, where one clip norm covers
all layers), and an estimate's products with 10,000 of them are one fast transform. Beside them, the
estimates of the first rounds are kept (first_estimates.py), for what these sums cannot show.
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
from taciturn.audit.first_estimates import FirstEstimates
from taciturn.core import (
    Algorithm,
    Fleet,
    Key,
    Message,
    Params,
    Program,
    Public,
    PyTree,
    Report,
    UserIds,
)
from taciturn.data.vocabulary import DataError
from taciturn.files import write_atomically
from taciturn.fleets.simulation.synthetic_users import WithSyntheticUsers
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.recipe.sections import AUDITED_AT_ONCE
from taciturn.training import TrainState

FILE_NAME = "audit_users.npy"
COINS = "audit_users.json"
# Of a direction before it is bounded: longer than clip norms, shorter than what counts as diverged.
LENGTH = 5e5
# Directions that no user sends, for each that a user may send: they show what people do to all
# directions.
BYSTANDERS = 0.25
# The share of a cohort that may be audit users where its people are counted: by an adaptive clip
# norm, or in a denominator.
MOST_BESIDE = 0.1


class AuditUsers:
    """A fleet of audit users for one run, and a `RunObserver`.

    The run calls `begin` and `observe` in every round.
    """

    everyone_reports = True

    def __init__(
        self, *, recipe: Recipe, algorithm: Algorithm, params: Params, root: bytes
    ) -> None:
        """Make the audit users of a run.

        Args:
            recipe: its noise must be worked out.
            algorithm: whose mechanism bounds their reports.
            params: any of the model's shape.
            root: of all random numbers of the run.
        """
        self.count = recipe.audit.users
        self.most_at_once = min(self.count, AUDITED_AT_ONCE)
        self.source = f"random directions of {self.count} synthetic users, who audit the run"
        generator = _make_generator(root)
        self.included = generator.random(self.count) < 0.5
        self.patterns = choose_patterns(recipe)
        self._pattern_of_round = _number_patterns(self.patterns)
        self._most_of_a_pattern = math.ceil(self.count / len(self.patterns))
        self._rounds = recipe.run.rounds
        bystanders = math.ceil(BYSTANDERS * self.count)
        self._columns = self.count + bystanders
        self._directions = Directions(
            params=params,
            lengths=_layer_lengths(recipe, params),
            count=self._columns,
            generator=generator,
        )
        self._mechanism = algorithm.mechanism
        # How far a report of full length moves an estimate, at a clip norm of 1.
        self._unit = _largest_effect(recipe)
        self._sum_on_device = jax.jit(self._sum_directions)
        self._round = 0
        assert recipe.privacy.noise_multiplier
        self._multiplier = recipe.privacy.noise_multiplier
        self._first_estimates = FirstEstimates(
            rounds=recipe.run.rounds,
            layers=[leaf.size for leaf in jax.tree.leaves(params)],
        )
        # Readings that are not written yet, by round.
        self._seen: dict[int, np.ndarray] = {}

    def beside(self, fleet: Fleet, most_reports: int) -> Fleet:
        return WithSyntheticUsers(
            fleet,
            synthetic=self,
            choose=self.choose_cohort,
            most_reports=most_reports,
            key_slot=2,
        )

    def begin(self, round: int) -> None:
        self._round = round

    def choose_cohort(self, coins: Key) -> UserIds:
        """Return who takes part now: those whose turn it is and whose coin says so.

        They are the same however often the round is summed, so the coins are not used.
        """
        del coins
        everyone = np.arange(self.count)
        pattern = self._pattern_of_round.get(self._round, -1)
        is_their_turn = everyone % len(self.patterns) == pattern
        return everyone[is_their_turn & self.included]

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return eligible(np.arange(self.count))

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        """Sum their directions; they train nothing, so the devices' program is not used."""
        del program
        # One size, so that it is compiled once.
        ids = np.zeros(self._most_of_a_pattern, np.uint32)
        ids[: len(cohort)] = cohort
        return self._sum_on_device(
            vectors=self._directions.vectors,
            public=message.public,
            ids=jnp.asarray(ids),
            count=len(cohort),
            key=key,
        )

    def _sum_directions(
        self, *, vectors: "Vectors", public: Public, ids: jax.Array, count: jax.Array, key: Key
    ) -> Report:
        def report(place: jax.Array) -> Report:
            return self._report_direction(vectors, public, ids[place], key)

        def add_report(place: jax.Array, total: Report) -> Report:
            return trees.add(total, report(place))

        nothing = trees.zeros_like(jax.eval_shape(report, jnp.int32(0)))
        return jax.lax.fori_loop(0, count, add_report, nothing)

    def _report_direction(
        self, vectors: "Vectors", public: Public, user: jax.Array, key: Key
    ) -> Report:
        update = self._directions.update(vectors, user)
        own_key = jax.random.fold_in(key, user)
        return self._mechanism.bound(public, update, jnp.float32(1), own_key)

    def observe(self, before: TrainState, after: TrainState) -> None:
        """Record how far a round's estimate went in each direction; keep the first ones.

        The unit is what a report of full length moves an estimate by.
        """
        clip_norm = float(self._mechanism.public(before.mechanism).clip_norm)
        products = self._directions.products(after.estimate)
        # Of the noise: after a crash it may differ from the round.
        row = int(after.mechanism.round) - 1
        effect = self._unit * clip_norm
        self._seen[before.round] = np.append(row, products / effect)
        self._first_estimates.observe(before.round, after.estimate, effect * self._multiplier)

    def save(self, folder: Path, mode: int) -> None:
        """Save what was recorded; a round repeated after a crash overwrites its row.

        Args:
            folder: the run's.
            mode: of the model's file, because readings are as private.
        """
        self._first_estimates.save(folder, mode)
        path = folder / FILE_NAME
        if not path.exists():
            self._write_without_readings(folder, mode)
        written = np.lib.format.open_memmap(path, "r+")
        for round, values in self._seen.items():
            written[round] = values
        written.flush()
        self._seen.clear()

    def _write_without_readings(self, folder: Path, mode: int) -> None:
        coins = {
            "included": self.included.astype(int).tolist(),
            "rounds": self.patterns,
        }
        write_atomically(folder / COINS, json.dumps(coins).encode(), mode)
        readings = np.full((self._rounds, 1 + self._columns), np.nan, np.float32)
        write_atomically(folder / FILE_NAME, _to_npy(readings), mode)


def _make_generator(root: bytes) -> np.random.Generator:
    seed = randomness.derive(root, "audit users", 0)
    return np.random.default_rng(int.from_bytes(seed, "big"))


def _to_npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


class Vectors(NamedTuple):
    """What directions are made of, for each parameter."""

    # The random sign that all users share, times the size that every direction has there.
    signed: jax.Array
    # uint32: its argument of the Walsh functions.
    places: jax.Array
    # int32: the parameters that are used, shuffled, so that places are 0, 1, 2, …, 0, 1, …
    order: jax.Array
    # A sign for each direction; without it, those of a round would add up in a few parameters.
    own_signs: jax.Array


class Directions:
    """Orthogonal directions in the space of the parameters."""

    def __init__(
        self,
        *,
        params: Params,
        lengths: Sequence[float] | None,
        count: int,
        generator: np.random.Generator,
    ) -> None:
        """Draw directions.

        Args:
            params: any of the model's shape.
            lengths: in each layer, of a direction of length 1; without, all parameters count alike.
            count: how many directions are drawn.
            generator: what they are drawn with.

        Raises:
            ValueError: the model has too few parameters.
        """
        leaves = jax.tree.leaves(params)
        sizes = [leaf.size for leaf in leaves]
        size = sum(sizes)
        self.block = 1 << (count - 1).bit_length()
        if self.block > size:
            raise ValueError(
                f"[audit] a model of {size} parameters can tell at most {_most_users(size)} users"
                " apart: lower audit.users"
            )
        self._unravel = ravel_pytree(params)[1]
        self._fold = jax.jit(self._fold_places)
        self.vectors = _draw_vectors(
            sizes=sizes,
            lengths=lengths,
            count=count,
            block=self.block,
            generator=generator,
        )

    def update(self, vectors: Vectors, user: jax.Array) -> Params:
        """Return what a user sends, before it is bounded.

        Args:
            vectors: these directions' own, as arguments of a compiled program.
            user: its number.
        """
        ones = jax.lax.population_count(vectors.places & user)
        odd = (ones & 1).astype(jnp.float32)
        direction = vectors.signed * (LENGTH * vectors.own_signs[user] * (1 - 2 * odd))
        return self._unravel(direction)

    def products(self, estimate: PyTree) -> np.ndarray:
        """Return the inner product of an estimate with every direction."""
        folded = np.asarray(self._fold(self.vectors, estimate), np.float64)
        own_signs = np.asarray(self.vectors.own_signs)
        return walsh(folded)[: len(own_signs)] * own_signs

    def _fold_places(self, vectors: Vectors, estimate: PyTree) -> jax.Array:
        """Sum what has the same place, for `walsh` to make products of."""
        signed = ravel_pytree(estimate)[0] * vectors.signed
        shuffled = signed[vectors.order]
        return jnp.sum(shuffled.reshape(-1, self.block), axis=0)


def _most_users(parameters: int) -> int:
    """Return how many users a model with these parameters can tell apart, beside bystanders."""
    largest_block = 1 << (parameters.bit_length() - 1)
    return int(largest_block / (1 + BYSTANDERS))


def _draw_vectors(
    *,
    sizes: list[int],
    lengths: Sequence[float] | None,
    count: int,
    block: int,
    generator: np.random.Generator,
) -> Vectors:
    size = sum(sizes)
    # Those left over would leave directions not quite orthogonal.
    used = size - size % block
    # Shuffled, so that each place has parameters of every layer.
    order = generator.permutation(size)[:used]
    signs = np.zeros(size)
    signs[order] = _draw_signs(generator, used)
    places = np.zeros(size)
    places[order] = np.arange(used) % block
    scales = _scale_parameters(signs, sizes, lengths)
    own_signs = _draw_signs(generator, count)
    return Vectors(
        signed=jnp.asarray(signs * scales, jnp.float32),
        places=jnp.asarray(places, jnp.uint32),
        order=jnp.asarray(order, jnp.int32),
        own_signs=jnp.asarray(own_signs, jnp.float32),
    )


def _draw_signs(generator: np.random.Generator, count: int) -> np.ndarray:
    return 1.0 - 2.0 * generator.integers(0, 2, count)


def _scale_parameters(
    signs: np.ndarray, sizes: list[int], lengths: Sequence[float] | None
) -> np.ndarray:
    """Return how far a direction of length 1 goes in each parameter.

    Args:
        signs: of the parameters, layer after layer; 0 where one is not used.
        sizes: of the layers.
        lengths: of a direction of length 1 in each layer, where they are prescribed.
    """
    layers = np.split(signs, np.cumsum(sizes)[:-1])
    norms = [float(np.linalg.norm(layer)) for layer in layers]
    whole = math.sqrt(np.count_nonzero(signs))
    lengths = lengths or [norm / whole for norm in norms]
    scales = [length / max(norm, 1.0) for length, norm in zip(lengths, norms, strict=True)]
    return np.repeat(scales, sizes)


def walsh(values: np.ndarray) -> np.ndarray:
    """Return Σ_k (−1)^popcount(i & k) · values[k], for every i.

    >>> walsh(np.array([1.0, 2.0, 3.0, 4.0]))
    array([10., -2., -4.,  0.])
    """
    step = 1
    while step < len(values):
        values = _add_and_subtract(values, step)
        step = 2 * step
    return values


def _add_and_subtract(values: np.ndarray, step: int) -> np.ndarray:
    """Replace blocks of `step` values, two by two, by their sum and their difference."""
    first, second = np.moveaxis(values.reshape(-1, 2, step), 1, 0)
    pairs = np.stack([first + second, first - second], axis=1)
    return pairs.ravel()


class _Turns(NamedTuple):
    """What turns a claim allows a user."""

    most: int
    # In rounds, from one turn to the next.
    apart: int


def choose_patterns(recipe: Recipe) -> list[list[int]]:
    """Return users' turns: each round belongs to at most one pattern.

    User i has pattern i modulo their number. A pattern has as many turns as the claim allows, or,
    without such a claim, as make μ about 1; fewer, where too many users would join a round.

    Raises:
        ValueError: the users are too many, whatever their turns.
    """
    rounds = recipe.run.rounds
    allowed = _allowed_turns(recipe)
    at_once = _most_at_once(recipe)
    reached = -(-rounds // allowed.apart)
    for turns in range(min(allowed.most, reached), 0, -1):
        patterns = _space_turns(
            rounds=rounds,
            apart=allowed.apart,
            turns=turns,
        )
        if recipe.audit.users <= at_once * len(patterns):
            return patterns
    raise ValueError(_explain_too_many(recipe, most=at_once * rounds))


def _explain_too_many(recipe: Recipe, most: int) -> str:
    beside = (
        f"{recipe.run.rounds} rounds of {recipe.participation.cohort:g} people, who are counted,"
        " and audit users with them"
    )
    return f"[audit] {recipe.audit.users} users are too many for {beside}: take at most {most}"


def _allowed_turns(recipe: Recipe) -> _Turns:
    multiplier = recipe.privacy.noise_multiplier
    # The recipe is refused otherwise.
    assert multiplier
    limits = build.participation(recipe).limits
    if limits is None:
        return _spread_turns(recipe.run.rounds, most=math.ceil(multiplier**2))
    min_separation, max_participations = limits
    return _Turns(most=max_participations, apart=min_separation + 1)


def _spread_turns(rounds: int, most: int) -> _Turns:
    return _Turns(most=most, apart=max(1, rounds // most))


def _most_at_once(recipe: Recipe) -> int:
    """Return for how many audit users a round has room."""
    if not _people_are_counted(recipe):
        return AUDITED_AT_ONCE
    beside = int(MOST_BESIDE * recipe.participation.cohort)
    return min(AUDITED_AT_ONCE, max(1, beside))


def _people_are_counted(recipe: Recipe) -> bool:
    """Return whether people are counted, not only added, and audit users with them.

    They are where updates are long, or in a denominator.
    """
    return recipe.privacy.clipping == "adaptive" or recipe.privacy.least_weight is not None


def _space_turns(*, rounds: int, apart: int, turns: int) -> list[list[int]]:
    """Return patterns of this many turns; the last ones of a run may have fewer.

    Those with less than half of the turns are left out, because they would tell little.
    """
    patterns = []
    for first in range(min(apart, rounds)):
        possible = list(range(first, rounds, apart))
        patterns += [possible[start : start + turns] for start in range(0, len(possible), turns)]
    return [pattern for pattern in patterns if 2 * len(pattern) >= turns]


def _number_patterns(patterns: list[list[int]]) -> dict[int, int]:
    """Return the number of each round's pattern."""
    number_of_round = {}
    for number, rounds in enumerate(patterns):
        for round in rounds:
            number_of_round[round] = number
    return number_of_round


def _layer_lengths(recipe: Recipe, params: Params) -> list[float] | None:
    """Return the length in each layer where layers are clipped separately.

    The clip then does not change a direction.
    """
    if recipe.privacy.clipping != "per-layer":
        return None
    names = trees.layer_names(params)
    clip_norms = recipe.privacy.layer_clip_norms or dict.fromkeys(names, 1.0)
    norms = np.array([clip_norms[name] for name in names])
    return (norms / np.linalg.norm(norms)).tolist()


def _largest_effect(recipe: Recipe) -> float:
    """Return how far a report of clip norm 1 can move an estimate: what the noise must hide."""
    if recipe.privacy.least_weight is not None:
        return 2 / (recipe.participation.probability * recipe.privacy.least_weight)
    if recipe.algorithm == "dp-ftrl":
        return 1 / recipe.participation.cohort
    return 1 / recipe.participation.expected_weight


class AuditScores:
    """What a run recorded of its audit users."""

    # Who was in.
    included: np.ndarray
    # The rounds of each pattern.
    patterns: list[list[int]]
    # The rounds that were recorded, and the row of noise of each.
    rounds: np.ndarray
    rows: np.ndarray
    # [rounds, users] and [rounds, directions that no user sends].
    products: np.ndarray
    bystanders: np.ndarray

    def __init__(self, folder: Path) -> None:
        """Read the files of a run; refuse damaged ones."""
        try:
            self._read(folder)
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            raise DataError(
                f"the files {COINS} and {FILE_NAME} of {folder} are damaged, or no round was done"
            ) from None

    def _read(self, folder: Path) -> None:
        coins: dict[str, Any] = json.loads((folder / COINS).read_text())
        self.included = np.array(coins["included"], bool)
        self.patterns = coins["rounds"]
        self._take_readings(np.load(folder / FILE_NAME))

    def _take_readings(self, values: np.ndarray) -> None:
        self.rounds = np.flatnonzero(~np.isnan(values[:, 0]))
        self.rows = values[self.rounds, 0].astype(int)
        products = values[self.rounds, 1:].astype(np.float64)
        self.products, self.bystanders = np.split(products, [len(self.included)], axis=1)
        if self.products.shape[1:] != self.included.shape or not len(self.rounds):
            raise ValueError
