"""How the server moves the model, once it has the estimate of a round."""

import optax

from taciturn.names import ServerOptimizer


def server_optimizer(
    name: ServerOptimizer, learning_rate: float, momentum: float
) -> optax.GradientTransformation:
    """Return the server's step along the estimate, taken as a descent direction."""
    match name:
        case "sgd":
            return optax.sgd(learning_rate)
        case "momentum":
            return optax.sgd(learning_rate, momentum=momentum, nesterov=False)
        case "nesterov":
            return optax.sgd(learning_rate, momentum=momentum, nesterov=True)
        case "adam":
            # As in Reddi et al. 2021: estimates are small and noisy, so ε is far larger than for
            # gradients.
            return optax.adam(learning_rate, b1=momentum, b2=0.99, eps=1e-3)
