"""DP-FedAvg, DP-FedSGD, DP-FTRL, and FedAvg without privacy.

The first two are McMahan et al. 2018, Algorithm 1; the third is Xu et al. 2023.
"""

import optax

from taciturn import trees
from taciturn.algorithms.local_training import UserUpdate
from taciturn.core import Algorithm, Estimate, Mechanism, Params, Participation, ServerState
from taciturn.privacy.bounding.adaptive_clip import AdaptiveClip
from taciturn.privacy.bounding.clipping import MOST_REPORTS, Bound, flat_clip
from taciturn.privacy.bounding.estimators import Estimator, fixed_denominator, mean
from taciturn.privacy.noise.mechanism import adaptive_mechanism, mechanism
from taciturn.privacy.noise.white import Noise, gaussian, no_noise
from taciturn.privacy.own_loop import check_averaging
from taciturn.privacy.participation import PoissonSampling

# The server's step along the estimate.
Server = optax.GradientTransformation


def dp_fedavg(
    user_update: UserUpdate,
    bound: Bound,
    estimator: Estimator,
    noise: Noise,
    participation: Participation,
    server: Server,
    most_reports: int = MOST_REPORTS,
) -> Algorithm:
    """Average the clipped updates of users with noise.

    Each user is trained for E epochs or, as DP-FedSGD, by one gradient (local_training.py).
    """
    private = mechanism(bound, estimator, noise, most_reports)
    return federated_algorithm(user_update, private, participation, server)


def dp_ftrl(
    user_update: UserUpdate,
    bound: Bound | AdaptiveClip,
    report_goal: float,
    noise: Noise,
    participation: Participation,
    server: Server,
    most_reports: int,
) -> Algorithm:
    """Average the clipped updates of users with correlated noise (Xu et al. 2023, Algorithm 1).

    Δ̃ᵗ = (1/m) PrivateSum(T_θ, Σ Δ_i), where m is the report goal, however many reports came. It
    differs from DP-FedAvg in two words: noise that is correlated over rounds, and participation
    that claims no sampling. The noise comes in residual form, so every server optimiser works
    unchanged.
    """
    if isinstance(bound, AdaptiveClip):
        private = adaptive_mechanism(bound, report_goal, noise, most_reports)
    else:
        private = mechanism(bound, fixed_denominator(report_goal), noise, most_reports)
    return federated_algorithm(user_update, private, participation, server)


def fedavg(
    user_update: UserUpdate, bound: Bound, participation: Participation, server: Server
) -> Algorithm:
    """Take the true average: no noise, no privacy, and charged so (ε = ∞).

    A bound without noise shows what clipping does (Figure 2).
    """
    averaged = mechanism(bound, mean(), no_noise())
    return federated_algorithm(user_update, averaged, participation, server)


def private_averaging(
    user_update: UserUpdate,
    *,
    clip_norm: float,
    noise_multiplier: float,
    users: int,
    cohort: float,
    server: Server | None = None,
) -> Algorithm:
    """Build DP-FedAvg around your own `user_update`.

    Args:
        user_update: (message, user, key) → an update of `message.params`, in JAX; it may be
            anything, and is clipped.
        clip_norm: S, the most that one user can move the sum.
        noise_multiplier: z, noise on the sum in units of S.
        users: how many there are, as publicly stated.
        cohort: how many of them take part in a round on average; each is drawn independently.
        server: what the server does with the average update (default: adds it).

    Returns:
        An algorithm for `Curator` and `rounds`.

    Raises:
        OwnLoopError: an argument is not what it must be.

    Example:
        def user_update(message, user, key):  # learns how long users' texts are
            return {"length": (user.batches != 0).sum() - message.params["length"]}

        algorithm = tt.private_averaging(
            user_update, clip_norm=100, noise_multiplier=1.0, users=50, cohort=20
        )
    """
    check_averaging(
        user_update=user_update,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        users=users,
        cohort=cohort,
        server=server,
    )
    # They may be arrays with one number each.
    averaged = mechanism(
        flat_clip(float(clip_norm)),
        fixed_denominator(float(cohort)),
        gaussian(float(noise_multiplier)),
    )
    return federated_algorithm(
        user_update,
        averaged,
        participation=PoissonSampling(float(cohort) / float(users), users=users),
        server=server or optax.sgd(1.0),
    )


def federated_algorithm(
    user_update: UserUpdate, private: Mechanism, participation: Participation, server: Server
) -> Algorithm:
    """Build what all of them share: a server that steps along the estimate."""

    def init(params: Params) -> ServerState:
        return ServerState(params, server.init(params))

    def server_update(state: ServerState, estimate: Estimate) -> ServerState:
        # optax descends a gradient; the estimate points where users went. θᵗ⁺¹ ← θᵗ + Δᵗ⁺¹ for
        # plain SGD at rate 1.
        descent = trees.scale(estimate, -1.0)
        step, optimizer = server.update(descent, state.optimizer, state.params)
        return ServerState(trees.add(state.params, step), optimizer)

    return Algorithm(
        init=init,
        user_update=user_update,
        server_update=server_update,
        mechanism=private,
        participation=participation,
    )
