"""An algorithm, a model and users of one's own: private linear regression, in a loop of one's own.

    python examples/own_algorithm.py

Nothing is on disk but the ledger, which is charged before each round's result leaves the curator.
"""

import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import taciturn as tt

USERS, ROUNDS = 400, 30
TRUTH = np.array([2.0, -1.0, 0.5])


def made_up_user(seed: int) -> tt.UserData:
    """One batch of ten rows: three features, and what is to be predicted."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(10, 3))
    rows = np.column_stack([features, features @ TRUTH + 0.1 * generator.normal(size=10)])
    return tt.UserData(
        batches=jnp.asarray(rows[None], jnp.float32), weight=jnp.float32(1), steps=jnp.int32(1)
    )


def user_update(message, user: tt.UserData, key):
    """Five steps of gradient descent on this user's rows; it may move as far as it likes, and is
    clipped.
    """

    def loss(params):
        predicted = user.batches[0, :, :3] @ params["weights"]
        return jnp.mean((predicted - user.batches[0, :, 3]) ** 2)

    params = message.params
    for _ in range(5):
        params = jax.tree.map(
            lambda value, slope: value - 0.05 * slope, params, jax.grad(loss)(params)
        )
    return jax.tree.map(jnp.subtract, params, message.params)


def main(folder: Path) -> float:
    algorithm = tt.private_averaging(
        user_update, clip_norm=0.5, noise_multiplier=1.0, users=USERS, cohort=100
    )
    users = [made_up_user(seed) for seed in range(USERS)]
    curator = tt.Curator.for_simulation(
        algorithm, users, ledger=folder / "ledger.jsonl", rounds=ROUNDS
    )
    for state in tt.rounds(algorithm, curator, {"weights": jnp.zeros(3)}):
        if state.round == ROUNDS:
            break
    guarantee = curator.account.guarantee()
    found = np.asarray(state.server.params["weights"])
    print(
        f"found {found.round(2)}, truth {TRUTH}; ε = {guarantee.epsilon:.2f} at δ ="
        f" {guarantee.delta:.0e}"
    )
    return float(np.abs(found - TRUTH).max())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else folder))
