"""Curators in small: real ones, with a ledger and records on disk, over users of a few words or of
none.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import Algorithm, Fleet, Mechanism, Participation, ServerState, UserData
from taciturn.data.layout import Layout, Unrolls
from taciturn.data.population import Population, write_population
from taciturn.data.vocabulary import Vocabulary
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.privacy.accounting.accountant import Budget
from taciturn.privacy.bounding.clipping import flat_clip
from taciturn.privacy.bounding.estimators import fixed_denominator
from taciturn.privacy.curator import Curator
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.cohort_log import CohortLog
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.privacy.ledger.releases import Releases
from taciturn.privacy.noise.mechanism import mechanism
from taciturn.privacy.noise.white import gaussian
from taciturn.privacy.participation import PoissonSampling

SEVEN_WORDS = Vocabulary(words=("<pad>", "<unk>", "<bos>", "<eos>", ".", "hello", "world"))
DELTA = 1e-5
USERS = 12


def few_people(folder: Path, users: int = USERS) -> Population:
    texts = {f"u{k}": [4 + k % 3] * 8 for k in range(users)}
    return write_population(
        folder, texts, {f"held out {k}": [4, 5, 6] for k in range(10)}, SEVEN_WORDS, {}
    )


def simulated(people: Population) -> SimulatedFleet:
    return SimulatedFleet(people, Layout(cut=Unrolls(4), batch_size=2, steps=1))


class Loop:
    """Users who all report the same, and who of them was asked."""

    def __init__(self, everyone_reports: bool = True) -> None:
        self.everyone_reports, self.cohorts = everyone_reports, []

    def users(self, eligible):
        return eligible(np.arange(USERS))

    def sum_reports(self, program, message, cohort, key):
        self.cohorts.append(cohort.tolist())
        one = UserData(jnp.full(1, 100.0), jnp.float32(1), jnp.int32(0))
        report = program(message, one, key)
        return jax.tree.map(lambda leaf: leaf * len(cohort), report)


@functools.cache  # so that it is compiled once
def averaging(
    participation: Participation | None = None, private: Mechanism | None = None
) -> Algorithm:
    """Every user's update is the message plus a sum over the text. It tells totals of different
    messages apart, and is alike in all coordinates, so that what differs between coordinates is
    noise.
    """
    return Algorithm(
        init=lambda params: ServerState(params, ()),
        user_update=lambda message, user, key: {
            "x": message.params["x"] + 1e-3 * jnp.sum(user.batches)
        },
        server_update=lambda server, estimate: ServerState(estimate, ()),
        mechanism=private or mechanism(flat_clip(1.0), fixed_denominator(6.0), gaussian(1.0)),
        participation=participation or PoissonSampling(0.5),
    )


def account_of(of: Algorithm, path: Path, name: str = "run", **declared) -> Account:
    usual = {
        "recipe": "recipe",
        "population": "people",
        "adjacency": of.participation.adjacency,
        "randomness": "operating system",
        "accountant": "rdp",
        "budget": Budget(delta=DELTA),
        "rounds": 5,
    }
    terms = RunTerms(name=name, **(usual | declared))
    return Account(ledger=Ledger(path), terms=terms, release=of.mechanism.event(of.participation))


def curator_of(
    of: Algorithm,
    fleet: Fleet,
    account: Account,
    root: bytes = bytes(32),
    log: CohortLog | None = None,
) -> Curator:
    return Curator(
        algorithm=of,
        fleet=fleet,
        account=account,
        root=root,
        log=log,
        records=Releases(account.ledger.path.with_suffix(".releases"), root),
    )


def opened(
    of: Algorithm,
    fleet: Fleet,
    path: Path,
    root: bytes = bytes(32),
    log: CohortLog | None = None,
    reopen: bool = False,
    **declared,
) -> Curator:
    """Of a run that was just opened, or that another process goes on with."""
    account = account_of(of, path, **declared)
    account.reopen(None) if reopen else account.open()
    return curator_of(of, fleet, account, root, log)


def is_constant(difference) -> bool:
    """Whether the same noise was in both: the updates are alike in all coordinates, so only noise
    can differ.
    """
    return bool(np.ptp(np.asarray(difference)) < 1e-5)
