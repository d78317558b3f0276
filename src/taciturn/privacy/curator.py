"""The curator: the only door between users and the server. READ THIRD, after core.py and training.py.

`private_mean` is the middle of McMahan et al. 2018, Algorithm 1: sample, sum, noise, charge,
release.

**Guarantee:** what leaves `private_mean` is charged in the population's ledger, on disk, before it
leaves. Round r is row r of the noise and charge r of the run, whatever crashes there were: the
noised release is written down first (privacy/ledger/releases.py), then charged, then given out; one that is
charged is given out from its record and never computed again, so no noise meets two totals that
leave. Every start of a process draws under fresh bytes that are in the ledger (`Account.nonce`), so
a copy of a run's folder repeats nothing.

**Assumes:** the root is secret (in a simulation it is not, and the ledger says so), and the fleet
adds honestly.
"""

import hashlib
import hmac
import json
import operator
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock

import jax
import numpy as np

from taciturn import randomness, trees
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
    Report,
    UserData,
    UserIds,
)
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.accounting.events import event_to_json
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.cohort_log import CohortLog, ParticipationBreach
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.ledger.releases import Releases
from taciturn.privacy.noise import sampler
from taciturn.privacy.noise.chacha20 import Coins, key_words
from taciturn.privacy.participation import WrongNumberOfUsers, default_delta, spare_rounds

# of a model whose size is not known when its run is declared
MOST_PARAMETERS = 2**31


class Curator:
    """Charges what it releases before it releases it. Runs make one from a recipe; for your own
    loop there is `for_simulation`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        fleet: Fleet,
        account: Account,
        root: bytes,
        log: CohortLog | None = None,
        records: Releases | None = None,
    ) -> None:
        participation, mechanism = algorithm.participation, algorithm.mechanism
        if participation.sampled_by_curator and not fleet.everyone_reports:
            holds = (
                "which holds only where the curator draws the cohort and everyone in it reports; on"
                " this fleet devices may drop out"
            )
            raise ValueError(
                f"{participation} claims privacy from sampling, {holds}, so use a participation"
                " that claims no sampling"
            )
        if account.release != mechanism.event(participation):
            raise ValueError(
                "the account charges for another mechanism than the one that would run"
            )
        if (participation.limits is None) != (log is None) or (
            log and log.limits != participation.limits
        ):
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
        # where `rounds` draws, and before anybody is asked
        sampler.check_bits(jax.local_devices()[0])
        self.account = account
        self._mechanism, self._participation, self._fleet, self._log = (
            mechanism,
            participation,
            fleet,
            log,
        )
        # Bound to what runs: one root under two recipes or two noise levels shares no key between
        # them.
        self._root = randomness.derive(
            root, f"run {account.terms.recipe} {json.dumps(event_to_json(account.release))}", 0
        )
        self._records = records or Releases(None, self._root)
        self._release, self._follow, self._public = map(
            jax.jit, (mechanism.release, mechanism.follow, mechanism.public)
        )
        # that this round and the next must start from
        self._states: dict[int, MechanismState] = {}
        self._one_at_a_time = Lock()
        # at noising a total of that round, in this process
        self._tries: Counter[int] = Counter()
        self._program = device_program(algorithm)
        self._secrets: tempfile.TemporaryDirectory | None = None

    @classmethod
    def for_simulation(
        cls,
        algorithm: Algorithm,
        users: Sequence[UserData],
        ledger: str | Path,
        *,
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
                of them add up.
            rounds: the most there may be.
            epsilon: a budget; the round that would pass it is refused.
            delta: of the budget (default: one over the number of users, squared).
            seed: makes the run repeatable, and its noise public: the ledger then records that it is
                a simulation.

        Returns:
            The door to these users: give it to `rounds`. `curator.account.guarantee()` returns what
                was spent.

        Example:
            users = [tt.UserData(batches=np.ones((1, 1, 60)), weight=np.float32(1), steps=1) for _ in range(50)]
            curator = tt.Curator.for_simulation(algorithm, users, ledger="ledger.jsonl", seed=1)
        """
        mechanism, participation, book = (
            algorithm.mechanism,
            algorithm.participation,
            Ledger(Path(ledger)),
        )
        delta = default_delta(len(users)) if delta is None else delta
        if not 0 < delta < 1 / len(users):
            raise ValueError(
                f"δ is above 0 and below one over the number of users, {1 / len(users):g}; {delta}"
                " is not"
            )
        root = randomness.root_from_entropy() if seed is None else randomness.root_from_seed(seed)
        # tells others nothing
        identity = hmac.new(randomness.derive(root, "population", 0), digestmod=hashlib.sha256)
        for leaf in jax.tree.leaves(list(users)):
            identity.update(np.asarray(leaf).tobytes())
        name = f"simulation-{len(book.runs()) + 1}"
        recipe = (
            # so that no two runs of one seed share noise
            f"{name}, by an algorithm of one's own"
        )
        drawn = "operating system" if seed is None else "seeded simulation"
        distance = mechanism.distance(MOST_PARAMETERS, rounds + spare_rounds(rounds))
        terms = RunTerms(
            name=name,
            recipe=recipe,
            population=identity.hexdigest()[:16],
            adjacency=participation.adjacency,
            randomness=drawn,
            accountant="pld",
            budget=Budget(delta=delta, epsilon=epsilon),
            rounds=rounds,
            distance=distance,
        )
        account = Account(ledger=book, terms=terms, release=mechanism.event(participation))
        account.check_budget()
        # who took part, as long as the curator lives
        secrets, log = (
            tempfile.TemporaryDirectory(prefix="taciturn-"),
            None,
        )
        if participation.limits is not None:
            log_key = randomness.derive(root, "participation log", 0)
            log = CohortLog(
                Path(secrets.name) / "participation.log", *participation.limits, log_key
            )
        curator = cls(algorithm, UsersInMemory(users), account, root, log)
        curator._secrets = secrets
        account.open()
        return curator

    def private_mean(
        self, params: Params, state: MechanismState, round: int
    ) -> tuple[Estimate, MechanismState]:
        """Return one round's private estimate of the average update, and the mechanism's next
        state.
        """
        # else two threads could make two releases of a round
        with self._one_at_a_time:
            return self._private_mean(params, state, operator.index(round))

    def _private_mean(
        self, params: Params, state: MechanismState, round: int
    ) -> tuple[Estimate, MechanismState]:
        self._check_state(state, round)
        if self._log is not None:
            self._check_log(self._log)
        if round < len(
            self.account.charges
            # charged, and nobody remembers the result: a crash, or a second call
        ):
            release, drawn = self._records.read(
                round, self.account.charges[round]["record"], params
            )
            after = sampler.checked(self._follow(state, release, self._noise_key(drawn, round)))
        else:
            self.account.check_budget()
            # Σ w_k Δ_k, each already clipped
            total = self._total_of_a_new_cohort(params, state, round)
            drawn = f"{self.account.nonce.hex()}-{self._tries[round]}"
            self._tries[round] += 1
            # f̃ + N(0, Iσ²)
            release, after = sampler.checked(
                self._release(state, total, self._noise_key(drawn, round))
            )
            # else the record of another process would be overwritten, which may be charged
            self.account.check_alone()
            record = self._records.write(round, release, drawn)
            # M.accum_priv_spending(z)
            self.account.charge(round, record, self._log.mark(round) if self._log else "")
        self._states = {round: state, round + 1: after}
        return release.estimate, after

    def saved(self, round: int) -> None:
        """Delete the records of earlier rounds: the state at the start of this one is on disk."""
        self._records.forget(round)

    def _check_state(self, state: MechanismState, round: int) -> None:
        """Raise unless noise continues where it stopped: from another state, rows would not cancel
        as their cost assumes.
        """
        known, rows = self._states.get(round, state), int(state.round)
        same = zip(jax.tree.leaves(known), jax.tree.leaves(state), strict=True)
        if rows != round or not all(
            left is right or np.array_equal(left, right) for left, right in same
        ):
            raise ValueError(
                f"round {round} does not go on from the state that the round before it left"
            )
        if round > len(self.account.charges):
            raise ValueError(
                f"round {round} cannot come before round {len(self.account.charges)}, which is not"
                " charged yet"
            )

    def _check_log(self, log: CohortLog) -> None:
        """Raise unless charge r is entry r of the log."""
        charges = self.account.charges
        if not len(charges) <= log.rows <= len(charges) + 1:
            differ = (
                f"the ledger has {len(charges)} releases and the participation log {log.rows}"
                " cohorts"
            )
            raise ParticipationBreach(
                f"{differ}: they do not belong together, so the run cannot go on"
            )
        if charges and charges[-1].get("log") != log.mark(len(charges) - 1):
            silent = (
                "the participation log does not say who took part in the releases that are charged"
            )
            raise ParticipationBreach(
                f"{silent}: entries were lost or changed, so the run cannot go on"
            )

    def _total_of_a_new_cohort(self, params: Params, state: MechanismState, round: int) -> Report:
        """Try until a cohort reports, if there is a log. Each cohort is recorded before anything is
        summed; a round that fails releases nothing, so it uses no row of noise and counts as no
        participation, whatever the devices' own timers did.
        """
        log = self._log
        if log is None:
            # Cᵗ ← sample users with probability q
            cohort = self._drawn(round, "cohort", 0)
            return self._total(params, state, cohort, round, 0)
        while True:
            failures = log.failures(round)
            # If the log has more, a crash came between it and the charge: that cohort was asked,
            # and is this row's.
            if log.rows == round:
                cohort = self._drawn(round, "cohort", failures)
                self.account.check_alone()
                log.record(cohort)
            try:
                return self._total(params, state, log.cohort(round), round, failures)
            except FailedRound:
                if self._participation.sampled_by_curator:
                    # cohorts that are redrawn until one succeeds are not distributed as claimed
                    raise
                self.account.check_alone()
                log.fail()

    def _drawn(self, round: int, purpose: str, attempt: int) -> UserIds:
        coins = Coins(randomness.derive(self._now, purpose, round, attempt))
        users = self._fleet.users(self._log.eligible if self._log else lambda users: users)
        return self._participation.select(users, round, coins)

    def _total(
        self, params: Params, state: MechanismState, cohort: UserIds, round: int, attempt: int
    ) -> Report:
        if len(cohort) > self._mechanism.most_reports:
            raise WrongNumberOfUsers(
                "a cohort is far larger than expected: there are more than participation.users."
                " Raise that number"
            )
        # θᵗ, clip norm
        message = Message(params, self._public(state))
        user_key = randomness.jax_key(randomness.derive(self._now, "users", round, attempt))
        return self._fleet.sum_reports(self._program, message, cohort, user_key)

    @property
    def _now(self) -> bytes:
        """Return the root of what is drawn since this process opened or resumed the run."""
        return randomness.derive(self._root, f"since {self.account.nonce.hex()}", 0)

    def _noise_key(self, drawn: str, round: int) -> np.ndarray:
        return key_words(randomness.derive(self._root, f"noise {drawn}", round))


class UsersInMemory:
    """The plainest fleet: each report is computed alone, by one program of one shape, so that none
    depends on another.
    """

    everyone_reports = True

    def __init__(self, users: Sequence[UserData]) -> None:
        shapes = [
            [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in jax.tree.leaves(user)]
            for user in users
        ]
        if (
            not users
            or any(shape != shapes[0] for shape in shapes)
            or any(np.ndim(user.weight) for user in users)
        ):
            # Sums broadcast: a smaller report would be added repeatedly, past its clip norm.
            raise ValueError(
                "there is at least one user, all users' arrays have one shape and type, and a"
                " weight is one number"
            )
        self._users, self._compiled = users, lru_cache(maxsize=1)(jax.jit)

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return eligible(np.arange(len(self._users)))

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        report = self._compiled(program)
        total = trees.zeros_like(jax.eval_shape(program, message, self._users[0], key))
        for user in cohort:
            own_key = jax.random.fold_in(key, np.uint32(user))
            total = trees.add(total, report(message, self._users[user], own_key))
        return total


# so that runs of one algorithm in one process are compiled once
@lru_cache(maxsize=8)
def device_program(algorithm: Algorithm) -> Program:
    """Return what a device runs: train, then bound."""

    def program(message: Message, user: UserData, key: Key) -> Report:
        update_key, bound_key = jax.random.split(key)
        update = algorithm.user_update(message, user, update_key)
        return algorithm.mechanism.bound(message.public, update, user.weight, bound_key)

    return program
