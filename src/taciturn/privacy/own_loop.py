"""Refuse, in a sentence, what cannot be right in your own loop, before anything is charged.

Without it a mistake would end in a message of JAX's, or in a run that spends its budget and learns
nothing: a report that is not finite counts as zero, in silence.

What users' data says is not looked at, only its shapes and types, and the weights: an algorithm is
tried on synthetic users, because what it does with a real one may not leave the curator.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taciturn import randomness
from taciturn.core import Algorithm, Message, Params, PyTree, Update, UserData
from taciturn.errors import TaciturnError
from taciturn.privacy.participation import PoissonSampling

# How many times too many or too few users an algorithm may state.
FAR = 1.25
HOW_TO_MAKE = "tt.UserData(batches=…, weight=np.float32(1), steps=1)"


class OwnLoopError(TaciturnError, ValueError):
    """A mistake in an algorithm, its users or its parameters."""


def check_algorithm(algorithm: object) -> None:
    """Refuse what is not an algorithm."""
    if not isinstance(algorithm, Algorithm):
        raise OwnLoopError(
            f"`algorithm` is {_describe(algorithm)}, not an Algorithm: make one of your user_update"
            " with tt.private_averaging"
        )


def check_same(algorithm: Algorithm, own: Algorithm) -> None:
    """Refuse another algorithm than the curator's own.

    What the server does with estimates is not the curator's, and may change.
    """
    is_same = algorithm.user_update is own.user_update and algorithm.mechanism is own.mechanism
    if not is_same or algorithm.participation != own.participation:
        raise OwnLoopError(
            "`algorithm` is another one than that of the curator: give the same to both"
        )


def check_users(users: object) -> None:
    """Refuse users who are not there, and those whose reports could not be added.

    Sums broadcast: a smaller report would be added repeatedly, past its clip norm.
    """
    if not isinstance(users, Sequence) or isinstance(users, str):
        advice = "list(users)"
        if isinstance(users, Mapping):
            advice = "list(users.values())"
        raise OwnLoopError(
            f"`users` is {_describe(users)}, and must be a list with one tt.UserData for each user:"
            f" {advice}, if its items are users"
        )
    if not users:
        raise OwnLoopError(
            "`users` is empty: give one tt.UserData for each user, with arrays of one shape"
        )
    first = _check_user(users[0], number=0)
    for number, user in enumerate(users):
        _compare_users(first, _check_user(user, number), number)


def _check_user(user: object, number: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and types of a user's arrays, by name."""
    if not isinstance(user, UserData):
        raise OwnLoopError(
            f"user {number} is {_describe(user)}, not tt.UserData: make each with {HOW_TO_MAKE}"
        )
    _refuse_list(user.batches, f"user {number}'s batches")
    shapes = {}
    for name, leaf in _name_leaves(user).items():
        shapes[name] = _shape_of(leaf, f"user {number}'s {name}")
    weight = shapes.get("weight")
    is_real = weight is not None and not jnp.issubdtype(weight.dtype, jnp.complexfloating)
    if weight is None or weight.shape or not is_real:
        raise OwnLoopError(
            f"user {number}'s weight is {_describe_shape(weight)}: a weight is one number, and all"
            " users' arrays have one shape"
        )
    if not 0 <= float(user.weight) <= 1:
        raise OwnLoopError(
            f"user {number}'s weight is {float(user.weight):g}: a weight lies between 0 and 1"
        )
    return shapes


def _compare_users(
    first: dict[str, jax.ShapeDtypeStruct], own: dict[str, jax.ShapeDtypeStruct], number: int
) -> None:
    for name in {**first, **own}:
        if first.get(name) != own.get(name):
            raise OwnLoopError(
                f"user {number}'s {name} is {_describe_shape(own.get(name))}, and user 0's is"
                f" {_describe_shape(first.get(name))}: all users' arrays have one shape and type."
                " Pad them, and let user_update leave out what is padding; give a type by"
                " np.asarray(…, np.float32)"
            )


def check_number(algorithm: Algorithm, users: int) -> None:
    """Refuse a number of users far from the one that the algorithm states."""
    participation = algorithm.participation
    if not isinstance(participation, PoissonSampling) or participation.users is None:
        return
    stated = participation.users
    if users <= FAR * stated and stated <= FAR * users:
        return
    expected = participation.probability * users
    wanted = participation.probability * stated
    raise OwnLoopError(
        f"the algorithm is made for {stated:,} users, and {users:,} are given: a round would have"
        f" {expected:.3g} of them on average, not {wanted:.3g}. State `users` of"
        f" tt.private_averaging as it is"
    )


def check_terms(*, ledger_is_folder: bool, rounds: Any, epsilon: Any, delta: Any) -> None:
    """Refuse terms under which no round could be made."""
    if ledger_is_folder:
        raise OwnLoopError("`ledger` is a folder: name a file, for example ledger.jsonl in it")
    if not _is_number(rounds, int) or rounds < 1:
        raise OwnLoopError(f"`rounds` must be an integer of at least 1; {rounds!r} is not")
    if epsilon is not None and not (_is_number(epsilon, float) and epsilon > 0):
        raise OwnLoopError(f"`epsilon` must be a number above 0; {epsilon!r} is not")
    if delta is not None and not _is_number(delta, float):
        raise OwnLoopError(f"`delta` must be a number; {delta!r} is not")


def _is_number(value: Any, kind: Callable[[Any], Any]) -> bool:
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        return False
    # A fraction need not be a float, but NaN is not a number.
    is_exact = kind is float or number == value
    return not isinstance(value, str) and bool(is_exact) and not math.isnan(number)


def check_averaging(
    *,
    user_update: object,
    clip_norm: Any,
    noise_multiplier: Any,
    users: Any,
    cohort: Any,
    server: object,
) -> None:
    """Refuse arguments of `private_averaging` of which no algorithm can be made."""
    if not callable(user_update):
        raise OwnLoopError(
            f"`user_update` is {_describe(user_update)}: give a function of (message, user, key)"
        )
    try:
        inspect.signature(user_update).bind("message", "user", "key")
    except TypeError:
        raise OwnLoopError(
            "`user_update` must take three arguments: message, user and key"
        ) from None
    except ValueError:
        # Its signature is not known, as of some functions in C.
        pass
    numbers = {
        "clip_norm": clip_norm,
        "noise_multiplier": noise_multiplier,
        "users": users,
        "cohort": cohort,
    }
    for name, value in numbers.items():
        if not (_is_number(value, float) and 0 < float(value) < math.inf):
            raise OwnLoopError(f"`{name}` must be a number above 0; {value!r} is not")
    if cohort > users:
        raise OwnLoopError(
            f"`cohort` is {float(cohort):g} of {float(users):g} `users`: no round can have more"
            " than all of them"
        )
    is_optimizer = hasattr(server, "init") and hasattr(server, "update")
    if server is not None and not is_optimizer:
        raise OwnLoopError(
            f"`server` is {_describe(server)}: give an optimiser of optax, such as optax.sgd(1.0)"
        )


def try_algorithm(algorithm: Algorithm, params: Params, public: Any, user: UserData) -> None:
    """Try an algorithm on synthetic users, whose arrays have the shapes of a real one's.

    Args:
        algorithm: what would run.
        params: to start from.
        public: the mechanism's part of the first message.
        user: a real one, of whose arrays only the shapes and types are used.

    Raises:
        OwnLoopError: parameters that cannot be trained, or updates that cannot be added to them.
    """
    _check_params(params)
    message = Message(params, public)
    shapes = jax.tree.map(lambda leaf: _shape_of(leaf, "a user's data"), user)
    # What synthetic users draw with is not secret.
    key = randomness.jax_key(bytes(32))
    _compare_trees(params, jax.eval_shape(algorithm.user_update, message, shapes, key))
    user_update = jax.jit(algorithm.user_update)
    broken: list[str] = []
    for make in (_ones, _random_numbers, _shares_and_counts, _large_numbers):
        synthetic = make(shapes)
        broken = _find_broken(user_update(message, synthetic, key))
        if not broken:
            return
    raise OwnLoopError(
        f"user_update returns numbers that are not finite in {', '.join(broken)}, for synthetic"
        " users of ones and of random numbers: such a report counts as zero, and nothing would be"
        " learned. Look for divisions by zero, logarithms and steps that are too long; if no such"
        " user is like yours, return zeros for them: jnp.where(jnp.isfinite(x), x, 0). Nothing was"
        " charged"
    )


def _check_params(params: Params) -> None:
    leaves = _name_leaves(params)
    if not leaves:
        raise OwnLoopError("the parameters to start from are empty: give at least one array")
    _refuse_list(params, "what to start from")
    for name, leaf in leaves.items():
        _shape_of(leaf, f"the parameter {name}")
    broken = _find_broken(params)
    if broken:
        raise OwnLoopError(
            f"the parameters to start from are not finite in {', '.join(broken)}: start from others"
        )


def _compare_trees(params: Params, update: Update) -> None:
    """Refuse an update that has another structure, or other shapes, than the parameters."""
    wanted = _name_leaves(params)
    returned = _name_leaves(update)
    is_same_tree = jax.tree.structure(params) == jax.tree.structure(update)
    if not is_same_tree:
        raise OwnLoopError(
            f"user_update returns {_describe_tree(update)}, and the parameters are"
            f" {_describe_tree(params)}: return one array for each parameter, in the same dict"
        )
    for name, leaf in returned.items():
        if np.shape(leaf) != np.shape(wanted[name]):
            raise OwnLoopError(
                f"user_update returns an array of shape {np.shape(leaf)} at {name}, and the"
                f" parameter has the shape {np.shape(wanted[name])}: they are added, so both must"
                " be alike"
            )


def _ones(shapes: UserData) -> UserData:
    data = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)
    return _as_user(data, shapes)


def _random_numbers(shapes: UserData) -> UserData:
    """Return a user of standard normal numbers, and of 0 and 1 where they are integers."""
    generator = np.random.default_rng(0)

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            return generator.normal(size=leaf.shape).astype(leaf.dtype)
        return generator.integers(0, 2, leaf.shape).astype(leaf.dtype)

    return _as_user(jax.tree.map(draw, shapes), shapes)


def _shares_and_counts(shapes: UserData) -> UserData:
    """Return a user of numbers between 0 and 1, and of larger ones where they are integers."""
    return _draw_positive(shapes, least=0.1, most=0.9)


def _large_numbers(shapes: UserData) -> UserData:
    """Return a user of numbers that are all above 5; square matrices are positive definite."""
    return _draw_positive(shapes, least=6.0, most=99.0)


def _draw_positive(shapes: UserData, least: float, most: float) -> UserData:
    generator = np.random.default_rng(0)

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return generator.integers(6, 99, leaf.shape).astype(leaf.dtype)
        numbers = generator.uniform(least, most, leaf.shape)
        if least > 1:
            numbers = _make_definite(numbers)
        return numbers.astype(leaf.dtype)

    return _as_user(jax.tree.map(draw, shapes), shapes)


def _make_definite(numbers: np.ndarray) -> np.ndarray:
    """Return positive numbers so that square matrices have more on the diagonal than beside it."""
    if numbers.ndim < 2 or numbers.shape[-1] != numbers.shape[-2] or not numbers.size:
        return numbers
    size = numbers.shape[-1]
    return numbers + np.swapaxes(numbers, -1, -2) + 2 * size * numbers.max() * np.eye(size)


def _as_user(data: UserData, shapes: UserData) -> UserData:
    """Return the data with the weight of a whole user, who has one step."""
    steps = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes.steps)
    return data._replace(weight=np.ones((), shapes.weight.dtype), steps=steps)


def _find_broken(values: PyTree) -> list[str]:
    """Return the names of arrays with a number that is not finite."""
    leaves = _name_leaves(values)
    return [name for name, leaf in leaves.items() if not np.all(np.isfinite(np.asarray(leaf)))]


def _name_leaves(tree: PyTree) -> dict[str, Any]:
    """Return the arrays of a tree by name: `weight`, `batches['words']`, `['mean']`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path).removeprefix(".") or "it": leaf for path, leaf in leaves}


def _shape_of(leaf: Any, name: str) -> jax.ShapeDtypeStruct:
    try:
        array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    except ValueError:
        array = np.empty(0, object)
    is_numbers = jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool
    if not is_numbers:
        raise OwnLoopError(f"{name} is {_describe(leaf)}: it must be an array of numbers")
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _refuse_list(tree: PyTree, name: str) -> None:
    """Refuse a list of plain numbers, each of which would be an array by itself."""
    if any(map(_is_list_of_numbers, jax.tree.leaves(tree, is_leaf=_is_list_of_numbers))):
        raise OwnLoopError(
            f"{name} has a list of numbers where an array belongs: make it one with"
            " np.asarray(…, np.float32)"
        )


def _is_list_of_numbers(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, int | float) and not hasattr(item, "dtype") for item in value)


def _describe(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"an array of shape {np.shape(value)}"
    return f"a value of type {type(value).__name__}"


def _describe_shape(shape: jax.ShapeDtypeStruct | None) -> str:
    return "missing" if shape is None else f"{shape.dtype} of shape {shape.shape}"


def _describe_tree(tree: PyTree) -> str:
    """Say what is in a tree, for example «['mean'], ['scale']»."""
    if tree is None:
        return "nothing"
    if hasattr(tree, "shape"):
        return "a single array"
    names = _name_leaves(tree)
    return f"a {type(tree).__name__} of {', '.join(names) or 'no arrays'}"
