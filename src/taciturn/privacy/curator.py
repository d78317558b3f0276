"""The curator: the only door between users and the server.

READ THIRD, after core.py and training.py.

`private_mean` is the middle of McMahan et al. 2018, Algorithm 1: draw a cohort (and log it), sum,
noise, record, charge, give out. What a crash leaves behind, and what the next process does:

    before the record    nothing has left: a cohort in the log is asked again, and fresh noise drawn
    before the charge    nothing has left: the same, and the record is overwritten
    after the charge     the release is read from its record, and given out

**Guarantee:** what leaves `private_mean` is charged in the population's ledger, on disk, before it
leaves. Round r is row r of the noise and charge r of the run, whatever crashes there were: the
noised release is written down first (privacy/ledger/releases.py), then charged, then given out; one
that is charged is given out from its record and never computed again, so no noise meets two totals
that leave. Every start of a process draws under fresh bytes that are in the ledger
(`Account.nonce`), so a copy of a run's folder repeats nothing.

**Assumes:** the root is secret (in a simulation it is not, and the ledger says so), and the fleet
adds honestly.
"""

import json
import operator
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from threading import Lock

import jax
import numpy as np

from taciturn import randomness
from taciturn.core import (
    Algorithm,
    Estimate,
    FailedRound,
    Fleet,
    Key,
    MechanismState,
    Message,
    Params,
    Program,
    PyTree,
    Release,
    Report,
    TrainState,
    UserData,
    UserIds,
)
from taciturn.privacy.accounting.events import event_to_json
from taciturn.privacy.fingerprint import describe_origin
from taciturn.privacy.ledger.account import Account
from taciturn.privacy.ledger.cohort_log import CohortLog, ParticipationBreach
from taciturn.privacy.ledger.hash_chain import LedgerError
from taciturn.privacy.ledger.releases import Releases
from taciturn.privacy.loop_folder import LoopFolder
from taciturn.privacy.noise import sampler
from taciturn.privacy.noise.chacha20 import Coins, key_words
from taciturn.privacy.own_loop import check_same, try_algorithm
from taciturn.privacy.participation import WrongNumberOfUsers
from taciturn.privacy.simulation import UsersInMemory, open_log, prepare_simulation


class Curator:
    """Charges what it releases before it releases it.

    Runs make one from a recipe; for your own loop there is `for_simulation`.
    """

    def __init__(
        self,
        *,
        algorithm: Algorithm,
        fleet: Fleet,
        account: Account,
        root: bytes,
        log: CohortLog | None = None,
        records: Releases | None = None,
    ) -> None:
        """Refuse what does not belong together, and prepare to release.

        Args:
            algorithm: what runs.
            fleet: where the users are.
            account: what is charged; it is opened or reopened before the first round.
            root: what every random choice is derived from.
            log: of who took part, where the claim is about how often users do.
            records: of releases; without them only the last is kept, in memory.

        Raises:
            ValueError: if the claim, the mechanism, the account and the log do not fit.
        """
        _check_fit(algorithm=algorithm, fleet=fleet, account=account, log=log)
        # The device that draws the noise of `rounds`: its bits are tried before any user is asked.
        sampler.check_bits(jax.local_devices()[0])
        mechanism = algorithm.mechanism
        self.account = account
        self._mechanism = mechanism
        self._participation = algorithm.participation
        self._fleet = fleet
        self._log = log
        self._program = device_program(algorithm)
        self._root = _bind_root(root, account)
        self._records = records or Releases(None, self._root)
        self._release = jax.jit(mechanism.release)
        self._follow = jax.jit(mechanism.follow)
        self._public = jax.jit(mechanism.public)
        # What the last round and the next must start from.
        self._states: dict[int, MechanismState] = {}
        self._one_at_a_time = Lock()
        # How often a total of that round was noised, in this process.
        self._tries: Counter[int] = Counter()
        # A folder with the log of who took part, of a simulation: gone with the curator.
        self._secrets: tempfile.TemporaryDirectory | None = None
        # The folder of your own loop, where it has one that stays.
        self._loop: LoopFolder | None = None
        # The algorithm of your own loop.
        self._own: Algorithm | None = None
        self._is_tried = False

    @classmethod
    def for_simulation(
        cls,
        algorithm: Algorithm,
        users: Sequence[UserData],
        ledger: str | Path,
        *,
        folder: str | Path | None = None,
        rounds: int = 1000,
        epsilon: float | None = None,
        delta: float | None = None,
        seed: int | None = None,
    ) -> "Curator":
        """Make a curator of users in memory, for your own algorithm, model and loop.

        Args:
            algorithm: what runs; its mechanism and participation are what is charged.
            users: the text, or any other data, of each user, in arrays of one shape. Their number
                is taken as public.
            ledger: a file, made if it does not exist. Every curator is one more run in it, and all
                of them add up; but one of a folder that has a loop already resumes that run.
            folder: what the loop needs to resume, made if it does not exist. A process that was
                killed calls the same lines again, and `rounds` continues where it stopped; other
                arguments are refused. Its `private` has secrets that would undo the noise: `close`
                deletes them. Without a folder a loop ends with its process.
            rounds: the most there may be.
            epsilon: a budget; the round that would pass it is refused.
            delta: of the budget (default: one over the number of users, squared).
            seed: makes the run repeatable, and its noise public: the ledger then records that it is
                a simulation.

        Returns:
            The door to these users: give it to `rounds`. `curator.account.guarantee()` returns what
                was spent.

        Raises:
            OwnLoopError: an argument cannot be, or is not what the folder's loop was made with.
            LedgerError: the ledger and the folder do not belong together, or one was put back.

        Example:
            user = tt.UserData(batches=np.ones((1, 1, 60)), weight=np.float32(1), steps=1)
            users = [user] * 50
            curator = tt.Curator.for_simulation(
                algorithm, users, ledger="ledger.jsonl", folder="loop", seed=1
            )
        """
        simulation = prepare_simulation(
            algorithm,
            users,
            Path(ledger),
            folder=None if folder is None else Path(folder),
            rounds=rounds,
            epsilon=epsilon,
            delta=delta,
            seed=seed,
        )
        loop = simulation.loop
        secrets = None
        if loop is None:
            secrets = tempfile.TemporaryDirectory(prefix="taciturn-")
            private = Path(secrets.name)
        else:
            private = loop.private
        root = simulation.root
        records_key = randomness.derive(root, "records", 0)
        # An earlier curator of this process may be in a round.
        with loop.mutex if loop else nullcontext():
            curator = cls(
                algorithm=algorithm,
                fleet=simulation.fleet,
                account=simulation.account,
                root=root,
                log=open_log(private, algorithm.participation, root),
                records=Releases(private / "releases", records_key) if loop else None,
            )
            curator._secrets = secrets
            curator._own = algorithm
            curator._declare(loop)
        return curator

    def _declare(self, loop: LoopFolder | None) -> None:
        """Declare the run of your own loop, or reopen it where its folder has it already."""
        if loop is None:
            self.account.open()
            return
        self._loop = loop
        self._one_at_a_time = loop.mutex
        loop.declare(self.account)

    def private_mean(
        self, params: Params, state: MechanismState, round: int
    ) -> tuple[Estimate, MechanismState]:
        """Return a private estimate of the average update, and the mechanism's next state.

        Args:
            params: θᵗ, which devices train on.
            state: the mechanism's state that the round before left.
            round: its number; one that is charged is given out again, from its record.
        """
        # Else two threads could make two releases of a round.
        with self._one_at_a_time:
            round = operator.index(round)
            if self._loop is not None:
                self._loop.check_held()
            self._check_state(params, state, round)
            if self._log is not None:
                self._check_log(self._log)
            if round < len(self.account.charges):
                # There was a crash, or this is a second call: the caller does not have the result.
                release, after = self._repeat_release(params, state, round)
            else:
                release, after = self._make_release(params, state, round)
            self._states = {round: state, round + 1: after}
            return release.estimate, after

    def try_algorithm(self, algorithm: Algorithm, params: Params, state: MechanismState) -> None:
        """Refuse what cannot be trained, before the first round of your own loop.

        It is tried on synthetic users, and nothing is charged.

        Args:
            algorithm: what is to run.
            params: to start from.
            state: the mechanism's before the first round.

        Raises:
            OwnLoopError: it is another algorithm than the curator's, or one that learns nothing.
        """
        own = self._own
        if own is None or not isinstance(self._fleet, UsersInMemory):
            return
        check_same(algorithm, own)
        if self._is_tried:
            return
        public = self._public(state)
        try_algorithm(algorithm, params, public, self._fleet.example)
        self._is_tried = True

    def begin_loop(self, algorithm: Algorithm, state: TrainState) -> TrainState | None:
        """Return the state that the folder of your own loop has saved, or save this, the first.

        Args:
            algorithm: what is to run.
            state: the one to begin with.

        Returns:
            What to continue from in its place; None to begin with it, and without a folder.

        Raises:
            OwnLoopError: the loop began with another algorithm, or other parameters.
        """
        loop = self._loop
        if loop is None:
            return None
        assert isinstance(self._fleet, UsersInMemory)
        origin, shapes = describe_origin(
            algorithm=algorithm,
            program=self._program,
            release=self._mechanism.release,
            server=state.server,
            user=self._fleet.example,
        )
        with self._one_at_a_time:
            loop.begin(origin, state.round)
            saved = loop.load(shapes)
            if saved is None:
                if state.round == 0:
                    self._save_state(loop, state)
                return None
            self.check_history(saved.round, saved.ledger_head)
            # The only one that noise may continue from.
            self._states = {saved.round: saved.mechanism}
        return saved if state.round == 0 else None

    def keep_state(self, state: TrainState) -> None:
        """Save a state, where your own loop has a folder; from then on it resumes there."""
        if self._loop is None:
            return
        with self._one_at_a_time:
            self._save_state(self._loop, state)

    def _save_state(self, loop: LoopFolder, state: TrainState) -> None:
        # Else the state of another process would be overwritten.
        self.account.check_alone()
        loop.save(state)
        self.forget_records(before=state.round)

    def check_history(self, round: int, head: str) -> None:
        """Refuse a state that no round of this run left.

        Args:
            round: the number of rounds that are done in it.
            head: the row of the ledger at which it was made.

        Raises:
            LedgerError: the run has no such row, or fewer rounds were charged until then.
        """
        charged = 0
        for row in self.account.rows:
            charged += row["kind"] == "charge"
            if row["hash"] == head and charged >= round:
                return
        raise LedgerError(
            f"the state of round {round} comes from another history than that of run"
            f" {self.account.terms.name!r}: continue from a state of this run, or start from"
            " parameters. In another process your own loop resumes from the `folder` of its curator"
        )

    def close(self) -> None:
        """End your own loop for good: nothing is released any more.

        The run gives back what it reserved and did not spend. In the folder of the loop the last
        parameters stay (`parameters.safetensors`), and its secrets are deleted.
        """
        with self._one_at_a_time:
            self.account.check_alone()
            if self._loop is not None:
                self._loop.close()
            if self._secrets is not None:
                self._secrets.cleanup()
            self.account.close()

    def forget_records(self, before: int) -> None:
        """Delete the records of rounds before this one: the state at its start is on disk."""
        self._records.forget(before)

    def _repeat_release(
        self, params: Params, state: MechanismState, round: int
    ) -> tuple[Release, MechanismState]:
        """Return the release that was charged, and the state that follows from it."""
        checksum = self.account.charges[round]["record"]
        release, noise_name = self._records.read(round, checksum, params)
        noise_key = self._noise_key(noise_name, round)
        after = sampler.check_drawn(self._follow(state, release, noise_key))
        return release, after

    def _make_release(
        self, params: Params, state: MechanismState, round: int
    ) -> tuple[Release, MechanismState]:
        """Sum, noise, record, charge: in this order, so that nothing leaves that is not charged."""
        self.account.check_budget()
        # Σ w_k Δ_k, each already clipped.
        total = self._sum_new_cohort(params, state, round)
        noise_name = self._name_noise(round)
        noise_key = self._noise_key(noise_name, round)
        # f̃ + N(0, Iσ²).
        release, after = sampler.check_drawn(self._release(state, total, noise_key))
        self._record_and_charge(release, noise_name, round)
        return release, after

    def _name_noise(self, round: int) -> str:
        """Return a name under which no noise was drawn before.

        In a seeded simulation, whose noise is public, each try repeats the first.
        """
        nonce = self.account.nonce.hex()
        attempt = self._tries[round] if nonce else 0
        self._tries[round] += 1
        return f"{nonce}-{attempt}"

    def _record_and_charge(self, release: Release, noise_name: str, round: int) -> None:
        # Else the record of another process would be overwritten, which may be charged.
        self.account.check_alone()
        record = self._records.write(round, release, noise_name)
        mark = self._log.mark(round) if self._log else ""
        # M.accum_priv_spending(z).
        self.account.charge(round, record, mark)

    def _check_state(self, params: Params, state: MechanismState, round: int) -> None:
        """Raise unless noise continues where it stopped.

        From another state, the noise of rows would not cancel as their cost assumes. A process that
        resumes a run can only compare the number of its first round.
        """
        if round in self._states:
            expected = self._states[round]
        elif round == 0:
            expected = self._mechanism.init(params)
        else:
            # A later one of a process that knows the states of its rounds comes from none of them;
            # nor does one that is not what `rounds` has read from the folder of the loop.
            is_saved = self._loop is not None and self._loop.saved is not None
            expected = None if self._states or is_saved else state
        if int(state.round) != round or not _are_equal(expected, state):
            raise ValueError(
                f"round {round} does not continue from the state that the round before it left"
            )
        charged = len(self.account.charges)
        if round > charged:
            raise ValueError(
                f"round {round} cannot come before round {charged}, which is not charged yet"
            )

    def _check_log(self, log: CohortLog) -> None:
        """Raise unless charge r is entry r of the log."""
        charges = self.account.charges
        charged = len(charges)
        # A crash may come between an entry and its charge.
        is_in_step = log.rows in (charged, charged + 1)
        if not is_in_step:
            raise ParticipationBreach(
                f"the ledger has {charged} releases and the participation log {log.rows} cohorts:"
                " they do not belong together, so the run cannot continue"
            )
        if charges and charges[-1].get("log") != log.mark(charged - 1):
            raise ParticipationBreach(
                "the participation log does not say who took part in the releases that are charged:"
                " entries were lost or changed, so the run cannot continue"
            )

    def _sum_new_cohort(self, params: Params, state: MechanismState, round: int) -> Report:
        """Sum the reports of a cohort; where there is a log, try until one reports.

        A log has each cohort before anything is summed. A round that fails releases nothing, so it
        uses no row of noise and counts as no participation, even if devices rest after it.
        """
        log = self._log
        if log is None:
            # Cᵗ ← sample users with probability q.
            return self._sum_reports(
                params=params,
                state=state,
                cohort=self._draw_cohort(round, attempt=0),
                round=round,
                attempt=0,
            )
        while True:
            failures = log.failures(round)
            # If the log has more, a crash came between it and the charge: that cohort may have been
            # asked, and is this row's.
            if log.rows == round:
                cohort = self._draw_cohort(round, attempt=failures)
                self.account.check_alone()
                log.record(cohort)
            try:
                return self._sum_reports(
                    params=params,
                    state=state,
                    cohort=log.cohort(round),
                    round=round,
                    attempt=failures,
                )
            except FailedRound:
                # Cohorts that are redrawn until one succeeds are not distributed as claimed.
                if self._participation.sampled_by_curator:
                    raise
                self.account.check_alone()
                log.fail()

    def _draw_cohort(self, round: int, attempt: int) -> UserIds:
        coins = Coins(randomness.derive(self._fresh_root, "cohort", round, attempt))
        users = self._fleet.users(self._log.eligible if self._log else _all_eligible)
        cohort = self._participation.select(users, round, coins)
        return _check_cohort(np.asarray(cohort), np.asarray(users))

    def _sum_reports(
        self, params: Params, state: MechanismState, cohort: UserIds, round: int, attempt: int
    ) -> Report:
        if len(cohort) > self._mechanism.most_reports:
            raise WrongNumberOfUsers(
                "a cohort is far larger than expected: there are more than participation.users."
                " Raise that number"
            )
        # θᵗ and the clip norm.
        message = Message(params, self._public(state))
        secret = randomness.derive(self._fresh_root, "users", round, attempt)
        user_key = randomness.jax_key(secret)
        return self._fleet.sum_reports(self._program, message, cohort, user_key)

    @property
    def _fresh_root(self) -> bytes:
        """Return the root of what is drawn since this process opened or resumed the run."""
        return randomness.derive(self._root, f"since {self.account.nonce.hex()}", 0)

    def _noise_key(self, noise_name: str, round: int) -> np.ndarray:
        return key_words(randomness.derive(self._root, f"noise {noise_name}", round))


def _check_fit(
    *, algorithm: Algorithm, fleet: Fleet, account: Account, log: CohortLog | None
) -> None:
    """Raise unless what is claimed holds with this fleet, noise and log, and is what is charged."""
    mechanism = algorithm.mechanism
    participation = algorithm.participation
    if participation.sampled_by_curator and not fleet.everyone_reports:
        raise ValueError(
            f"{participation} claims privacy from sampling, which holds only where the curator"
            " draws the cohort and everyone in it reports; on this fleet devices may drop out, so"
            " use a participation that claims no sampling"
        )
    if account.release != mechanism.event(participation):
        raise ValueError("the account charges for another mechanism than the one that would run")
    enforced_limits = None if log is None else log.limits
    if enforced_limits != participation.limits:
        raise ValueError(
            "a claim about how often users take part needs a log that enforces just that claim"
        )
    if mechanism.correlated and participation.limits is None:
        raise ValueError(
            "noise that is correlated over rounds needs a claim about how often users take part"
        )
    if account.terms.adjacency != participation.adjacency:
        raise ValueError(
            f"the account states the adjacency «{account.terms.adjacency}», not"
            f" «{participation.adjacency}»"
        )


def _bind_root(root: bytes, account: Account) -> bytes:
    """Return a root that is bound to what runs.

    One root under two recipes or two noise levels shares no key between them.
    """
    cost = json.dumps(event_to_json(account.release))
    return randomness.derive(root, f"run {account.terms.recipe} {cost}", 0)


def _are_equal(left: PyTree, right: PyTree) -> bool:
    """Tell whether two states have the same numbers."""
    if jax.tree.structure(left) != jax.tree.structure(right):
        return False
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(one is other or np.array_equal(one, other) for one, other in pairs)


def _check_cohort(cohort: np.ndarray, users: UserIds) -> UserIds:
    """Return a cohort, unless a user is in it twice, or one who is not there.

    A user who is summed twice counts for two clip norms, and −1 for the last user once more.

    Raises:
        ParticipationBreach: before anybody is asked.
    """
    if cohort.shape == (0,):
        return np.zeros(0, np.int64)
    if cohort.ndim != 1 or not np.issubdtype(cohort.dtype, np.integer):
        raise ParticipationBreach(
            f"`select` of the participation returned an array of {cohort.dtype} with"
            f" {cohort.ndim} dimensions; a cohort is a list of users' numbers, of those it was"
            " given. Nobody was asked, and nothing was charged"
        )
    for numbers, source in ((users, "`users` of the fleet"), (cohort, "`select`")):
        if not np.all(numbers[1:] > numbers[:-1]):
            raise ParticipationBreach(
                f"{source} returned users out of order, or one of them twice, who would count for"
                " two clip norms: each comes once, in rising order (`np.unique` does it). Nobody"
                " was asked, and nothing was charged"
            )
    places = np.minimum(np.searchsorted(users, cohort), len(users) - 1)
    is_there = users[places] == cohort if len(users) else np.zeros(len(cohort), bool)
    if not np.all(is_there):
        raise ParticipationBreach(
            f"`select` returned user {cohort[~is_there][0]}, who is not among the {len(users)} that"
            " it was given. Nobody was asked, and nothing was charged"
        )
    return cohort.astype(np.int64)


def _all_eligible(users: UserIds) -> UserIds:
    return users


# Cached, so that runs of one algorithm in one process are compiled once.
@lru_cache(maxsize=8)
def device_program(algorithm: Algorithm) -> Program:
    """Return what a device runs: train, then bound."""

    def program(message: Message, user: UserData, key: Key) -> Report:
        update_key, bound_key = jax.random.split(key)
        update = algorithm.user_update(message, user, update_key)
        return algorithm.mechanism.bound(message.public, update, user.weight, bound_key)

    return program
