"""A queue that is cut off, tampered with or put back: the claim about participation holds, and no
noise meets two totals that leave.
"""

import contextlib
import functools
import itertools
import json
import shutil
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import Cut, exact, tiny_recipe
from taciturn import randomness, trees
from taciturn.core import Algorithm, FailedRound, Message, Public, ServerState, UserData
from taciturn.fleets.simulation import queued
from taciturn.fleets.simulation.availability import Clock, Devices, Habits
from taciturn.fleets.simulation.check_in import CheckInFleet
from taciturn.fleets.simulation.queued import QueuedFleet
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.bounding.clipping import flat_clip, no_clip
from taciturn.privacy.bounding.estimators import fixed_denominator, mean
from taciturn.privacy.curator import Curator, device_program
from taciturn.privacy.ledger.account import Account, BudgetExhausted, RunTerms
from taciturn.privacy.ledger.cohort_log import CohortLog, ParticipationBreach
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.ledger.releases import Releases
from taciturn.privacy.noise.correlated import Buffers, blt
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.noise.white import no_noise
from taciturn.privacy.participation import MinSeparation, PoissonSampling, WrongNumberOfUsers
from taciturn.release.privacy_statement import statement_json
from taciturn.runs import run

USERS, SIZE, ROUNDS, SAVE_EVERY = 40, 4, 9, 3


CLAIM = MinSeparation(size=SIZE, min_separation=2, max_participations=3, rounds=ROUNDS)


START = {"x": jnp.zeros(6)}


CLIP_NORM = 1.0


QUEUE = {
    "participation": {"kind": "min-separation", "cohort": 8, "min_separation": 2},
    "fleet": {"kind": "queue", "in_flight": 14},
}


FTRL = {"algorithm": "dp-ftrl", "privacy": {"noise": "tree"}, **QUEUE}


class Loop:
    everyone_reports = True

    def __init__(self, without: int | None = None) -> None:
        """`without` is a user whose reports are all zero."""
        self._without = without

    def users(self, eligible):
        return eligible(np.arange(USERS))

    def sum_reports(self, program, message, cohort, key):
        users = [text(user, 0.0 if user == self._without else 1.0) for user in cohort.tolist()]
        user_keys = [jax.random.fold_in(key, user) for user in cohort.tolist()]
        return functools.reduce(
            trees.add, map(functools.partial(JITTED[program], message), users, user_keys)
        )


def text(user: int, weight: float = 1.0) -> UserData:
    return UserData(jnp.float32(user), jnp.float32(weight), jnp.int32(1))


def user_update(message, user, key):
    """Depends on the model that the device got, on its user, and not a little."""
    return {"x": jnp.cos(user.batches * jnp.arange(1.0, 7.0)) * 3.0 - 0.5 * message.params["x"]}


ALGORITHM = Algorithm(
    init=lambda params: ServerState(params, ()),
    user_update=user_update,
    server_update=lambda server, estimate: ServerState(trees.add(server.params, estimate), ()),
    mechanism=mechanism(
        flat_clip(CLIP_NORM), fixed_denominator(SIZE), blt(1.0, Buffers(17, (0.9,), (0.4,)))
    ),
    participation=CLAIM,
)


BARE_ALGORITHM = ALGORITHM._replace(mechanism=mechanism(no_clip(), mean(), no_noise()))


PROGRAM = device_program(ALGORITHM)


JITTED = {PROGRAM: jax.jit(PROGRAM)}


RELEASE, FOLLOW = jax.jit(ALGORITHM.mechanism.release), jax.jit(ALGORITHM.mechanism.follow)


def queue(folder, seed=0, without=None, in_flight=9) -> QueuedFleet:
    return QueuedFleet(
        Loop(without), size=SIZE, in_flight=in_flight, folder=folder / "queue", coins=seed
    )


def book(folder, limits=CLAIM.limits) -> CohortLog:
    return CohortLog(
        path=folder / "participation.log",
        min_separation=limits[0],
        max_participations=limits[1],
        key=bytes(range(32)),
    )


class Small:
    """A run that can be cut off and taken up again from what is in its folder, and from the state
    it last saved.
    """

    def __init__(self, folder, curator=Curator, randomness: str = "seeded simulation") -> None:
        self.folder, self.saved = folder, (0, START, ALGORITHM.mechanism.init(START))
        self.left: dict[int, set[bytes]] = {}  # rows → what was given out for them
        self.met: dict[
            bytes, set[bytes]
        ] = {}  # noise keys → the totals they met, of what was given out
        self._curator, self._randomness, self._meeting = curator, randomness, []
        folder.mkdir()
        self._account().open()

    def _account(self) -> Account:
        event = ALGORITHM.mechanism.event(CLAIM)
        terms = RunTerms(
            name="run",
            recipe="r",
            population="p",
            adjacency=CLAIM.adjacency,
            randomness=self._randomness,
            accountant="rdp",
            budget=Budget(delta=1e-5),
            rounds=ROUNDS,
        )
        return Account(ledger=Ledger(self.folder / "ledger.jsonl"), terms=terms, release=event)

    def go_on(self, rounds: int = ROUNDS, noisy_sums: int = 0):
        """From the state that was last saved; `noisy_sums` stands for hardware on which sums come
        out otherwise.
        """
        account = self._account()
        account.reopen(None)
        fleet = queue(self.folder)
        if noisy_sums:
            fleet._fleet = Elsewhere(noisy_sums)
        records = Releases(self.folder / "releases", bytes(32))
        curator = self._curator(
            algorithm=ALGORITHM,
            fleet=fleet,
            account=account,
            root=bytes(32),
            log=book(self.folder),
            records=records,
        )
        curator._program, curator._follow = PROGRAM, FOLLOW
        curator._release = self._watched
        round, params, state = self.saved
        while round < rounds:
            self._meeting = []
            estimate, state = curator.private_mean(params, state, round)
            self.left.setdefault(round, set()).add(np.asarray(estimate["x"]).tobytes())
            for key, total in self._meeting:
                self.met.setdefault(key, set()).add(total)
            params, round = trees.add(params, estimate), round + 1
            if round % SAVE_EVERY == 0:
                self.saved = round, params, state
                curator.forget_records(before=round)
        return params

    def _watched(self, state, total, key):
        content = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(total))
        self._meeting.append((np.asarray(key).tobytes(), content))
        return RELEASE(state, total, key)

    @property
    def charges(self) -> list[int]:
        rows = Ledger(self.folder / "ledger.jsonl").run_rows("run")
        return [row["round"] for row in rows if row["kind"] == "charge"]

    def check(self) -> None:
        """What the guarantee rests on, counted again from the files."""
        charges = self.charges
        log = book(
            self.folder, (0, 10**6)
        )  # a reader who believes nothing: the entries without their checks
        log._chain = log._checksum(b"", repr(CLAIM.limits).encode())
        log._load()
        assert charges == list(range(len(charges)))
        assert len(charges) <= log.rows <= len(charges) + 1
        assert keeps_the_claim([log.cohort(row).tolist() for row in range(log.rows)])
        assert set(self.left) <= set(charges)
        assert all(len(given) == 1 for given in self.left.values())
        assert all(len(totals) == 1 for totals in self.met.values())
        assert len(self.met) <= len(charges)


class Elsewhere(Loop):
    def __init__(self, change: int) -> None:
        super().__init__()
        self._change = change

    def sum_reports(self, *arguments):
        return jax.tree.map(lambda leaf: leaf + self._change, super().sum_reports(*arguments))


def keeps_the_claim(cohorts) -> bool:
    separation, most = CLAIM.limits
    times = Counter(itertools.chain(*cohorts))
    soon = [
        set(one) & set(other)
        for gap in range(1, separation + 1)
        for one, other in apart(cohorts, gap)
    ]
    twice = [one for one in cohorts if len(set(one)) < len(one)]
    return not any(soon) and not twice and max(times.values(), default=0) <= most


def apart(cohorts, gap: int):
    return zip(cohorts[:-gap], cohorts[gap:], strict=True)


def test_counting_again_would_notice_a_user_who_comes_back_too_soon_or_too_often():
    """The twin of every check below."""
    assert keeps_the_claim([[1, 2], [3], [4], [1]])
    assert not keeps_the_claim([[1, 2], [3], [1]])
    assert not keeps_the_claim([[1, 1]])
    assert not keeps_the_claim([[1], [2], [3]] * 4)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory) -> np.ndarray:
    return np.asarray(Small(tmp_path_factory.mktemp("uncut") / "run").go_on()["x"])


PLACES = {
    "after the queue wrote": (queued, "write_atomically", True),
    "before the log wrote": (CohortLog, "_append", False),
    "after the log wrote": (CohortLog, "_append", True),
    "before the record": (Releases, "write", False),
    "after the record": (Releases, "write", True),
    "before the charge": (Account, "charge", False),
    "after the charge": (Account, "charge", True),
}


def cut_at(patch, place: str, occurrence: int) -> None:
    where, name, afterwards = PLACES[place]
    original, count = getattr(where, name), itertools.count(1)

    def cutting(*arguments, **named):
        now = next(count) == occurrence
        if now and not afterwards:
            raise Cut
        result = original(*arguments, **named)
        if now:
            raise Cut
        return result

    patch.setattr(where, name, cutting)


@pytest.mark.parametrize("place", PLACES)
def test_a_queue_interrupted_anywhere_ends_with_the_same_model(tmp_path, monkeypatch, uncut, place):
    """Also between the choice of a cohort and its entry in the log."""
    differing = []
    for occurrence in (1, 3, 7):
        small = Small(tmp_path / str(occurrence))
        with monkeypatch.context() as patch:
            cut_at(patch, place, occurrence)
            with pytest.raises(Cut):
                small.go_on()
        ended = np.asarray(small.go_on()["x"])
        small.check()
        assert len(small.charges) == ROUNDS  # nothing was lost, so nothing is paid twice
        if not np.array_equal(ended, uncut):
            differing.append(occurrence)
    assert not differing, f"cut off {place} (times {differing}), the run came to another model"


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(PLACES)), st.integers(1, 12), st.sampled_from([0, 0, 1, 2])
        ),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_cut_off_the_claim_holds_and_no_key_meets_two_totals_that_leave(
    tmp_path_factory, cuts
):
    cut_and_go_on(
        tmp_path_factory.mktemp("run") / "run", cuts, randomness="operating system"
    ).check()


def cut_and_go_on(folder, cuts, **settings) -> Small:
    """Cut off again and again, now and then on hardware whose sums come out otherwise; until all
    rows of noise are used up, if need be.
    """
    small = Small(folder, **settings)
    for place, occurrence, noisy_sums in cuts:
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.suppress(Cut, BudgetExhausted, WrongNumberOfUsers),
        ):
            cut_at(patch, place, occurrence)
            small.go_on(noisy_sums=noisy_sums)
    with contextlib.suppress(BudgetExhausted, WrongNumberOfUsers):
        small.go_on()
    return small


class ComputesAgain(Curator):
    """Of a release that was charged and lost, it forgets that there is a record."""

    def private_mean(self, params, state, round):
        if round == len(self.account.charges):
            return super().private_mean(params, state, round)
        total = self._sum_reports(
            params, state, self._log.cohort(round), round, self._log.failures(round)
        )
        release, after = self._release(
            state, total, self._noise_key(f"{self.account.nonce.hex()}-0", round)
        )
        return release.estimate, after


def test_a_key_that_meets_two_totals_would_be_noticed(tmp_path):
    """The twin of every check: rows that are computed again, where sums come out otherwise."""
    cuts = [("after the charge", 1, 0), ("after the charge", 1, 1)]
    small = cut_and_go_on(tmp_path / "run", cuts, curator=ComputesAgain)
    assert any(len(totals) == 2 for totals in small.met.values())
    assert any(len(given) == 2 for given in small.left.values())
    with pytest.raises(AssertionError):
        small.check()
    cut_and_go_on(tmp_path / "as it is", cuts).check()


def changed(folder, **parts) -> None:
    """The queue's state, changed by hand."""
    path = folder / "queue" / "queue.json"
    state = json.loads(path.read_text())
    path.write_text(
        json.dumps(state | {name: change(state[name]) for name, change in parts.items()})
    )


def older_copy(small) -> None:
    shutil.rmtree(small.folder / "queue")
    shutil.copytree(small.folder.with_name("older"), small.folder / "queue")


def last_cohort(small) -> list[int]:
    log = book(small.folder)
    return log.cohort(log.rows - 1).tolist()


TAMPERING = {
    "deleted": lambda small: shutil.rmtree(small.folder / "queue"),
    "without its models": lambda small: [
        path.unlink() for path in (small.folder / "queue").glob("model-*")
    ],
    "put back from an older copy": older_copy,
    "rounds forgotten": lambda small: changed(small.folder, rounds=lambda rounds: rounds[:-2]),
    "who just reported has reported again": lambda small: changed(
        small.folder, arrived=lambda _: [[user, 0] for user in last_cohort(small)]
    ),
    "who just reported trains again": lambda small: changed(
        small.folder, training=lambda was: [*was, *([user, 6] for user in last_cohort(small))]
    ),
    "everybody has reported": lambda small: changed(
        small.folder, training=lambda _: [], arrived=lambda _: [[user, 7] for user in range(USERS)]
    ),
    "models mixed up": lambda small: changed(
        small.folder, training=lambda was: [[user, (model + 1) % 7] for user, model in was]
    ),
    "twice in line": lambda small: changed(
        small.folder, training=lambda was: was + was, arrived=lambda was: was + was
    ),
}


def cut_off_in_round_seven(folder, monkeypatch) -> Small:
    """With a copy of its queue as it was after three rounds beside it, and a state of six rounds to
    go on from.
    """
    small = Small(folder)
    small.go_on(3)
    shutil.copytree(small.folder / "queue", folder.with_name("older"))
    with monkeypatch.context() as patch:
        cut_at(patch, "before the charge", 5)
        with pytest.raises(Cut):
            small.go_on()
    return small


@pytest.mark.parametrize("tampering", TAMPERING)
def test_a_queue_that_was_tampered_with_breaks_no_claim(tmp_path, monkeypatch, tampering):
    small = cut_off_in_round_seven(tmp_path / "run", monkeypatch)
    TAMPERING[tampering](small)
    for _ in range(2):
        with contextlib.suppress(ParticipationBreach, WrongNumberOfUsers):
            small.go_on()
    small.check()


@pytest.mark.parametrize(
    "tampering", ["deleted", "put back from an older copy", "who just reported trains again"]
)
def test_a_queue_that_does_not_fit_its_log_leaves_out_who_may_not_take_part_and_goes_on(
    tmp_path, monkeypatch, tampering
):
    """The log knows who may not; a queue that waits for nobody else would stop the run for good."""
    small = cut_off_in_round_seven(tmp_path / "run", monkeypatch)
    TAMPERING[tampering](small)
    small.go_on()
    small.check()


def test_one_key_with_another_cohort_is_a_failed_round(tmp_path):
    """The log lost its last entry, which nothing was charged for: the row has another cohort, under
    the same key.
    """
    fleet = queue(tmp_path)
    message, key = Message(START, Public(jnp.float32(CLIP_NORM))), jax.random.key(0)
    first = fleet.users(everyone)
    fleet.sum_reports(PROGRAM, message, first, key)
    second = fleet.users(lambda users: np.setdiff1d(users, first))
    with pytest.raises(FailedRound, match="already summed, with other devices"):
        fleet.sum_reports(PROGRAM, message, second, key)


def everyone(users):
    return users


def test_more_devices_in_flight_than_there_are_users_keep_the_claim(tmp_path):
    fleet, log = queue(tmp_path, in_flight=10 * USERS), book(tmp_path)
    for number in range(ROUNDS):
        cohort = fleet.users(log.eligible)
        log.record(cohort)
        fleet.sum_reports(
            PROGRAM, Message(START, Public(jnp.float32(CLIP_NORM))), cohort, jax.random.key(number)
        )
        assert not set(fleet._training) & set(cohort.tolist())
    assert fleet.staleness.max() > 1
    assert keeps_the_claim([log.cohort(row).tolist() for row in range(ROUNDS)])


def test_a_queue_is_refused_with_a_claim_about_sampling(tmp_path):
    sampled = ALGORITHM._replace(participation=PoissonSampling(0.1))
    with pytest.raises(ValueError, match="everyone in it reports"):
        Curator(
            algorithm=sampled,
            fleet=queue(tmp_path),
            account=Small(tmp_path / "run")._account(),
            root=bytes(32),
        )


def totals(folder, without=None, seed=0) -> list[tuple[list[int], np.ndarray]]:
    folder.mkdir()
    fleet, log, found = queue(folder, seed, without), book(folder), []
    for number in range(ROUNDS):
        cohort = fleet.users(log.eligible)
        log.record(cohort)
        message = Message({"x": jnp.sin(number + jnp.arange(6.0))}, Public(jnp.float32(CLIP_NORM)))
        total = fleet.sum_reports(PROGRAM, message, cohort, jax.random.key(number))
        found.append((cohort.tolist(), exact(total, CLIP_NORM)[0]["x"]))
    return found


def moved(one, other) -> list[float]:
    return [
        float(np.linalg.norm(mine - theirs))
        for (_, mine), (_, theirs) in zip(one, other, strict=True)
    ]


def test_leaving_out_one_users_reports_moves_their_rows_by_a_clip_norm_and_no_other(tmp_path):
    whole = totals(tmp_path / "whole")
    somebody = Counter(user for cohort, _ in whole for user in cohort).most_common(1)[0][0]
    without = totals(tmp_path / "without", somebody)
    assert [cohort for cohort, _ in whole] == [cohort for cohort, _ in without]
    distances = moved(whole, without)
    rows = [row for row, (cohort, _) in enumerate(whole) if somebody in cohort]
    assert len(rows) > 1
    assert all(0 < distances[row] <= CLIP_NORM for row in rows)
    assert all(distances[row] == 0 for row in range(ROUNDS) if row not in rows)
    # The twin: if how long they train followed what they wrote, others would report in other rows.
    late = totals(tmp_path / "late", somebody, seed=1)
    assert max(moved(whole, late)) > CLIP_NORM


def test_who_reports_in_a_run_with_secret_randomness_cannot_be_worked_out_from_its_recipe(
    population, tmp_path
):
    """The log of who took part is kept among the secrets; the coins of the queue say the same."""
    recipe = tiny_recipe(population, **FTRL, run={"seed": None})
    cohorts = []
    for name in ("one", "another"):
        (tmp_path / name / "private").mkdir(parents=True)
        made = run.Run(tmp_path / name, recipe, randomness.root_from_entropy())
        cohorts.append(made.fleet.users(everyone).tolist())
    assert cohorts[0] != cohorts[1]


def test_an_average_without_noise_from_a_queue_is_charged_as_that_and_keeps_its_log(tmp_path):
    release = BARE_ALGORITHM.mechanism.event(CLAIM)
    terms = RunTerms(
        name="run",
        recipe="r",
        population="p",
        adjacency=CLAIM.adjacency,
        randomness="operating system",
        accountant="rdp",
        budget=Budget(delta=1e-5),
        rounds=ROUNDS,
    )
    account = Account(ledger=Ledger(tmp_path / "ledger.jsonl"), terms=terms, release=release)
    account.open()
    with pytest.raises(ValueError, match="needs a log"):
        Curator(algorithm=BARE_ALGORITHM, fleet=queue(tmp_path), account=account, root=bytes(32))
    curator = Curator(
        algorithm=BARE_ALGORITHM,
        fleet=queue(tmp_path),
        account=account,
        root=bytes(32),
        log=book(tmp_path),
    )
    JITTED[curator._program] = jax.jit(curator._program)
    params, state = START, BARE_ALGORITHM.mechanism.init(START)
    for round in range(3):
        params, state = curator.private_mean(params, state, round)
    guarantee = account.guarantee()
    assert guarantee.epsilon == guarantee.rho == np.inf
    assert guarantee.releases == book(tmp_path).rows == 3
    assert json.loads(statement_json(guarantee, ()))["private"] is False


def test_uploads_of_devices_are_counted_once_whatever_is_interrupted(tmp_path):
    def fleet():
        clock = Clock(Devices(USERS, Habits(drop_out=0.3)), 1.0)
        return CheckInFleet(
            fleet=Loop(),
            clock=clock,
            report_goal=2,
            asked=4,
            most_reports=4,
            path=tmp_path / "devices.npz",
        )

    first = fleet()
    cohort = np.sort(first.users(everyone)[:4])
    message = Message(START, Public(jnp.float32(CLIP_NORM)))
    total = first.sum_reports(PROGRAM, message, cohort, jax.random.key(1))
    again = fleet()
    repeated = again.sum_reports(PROGRAM, message, cohort, jax.random.key(1))
    assert again.uploads == first.uploads > 0
    assert all(
        np.array_equal(*pair)
        for pair in zip(jax.tree.leaves(total), jax.tree.leaves(repeated), strict=True)
    )
