"""A release is on disk before it is charged; what leaves is the charged record, and nothing
else.
"""

import functools
import os
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness import Cut, tiny_recipe
from taciturn import trees
from taciturn.algorithms.dp_fedavg import federated_algorithm
from taciturn.algorithms.server_optimizers import server_optimizer
from taciturn.core import Release, UserData
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.bounding.clipping import flat_clip
from taciturn.privacy.bounding.estimators import fixed_denominator
from taciturn.privacy.curator import Curator
from taciturn.privacy.ledger import releases
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.cohort_log import CohortLog
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.ledger.releases import PIECE, ReleaseError, Releases
from taciturn.privacy.noise import sampler
from taciturn.privacy.noise.correlated import Buffers, blt
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.noise.white import gaussian
from taciturn.privacy.participation import MinSeparation, PoissonSampling
from taciturn.runs.loop import train_run

ROOT, SIZE = bytes(range(32)), 500
PARAMS = {"w": jnp.zeros(SIZE)}


class Loop:
    """A fleet whose sums never repeat: users' fixed updates, and something that differs each
    time.
    """

    everyone_reports = True

    def __init__(self) -> None:
        self.sums = 0

    def users(self, eligible):
        return eligible(np.arange(20))

    def sum_reports(self, program, message, cohort, key):
        self.sums += 1
        texts = [
            UserData(jnp.full(SIZE, 1e-3 * self.sums), jnp.float32(1), jnp.int32(1)) for _ in cohort
        ]
        zero = trees.zeros_like(
            jax.eval_shape(program, message, UserData(PARAMS["w"], 1.0, 1), key)
        )
        for text in texts:
            zero = trees.add(zero, program(message, text, key))
        return zero


@functools.cache  # so that it is compiled once
def parts(ftrl: bool):
    claim = (
        MinSeparation(size=5, min_separation=2, max_participations=4, rounds=12)
        if ftrl
        else PoissonSampling(0.5)
    )
    noise = blt(1.0, Buffers(20, (0.9,), (0.4,))) if ftrl else gaussian(1.0)
    made = mechanism(flat_clip(1.0), fixed_denominator(10.0), noise, 200)
    algorithm = federated_algorithm(
        lambda message, user, key: {"w": user.batches},
        made,
        claim,
        server_optimizer("sgd", 1.0, 0.9),
    )
    return claim, made, algorithm


def door(folder, reopened: bool = False, randomness: str = "operating system", ftrl: bool = False):
    """Make a curator over the folder, as a newly started process would."""
    claim, made, algorithm = parts(ftrl)
    terms = RunTerms(
        name="run",
        recipe="recipe",
        population="text",
        adjacency=claim.adjacency,
        randomness=randomness,
        accountant="pld",
        budget=Budget(delta=1e-6),
        rounds=12,
    )
    account = Account(
        ledger=Ledger(folder / "ledger.jsonl"), terms=terms, release=made.event(claim)
    )
    if reopened:
        account.reopen(None)
    else:
        account.open()
    log = (
        CohortLog(path=folder / "log", min_separation=2, max_participations=4, key=ROOT)
        if ftrl
        else None
    )
    return Curator(
        algorithm=algorithm,
        fleet=Loop(),
        account=account,
        root=ROOT,
        log=log,
        records=Releases(folder / "releases", ROOT),
    ), made


def same(left, right) -> bool:
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


@pytest.mark.parametrize("ftrl", [False, True])
def test_a_charged_release_is_repeated_to_the_bit_and_nothing_is_summed(tmp_path, ftrl):
    first, made = door(tmp_path, ftrl=ftrl)
    state, given = made.init(PARAMS), []
    for round in range(3):
        estimate, after = first.private_mean(PARAMS, state, round)
        given.append((estimate, after))
        state = after
    again, _ = door(tmp_path, reopened=True, ftrl=ftrl)
    state = made.init(PARAMS)
    for round, expected in enumerate(given):
        repeated = again.private_mean(PARAMS, state, round)
        assert same(repeated, expected)
        state = repeated[1]
    assert again._fleet.sums == 0
    assert len(again.account.charges) == 3
    again.private_mean(PARAMS, state, 3)
    assert (again._fleet.sums, len(again.account.charges)) == (1, 4)


def test_two_threads_that_ask_for_a_round_get_one_release(tmp_path):
    """The second thread asks while the first sums."""
    first, made = door(tmp_path)
    state, summed, given = made.init(PARAMS), first._fleet.sum_reports, []
    other = threading.Thread(target=lambda: given.append(first.private_mean(PARAMS, state, 0)))

    def slowly(*arguments):
        if other.ident is None:
            other.start()
            other.join(0.5)
        return summed(*arguments)

    first._fleet.sum_reports = slowly
    given.append(first.private_mean(PARAMS, state, 0))
    other.join()
    assert (first._fleet.sums, len(first.account.charges), len(given)) == (1, 1, 2)
    assert same(*given)


def test_a_release_that_was_not_charged_never_leaves(tmp_path, monkeypatch):
    """Interrupt between record and charge: the record has not left, and what leaves later has other
    noise and another total.
    """
    first, made = door(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Account, "charge", lambda *arguments: (_ for _ in ()).throw(Cut()))
        with pytest.raises(Cut):
            first.private_mean(PARAMS, made.init(PARAMS), 0)
    written = (tmp_path / "releases" / "release-0").read_bytes()
    estimate, _ = first.private_mean(PARAMS, made.init(PARAMS), 0)  # in the same process
    assert (tmp_path / "releases" / "release-0").read_bytes() != written
    lost = np.frombuffer(written.partition(b"\n")[2], np.float32)
    # With the same noise, the difference would be equal in all coordinates, but for rounding.
    assert np.std(lost - np.asarray(estimate["w"])) > 0.05
    assert len(first.account.charges) == 1


def test_repeating_the_noise_at_the_second_try_is_noticed(tmp_path, monkeypatch):
    first, made = door(tmp_path)
    monkeypatch.setattr(first, "_noise_key", lambda drawn, round: np.zeros(8, np.uint32))
    with monkeypatch.context() as patch:
        patch.setattr(Account, "charge", lambda *arguments: (_ for _ in ()).throw(Cut()))
        with pytest.raises(Cut):
            first.private_mean(PARAMS, made.init(PARAMS), 0)
    lost = np.frombuffer(
        (tmp_path / "releases" / "release-0").read_bytes().partition(b"\n")[2], np.float32
    )
    estimate, _ = first.private_mean(PARAMS, made.init(PARAMS), 0)
    assert np.std(lost - np.asarray(estimate["w"])) < 1e-6


def test_the_record_on_disk_at_the_charge_is_what_leaves(tmp_path, monkeypatch):
    """The order that the guarantee rests on: record, synced; charge; release."""
    charge, seen = Account.charge, []

    def watched(self, round, record, log=""):
        kept, _ = Releases(tmp_path / "releases", ROOT).read(round, record, PARAMS)
        seen.append(kept.estimate)
        charge(self, round, record, log)

    monkeypatch.setattr(Account, "charge", watched)
    first, made = door(tmp_path)
    estimate, _ = first.private_mean(PARAMS, made.init(PARAMS), 0)
    assert same(seen[0], estimate)


@pytest.mark.parametrize(
    "what", ["gone", "changed", "of another run", "of a version whose noise had other bits"]
)
def test_a_record_that_is_not_the_one_that_was_charged_stops_the_run(tmp_path, what, monkeypatch):
    first, made = door(tmp_path)
    first.private_mean(PARAMS, made.init(PARAMS), 0)
    path = tmp_path / "releases" / "release-0"
    if what == "gone":
        path.unlink()
    elif what == "changed":
        path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    elif what == "of another run":
        Releases(tmp_path / "releases", bytes(32)).write(0, Release(PARAMS), "-0")
    else:
        monkeypatch.setattr(sampler, "KNOWN", "1" + sampler.KNOWN[1:])
    again, _ = door(tmp_path, reopened=True)
    with pytest.raises(ReleaseError, match="warm_start"):
        again.private_mean(PARAMS, made.init(PARAMS), 0)
    assert again._fleet.sums == 0
    assert len(again.account.charges) == 1


def test_the_ledgers_checksum_of_a_release_confirms_no_guess(tmp_path):
    """A plain hash would confirm a correct guess at a release; under two secrets, one release has
    two checksums.
    """
    release = Release({"w": jnp.arange(4.0)})
    checksums = {Releases(None, key).write(0, release, "-0") for key in (ROOT, bytes(32))}
    assert len(checksums) == 2


def test_only_the_owner_can_read_records_and_saving_the_state_deletes_them(tmp_path):
    first, made = door(tmp_path)
    state = made.init(PARAMS)
    for round in range(3):
        _, state = first.private_mean(PARAMS, state, round)
    files = sorted((tmp_path / "releases").iterdir())
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600] * 3
    first.forget_records(before=2)
    assert [path.name for path in (tmp_path / "releases").iterdir()] == ["release-2"]


def test_the_folder_of_the_first_record_is_synced_with_it(tmp_path, monkeypatch):
    """After a power cut, a file synced in an unsynced folder may be lost while its charge
    remains.
    """
    synced, fsync = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.add(os.fstat(file).st_ino) or fsync(file))
    Releases(tmp_path / "releases", ROOT).write(0, Release(PARAMS), "-0")
    assert {
        path.stat().st_ino
        for path in (tmp_path, tmp_path / "releases", tmp_path / "releases" / "release-0")
    } <= synced


def test_a_share_of_clipped_users_is_kept_too(tmp_path):
    folder = Releases(tmp_path, ROOT)
    release = Release({"a": jnp.arange(3.0), "b": {"c": jnp.ones((2, 2))}}, jnp.float32(0.375))
    checksum = folder.write(7, release, "aa-1")
    kept, drawn = folder.read(7, checksum, release.estimate)
    assert same(kept, release)
    assert drawn == "aa-1"
    assert float(kept.share) == 0.375


MANY = Release(
    {"a": jnp.arange(PIECE // 4 + 3.0), "b": jnp.arange(PIECE // 4 * 1.5)}
)  # three pieces, the last not whole, and no layer a piece


def swapped(numbers: bytes) -> bytes:
    return numbers[PIECE : 2 * PIECE] + numbers[:PIECE] + numbers[2 * PIECE :]


@pytest.mark.parametrize(
    "damage",
    [
        *(
            lambda numbers, at=at: numbers[:at] + b"!" + numbers[at + 1 :]
            for at in (0, PIECE - 1, PIECE, 2 * PIECE, 2 * PIECE + 7)
        ),
        *(lambda numbers, end=end: numbers[:end] for end in (0, PIECE, 2 * PIECE, -4)),
        lambda numbers: numbers + numbers[-4:],
        lambda numbers: numbers[PIECE:],
        swapped,
    ],
)
def test_every_piece_of_a_record_is_checked_and_their_order_and_number(tmp_path, damage):
    kept_in = Releases(tmp_path, ROOT)
    checksum = kept_in.write(0, MANY, "-0")
    path = tmp_path / "release-0"
    whole = path.read_bytes()
    about, end, numbers = whole.partition(b"\n")
    assert same(kept_in.read(0, checksum, MANY.estimate)[0], MANY)
    path.write_bytes(about + end + damage(numbers))
    assert path.read_bytes() != whole
    with pytest.raises(ReleaseError, match="not the one that was charged"):
        kept_in.read(0, checksum, MANY.estimate)
    path.write_bytes(
        whole.replace(b'"-0"', b'"-1"')
    )  # under another name its noise would be another
    with pytest.raises(ReleaseError, match="not the one that was charged"):
        kept_in.read(0, checksum, MANY.estimate)


@pytest.mark.parametrize("kept_on_disk", [True, False])
def test_a_record_keeps_every_bit_of_a_release(tmp_path, kept_on_disk):
    """Try numbers that arithmetic would change: NaNs with a payload, the smallest numbers, a
    negative zero.
    """
    bits = np.array([0x7FC12345, 0xFF800001, 1, 0x80000001, 0x80000000, 0x7F800000], np.uint32)
    kept_in = Releases(tmp_path if kept_on_disk else None, ROOT)
    release = Release({"w": jnp.asarray(bits.view(np.float32))})
    checksum = kept_in.write(0, release, "-0")
    jax.jit(lambda values: values + 1, donate_argnums=0)(
        release.estimate["w"]
    )  # a step that takes its memory over
    kept, _ = kept_in.read(0, checksum, PARAMS)
    assert np.asarray(kept.estimate["w"]).view(np.uint32).tolist() == bits.tolist()


def test_a_release_on_several_devices_is_kept_like_one_on_one_device():
    """A fleet or your own state may leave it replicated, sharded, or with layers on different
    devices.
    """
    program = """
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from taciturn.core import Release
from taciturn.privacy.ledger.releases import Releases

first, second = jax.devices()
mesh = jax.make_mesh((2,), ("x",))
values = np.arange(8, dtype=np.float32)
everywhere = NamedSharding(mesh, PartitionSpec())
parted = NamedSharding(mesh, PartitionSpec("x"))


def write(leaves):
    print(Releases(None, bytes(32)).write(0, Release(leaves), "-0"))


for places in (
    (first, first),
    (second, second),
    (first, second),
    (everywhere, everywhere),
    (parted, everywhere),
):
    write([jax.device_put(values, place) for place in places])
write([values, jax.device_put(values, second)])
"""
    two = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=two, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.split()) == 6
    assert len(set(done.stdout.split())) == 1


def test_without_a_folder_only_the_last_release_is_kept():
    """Otherwise a long loop of your own would fill the memory."""
    kept_in = Releases(None, ROOT)
    checksums = [
        kept_in.write(row, Release({"w": jnp.full(3, float(row))}), "-0") for row in (0, 1)
    ]
    assert np.asarray(kept_in.read(1, checksums[1], PARAMS)[0].estimate["w"]).tolist() == [1.0] * 3
    with pytest.raises(ReleaseError, match="begin anew with a new curator"):
        kept_in.read(0, checksums[0], PARAMS)


def test_a_release_with_a_piece_that_cannot_be_hashed_is_not_charged_and_stays(
    tmp_path, monkeypatch
):
    """Other threads compute the hashes, and their errors must not be lost."""
    first, made = door(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(releases, "_hash", lambda piece: (_ for _ in ()).throw(Cut()))
        with pytest.raises(Cut):
            first.private_mean(PARAMS, made.init(PARAMS), 0)
    assert len(first.account.charges) == 0
    written = (tmp_path / "releases" / "release-0").read_bytes()
    estimate, _ = first.private_mean(PARAMS, made.init(PARAMS), 0)
    lost = np.frombuffer(written.partition(b"\n")[2], np.float32)
    assert np.std(lost - np.asarray(estimate["w"])) > 0.05  # other noise: the first has never left
    assert len(first.account.charges) == 1


def test_not_waiting_for_hashes_is_noticed(tmp_path, monkeypatch):
    first, made = door(tmp_path)
    monkeypatch.setattr(first._records._beside, "map", lambda hash, copies: ())
    first.private_mean(PARAMS, made.init(PARAMS), 0)
    assert len(first.account.charges) == 1  # for a record that does not verify
    with pytest.raises(ReleaseError, match="not the one that was charged"):
        door(tmp_path, reopened=True)[0].private_mean(PARAMS, made.init(PARAMS), 0)


@functools.cache
def noise_under(**flags: str) -> str:
    """Hash the noise that another process draws, by both implementations."""
    program = """
import hashlib
import jax.numpy as jnp
import numpy as np
from taciturn.privacy.noise import int64, sampler

spread = sampler.spread(2.0**46)
key = np.arange(8, dtype=np.uint32)
for drawn in (
    sampler.white(spread, key, 3, 1001),
    sampler.draw_in_one_kernel(spread, key, jnp.uint32(3), 1001, interpret=True),
):
    print(hashlib.sha256(int64.to_numpy(drawn).tobytes()).hexdigest())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        check=True,
    )
    [hashed] = set(done.stdout.split())
    return hashed


@pytest.mark.parametrize("flags", [{"JAX_THREEFRY_PARTITIONABLE": "0"}, {"JAX_ENABLE_X64": "1"}])
def test_noise_has_the_same_bits_whatever_jax_is_set_to(flags):
    assert noise_under(**flags) == noise_under()


def test_a_copied_root_draws_other_cohorts_and_other_noise(tmp_path):
    """Copy a run's folder before its first save and resume both: each is charged for fresh draws,
    so each must draw afresh.
    """
    doors = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        doors.append(door(tmp_path / name))
    (one, made), (other, _) = doors
    assert not any(
        np.array_equal(one._draw_cohort(round, 0), other._draw_cohort(round, 0))
        for round in range(10)
    )
    estimates = [
        np.asarray(each.private_mean(PARAMS, made.init(PARAMS), 0)[0]["w"]) for each in (one, other)
    ]
    assert np.std(estimates[0] - estimates[1]) > 0.05
    # The twin: a seeded simulation repeats everything.
    seeded = []
    for name in ("seeded", "again"):
        (tmp_path / name).mkdir()
        seeded.append(door(tmp_path / name, randomness="seeded simulation")[0])
    assert all(
        np.array_equal(seeded[0]._draw_cohort(round, 0), seeded[1]._draw_cohort(round, 0))
        for round in range(10)
    )


def test_a_resumed_run_draws_anew(tmp_path):
    first, _ = door(tmp_path)
    again, _ = door(tmp_path, reopened=True)
    assert not any(
        np.array_equal(first._draw_cohort(round, 0), again._draw_cohort(round, 0))
        for round in range(10)
    )


def test_a_runs_rows_and_guarantee_state_the_distance_of_its_noise_from_the_ideal(
    population, tmp_path
):
    finished = train_run(
        tiny_recipe(population, run={"rounds": 1}), tmp_path / "run", lambda *news: None
    )
    opened = Ledger(population.folder / "ledger.jsonl").run_rows("run")[0]
    assert 0 < opened["distance"] < 2.0**-60
    assert finished.guarantee.distance == opened["distance"]
    assert opened["noise"] == "integers"
