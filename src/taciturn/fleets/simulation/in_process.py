"""A fleet in one process: a cohort is trained chunk by chunk, and only the running sum is kept.

Memory does not grow with the cohort. On an accelerator the users of a chunk are trained side by
side (`vmap`); on a CPU one stream of users runs on each core, which is twice as fast there.

**Assumes:** a user's report has the same bits in any seat of a chunk, beside any others. It is
tested before the first sum of a run, on the device at hand (`_check_additive`); that proves nothing
for other machines.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import cycle
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from taciturn import trees
from taciturn.core import END, Key, Message, Params, Program, Report, UserData, UserIds
from taciturn.data.layout import Layout
from taciturn.data.token_shards import Texts
from taciturn.errors import TaciturnError

# Few seats, so that no core waits long for the others at the end of a round.
CPU_CHUNK = 2
# Of an accelerator's chunk: larger ones gain little, and mix users of more different lengths.
MOST_SEATS = 256
# The bytes of a device's memory, where nothing is known about it.
DEFAULT_MEMORY = 8 * 2**30
SIMULATED_WORDS = 32
# The number of an empty seat, and its text.
EMPTY = -1
NOTHING = np.zeros(0, np.int32)
# The copies of a model that training a user takes at a time, intermediate values included.
COPIES = 8

# What one user reports: message, key, user, their number → report.
UserReport = Callable[[Message, Key, UserData, jax.Array], Report]
# Adds the reports of a chunk to a total: total, message, key, users, their numbers, what their
# models are multiplied by → total.
Adder = Callable[[Report, Message, Key, UserData, jax.Array, jax.Array], Report]


class NotAdditive(TaciturnError):
    """On this machine a user's report depends on other users."""


class Written(Protocol):
    """Whose texts a fleet trains on: a population, or simulated users."""

    @property
    def texts(self) -> Texts: ...


class SimulatedFleet:
    everyone_reports = True

    def __init__(
        self,
        population: Written,
        layout: Layout,
        *,
        weight_cap: float | None = None,
        cohort: float = 100,
    ) -> None:
        """Make a fleet of a population.

        Args:
            population: Its users.
            layout: How their texts become batches.
            weight_cap: ŵ (`Layout.user_data`).
            cohort: The expected number of users, to which chunks are fitted.
        """
        self._texts = population.texts
        self._layout = layout
        self._weight_cap = weight_cap
        self._cohort = cohort
        # Made once: for ten million users it takes longer than drawing a cohort.
        self._everyone = np.arange(len(self._texts))
        # A caller that draws all of them gets this very array.
        self._everyone.flags.writeable = False
        self._devices = jax.local_devices()
        self._on_cpu = self._devices[0].platform == "cpu"
        self._program: Program | None = None

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return eligible(self._everyone)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        self._compile(program, message, key)
        sums = [self._begin_sum(message, key, device) for device in self._devices]
        chunks = self._chunks(cohort)
        loaded_chunks = self._load_ahead(chunks)
        for running_sum, loaded in zip(cycle(sums), loaded_chunks, strict=False):
            running_sum.add(loaded)
        return self._add_up(sums)

    def _add_up(self, sums: Sequence["_RunningSum"]) -> Report:
        """Add the sums of all devices, on the first of them."""
        total, *others = [running_sum.total for running_sum in sums]
        for other in jax.device_put(others, self._devices[0]):
            total = trees.add(total, other)
        return total

    def stats(self) -> dict[str, float]:
        return {}

    def sort_longest_first(self, cohort: UserIds) -> UserIds:
        return cohort[np.argsort(-self._texts.lengths(cohort), kind="stable")]

    def sum_simulated_users(self, program: Program, message: Message, key: Key) -> Report:
        """Sum over simulated users: a machine that gives other bits would train another model."""
        self._compile(program, message, key)
        seats = np.arange(self._size)
        return self._sum_seats(message, key, device=self._devices[0], seats=seats)

    def _compile(self, program: Program, message: Message, key: Key) -> None:
        """Trace, compile and test once, for use in every round."""
        if program is self._program:
            return
        # Until it has passed: nothing is summed by a program that was refused, nor under another's
        # name.
        self._program = None
        user = self._layout.user_data(NOTHING)
        self._shape = jax.eval_shape(program, message, user, key)
        # Makes all leaves in one call.
        self._nothing = jax.jit(partial(trees.zeros_like, self._shape))
        self._add = _adder(program, self._on_cpu)
        self._size = self._choose_size(message.params)
        self._check_additive(message, key)
        self._program = program

    def _choose_size(self, params: Params) -> int:
        """Return the number of seats of a chunk."""
        if self._on_cpu:
            return CPU_CHUNK
        return _chunk_size(params, self._devices[0], self._cohort)

    def _check_additive(self, message: Message, key: Key) -> None:
        """Check before the first sum that reports add up. Privacy rests on it.

        On these very devices, with this program and these shapes, the sum with a user minus the sum
        without is that user's own report, to the bit, in any seat of any, beside any others, also
        where all numbers of these overflow; and a sum is the same twice.

        Tried on simulated users. Sums of floats, which have no privacy, are not additive and are
        not tried.
        """
        if not _has_only_integers(self._shape):
            return
        # All cores are alike.
        devices = self._devices[:1] if self._on_cpu else self._devices
        seats = np.arange(self._size)
        everyone = self._sum_seats(message, key, device=self._devices[0], seats=seats)
        for device in devices:
            for again in self._sum_in_other_ways(message, key, device):
                if not _has_same_bits(everyone, again):
                    raise _not_additive(device)
            # On a CPU each is trained by themselves.
            if not self._on_cpu and not self._withstands_overflow(message, key, device):
                raise _not_additive(device)

    def _sum_in_other_ways(self, message: Message, key: Key, device: Any) -> list[Report]:
        """Sum the reports of the same simulated users in other ways, each on this device."""
        seats = np.arange(self._size)
        sum_seats = partial(self._sum_seats, message, key, device)
        sums_of_halves = []
        for half, other_half in self._splits():
            half_sum = sum_seats(half)
            other_half_sum = sum_seats(other_half)
            sums_of_halves.append(trees.add(half_sum, other_half_sum))
        once_more = sum_seats(seats)
        elsewhere = sum_seats(np.roll(seats, 1))
        return [once_more, elsewhere, *sums_of_halves]

    def _withstands_overflow(self, message: Message, key: Key, device: Any) -> bool:
        """Tell whether reports stay as they are beside users all of whose numbers overflow.

        Where a program multiplies what is not a user's by zero, ∞ and NaN get through.
        """
        seats = np.arange(self._size)
        even, odd = _split(seats, seats % 2 == 0)
        sum_seats = partial(self._sum_seats, message, key, device, overflowing=odd[odd != EMPTY])
        return _has_same_bits(sum_seats(seats), trees.add(sum_seats(even), sum_seats(odd)))

    def _splits(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return ways of splitting a chunk into two that sum to the same."""
        seats = np.arange(self._size)
        # The even ones a seat further, and the odd ones without them: all beside other users, half
        # of them in another seat.
        even, odd = _split(seats, seats % 2 == 0)
        even_and_odd = (np.roll(even, 1), odd)
        if self._on_cpu:
            return [even_and_odd]
        # And the short ones without the long ones, who make them take steps of padding; on a CPU
        # each takes their own number of steps.
        short_and_long = _split(seats, 2 * seats < self._size - 1)
        return [even_and_odd, short_and_long]

    def _sum_seats(
        self,
        message: Message,
        key: Key,
        device: Any,
        seats: np.ndarray,
        overflowing: Sequence[int] | np.ndarray = (),
    ) -> Report:
        """Sum the reports of one chunk, in whose seats these simulated users are.

        Args:
            message: of the round.
            key: of the round.
            device: which sums.
            seats: the user in each.
            overflowing: those of them who train a model of ∞ and NaN.
        """
        running_sum = self._begin_sum(message, key, device)
        texts = self._simulate_texts()
        loaded = self._load(texts, seats, device)
        factors = np.where(np.isin(seats, overflowing), np.inf, 1).astype(np.float32)
        running_sum.add(loaded._replace(factors=jax.device_put(factors, device)))
        return running_sum.total

    def _begin_sum(self, message: Message, key: Key, device: Any) -> "_RunningSum":
        nothing = self._nothing()
        total, message, key = jax.device_put((nothing, message, key), device)
        return _RunningSum(add_to=self._add, total=total, message=message, key=key)

    def _simulate_texts(self) -> list[np.ndarray]:
        """Make texts for as many users as a chunk holds, of many lengths up to the limit.

        They are of few words, so that many repeat.
        """
        generator = np.random.default_rng(0)
        most_words = self._layout.user_data(NOTHING).batches[..., 1:].size
        first_word = END + 1
        texts = []
        for place in range(self._size):
            length = max(1, most_words * (place + 1) // self._size)
            text = generator.integers(
                low=first_word,
                high=first_word + SIMULATED_WORDS,
                size=length,
                dtype=np.int32,
            )
            texts.append(text)
        return texts

    def _chunks(self, cohort: UserIds) -> list[np.ndarray]:
        """Split the cohort into pieces of one size, padded with empty seats.

        Users of similar length go together, longest first, because a piece takes as long as its
        longest user.

        One size for a whole run: products of another shape round differently, and where training is
        chaotic that changes what users report. With sizes that followed the cohort's, one user more
        would change the reports of others.
        """
        cohort = self.sort_longest_first(cohort)
        chunks = []
        for start in range(0, len(cohort), self._size):
            piece = cohort[start : start + self._size]
            empty_seats = self._size - len(piece)
            chunks.append(np.pad(piece, (0, empty_seats), constant_values=EMPTY))
        return chunks

    def _load_ahead(self, chunks: list[np.ndarray]) -> Iterator["_LoadedChunk"]:
        """Yield each chunk, read while the one before computes.

        Starting a loop on a GPU blocks until it ends, so a second thread reads.
        """
        devices = cycle(self._devices)
        with ThreadPoolExecutor(1) as reader:
            ahead: deque[Future[_LoadedChunk]] = deque()
            for chunk, device in zip(chunks, devices, strict=False):
                reading = reader.submit(self._load, self._texts, chunk, device)
                ahead.append(reading)
                if len(ahead) > 1:
                    reading = ahead.popleft()
                    yield reading.result()
            for reading in ahead:
                yield reading.result()

    def _load(
        self, texts: Texts | Sequence[np.ndarray], chunk: np.ndarray, device: Any
    ) -> "_LoadedChunk":
        """Put the users of a chunk on a device."""
        texts_in_chunk = [texts[user] if user >= 0 else NOTHING for user in chunk]
        users = self._layout.users_data(texts_in_chunk, self._weight_cap)
        if not self._on_cpu:
            users = users._replace(steps=users.steps.max())
        factors = np.ones(len(chunk), np.float32)
        users, ids, factors = jax.device_put((users, chunk.astype(np.uint32), factors), device)
        return _LoadedChunk(users=users, ids=ids, factors=factors)


class _LoadedChunk(NamedTuple):
    """The users of a chunk, on the device that trains them."""

    users: UserData
    # Their numbers.
    ids: jax.Array
    # What the model that each of them trains is multiplied by: 1, but for the test of additivity.
    factors: jax.Array


@dataclass(kw_only=True)
class _RunningSum:
    """The sum on one device, with the message and the key of the round, which lie there too."""

    add_to: Adder
    total: Report
    message: Message
    key: Key

    def add(self, loaded: _LoadedChunk) -> None:
        """Add the reports of a chunk."""
        self.total = self.add_to(self.total, self.message, self.key, *loaded)


def with_room(expected: float) -> float:
    """Return the size that a cohort drawn by coins hardly ever exceeds.

    It is two standard deviations above what is expected.
    """
    return expected + 2 * math.sqrt(expected)


def _split(seats: np.ndarray, is_first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first ones of some seats, and the others, each with the rest of them empty."""
    return np.where(is_first, seats, EMPTY), np.where(is_first, EMPTY, seats)


def _not_additive(device: Any) -> NotAdditive:
    return NotAdditive(
        f"on {device.device_kind} a user's report depends on who else is trained beside them, or"
        " where, so one user could change the sum by more than noise is made for. Nothing was"
        " trained. Update JAX and the driver, change [local] precision, or train on CPUs"
        " (JAX_PLATFORMS=cpu)"
    )


def _has_only_integers(shape: Report) -> bool:
    return all(jnp.issubdtype(leaf.dtype, jnp.integer) for leaf in jax.tree.leaves(shape))


def _has_same_bits(one: Report, other: Report) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def _chunk_size(params: Params, device: Any, cohort: float) -> int:
    """Split a cohort of this size into few chunks of one size, with hardly a seat to spare.

    As few as half of the memory allows.
    """
    limits = device.memory_stats() or {}
    memory = limits.get("bytes_limit", DEFAULT_MEMORY) / 2
    user_bytes = COPIES * 4 * trees.size(params)
    most_users = max(1, memory // user_bytes)
    chunks = math.ceil(cohort / min(MOST_SEATS, most_users))
    return math.ceil(cohort / chunks)


@lru_cache(maxsize=8)
def _adder(program: Program, one_by_one: bool) -> Adder:
    """Compile what adds the reports of a chunk to a total."""

    def report(message: Message, key: Key, user: UserData, id: jax.Array) -> Report:
        return program(message, user, jax.random.fold_in(key, id))

    return _add_one_by_one(report) if one_by_one else _add_side_by_side(report)


def _add_side_by_side(report: UserReport) -> Adder:
    @partial(jax.jit, donate_argnums=0)
    def add_side_by_side(
        total: Report,
        message: Message,
        key: Key,
        users: UserData,
        ids: jax.Array,
        factors: jax.Array,
    ) -> Report:
        # One number of steps for all: with one for each, every step would have to keep two models
        # and choose between them.
        user_axes = UserData(0, 0, None)  # pyright: ignore
        # Each trains a copy of their own: a product with one matrix for all would be taken for all
        # at once, and where in it a user's rows stand would decide how they are rounded.
        copies = jax.tree.map(partial(_copy_for_each, factors), message.params)
        message = message._replace(params=jax.lax.optimization_barrier(copies))
        message_axes = Message(0, None)  # pyright: ignore
        report_each = jax.vmap(report, in_axes=(message_axes, None, user_axes, 0))
        reports = report_each(message, key, users, ids)
        return jax.tree.map(_add_rows, total, reports)

    return add_side_by_side


def _copy_for_each(factors: jax.Array, leaf: jax.Array) -> jax.Array:
    return leaf * jnp.expand_dims(factors.astype(leaf.dtype), tuple(range(1, leaf.ndim + 1)))


def _add_rows(total: jax.Array, rows: jax.Array) -> jax.Array:
    # In 32 bits, also where a process switched 64 on for everything.
    return total + jnp.sum(rows, axis=0, dtype=rows.dtype)


def _add_one_by_one(report: UserReport) -> Adder:
    # On one core: products that spread over several round by how many there are, and where each has
    # a stream they wait for each other.
    on_one_core: dict[str, bool | str] = {"xla_cpu_multi_thread_eigen": False}

    @partial(jax.jit, donate_argnums=0, compiler_options=on_one_core)
    def add_one_by_one(
        total: Report,
        message: Message,
        key: Key,
        users: UserData,
        ids: jax.Array,
        _factors: jax.Array,
    ) -> Report:
        def add(total: Report, user_and_id: tuple[UserData, jax.Array]) -> tuple[Report, None]:
            user, id = user_and_id
            # A padding user costs nothing here.
            new_total = jax.lax.cond(
                user.weight > 0,
                lambda: trees.add(total, report(message, key, user, id)),
                lambda: total,
            )
            return new_total, None

        total, _ = jax.lax.scan(add, total, (users, ids))
        return total

    return add_one_by_one
