"""What the server does with an estimate: a step of SGD, momentum or Adam."""

import optax

from taciturn.names import ServerOptimizer


def server_optimizer(name: ServerOptimizer, learning_rate: float, momentum: float) -> optax.GradientTransformation:
    """The server's step, on the estimate as if it were a gradient descent direction."""
    match name:
        case "sgd":
            return optax.sgd(learning_rate)
        case "momentum" | "nesterov":
            return optax.sgd(learning_rate, momentum=momentum, nesterov=name == "nesterov")
        case "adam":
            # As in Reddi et al. 2021: estimates are small and noisy, so ε is far larger than for gradients.
            return optax.adam(learning_rate, b1=momentum, b2=0.99, eps=1e-3)
