"""The main loop. READ SECOND, after core.py; the rest of a round is privacy/curator.py."""

from collections.abc import Iterator
from typing import NamedTuple

import jax

from taciturn.core import Algorithm, Estimate, MechanismState, Params, ServerState
from taciturn.privacy.curator import Curator


class TrainState(NamedTuple):
    # rounds done
    round: int
    server: ServerState
    # secret: noise that is not yet used up
    mechanism: MechanismState
    # names the history this state came from
    ledger_head: str
    estimate: Estimate | None = (
        # what the last round released; audits read it, and nothing resumes from it
        None
    )


def start(algorithm: Algorithm, params: Params, ledger_head: str) -> TrainState:
    return TrainState(0, algorithm.init(params), algorithm.mechanism.init(params), ledger_head)


def rounds(
    algorithm: Algorithm, curator: Curator, start_from: Params | TrainState
) -> Iterator[TrainState]:
    """Train, round by round.

    Args:
        algorithm: what runs.
        curator: the door to its users; it charges every round before the round's result leaves it.
        start_from: parameters to start from, or the state after an earlier round.

    Yields:
        The state after every round, for ever: the caller decides when to stop, evaluate and save.

    Example:
        for state in tt.rounds(algorithm, curator, {"length": np.float32(0)}):
            if state.round == 3:
                break
        print(state.server.params, curator.account.guarantee().epsilon)
    """
    state = start_from
    if not isinstance(state, TrainState):
        state = start(algorithm, start_from, curator.account.head)
    server_update = jax.jit(algorithm.server_update)
    # Put it where rounds leave their results; otherwise the second round would recompile
    # everything.
    server, mechanism = jax.device_put((state.server, state.mechanism), jax.local_devices()[0])
    state = state._replace(server=server, mechanism=mechanism)
    while True:
        estimate, mechanism = curator.private_mean(
            state.server.params, state.mechanism, state.round
        )
        server = server_update(state.server, estimate)
        state = TrainState(state.round + 1, server, mechanism, curator.account.head, estimate)
        yield state
