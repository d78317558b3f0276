"""DP-FTRL in federated learning (Xu et al. 2023, Algorithm 1; Kairouz et al. 2021).

It differs from DP-FedAvg in two words: noise that is correlated over rounds, and participation that claims no sampling. The noise
comes in residual form, so momentum and every other server optimiser work as they are: θᵗ⁺¹ = θ⁰ + η_s Σ of noised updates is the same as
adding each with its residual of noise.
"""

from taciturn.algorithms.dp_fedavg import Server, federated
from taciturn.algorithms.local_training import UserUpdate
from taciturn.core import Algorithm, Participation
from taciturn.privacy.adaptive_clip import AdaptiveClip
from taciturn.privacy.clipping import Bound
from taciturn.privacy.estimators import fixed_denominator
from taciturn.privacy.mechanism import adaptive_mechanism, mechanism
from taciturn.privacy.noise import Noise


def dp_ftrl(
    user_update: UserUpdate,
    bound: Bound | AdaptiveClip,
    report_goal: float,
    noise: Noise,
    participation: Participation,
    server: Server,
    most_reports: int,
) -> Algorithm:
    """Δ̃ᵗ = (1/m) PrivateSum(T_θ, Σ Δ_i): the denominator is the report goal, whoever came beyond it."""
    if isinstance(bound, AdaptiveClip):
        private = adaptive_mechanism(bound, report_goal, noise, most_reports)
    else:
        private = mechanism(bound, fixed_denominator(report_goal), noise, most_reports)
    return federated(user_update, private, participation, server)
