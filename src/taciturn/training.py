"""The main loop. READ SECOND, after core.py; the rest of a round is privacy/curator.py."""

from collections.abc import Iterator
from typing import NamedTuple

import jax

from taciturn.core import Algorithm, Estimate, MechanismState, Params, ServerState
from taciturn.privacy.curator import Curator


class TrainState(NamedTuple):
    """All that the rest of a training depends on."""

    # How many rounds are done.
    round: int
    server: ServerState
    # Secret: it holds noise that is not yet used up.
    mechanism: MechanismState
    # It names the history this state came from.
    ledger_head: str
    # What the last round released; audits read it, and nothing resumes from it.
    estimate: Estimate | None = None


def start(algorithm: Algorithm, params: Params, ledger_head: str) -> TrainState:
    """Return the state before the first round."""
    return TrainState(
        round=0,
        server=algorithm.init(params),
        mechanism=algorithm.mechanism.init(params),
        ledger_head=ledger_head,
    )


def rounds(
    algorithm: Algorithm, curator: Curator, start_from: Params | TrainState
) -> Iterator[TrainState]:
    """Train, round by round.

    Args:
        algorithm: what runs.
        curator: the door to its users; it charges every round before the round's result leaves it.
        start_from: parameters to start from, or the state after an earlier round of this curator.

    Yields:
        The state after every round, for ever: the caller decides when to stop, evaluate and save.

    Example:
        for state in tt.rounds(algorithm, curator, {"length": np.float32(0)}):
            if state.round == 3:
                break
        print(state.server.params, curator.account.guarantee().epsilon)
    """
    if isinstance(start_from, TrainState):
        state = start_from
    else:
        state = start(algorithm, start_from, curator.account.head)
    curator.try_algorithm(algorithm, state.server.params, state.mechanism)
    server_update = jax.jit(algorithm.server_update)
    # Put it where rounds leave their results; otherwise the second round would recompile
    # everything.
    place = jax.local_devices()[0]
    server, mechanism = jax.device_put((state.server, state.mechanism), place)
    round = state.round
    while True:
        estimate, mechanism = curator.private_mean(server.params, mechanism, round)
        server = server_update(server, estimate)
        round += 1
        yield TrainState(
            round=round,
            server=server,
            mechanism=mechanism,
            ledger_head=curator.account.head,
            estimate=estimate,
        )
