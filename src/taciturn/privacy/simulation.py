"""What `Curator.for_simulation` is made of: users in memory, and what their run declares."""

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from taciturn import randomness, trees
from taciturn.core import (
    Algorithm,
    Key,
    Message,
    Participation,
    Program,
    Report,
    UserData,
    UserIds,
)
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.accounting.events import event_to_json
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.cohort_log import CohortLog
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.loop_folder import ABOUT, LoopFolder, Settings, find_loop, make_loop
from taciturn.privacy.own_loop import (
    OwnLoopError,
    check_algorithm,
    check_number,
    check_terms,
    check_users,
)
from taciturn.privacy.participation import default_delta, spare_rounds

# The size of a model that is not known when its run is declared.
MOST_PARAMETERS = 2**31
# Where noise comes from that anyone can remove.
SEEDED = "seeded simulation"


class Simulation(NamedTuple):
    """What a curator of users in memory is made of, with nothing declared yet."""

    fleet: "UsersInMemory"
    account: Account
    root: bytes
    loop: LoopFolder | None


def prepare_simulation(
    algorithm: Algorithm,
    users: Sequence[UserData],
    ledger: Path,
    *,
    folder: Path | None,
    rounds: int,
    epsilon: float | None,
    delta: float | None,
    seed: int | None,
) -> Simulation:
    """Refuse what cannot be, and make the parts of a new loop, or of the one in the folder.

    The arguments are those of `Curator.for_simulation`.
    """
    check_algorithm(algorithm)
    fleet = UsersInMemory(users)
    check_terms(
        ledger_is_folder=ledger.is_dir(),
        rounds=rounds,
        epsilon=epsilon,
        delta=delta,
    )
    _check_places(ledger, folder)
    # They may be numbers of NumPy, which the ledger could not write.
    rounds = int(rounds)
    epsilon = None if epsilon is None else float(epsilon)
    delta = default_delta(len(users)) if delta is None else float(delta)
    loop = None if folder is None else find_loop(folder)
    # Were it gone, or another one, what the loop has spent would be forgotten.
    book = Ledger(ledger, loop.settings.ledger if loop else None)
    _check_delta(delta, len(users))
    check_number(algorithm, len(users))
    if loop:
        loop.refuse_if_closed(book)
    seeded_root = None if seed is None else randomness.root_from_seed(seed)
    root = loop.root if loop else seeded_root or randomness.root_from_entropy()
    terms = _declare_terms(
        algorithm,
        name=loop.settings.run if loop else f"simulation-{len(book.runs()) + 1}",
        population=_identify_users(users, root),
        is_seeded=seed is not None,
        budget=Budget(delta=delta, epsilon=epsilon),
        rounds=rounds,
        people=len(users),
    )
    cost = algorithm.mechanism.event(algorithm.participation)
    account = Account(ledger=book, terms=terms, release=cost)
    settings = _list_settings(account)
    if loop:
        loop.check_settings(settings, seeded_root)
    else:
        account.check_budget()
    if folder is not None and loop is None:
        loop = make_loop(folder, settings, root)
    return Simulation(fleet=fleet, account=account, root=root, loop=loop)


def _check_places(ledger: Path, folder: Path | None) -> None:
    """Refuse a ledger, or a folder, that would be deleted with a loop."""
    if folder is not None and folder.resolve() in (ledger.resolve(), *ledger.resolve().parents):
        raise OwnLoopError(
            f"`ledger` lies in `folder`, {folder}: name a file outside of it, as a ledger stays"
            " when its loops are deleted"
        )
    for name, place in {"ledger": ledger, "folder": folder}.items():
        parents = place.resolve().parents if place else ()
        if any(parent.name == "private" and (parent.parent / ABOUT).exists() for parent in parents):
            raise OwnLoopError(
                f"`{name}` lies in the secrets of another loop, {place}, which are deleted when it"
                " is closed: name a place outside of it"
            )


def _check_delta(delta: float, users: int) -> None:
    if not 0 < delta < 1 / users:
        raise ValueError(
            f"δ is above 0 and below one over the number of users, {1 / users:g}; {delta} is not"
        )


def _declare_terms(
    algorithm: Algorithm,
    *,
    name: str,
    population: str,
    is_seeded: bool,
    budget: Budget,
    rounds: int,
    people: int,
) -> RunTerms:
    """Return what a simulation declares."""
    mechanism = algorithm.mechanism
    return RunTerms(
        name=name,
        # With its name in it, no two runs of one seed share noise.
        recipe=f"{name}, by an algorithm of one's own",
        population=population,
        adjacency=algorithm.participation.adjacency,
        randomness=SEEDED if is_seeded else "operating system",
        accountant="pld",
        budget=budget,
        rounds=rounds,
        distance=mechanism.distance(MOST_PARAMETERS, rounds + spare_rounds(rounds)),
        people=people,
    )


def _identify_users(users: Sequence[UserData], root: bytes) -> str:
    """Return what distinguishes these users' data from others', and tells others nothing."""
    key = randomness.derive(root, "population", 0)
    identity = hmac.new(key, digestmod=hashlib.sha256)
    for leaf in jax.tree.leaves(list(users)):
        array = np.asarray(leaf)
        identity.update(f"{array.dtype} {array.shape}\n".encode())
        identity.update(array.tobytes())
    return identity.hexdigest()[:16]


def _list_settings(account: Account) -> Settings:
    """Return what a loop is made with, as its account says."""
    terms = account.terms
    return Settings(
        run=terms.name,
        ledger=account.ledger.id,
        rounds=terms.rounds,
        epsilon=terms.budget.epsilon,
        delta=terms.budget.delta,
        is_seeded=terms.randomness == SEEDED,
        users=terms.people,
        population=terms.population,
        cost=json.dumps(event_to_json(account.release)),
    )


def open_log(folder: Path, participation: Participation, root: bytes) -> CohortLog | None:
    """Open a log in a folder, where the claim is about how often users take part."""
    if participation.limits is None:
        return None
    min_separation, max_participations = participation.limits
    return CohortLog(
        path=folder / "participation.log",
        min_separation=min_separation,
        max_participations=max_participations,
        key=randomness.derive(root, "participation log", 0),
    )


class UsersInMemory:
    """The plainest fleet: users' data in a list.

    Each report is computed by itself, by one program of one shape, so that none depends on another.
    """

    everyone_reports = True

    def __init__(self, users: Sequence[UserData]) -> None:
        """Take users, whose arrays have one shape.

        Raises:
            OwnLoopError: if there are none, or they differ in shape or type.
        """
        check_users(users)
        self._users = users
        self._compile = lru_cache(maxsize=1)(jax.jit)

    @property
    def example(self) -> UserData:
        """Return a user, for the shapes and types that all of them have."""
        return self._users[0]

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        """Return those of the users who may take part; all are present."""
        return eligible(np.arange(len(self._users)))

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        """Return the sum of what the program reports for each member of the cohort."""
        report = self._compile(program)
        total = trees.zeros_like(jax.eval_shape(program, message, self._users[0], key))
        for user in cohort:
            own_key = jax.random.fold_in(key, np.uint32(user))
            total = trees.add(total, report(message, self._users[user], own_key))
        return total
