"""Fingerprints of what runs: by them a loop that resumes refuses another algorithm, or start.

An algorithm is Python, which cannot be compared; what JAX makes of it can. The fingerprint is of
the traced programs, with all constants in them: a comment or a new name changes nothing, a step
size does. Other versions trace otherwise, so fingerprints are compared within one.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import numpy as np

from taciturn import randomness, trees
from taciturn.core import (
    Algorithm,
    Estimate,
    MechanismState,
    Message,
    Program,
    PyTree,
    Release,
    ServerState,
    UserData,
)
from taciturn.privacy.own_loop import OwnLoopError

# Where an object is in memory, in how it is printed: another place in each process.
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Origin(NamedTuple):
    """What a loop began with, part by part."""

    # The parameters that it started from.
    start: str
    # What devices compute.
    user_update: str
    # How updates are bounded, estimated and noised, and who takes part.
    mechanism: str
    # What the server does with estimates.
    server_update: str
    # In which the three above were traced.
    environment: str


class Shapes(NamedTuple):
    """The shapes and types of what one round hands to the next."""

    # Before the first round; an optimiser may have less then.
    first: ServerState
    server: ServerState
    mechanism: MechanismState
    estimate: Estimate


def describe_origin(
    *,
    algorithm: Algorithm,
    program: Program,
    release: Callable[..., tuple[Release, MechanismState]],
    server: ServerState,
    user: UserData,
) -> tuple[Origin, Shapes]:
    """Return the fingerprints of a loop, and the shapes of its states. Nothing is computed.

    Raises:
        OwnLoopError: the server's state cannot be saved, or not be read again.

    Args:
        algorithm: what runs.
        program: what a device runs of it.
        release: the mechanism's.
        server: its state; parameters before the first round are the start.
        user: of whose arrays only the shapes and types are used.
    """
    _refuse_keys(server)
    state = algorithm.mechanism.init(server.params)
    # Of what is traced, only shapes and types count.
    known, user = jax.tree.map(_shape_of, (server, user))
    message = Message(known.params, algorithm.mechanism.public(state))
    # Only its type is used.
    key = randomness.jax_key(bytes(randomness.ROOT_BYTES))
    noise_key = jax.ShapeDtypeStruct((8,), np.uint32)
    total = jax.eval_shape(program, message, user, key)
    released, after = jax.eval_shape(release, state, total, noise_key)
    origin = Origin(
        start=hash_arrays(server.params),
        user_update=_trace(program, message, user, key),
        mechanism=_hash(
            _trace(release, state, total, noise_key),
            hash_arrays(state),
            describe_object(algorithm.participation),
        ),
        server_update=_trace(algorithm.server_update, known, released.estimate),
        environment=(
            f"taciturn {version('taciturn')}, jax {version('jax')}, {jax.default_backend()}"
        ),
    )
    new_server = jax.eval_shape(algorithm.server_update, known, released.estimate)
    _refuse_growth(
        new_server, jax.eval_shape(algorithm.server_update, new_server, released.estimate)
    )
    shapes = Shapes(
        first=known,
        server=new_server,
        mechanism=after,
        estimate=released.estimate,
    )
    return origin, shapes


def _refuse_keys(server: ServerState) -> None:
    """Refuse a state with keys that JAX does not show as numbers."""
    for leaf in jax.tree.leaves(server):
        if hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise OwnLoopError(
                "the server's state has a key that cannot be saved: keep"
                " jax.random.key_data(key) in it, and let server_update call"
                " jax.random.wrap_key_data. Nothing was charged"
            )


def _refuse_growth(first: ServerState, second: ServerState) -> None:
    """Refuse a state of which no saved one could be read, as each has another structure."""
    is_same = jax.tree.structure(first) == jax.tree.structure(second)
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=False)
    if not is_same or any(one.shape != other.shape for one, other in pairs):
        raise OwnLoopError(
            "server_update returns a state that has other arrays after the second round than after"
            " the first, so a loop with a `folder` could not resume from it: keep arrays whose"
            " shapes stay. Nothing was charged"
        )


def describe_object(value: object) -> str:
    """Return how an object is printed, alike in every process."""
    return ADDRESS.sub("", str(value))


def hash_arrays(tree: PyTree) -> str:
    """Return a fingerprint of arrays with their names, types and shapes."""
    fingerprint = hashlib.sha256()
    for name, leaf in zip(trees.layer_names(tree), jax.tree.leaves(tree), strict=True):
        array = np.asarray(leaf)
        fingerprint.update(f"{name} {array.dtype} {array.shape}\n".encode())
        fingerprint.update(array.tobytes())
    return fingerprint.hexdigest()


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    array = np.asarray(leaf)
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _trace(function: Callable[..., Any], *arguments: PyTree) -> str:
    """Return a fingerprint of what a function computes, with its constants."""
    traced = jax.make_jaxpr(function)(*arguments)
    return _hash(describe_object(traced), *map(hash_arrays, _find_constants(traced)))


def _find_constants(traced: Any) -> Iterator[Any]:
    """Yield the constants of a traced program, and of all programs in it, in order."""
    yield from getattr(traced, "consts", ())
    program = getattr(traced, "jaxpr", traced)
    for equation in program.eqns:
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(value):
                yield from _find_constants(value)


def _is_program(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
