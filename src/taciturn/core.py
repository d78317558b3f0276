"""Every central type of Taciturn and its contract. READ FIRST, then training.py, then
privacy/curator.py.

A round has one shape (McMahan et al. 2018, Algorithm 1):

    message down → bounded report up → sum → private estimate → server step

Words carry the level of secrecy, and no word is used on another rung of the ladder:

    update    Δ_k, on the device: unbounded, secret
    report    what leaves a device: bounded, additive, secret
    total     the sum of the reports: known to the curator alone
    estimate  what leaves the curator: private, free to use, keep and publish

`user` is whom we protect, `round` a round of the server, `step` a local step of one user's
training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import jax
    from dp_accounting import DpEvent
    from jax import Array
else:
    Array = (
        # only types are needed of JAX, and commands that compute nothing must not wait for it
        Any
    )

PyTree = Any
# of jax.random, for what a device draws
Key = Array
# uint32 [8], of ChaCha20
NoiseKey = Array
# θ: a nested dict of float32 arrays, so that files and wires can name the leaves
Params = PyTree
# Δ_k
Update = Params
Estimate = Params
MechanismState = PyTree
# positions in the population, sorted
UserIds = np.ndarray
# word ids that are not words: padding, a word outside the list, the two ends of a message
PADDING, UNKNOWN, BEGIN, END = range(4)


class UserData(NamedTuple):
    """One user's text as the device program sees it."""

    # int32 [steps, batch, length + 1]: ids or PADDING; each word is the target of the one before
    batches: jax.Array
    # w_k ∈ [0, 1]; 0 marks a padding user, whose report is zero
    weight: jax.Array
    # int32: how many of the batches to train on; those after them are padding
    steps: jax.Array


class Message(NamedTuple):
    """What a round sends to every device of its cohort."""

    # θᵗ
    params: Params
    # the mechanism's part of it: the clip norm
    public: PyTree


class Report(NamedTuple):
    """What leaves a device. Reports are added, and nothing else is ever done with one. Their sum is
    a `total`.
    """

    # w_k · clip(Δ_k), as integers wherever there is privacy (privacy/bounding/clipping.py says why)
    update: PyTree
    # w_k, as an integer
    weight: jax.Array


Program = Callable[[Message, UserData, Key], Report]


class Strategy(NamedTuple):
    """How noise is correlated over the rows (rounds) of a run, as accounting and planning see it
    (privacy/noise/sensitivity.py).
    """

    # "independent" where it is not
    name: str
    # how many there are
    rows: int
    # of (rows, MinS, MaxP)
    sensitivity_squared: Callable[[int, int, int], float]
    # of the sum of the first 1, 2, … rows, where white noise has 1
    prefix_variance: Callable[[int], np.ndarray]
    restarts: tuple[
        int,
        ...,
        # rows at which it starts anew, sharing no noise with the rows before
    ] = ()
    bands: int | None = (
        # rows at least this far apart share no noise either; None: all rows of a segment do
        None
    )


class Coins(Protocol):
    """The curator's random choices, under a key of their own (privacy/noise/chacha20.py)."""

    def sample(self, items: np.ndarray, probability: float) -> np.ndarray: ...

    def choose(self, items: np.ndarray, size: int) -> np.ndarray: ...


class Participation(Protocol):
    """Who takes part in a round, and what may be claimed about it.

    The claim is made by `event`, the selection by `select`, and both read the same fields. A
    complete example, which asks everybody every time and so claims nothing for sampling:

        class Everyone:
            adjacency = "add or remove one user"
            sampled_by_curator = False
            limits = None
            def select(self, available, row, coins):
                return available
            def event(self, noise_multiplier, strategy):
                assert strategy.name == "independent"
                return GaussianDpEvent(noise_multiplier)
    """

    @property
    def adjacency(self) -> str: ...

    @property
    def sampled_by_curator(self) -> bool:
        """Whether the claim holds only if the curator draws the cohort and every member of it
        reports.
        """
        ...

    @property
    def limits(self) -> tuple[int, int] | None:
        """MinS and MaxP, where the claim is that no user takes part more often; the curator then
        records and checks participation.
        """
        ...

    def select(self, available: UserIds, row: int, coins: Coins) -> UserIds:
        """Select the cohort of noise row `row`: the number of releases so far, interrupted attempts
        included.
        """
        ...

    def event(self, noise_multiplier: float, strategy: Strategy) -> DpEvent:
        """Return the cost of a round with Gaussian noise of `noise_multiplier` × (one user's
        effect), correlated over rounds as the strategy says; or of all rounds, where a single one
        has no cost of its own. `accounting.repeated` gives the cost of n releases.
        """
        ...


class Release(NamedTuple):
    """What the curator gives out for a row of noise: private, and charged before it leaves."""

    estimate: Estimate
    share: jax.Array | None = (
        # of users whose updates were within the clip norm, where that adapts
        None
    )


class Mechanism(NamedTuple):
    """Bound, estimate, noise and cost: what a proof ties together, in one object (built by
    privacy/noise/mechanism.py).
    """

    init: Callable[[Params], MechanismState]
    public: Callable[[MechanismState], PyTree]
    # on the device; its guarantee holds for any update
    bound: Callable[[PyTree, Update, jax.Array, Key], Report]
    # in the curator alone
    release: Callable[[MechanismState, Report, NoiseKey], tuple[Release, MechanismState]]
    # the state after a release that is on record
    follow: Callable[[MechanismState, Release, NoiseKey], MechanismState]
    # its cost; accounting.repeated gives that of n releases
    event: Callable[[Participation], DpEvent]
    # total variation between its noise and the ideal, for (parameters, rows)
    distance: Callable[[int, int], float]
    # at most in one total
    most_reports: int
    # whether its noise is, over rounds
    correlated: bool
    modulus: int | None = (
        # M, where totals are known mod M only: 32-bit integers, correct up to a multiple of M
        None
    )


class ServerState(NamedTuple):
    params: Params
    optimizer: PyTree


class Algorithm(NamedTuple):
    """One published algorithm: what a device computes, what the server does with the estimate, and
    the mechanism between.

    A complete toy, which learns how long users' texts are and nothing else:

        Algorithm(
            init=lambda params: ServerState(params, optimizer=()), user_update=lambda message, user,
            key: {"length": jnp.sum(user.batches != 0).astype(jnp.float32)}, server_update=lambda
            server, estimate: ServerState(estimate, ()), mechanism=mechanism(flat_clip(100.0),
            fixed_denominator(20.0), gaussian(1.0)), participation=PoissonSampling(0.1),
        )
    """

    init: Callable[[Params], ServerState]
    # pure; runs unchanged on any fleet
    user_update: Callable[[Message, UserData, Key], Update]
    # pure; post-processing only
    server_update: Callable[[ServerState, Estimate], ServerState]
    mechanism: Mechanism
    participation: Participation


class FailedRound(Exception):
    """Too few devices reported: there is no sum, and nothing to release."""


class Fleet(Protocol):
    """Where device programs run. A fleet may only add.

    A complete example (`data` is a list of `UserData`):

        class PlainLoop:
            everyone_reports = True
            def users(self, eligible):
                return eligible(np.arange(len(data)))
            def sum_reports(self, program, message, cohort, key):
                zero = tree.zeros_like(jax.eval_shape(program, message, data[0], key))
                return functools.reduce(tree.add, [program(message, data[k], jax.random.fold_in(key, k)) for k in cohort], zero)
    """

    @property
    def everyone_reports(self) -> bool:
        """Whether each member of a cohort is certain to be in the sum. False wherever a device may
        drop out.
        """
        ...

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        """Return those who are present and may take part in the next round; a fleet of devices
        waits until there are enough.
        """
        ...

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        """Return the same sum for the same arguments, or raise `FailedRound`."""
        ...


class FleetWithStats(Fleet, Protocol):
    """A fleet as runs use it, for metrics.csv. The curator asks for no figures, so your own fleet
    needs none.
    """

    def stats(
        self,
    ) -> dict[
        str,
        float,
        # so far: `uploads` (of reports), and others; {} where who took part is a secret
    ]: ...


class LanguageModel(NamedTuple):
    """A model of the next word, in two halves, so that the large second half may be treated in its
    own way.

    The logits of the word after position t are `contexts[..., t, :] @ words.T + bias`. Words are
    the rows of the leaf `word_embedding`, scaled to length 1 with `unit_norm`; the bias is the leaf
    `word_bias`. Of the leaf `embedding` a model uses the rows of its tokens and nothing else.
    """

    init: Callable[[Key], Params]
    # int [batch, length] → [batch, length, width]
    contexts: Callable[[Params, jax.Array, Key | None], jax.Array]
    # → [vocabulary, width] and a bias [vocabulary]
    words: Callable[[Params], tuple[jax.Array, jax.Array]]
    embedding: str = "embedding"
    # the same leaf where they are tied
    word_embedding: str = "embedding"
    unit_norm: bool = False


class WordModel(Protocol):
    """A model of the next word as a keyboard uses it: word by word, with a state in between that is
    never changed, only replaced.

    A complete example, which finds all words equally likely:

        class Alike:
            vocabulary = 10_000
            def start(self):
                return ()
            def read(self, state, word):
                return ()
            def scores(self, state):
                return np.full(self.vocabulary, -np.log(self.vocabulary), np.float32)
    """

    @property
    def vocabulary(self) -> int: ...

    # the state at the beginning of a message
    def start(self) -> Any: ...

    def read(
        self,
        state: Any,
        word: int,
        # the state after one more word; END begins a new message
    ) -> Any: ...

    def scores(
        self,
        state: Any,
        # the log-probability of each word to come next, float32 [vocabulary]
    ) -> np.ndarray: ...
