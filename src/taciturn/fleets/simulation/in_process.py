"""A fleet in one process: a cohort is trained chunk by chunk, and only the running sum is kept.

Memory does not grow with the cohort. On an accelerator the users of a chunk are trained side by
side (`vmap`); on a CPU one stream of users runs on each core, which is twice as fast there.

**Assumes:** a user's report has the same bits in any seat of a chunk, beside any others. It is
tested before the first sum of a run, on the device at hand (`_check_additive`); that proves nothing
for other machines.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial, reduce
from itertools import cycle
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from taciturn import trees
from taciturn.core import END, Key, Message, Params, Program, Report, UserData, UserIds
from taciturn.data.layout import Layout
from taciturn.data.texts import Texts
from taciturn.errors import TaciturnError

# so that no core waits long for the others at the end of a round
CPU_CHUNK = 2
# of an accelerator's chunk: larger ones gain little, and mix users of more different lengths
MOST_SEATS = 256
MADE_UP_WORDS = 32
# the text of an empty seat
NOTHING = np.zeros(0, np.int32)
# of a model that training a user takes at a time, intermediate values included
COPIES = 8


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
        weight_cap: float | None = None,
        cohort: float = 100,
    ) -> None:
        """`weight_cap` is ŵ (`Layout.user_data`). `cohort` is the expected number of users, to
        which chunks are fitted.
        """
        self._texts, self._layout, self._weight_cap, self._cohort = (
            population.texts,
            layout,
            weight_cap,
            cohort,
        )
        # made once: for ten million users it takes longer than drawing a cohort
        self._everyone = np.arange(len(self._texts))
        # whoever draws all of them gets this very array
        self._everyone.flags.writeable = False
        self._devices = jax.local_devices()
        self._on_cpu = self._devices[0].platform == "cpu"
        self._program: Program | None = None

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return eligible(self._everyone)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        self._compile(program, message, key)
        totals = [jax.device_put(self._nothing(), device) for device in self._devices]
        messages = [jax.device_put((message, key), device) for device in self._devices]
        for where, loaded in zip(
            cycle(range(len(self._devices))), self._loaded_ahead(self._chunks(cohort)), strict=False
        ):
            totals[where] = self._add(totals[where], *messages[where], *loaded)
        return reduce(trees.add, jax.device_put(totals[1:], self._devices[0]), totals[0])

    def stats(self) -> dict[str, float]:
        return {}

    def longest_first(self, cohort: UserIds) -> UserIds:
        return cohort[np.argsort(-self._texts.lengths(cohort), kind="stable")]

    def made_up_total(self, program: Program, message: Message, key: Key) -> Report:
        """Sum over simulated users: a machine that gives other bits would train another model."""
        self._compile(program, message, key)
        return self._made_up_sum(message, key, self._devices[0], np.arange(self._size))

    def _compile(self, program: Program, message: Message, key: Key) -> None:
        """Trace, compile and test once, for use in every round."""
        if program is self._program:
            return
        # until it has passed: nothing is summed by a program that was refused, nor under another's
        # name
        self._program = None
        self._shape = jax.eval_shape(program, message, self._layout.user_data(NOTHING), key)
        # all leaves in one call
        self._nothing = jax.jit(partial(trees.zeros_like, self._shape))
        self._add = _adder(program, self._on_cpu)
        self._size = (
            CPU_CHUNK
            if self._on_cpu
            else _chunk_size(message.params, self._devices[0], self._cohort)
        )
        self._check_additive(message, key)
        self._program = program

    def _check_additive(self, message: Message, key: Key) -> None:
        """Check before the first sum: on these very devices, with this program and these shapes,
        the sum with a user minus the sum without is that user's own report, to the bit, in any seat
        of any, beside any others; and a sum is the same twice. Privacy rests on it.

        Tried on simulated users. Sums of floats, which have no privacy, are not additive and are
        not tried.
        """
        if not all(
            jnp.issubdtype(leaf.dtype, jnp.integer) for leaf in jax.tree.leaves(self._shape)
        ):
            return
        seats = np.arange(self._size)
        is_even, is_short, elsewhere = seats % 2 == 0, 2 * seats < self._size - 1, np.roll(seats, 1)
        # The even ones a seat further, and the odd ones without them: all beside other users, half
        # of them in another seat. And the short ones without the long ones, who make them take
        # steps of padding; on a CPU each takes their own number of steps.
        even_and_odd = np.roll(np.where(is_even, seats, -1), 1), np.where(is_even, -1, seats)
        short_and_long = np.where(is_short, seats, -1), np.where(is_short, -1, seats)
        splits = [even_and_odd] if self._on_cpu else [even_and_odd, short_and_long]

        total = partial(self._made_up_sum, message, key)
        everyone = total(self._devices[0], seats)
        # all cores are alike
        for device in self._devices[:1] if self._on_cpu else self._devices:
            apart = [trees.add(*(total(device, half) for half in halves)) for halves in splits]
            for again in (total(device, seats), total(device, elsewhere), *apart):
                if not all(map(np.array_equal, jax.tree.leaves(everyone), jax.tree.leaves(again))):
                    raise NotAdditive(
                        f"on {device.device_kind} a user's report depends on who else is trained"
                        " beside them, or where, so one user could change the sum by more than"
                        " noise is made for. Nothing was trained. Update JAX and the driver,"
                        " change [local] precision, or train on CPUs (JAX_PLATFORMS=cpu)"
                    )

    def _made_up_sum(self, message: Message, key: Key, device: Any, seats: np.ndarray) -> Report:
        """Sum the reports of one chunk, in whose seats these simulated users are; −1 is an empty
        seat.
        """
        return self._add(
            *jax.device_put((self._nothing(), message, key), device),
            *self._load(self._made_up(), seats, device),
        )

    def _made_up(self) -> list[np.ndarray]:
        """Make texts for as many users as a chunk holds, of many lengths up to the limit; of few
        words, so that many repeat.
        """
        generator, most = (
            np.random.default_rng(0),
            self._layout.user_data(NOTHING).batches[..., 1:].size,
        )
        lengths = [max(1, most * (place + 1) // self._size) for place in range(self._size)]
        return [
            generator.integers(END + 1, END + 1 + MADE_UP_WORDS, length, np.int32)
            for length in lengths
        ]

    def _chunks(self, cohort: UserIds) -> list[np.ndarray]:
        """Split the cohort into pieces of one size, padded with −1, which is no one. Users of
        similar length go together, longest first, because a piece takes as long as its longest
        user.

        One size for a whole run: products of another shape round differently, and where training is
        chaotic that changes what users report. With sizes that followed the cohort's, one user more
        would change the reports of others.
        """
        cohort = self.longest_first(cohort)
        pieces = [cohort[start : start + self._size] for start in range(0, len(cohort), self._size)]
        return [np.pad(piece, (0, self._size - len(piece)), constant_values=-1) for piece in pieces]

    def _loaded_ahead(self, chunks: list[np.ndarray]) -> Iterator[tuple[UserData, jax.Array]]:
        """Yield each chunk, read while the one before computes: starting a loop on a GPU blocks
        until it ends, so a second thread reads.
        """
        with ThreadPoolExecutor(1) as reader:
            ahead: list[Future] = []
            for chunk, device in zip(chunks, cycle(self._devices), strict=False):
                ahead.append(reader.submit(self._load, self._texts, chunk, device))
                if len(ahead) > 1:
                    yield ahead.pop(0).result()
            yield from (one.result() for one in ahead)

    def _load(
        self, texts: Texts | list[np.ndarray], chunk: np.ndarray, device: Any
    ) -> tuple[UserData, jax.Array]:
        own = [texts[user] if user >= 0 else NOTHING for user in chunk]
        users = self._layout.users_data(own, self._weight_cap)
        users = users if self._on_cpu else users._replace(steps=users.steps.max())
        return jax.device_put((users, chunk.astype(np.uint32)), device)


def with_room(expected: float) -> float:
    """Return the size that a cohort drawn by coins hardly ever exceeds: two standard deviations
    above what is expected.
    """
    return expected + 2 * math.sqrt(expected)


def _chunk_size(params: Params, device: Any, cohort: float) -> int:
    """Split such a cohort into as few chunks of one size as half of the memory allows, with hardly
    a seat to spare.
    """
    memory = (device.memory_stats() or {}).get("bytes_limit", 8 * 2**30) / 2
    most = min(MOST_SEATS, max(1, memory // (COPIES * 4 * trees.size(params))))
    return math.ceil(cohort / math.ceil(cohort / most))


@lru_cache(maxsize=8)
def _adder(program: Program, one_by_one: bool):
    def report(message: Message, key: Key, user: UserData, id: jax.Array) -> Report:
        return program(message, user, jax.random.fold_in(key, id))

    @partial(jax.jit, donate_argnums=0)
    def add_side_by_side(
        total: Report, message: Message, key: Key, users: UserData, ids: jax.Array
    ) -> Report:
        # One number of steps for all: with one for each, every step would have to keep two models
        # and choose between them.
        each = UserData(0, 0, None)  # pyright: ignore
        # Each trains a copy of their own: a product with one matrix for all would be taken for all
        # at once, and where in it a user's rows stand would decide how they are rounded.
        copies = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (len(ids), *leaf.shape)), message.params
        )
        message = message._replace(params=jax.lax.optimization_barrier(copies))
        reports = jax.vmap(report, in_axes=(Message(0, None), None, each, 0))(
            message, key, users, ids
        )
        # In 32 bits, also where a process switched 64 on for everything.
        return jax.tree.map(
            lambda sum, part: sum + jnp.sum(part, axis=0, dtype=part.dtype), total, reports
        )

    # On one core: products that spread over several round by how many there are, and where each has
    # a stream they wait for each other.
    @partial(
        jax.jit,
        donate_argnums=0,
        compiler_options={"xla_cpu_multi_thread_eigen": False} if one_by_one else None,
    )
    def add_one_by_one(
        total: Report, message: Message, key: Key, users: UserData, ids: jax.Array
    ) -> Report:
        def add(total: Report, one: tuple[UserData, jax.Array]) -> tuple[Report, None]:
            # A padding user costs nothing here.
            user, id = one
            return (
                jax.lax.cond(
                    user.weight > 0,
                    lambda: trees.add(total, report(message, key, user, id)),
                    lambda: total,
                ),
                None,
            )

        return jax.lax.scan(add, total, (users, ids))[0]

    return add_one_by_one if one_by_one else add_side_by_side
