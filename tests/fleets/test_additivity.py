"""The sum with a user less the sum without is that user's own report, to the bit; where it is not,
nothing is trained.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taciturn import trees
from taciturn.core import Message, Public
from taciturn.data.layout import Layout, Unrolls
from taciturn.data.token_shards import Texts
from taciturn.fleets.simulation import in_process
from taciturn.fleets.simulation.in_process import NotAdditive, SimulatedFleet
from taciturn.models.layers import add_rows, look_up_rows
from taciturn.privacy.bounding.clipping import encode, flat_clip, no_clip
from taciturn.privacy.noise import int64

pytestmark = pytest.mark.optimised

KEY = jax.random.key(0)
LAYOUT = Layout(cut=Unrolls(4), batch_size=2, steps=3)
MESSAGE = Message({"w": jnp.linspace(-1, 1, 40).reshape(8, 5)}, Public(jnp.float32(0.5)))


class Written:
    texts = Texts.of([np.arange(4, 4 + length) % 30 + 4 for length in (3, 9, 14, 20)], 40)


def program(bound=flat_clip(0.5)):
    def report(message, user, key):
        counts = jnp.sum(jax.nn.one_hot(user.batches, 8), axis=(0, 1, 2))
        return encode(
            bound, message.public, {"w": message.params["w"] * counts[:, None]}, user.weight, key
        )

    return report


def fleet(monkeypatch, side_by_side: bool) -> SimulatedFleet:
    """With chunks of four users, trained as on an accelerator or one by one."""
    made = SimulatedFleet(Written(), LAYOUT)
    made._on_cpu = not side_by_side
    monkeypatch.setattr(in_process, "CPU_CHUNK", 4)
    monkeypatch.setattr(in_process, "_chunk_size", lambda *arguments: 4)
    return made


@pytest.mark.parametrize("side_by_side", [False, True])
def test_one_user_moves_a_sum_by_their_own_report_and_nothing_else(monkeypatch, side_by_side):
    made, report = fleet(monkeypatch, side_by_side), program()

    def total(cohort):
        return made.sum_reports(report, MESSAGE, np.array(cohort, int), KEY)

    for user in range(4):
        others = [one for one in range(4) if one != user]
        moved = trees.subtract(total(range(4)), total(others))
        assert all(map(np.array_equal, jax.tree.leaves(moved), jax.tree.leaves(total([user]))))


@pytest.mark.parametrize("side_by_side", [False, True])
def test_totals_are_of_32_bits_where_a_process_switched_64_on(monkeypatch, side_by_side):
    with jax.enable_x64(True):
        total = fleet(monkeypatch, side_by_side).sum_reports(program(), MESSAGE, np.arange(4), KEY)
        assert {leaf.dtype for leaf in jax.tree.leaves(total)} == {jnp.dtype(jnp.int32)}
        with pytest.raises(TypeError, match="int32"):  # the twin: a plain sum
            int64.from_int32(jnp.sum(jnp.ones((2, 3), jnp.int32), axis=0))


def seat_dependent(where: str):
    """An adder that is broken on purpose: in one seat, or in company, or every second time, a
    report gets one step more.
    """
    usual, calls = in_process._adder, []

    def broken(program, one_by_one):
        add = usual(program, one_by_one)

        def added(total, message, key, users, ids, factors):
            calls.append(1)
            sum = add(total, message, key, users, ids, factors)
            present = np.asarray(users.weight) > 0
            off = {
                "a seat": present[0],
                "company": present.sum() == 4,
                "now and then": len(calls) % 2,
            }[where]
            return jax.tree.map(lambda leaf: leaf + jnp.asarray(int(off), leaf.dtype), sum)

        return added

    return broken


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("where", ["a seat", "company", "now and then"])
def test_a_device_on_which_seat_or_company_matter_is_refused_before_anybody_is_trained(
    monkeypatch, where, side_by_side
):
    monkeypatch.setattr(in_process, "_adder", seat_dependent(where))
    made = fleet(monkeypatch, side_by_side)
    loaded = []
    monkeypatch.setattr(made, "_chunks", lambda cohort: loaded.append(cohort) or [])
    report = program()
    for _ in range(2):  # whoever tries again is not let in
        with pytest.raises(NotAdditive, match="Nothing was trained"):
            made.sum_reports(report, MESSAGE, np.arange(4), KEY)
    assert not loaded


def masked_by_zero(program, one_by_one):
    """An adder that multiplies what is not a user's by zero, as a product of all users with a mask
    of zeros and ones would: their neighbour's ∞ becomes NaN.
    """

    @jax.jit
    def added(total, message, key, users, ids, factors):
        def masked(message, key, user, id):
            own = jnp.arange(len(factors)) == jnp.argmax(ids == id)
            mask = jnp.where(own, 1.0, 0.0)
            factor = jnp.sum(mask * factors)
            params = jax.tree.map(lambda leaf: leaf * factor, message.params)
            return program(message._replace(params=params), user, jax.random.fold_in(key, id))

        add = in_process._add_side_by_side(masked)
        return add(total, message, key, users, ids, jnp.ones_like(factors))

    return added


def test_a_program_through_which_a_neighbours_infinity_gets_is_refused(monkeypatch):
    made = fleet(monkeypatch, side_by_side=True)
    made.sum_reports(program(), MESSAGE, np.arange(4), KEY)
    monkeypatch.setattr(in_process, "_adder", masked_by_zero)
    with pytest.raises(NotAdditive, match="depends on who else"):
        made.sum_reports(program(), MESSAGE, np.arange(4), KEY)
    # The twin: a test without such neighbours lets it pass.
    monkeypatch.setattr(made, "_withstands_overflow", lambda *arguments: True)
    made.sum_reports(program(), MESSAGE, np.arange(4), KEY)


def test_a_user_whose_numbers_overflow_reports_nothing_and_changes_nobody(monkeypatch):
    made, report = fleet(monkeypatch, side_by_side=True), program()
    made.sum_reports(report, MESSAGE, np.arange(4), KEY)
    seats, device = np.arange(4), made._devices[0]
    beside = made._sum_seats(MESSAGE, KEY, device, seats, overflowing=[1, 3])
    alone = made._sum_seats(MESSAGE, KEY, device, np.array([0, -1, 2, -1]))
    assert all(map(np.array_equal, jax.tree.leaves(beside.update), jax.tree.leaves(alone.update)))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(alone.update))


def test_after_a_refusal_the_program_before_it_is_summed_by_itself(monkeypatch):
    """The refused one has taken its place in the fleet: whoever asks for the first again must not
    get the other's sum.
    """
    made, first, cohort = fleet(monkeypatch, side_by_side=True), program(), np.arange(4)
    right = made.sum_reports(first, MESSAGE, cohort, KEY)
    with monkeypatch.context() as patch:
        patch.setattr(in_process, "_adder", seat_dependent("company"))
        with pytest.raises(NotAdditive, match="Nothing was trained"):
            made.sum_reports(program(), MESSAGE, cohort, KEY)
        refused = made._add
    assert all(
        map(
            np.array_equal,
            jax.tree.leaves(right),
            jax.tree.leaves(made.sum_reports(first, MESSAGE, cohort, KEY)),
        )
    )
    made._add = refused  # the twin: what the fleet would sum with
    assert not all(
        map(
            np.array_equal,
            jax.tree.leaves(right),
            jax.tree.leaves(made.sum_reports(first, MESSAGE, cohort, KEY)),
        )
    )


def test_accelerators_of_one_machine_that_compute_differently_are_refused(monkeypatch):
    """Each is additive by itself. One user more shifts others from one to the other, and so changes
    their reports.
    """
    made, usual, more = fleet(monkeypatch, side_by_side=True), SimulatedFleet._sum_seats, 1
    first, second = made._devices[0], SimpleNamespace(device_kind="another")

    def on_either(message, key, device, seats, overflowing=()):
        off = more * np.sum(seats >= 0) if device is second else 0
        return jax.tree.map(
            lambda leaf: leaf + jnp.asarray(off, leaf.dtype),
            usual(made, message, key, first, seats, overflowing),
        )

    made._devices = [first, second]
    monkeypatch.setattr(made, "_sum_seats", on_either)
    with pytest.raises(NotAdditive, match="on another"):
        made._compile(program(), MESSAGE, KEY)
    more = 0  # the twin: they are alike
    made._compile(program(), MESSAGE, KEY)


@pytest.mark.parametrize("size", [2, 7, 16, 250])
def test_a_program_for_which_padding_is_a_step_is_refused_whatever_the_size_of_a_chunk(
    monkeypatch, size
):
    """Whoever is trained beside a user with more text takes as many steps as that user: the last of
    them must change nothing.
    """

    def padded(step):
        def report(message, user, key):
            steps = jax.lax.fori_loop(
                0, user.steps, lambda index, sum: sum + step(user.batches[index]), jnp.float32(0)
            )
            return encode(
                flat_clip(0.5),
                message.public,
                {"w": 0 * message.params["w"] + steps},
                user.weight,
                key,
            )

        return report

    made = fleet(monkeypatch, side_by_side=True)
    monkeypatch.setattr(in_process, "_chunk_size", lambda *arguments: size)
    with pytest.raises(NotAdditive, match="depends on who else"):
        made.sum_reports(padded(lambda batch: 0.01), MESSAGE, np.arange(4), KEY)
    made.sum_reports(
        padded(lambda batch: 0.01 * jnp.any(batch != 0)), MESSAGE, np.arange(4), KEY
    )  # the twin: only text counts


def test_the_test_is_made_once_for_a_program(monkeypatch):
    made, report, tested = fleet(monkeypatch, True), program(), []
    check = made._check_additive
    monkeypatch.setattr(made, "_check_additive", lambda *a: (tested.append(1), check(*a)))
    for _ in range(2):
        made.sum_reports(report, MESSAGE, np.arange(4), KEY)
    assert len(tested) == 1
    made.sum_reports(program(), MESSAGE, np.arange(4), KEY)
    assert len(tested) == 2


def test_sums_of_floats_without_privacy_are_not_asked_for_bits(monkeypatch):
    monkeypatch.setattr(in_process, "_adder", seat_dependent("a seat"))
    total = fleet(monkeypatch, True).sum_reports(program(no_clip()), MESSAGE, np.arange(4), KEY)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(total.update))


def test_rows_that_several_changes_go_to_are_summed_first():
    matrix = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)), jnp.float32)
    changes = jnp.asarray(np.random.default_rng(1).normal(size=(6, 3)), jnp.float32)
    places = jnp.array([2, 5, 2, 2, 0, 5])
    expected = np.asarray(matrix, np.float64)
    np.add.at(expected, np.asarray(places), np.asarray(changes, np.float64))
    np.testing.assert_allclose(add_rows(matrix, places, changes), expected, rtol=1e-6)
    gradient = jax.grad(lambda matrix: jnp.sum(look_up_rows(matrix, places) * changes))(matrix)
    by_hand = np.zeros((7, 3))
    np.add.at(by_hand, np.asarray(places), np.asarray(changes, np.float64))
    np.testing.assert_allclose(gradient, by_hand, rtol=1e-6, atol=1e-7)


def test_no_device_program_adds_rows_one_after_another():
    """`x.at[places].add` is where users could touch each other on a GPU; models sum first."""
    from pathlib import Path

    import taciturn

    folder = Path(taciturn.__file__).parent
    sources = [*(folder / "models").glob("*.py"), *(folder / "algorithms").glob("*.py")]
    assert sources
    allowed = (
        "matrix.at[places].add",
        "zeros.at[places.reshape(-1)].add",
    )  # a remark, and more places than a device's batch has
    texts = {path.name: path.read_text() for path in sources}
    for one in allowed:
        texts = {name: text.replace(one, "") for name, text in texts.items()}
    assert not [name for name, text in texts.items() if "].add(" in text]


class Reading(SimulatedFleet):
    """Of forty chunks, which only says which one was read: by whom, and how many lay about."""

    def __init__(self, bad: int = -1) -> None:
        self.bad, self.lying, self.most, self.began, self._texts, self._devices = (
            bad,
            0,
            0,
            [],
            None,
            jax.local_devices(),
        )

    def _load(self, texts, chunk, device):
        self.began.append(chunk)
        if chunk == self.bad:
            raise OSError("this shard is gone")
        self.lying += 1
        self.most = max(self.most, self.lying)
        return chunk

    def read(self, failing_at: int = -1) -> list[int]:
        seen = []
        for one in self._load_ahead(list(range(40))):
            if one == failing_at:
                raise FloatingPointError("not a number")
            time.sleep(0.001)  # for the reader to go as far as it would
            self.lying -= 1
            seen.append(one)
        return seen


def test_chunks_come_in_order_and_two_at_most_are_in_memory_besides_the_one_that_computes():
    reading = Reading()
    assert reading.read() == list(range(40))
    assert reading.most <= 3


@pytest.mark.parametrize(
    ("bad", "failing_at", "error"), [(20, -1, "this shard is gone"), (-1, 20, "not a number")]
)
def test_an_error_of_the_reader_or_of_the_program_ends_both(bad, failing_at, error):
    before, reading = threading.active_count(), Reading(bad)
    with pytest.raises((OSError, FloatingPointError), match=error) as raised:
        reading.read(failing_at)
    assert raised.tb is not None  # which still holds the frames
    assert threading.active_count() == before
    assert max(reading.began) <= 22


def test_a_reader_that_is_not_waited_for_would_be_noticed(monkeypatch):
    """The twin: all chunks are asked for at once, and nobody waits for them in the end."""

    def all_at_once(self, chunks):
        reader = ThreadPoolExecutor(1)
        yield from (
            one.result()
            for one in [reader.submit(self._load, self._texts, chunk, None) for chunk in chunks]
        )

    monkeypatch.setattr(Reading, "_load_ahead", all_at_once)
    before, reading = threading.active_count(), Reading()
    with pytest.raises(FloatingPointError, match="not a number"):
        reading.read(20)
    assert threading.active_count() > before
    assert reading.most > 3
