"""The main loop. READ SECOND, after core.py; the rest of a round is privacy/curator.py."""

from collections.abc import Iterator

import jax

from taciturn.core import Algorithm, Params, ServerState, TrainState
from taciturn.privacy.curator import Curator


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

    With a curator that has a folder every state is on disk before it is yielded, and a process that
    was interrupted anywhere calls the same lines again. It is yielded the last saved state first,
    as nobody knows whether the caller was done with it, and then the rounds after it. No round is
    charged twice; with a seed the loop ends with the same bytes as an uninterrupted one.

    Args:
        algorithm: what runs.
        curator: the door to its users; it charges every round before the round's result leaves it.
        start_from: parameters to start from, or the state after an earlier round of this curator.
            Where the curator's folder has a state, parameters are only compared with those that the
            loop began with.

    Yields:
        The state after every round, for ever: the caller decides when to stop, evaluate and save.

    Raises:
        OwnLoopError: nothing could be learned, or the folder's loop began with another algorithm or
            other parameters. Nothing is charged.

    Example:
        for state in tt.rounds(algorithm, curator, {"length": np.float32(0)}):
            if state.round == 3:
                break
        print(state.server.params, curator.account.guarantee().epsilon)
        curator.close()
    """
    if isinstance(start_from, TrainState):
        state = start_from
        curator.check_history(state.round, state.ledger_head)
    else:
        state = start(algorithm, start_from, curator.account.head)
    curator.try_algorithm(algorithm, state.server.params, state.mechanism)
    state = _place(state)
    saved = curator.begin_loop(algorithm, state)
    if saved is not None:
        state = _place(saved)
        if state.round > 0:
            yield state
    server_update = jax.jit(algorithm.server_update)
    while True:
        estimate, mechanism = curator.private_mean(
            state.server.params, state.mechanism, state.round
        )
        state = TrainState(
            round=state.round + 1,
            server=_settle_types(server_update(state.server, estimate)),
            mechanism=mechanism,
            ledger_head=curator.account.head,
            estimate=estimate,
        )
        curator.keep_state(state)
        yield state


def _place(state: TrainState) -> TrainState:
    """Put a state where rounds leave their results.

    Otherwise the second round would recompile everything.
    """
    place = jax.local_devices()[0]
    server, mechanism, estimate = jax.device_put(
        (state.server, state.mechanism, state.estimate), place
    )
    return state._replace(
        server=_settle_types(server),
        mechanism=mechanism,
        estimate=estimate,
    )


def _settle_types(server: ServerState) -> ServerState:
    """Give numbers of Python the type that they have in JAX, for good.

    Their type gives way to others, and a state that is saved does not tell: the rounds after it
    would have other types than without an interruption.
    """

    def settle(leaf: jax.Array) -> jax.Array:
        is_settled = not getattr(leaf, "weak_type", False)
        return leaf if is_settled else jax.lax.convert_element_type(leaf, leaf.dtype)

    return jax.tree.map(settle, server)
