"""The curator: the only door between users and the server. READ THIRD, after core.py and train.py.

`private_mean` is the middle of McMahan et al. 2018, Algorithm 1: sample, sum, charge, release.

**Guarantee:** what leaves `private_mean` is charged in the population's ledger, on disk, before it is computed. However often it is
called, no noise key ever meets two totals: each charge carries a *seal*, a keyed hash of its total and of the mechanism's state, and
the noise keys are derived from that seal. A round that was charged and then lost in a crash is either released again byte for
byte, when total and state match the seal, or abandoned, and redone as another attempt: other cohort, other noise, another charge.

**Assumes:** the root is secret (in a simulation it is not, and the ledger says so), and the fleet adds honestly.
"""

import hashlib
import hmac
import json
import operator

import jax

from taciturn import keys
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
    Report,
    UserData,
    UserIds,
)
from taciturn.privacy.account import Account
from taciturn.privacy.accounting import event_to_json
from taciturn.privacy.participation import WrongNumberOfUsers
from taciturn.privacy.participation_log import ParticipationBreach, ParticipationLog
from taciturn.privacy.seals import fingerprint


class Curator:
    def __init__(
        self, algorithm: Algorithm, fleet: Fleet, account: Account, root: bytes, log: ParticipationLog | None = None
    ) -> None:
        participation, mechanism = algorithm.participation, algorithm.mechanism
        if participation.sampled_by_curator and not fleet.everyone_reports:
            raise ValueError(
                f"{participation} claims privacy from sampling, which holds only where the curator draws the cohort and everyone in "
                "it reports; on this fleet devices may drop out, so use a participation that claims no sampling"
            )
        if account.release != mechanism.event(participation):
            raise ValueError("the account charges for another mechanism than the one that would run")
        if (participation.limits is None) != (log is None) or (log and log.limits != participation.limits):
            raise ValueError("a claim about how often users take part needs a log that enforces just that claim")
        if mechanism.correlated and participation.limits is None:
            raise ValueError("noise that is correlated over rounds needs a claim about how often users take part")
        if account.terms.adjacency != participation.adjacency:
            raise ValueError(
                f"the account states the adjacency «{account.terms.adjacency}», not «{participation.adjacency}»"
            )
        self.account = account
        self._mechanism, self._participation, self._fleet, self._log = mechanism, participation, fleet, log
        # Bound to what runs: one root under two recipes or two noise levels shares no key between them.
        self._root = keys.derive(root, f"run {account.terms.recipe} {json.dumps(event_to_json(account.release))}", 0)
        self._release, self._skip = jax.jit(mechanism.release), jax.jit(mechanism.skip)
        self._states: dict[int, str] = {}  # digests of the states that rounds must start from
        self._program = device_program(algorithm)

    def private_mean(self, params: Params, state: MechanismState, round: int) -> tuple[Estimate, MechanismState]:
        """One round's private estimate of the average update, and the mechanism's next state."""
        round = operator.index(round)
        if self._log is not None:
            return self._next_row(params, state, round, self._log)
        attempts = self.account.attempts(round)
        if attempts:  # charged, and nobody remembers the result: a crash, or a second call
            attempt, seal = attempts[-1]
            cohort = self._drawn(round, "cohort", attempt)
            total = self._total(params, state, cohort, f"users of round {round}", attempt)
            if hmac.compare_digest(seal, self._seal(total, state, round, attempt)):
                return self._released(state, total, seal, round, attempt)
        return self._charged(params, state, round)

    def _next_row(
        self, params: Params, state: MechanismState, round: int, log: ParticipationLog
    ) -> tuple[Estimate, MechanismState]:
        """Under a claim about participation, charge r is row r of the noise and entry r of the log, whatever crashes there were.

        A row is given out again byte for byte if its total repeats. If it does not, that row and all that were charged after it are
        lost: their noise is drawn again only to get past them, and the round takes the first row that nobody has seen.
        """
        charges, row = self.account.charges, int(state.round)
        if not row <= len(charges) <= log.rows <= len(charges) + 1:
            raise ParticipationBreach(
                f"the ledger has {len(charges)} releases, the participation log {log.rows} cohorts and the state is at {row}: they do "
                "not belong together, so the run cannot go on"
            )
        if charges and charges[-1].get("log") != log.mark(len(charges) - 1):
            raise ParticipationBreach(
                "the participation log does not say who took part in the releases that are charged: entries were lost or changed, so the "
                "run cannot go on"
            )
        self._check_state(state, round)
        if row < len(charges) and charges[row]["round"] == round:
            attempt, seal = charges[row]["attempt"], charges[row]["seal"]
            total = self._total_again(params, state, row, log)
            if total is not None and hmac.compare_digest(seal, self._seal(total, state, round, attempt)):
                return self._released(state, total, seal, round, attempt)
        for lost in charges[row:]:
            state = self._skip(state, params, self._noise_keys(lost["seal"], lost["round"], lost["attempt"]))
        return self._charged(params, state, round)

    def _charged(self, params: Params, state: MechanismState, round: int) -> tuple[Estimate, MechanismState]:
        """A release that nobody has seen: another attempt, with a cohort and noise of its own."""
        self.account.check_budget()
        attempt, mark = len(self.account.attempts(round)), ""
        if self._log is None:
            # Another attempt takes another cohort: two releases about one sample would cost more than two rounds.
            cohort = self._drawn(round, "cohort", attempt)  # Cᵗ ← sample users with probability q
            # Σ w_k Δ_k, each already clipped
            total = self._total(params, state, cohort, f"users of round {round}", attempt)
        else:
            total = self._total_of_a_new_cohort(params, state, self._log)
            mark = self._log.mark(len(self.account.charges))
        seal = self._seal(total, state, round, attempt)
        self.account.charge(round, attempt, seal, mark)  # M.accum_priv_spending(z)
        return self._released(state, total, seal, round, attempt)  # f̃ + N(0, Iσ²)

    def _released(
        self, state: MechanismState, total: Report, seal: str, round: int, attempt: int
    ) -> tuple[Estimate, MechanismState]:
        estimate, after = self._release(state, total, self._noise_keys(seal, round, attempt))
        if self._log is not None:
            self._states[round + 1] = self._seal((), after, round + 1, 0)
        return estimate, after

    def _check_state(self, state: MechanismState, round: int) -> None:
        """Correlated noise must go on where it stopped: from another state, rows would not cancel as their cost assumes."""
        given = self._seal((), state, round, 0)
        if not hmac.compare_digest(self._states.setdefault(round, given), given):
            raise ValueError(f"round {round} does not go on from the state that the round before it left")

    def _drawn(self, row: int, purpose: str, attempt: int) -> UserIds:
        generator = keys.generator(keys.derive(self._root, purpose, row, attempt))
        users = self._fleet.users(self._log.eligible if self._log else lambda users: users)
        return self._participation.select(users, row, generator)

    def _total_of_a_new_cohort(self, params: Params, state: MechanismState, log: ParticipationLog) -> Report:
        """Tries until a cohort reports. Who was asked is on record before anything is summed; a round that fails releases nothing,
        so it uses no row of noise and counts for nobody, whatever became of the devices' own timers.

        Coins and keys are those of the row and the try, so that no two rows are ever drawn with the same, whatever crashes there were.
        """
        row = len(self.account.charges)
        while True:
            failures = log.failures(row)
            # If the log has more, a crash came between it and the charge: that cohort was asked, and is this row's.
            if log.rows == row:
                log.record(self._drawn(row, "cohort of a row", failures))
            try:
                return self._total(params, state, log.cohort(row), f"users of row {row}", failures)
            except FailedRound:
                if self._participation.sampled_by_curator:
                    raise  # a cohort that had to succeed is no longer the one that was drawn
                log.fail()

    def _total_again(self, params: Params, state: MechanismState, row: int, log: ParticipationLog) -> Report | None:
        """The total of a row that was charged; None if its cohort cannot be summed any more."""
        try:
            return self._total(params, state, log.cohort(row), f"users of row {row}", log.failures(row))
        except FailedRound:
            return None

    def _total(self, params: Params, state: MechanismState, cohort: UserIds, purpose: str, attempt: int) -> Report:
        if len(cohort) > self._mechanism.most_reports:
            raise WrongNumberOfUsers(
                f"a cohort of {len(cohort)} users is far more than was expected: there are more users than participation.users says"
            )
        message = Message(params, self._mechanism.public(state))  # θᵗ, clip norm
        user_key = keys.jax_keys(keys.derive(self._root, purpose, 0, attempt), 1)[0]
        return self._fleet.sum_reports(self._program, message, cohort, user_key)

    def _noise_keys(self, seal: str, round: int, attempt: int) -> jax.Array:
        return keys.jax_keys(keys.derive(self._root, f"noise {seal}", round, attempt), self._mechanism.noise_keys)

    def _seal(self, total: PyTree, state: PyTree, round: int, attempt: int) -> str:
        secret = keys.derive(self._root, "seal", round, attempt)
        return hashlib.blake2b(fingerprint(secret, (total, state)), key=secret, digest_size=16).hexdigest()


def device_program(algorithm: Algorithm) -> Program:
    """What a device runs: train, then bound."""

    def program(message: Message, user: UserData, key: Key) -> Report:
        update_key, bound_key = jax.random.split(key)
        update = algorithm.user_update(message, user, update_key)
        return algorithm.mechanism.bound(message.public, update, user.weight, bound_key)

    return program
