"""Every central type of Taciturn, with its contract.

READ FIRST, then training.py, then privacy/curator.py.

A round has one shape (McMahan et al. 2018, Algorithm 1):

    message down → bounded report up → sum → private estimate → server step

Words carry the level of secrecy, and no word is used on another rung of the ladder:

    update    Δ_k, on the device: unbounded, secret
    report    what leaves a device: bounded, additive, secret
    total     the sum of the reports: known only to the curator
    estimate  what leaves the curator: private, free to use, keep and publish

`user` is whom we protect, `round` a round of the server, `step` a local step of one user's
training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

# Only types are needed of JAX, and commands that compute nothing must not wait for it.
if TYPE_CHECKING:
    import jax
    from dp_accounting import DpEvent
    from jax import Array
else:
    Array = Any

PyTree = Any
# Of jax.random, for what a device draws.
Key = Array
# Of ChaCha20, for what the curator draws: uint32 [8].
NoiseKey = Array
# θ: a nested dict of float32 arrays, so that files and wires can name the leaves.
Params = PyTree
# Δ_k.
Update = Params
Estimate = Params
# Its field `round` counts the releases so far; the rest is the mechanism's, and its noise secret.
MechanismState = PyTree
# Positions in the population, sorted.
UserIds = np.ndarray
# Word ids that are not words: padding, a word outside the list, the two ends of a message.
PADDING, UNKNOWN, BEGIN, END = range(4)


class UserData(NamedTuple):
    """One user's text as the device program sees it."""

    # int32 [steps, batch, length + 1]: ids or PADDING. Each word is the target of the one before.
    batches: jax.Array
    # w_k ∈ [0, 1]; 0 marks a padding user, whose report is zero.
    weight: jax.Array
    # int32: how many of the batches to train on; those after them are padding.
    steps: jax.Array


class Public(NamedTuple):
    """The mechanism's part of a message: what devices must know to bound their updates."""

    # S, in force in this round.
    clip_norm: jax.Array
    # t, where reports are encoded for a secure sum: it names the signs ξ of the rotation.
    round: jax.Array | None = None
    # Cᵗ, the quantile as followed so far, where the clip norm adapts; a private estimate itself.
    estimate: jax.Array | None = None

    @property
    def row(self) -> int:
        """Return t as a number, where reports are encoded for a secure sum."""
        assert self.round is not None
        return int(self.round)


class Message(NamedTuple):
    """What a round sends to every device of its cohort."""

    # θᵗ.
    params: Params
    public: Public


class Report(NamedTuple):
    """What leaves a device.

    Reports are added, and nothing else is ever done with one. Their sum is a `total`.
    """

    # w_k · clip(Δ_k), as integers wherever there is privacy (privacy/bounding/clipping.py says
    # why).
    update: PyTree
    # w_k, as an integer.
    weight: jax.Array


Program = Callable[[Message, UserData, Key], Report]


class Strategy(NamedTuple):
    """How noise is correlated over the rows (rounds) of a run, as accounting and planning see it.

    privacy/noise/sensitivity.py builds them.
    """

    # "independent" where it is not correlated.
    name: str
    # The number of rows.
    rows: int
    # (rows, MinS, MaxP) → Δ²: a user takes part at most MaxP times, with at least MinS rounds
    # between two.
    sensitivity_squared: Callable[[int, int, int], float]
    # Rows → the variance of the noise in the sum of the first 1, 2, … rows, in units of white
    # noise's.
    prefix_variance: Callable[[int], np.ndarray]
    # Rows at which it starts anew, sharing no noise with the rows before.
    restarts: tuple[int, ...] = ()
    # Rows at least this far apart share no noise either; None: all rows of a segment do.
    bands: int | None = None


class Coins(Protocol):
    """The curator's random choices, under a key of their own (privacy/noise/chacha20.py)."""

    def sample(self, items: np.ndarray, probability: float) -> np.ndarray:
        """Return each of the items with this probability, independently."""
        ...

    def choose(self, items: np.ndarray, size: int) -> np.ndarray:
        """Return this number of the items, uniformly without replacement."""
        ...


class Participation(Protocol):
    """Who takes part in a round, and what may be claimed about it.

    The claim is made by `event`, the selection by `select`, and both read the same fields. This
    complete one asks everybody every time, and so claims nothing for sampling.

    Example:
        from dp_accounting import GaussianDpEvent

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
    def adjacency(self) -> str:
        """Return, in words, how two neighbouring populations differ."""
        ...

    @property
    def sampled_by_curator(self) -> bool:
        """Tell whether the claim rests on the curator's draw.

        It then holds only if the curator draws the cohort and every member of it reports.
        """
        ...

    @property
    def limits(self) -> tuple[int, int] | None:
        """Return MinS and MaxP, where the claim is that no user takes part more often.

        The curator then records and checks participation.
        """
        ...

    def select(self, available: UserIds, row: int, coins: Coins) -> UserIds:
        """Select the cohort of a row of noise.

        Args:
            available: who is present and may take part.
            row: the number of releases so far, interrupted attempts included.
            coins: what is drawn with.
        """
        ...

    def event(self, noise_multiplier: float, strategy: Strategy) -> DpEvent:
        """Return the cost of a round; where rounds share noise, of all rounds together.

        `events.repeat` gives the cost of n releases.

        Args:
            noise_multiplier: the Gaussian noise, in units of one user's effect.
            strategy: how the noise is correlated over rounds.
        """
        ...


class Release(NamedTuple):
    """What the curator gives out for a row of noise: private, and charged before it leaves."""

    estimate: Estimate
    # Of users whose updates were within the clip norm, where that adapts.
    share: jax.Array | None = None


class Mechanism(NamedTuple):
    """Bound, estimate, noise and cost: what a proof ties together, in one object.

    privacy/noise/mechanism.py builds it.
    """

    init: Callable[[Params], MechanismState]
    # The part of a message that devices need to bound their updates.
    public: Callable[[MechanismState], Public]
    # On the device; its guarantee holds for any update and weight. The key is for rounding.
    bound: Callable[[Public, Update, jax.Array, Key], Report]
    # Adds the noise; only in the curator.
    release: Callable[[MechanismState, Report, NoiseKey], tuple[Release, MechanismState]]
    # The state that `release` left, worked out from a release that is on record: after a crash
    # nothing is noised again.
    follow: Callable[[MechanismState, Release, NoiseKey], MechanismState]
    # Its cost; `events.repeat` gives that of n releases.
    event: Callable[[Participation], DpEvent]
    # (parameters, rows) → the distance of its noise from the ideal, in total variation.
    distance: Callable[[int, int], float]
    # The most reports that one total may add up.
    most_reports: int
    # Whether its noise is correlated over rounds.
    correlated: bool
    # M, where totals are known mod M only: 32-bit integers, correct up to a multiple of M.
    modulus: int | None = None


class ServerState(NamedTuple):
    """What the server has between rounds: the model, and its optimiser's state."""

    params: Params
    optimizer: PyTree


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


class Algorithm(NamedTuple):
    """One published algorithm: what a device computes, what the server does with the estimate.

    The mechanism stands between the two. This complete toy learns how long users' texts are, and
    nothing else.

    Example:
        import jax.numpy as jnp

        from taciturn.core import PADDING, Algorithm, ServerState
        from taciturn.privacy.bounding.clipping import flat_clip
        from taciturn.privacy.bounding.estimators import fixed_denominator
        from taciturn.privacy.noise.mechanism import mechanism
        from taciturn.privacy.noise.white import gaussian
        from taciturn.privacy.participation import PoissonSampling

        def start_from(params):
            return ServerState(params, optimizer=())

        def count_words(message, user, key):
            words = jnp.sum(user.batches != PADDING)
            return {"length": words.astype(jnp.float32)}

        def keep_estimate(server, estimate):
            return ServerState(estimate, optimizer=())

        toy = Algorithm(
            init=start_from,
            user_update=count_words,
            server_update=keep_estimate,
            mechanism=mechanism(flat_clip(100.0), fixed_denominator(20.0), gaussian(1.0)),
            participation=PoissonSampling(0.1),
        )
    """

    init: Callable[[Params], ServerState]
    # Pure; runs unchanged on any fleet.
    user_update: Callable[[Message, UserData, Key], Update]
    # Pure; post-processing only.
    server_update: Callable[[ServerState, Estimate], ServerState]
    mechanism: Mechanism
    participation: Participation


class FailedRound(Exception):
    """Too few devices reported: there is no sum, and nothing to release."""


class Fleet(Protocol):
    """Where device programs run. A fleet may only add.

    This complete one has all users' data (`UserData`) in a list.

    Example:
        import jax
        import numpy as np

        from taciturn import trees

        class PlainLoop:
            everyone_reports = True

            def __init__(self, data):
                self.data = data

            def users(self, eligible):
                return eligible(np.arange(len(self.data)))

            def sum_reports(self, program, message, cohort, key):
                total = trees.zeros_like(jax.eval_shape(program, message, self.data[0], key))
                for user in cohort:
                    own_key = jax.random.fold_in(key, user)
                    report = program(message, self.data[user], own_key)
                    total = trees.add(total, report)
                return total
    """

    @property
    def everyone_reports(self) -> bool:
        """Tell whether each member of a cohort is certain to be in the sum.

        False wherever a device may drop out.
        """
        ...

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        """Return those who are present and may take part in the next round.

        A fleet of devices waits until there are enough.

        Args:
            eligible: returns those of some users whom the claim allows to take part.
        """
        ...

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        """Return the sum of what the program reports for each member of the cohort.

        It is the same for the same arguments.

        Args:
            program: what a device runs.
            message: what the round sends to each.
            cohort: who is asked.
            key: of this round; each user's own key is folded from it.

        Raises:
            FailedRound: too few devices reported.
        """
        ...


class FleetWithStats(Fleet, Protocol):
    """A fleet as runs use it, for metrics.csv.

    The curator asks for no figures, so your own fleet needs none.
    """

    def stats(self) -> dict[str, float]:
        """Return figures so far: `uploads` (of reports), and others.

        There are none where who took part is a secret.
        """
        ...


class LanguageModel(NamedTuple):
    """A model of the next word, in two halves.

    The large second half may so be treated in its own way. The logits of the word after position t
    are `contexts[..., t, :] @ words.T + bias`. Words are the rows of the leaf `word_embedding`,
    scaled to length 1 with `unit_norm`; the bias is the leaf `word_bias`. Of the leaf `embedding` a
    model uses the rows of its tokens and nothing else.
    """

    init: Callable[[Key], Params]
    # int [batch, length] → [batch, length, width].
    contexts: Callable[[Params, jax.Array, Key | None], jax.Array]
    # → [vocabulary, width], and a bias [vocabulary].
    words: Callable[[Params], tuple[jax.Array, jax.Array]]
    embedding: str = "embedding"
    # The same leaf where they are tied.
    word_embedding: str = "embedding"
    unit_norm: bool = False


class WordModel(Protocol):
    """A model of the next word as a keyboard uses it: word by word.

    The state in between is never changed, only replaced. This complete one finds all words equally
    likely.

    Example:
        import numpy as np

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
    def vocabulary(self) -> int:
        """Return the number of its words."""
        ...

    def start(self) -> Any:
        """Return the state at the beginning of a message."""
        ...

    def read(self, state: Any, word: int) -> Any:
        """Return the state after one more word; END begins a new message."""
        ...

    def scores(self, state: Any) -> np.ndarray:
        """Return the log-probability of each word to come next, float32 [vocabulary]."""
        ...
