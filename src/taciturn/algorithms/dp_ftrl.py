"""DP-FTRL in federated learning (Xu et al. 2023, Algorithm 1, with a fixed clip norm; Kairouz et al. 2021).

It differs from DP-FedAvg in two words: noise that is correlated over rounds, and participation that claims no sampling. The noise
comes in residual form, so momentum and every other server optimiser work as they are: θᵗ⁺¹ = θ⁰ + η_s Σ of noised updates is the same as
adding each with its residual of noise.
"""

import optax

from taciturn.algorithms.dp_fedavg import federated
from taciturn.algorithms.local_training import LocalTraining, Loss, fedavg_update
from taciturn.core import Algorithm
from taciturn.privacy.clipping import Bound
from taciturn.privacy.estimators import fixed_denominator
from taciturn.privacy.mechanism import mechanism
from taciturn.privacy.noise import Noise
from taciturn.privacy.participation import MinSeparation


def dp_ftrl(
    loss: Loss,
    local: LocalTraining,
    bound: Bound,
    noise: Noise,
    participation: MinSeparation,
    server: optax.GradientTransformation,
    most_reports: int,
) -> Algorithm:
    """Δ̃ᵗ = (1/m) PrivateSum(T_θ, Σ Δ_i): the denominator is the report goal, whoever came beyond it."""
    private = mechanism(bound, fixed_denominator(float(participation.size)), noise, most_reports)
    return federated(fedavg_update(loss, local), private, participation, server)
