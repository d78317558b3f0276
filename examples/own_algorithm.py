"""Your own algorithm, model and users: private linear regression, in your own loop.

    python examples/own_algorithm.py [FOLDER]

On disk are the ledger, which is charged before each round's result leaves the curator, and a folder
from which the loop resumes: interrupt it, and call it again with the same FOLDER.
"""

import math
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import taciturn as tt

USERS = 400
ROUNDS = 30
STEPS = 5
STEP_SIZE = 0.05
TRUTH = np.array([2.0, -1.0, 0.5])


def simulate_user(seed: int) -> tt.UserData:
    """Return one batch of ten rows: three features, and what is to be predicted."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(10, 3))
    noise = generator.normal(size=10)
    rows = np.column_stack([features, features @ TRUTH + 0.1 * noise])
    return tt.UserData(
        batches=jnp.asarray(rows[None], jnp.float32),
        weight=jnp.float32(1),
        steps=jnp.int32(1),
    )


def user_update(message, user: tt.UserData, key):
    """Descend the gradient on this user's rows for five steps; the update may be as long as it
    likes, and is clipped.
    """
    rows = user.batches[0]
    features = rows[:, :3]
    targets = rows[:, 3]

    def loss(params):
        predicted = features @ params["weights"]
        return jnp.mean((predicted - targets) ** 2)

    def move(value, slope):
        return value - STEP_SIZE * slope

    params = message.params
    for _ in range(STEPS):
        slopes = jax.grad(loss)(params)
        params = jax.tree.map(move, params, slopes)
    return jax.tree.map(jnp.subtract, params, message.params)


def main(folder: Path) -> float:
    algorithm = tt.private_averaging(
        user_update,
        clip_norm=0.5,
        noise_multiplier=1.0,
        users=USERS,
        cohort=100,
    )
    curator = tt.Curator.for_simulation(
        algorithm,
        [simulate_user(seed) for seed in range(USERS)],
        ledger=folder / "ledger.jsonl",
        folder=folder / "loop",
        rounds=ROUNDS,
    )
    weights = np.zeros(3)
    for state in tt.rounds(algorithm, curator, {"weights": jnp.zeros(3)}):
        weights = np.asarray(state.server.params["weights"])
        if state.round == ROUNDS:
            break
    guarantee = curator.account.guarantee()
    # Deletes what would undo the noise; `loop` keeps the parameters.
    curator.close()
    # Rounded up: a promise may be stated too weak, not too strong.
    epsilon = math.ceil(100 * guarantee.epsilon) / 100
    print(f"found {weights.round(2)}, truth {TRUTH}; ε = {epsilon} at δ = {guarantee.delta:.3g}")
    return float(np.abs(weights - TRUTH).max())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else folder))
