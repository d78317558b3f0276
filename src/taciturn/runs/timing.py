"""How fast rounds run on this machine, through the code that trains. Only times leave it."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from taciturn.core import FleetWithStats, Params
from taciturn.privacy.curator import Curator
from taciturn.privacy.ledger.account import Account, RunTerms
from taciturn.privacy.ledger.ledger import Ledger
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.training import rounds


def best_time(work: Callable[[], object], times: int) -> float:
    """Return the seconds of the fastest of a few runs, after one that compiles."""
    jax.block_until_ready(work())
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        jax.block_until_ready(work())
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def round_seconds(
    recipe: Recipe, fleet: FleetWithStats, params: Params, words: int, times: int
) -> float:
    """Time whole rounds, from selection to release, on users without a guarantee.

    Such users are synthetic or held out. Rounds are charged in a throw-away ledger.
    """
    with round_stopwatch(recipe, fleet, params, words) as time_round:
        # It compiles.
        time_round()
        return min(time_round() for _ in range(times))


@contextmanager
def round_stopwatch(
    recipe: Recipe, fleet: FleetWithStats, params: Params, words: int
) -> Iterator[Callable[[], float]]:
    """Yield what trains a round and returns the seconds that it took; the first is compiled."""
    with throwaway_curator(recipe, fleet, words) as curator:
        training = rounds(build.algorithm(recipe, words), curator, params)

        def time_round() -> float:
            began = time.perf_counter()
            jax.block_until_ready(next(training).server)
            return time.perf_counter() - began

        yield time_round


@contextmanager
def throwaway_curator(recipe: Recipe, fleet: FleetWithStats, words: int) -> Iterator[Curator]:
    """Make a curator whose ledger is gone afterwards."""
    algorithm = build.algorithm(recipe, words)
    release = algorithm.mechanism.event(algorithm.participation)
    terms = RunTerms(
        name="speed",
        recipe=recipe.fingerprint,
        population="nobody",
        adjacency=algorithm.participation.adjacency,
        randomness="seeded simulation",
        accountant="rdp",
        budget=build.budget(recipe),
        rounds=1000,
    )
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        account = Account(ledger=ledger, terms=terms, release=release)
        account.open()
        yield Curator(algorithm=algorithm, fleet=fleet, account=account, root=bytes(32))
