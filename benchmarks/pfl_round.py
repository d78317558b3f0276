"""The paper round on pfl-research: simulated backend, federated averaging, central Gaussian noise.
For `python benchmarks/in_turns.py pfl`.

python benchmarks/pfl_round.py USERS ROUNDS prints users/s of the best round. It starts itself again
under torchrun with a process for each core, which is pfl's own way to use them all.
"""

import os
import sys
import time

import torch  # pyright: ignore[reportMissingImports]
from pfl.aggregate.simulate import SimulatedBackend  # pyright: ignore[reportMissingImports]
from pfl.aggregate.weighting import WeightByUser  # pyright: ignore[reportMissingImports]
from pfl.algorithm.base import NNAlgorithmParams  # pyright: ignore[reportMissingImports]
from pfl.algorithm.federated_averaging import (  # pyright: ignore[reportMissingImports]
    FederatedAveraging,
)
from pfl.callback.base import TrainingProcessCallback  # pyright: ignore[reportMissingImports]
from pfl.data.federated_dataset import FederatedDataset  # pyright: ignore[reportMissingImports]
from pfl.data.pytorch import PyTorchTensorDataset  # pyright: ignore[reportMissingImports]
from pfl.hyperparam import NNTrainHyperParams  # pyright: ignore[reportMissingImports]
from pfl.metrics import Metrics  # pyright: ignore[reportMissingImports]
from pfl.model.pytorch import PyTorchModel  # pyright: ignore[reportMissingImports]
from pfl.privacy import (  # pyright: ignore[reportMissingImports]
    CentrallyAppliedPrivacyMechanism,
    GaussianMechanism,
)
from torch_round import BATCH, CLIP_NORM, LENGTH, RATE, STEPS, WORDS, Model


class PflModel(Model):
    # pfl wants it to be there; nothing is evaluated here.
    def metrics(self, rows: torch.Tensor) -> dict:
        return {}


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.at: list[float] = []

    def on_train_begin(self, *, model) -> Metrics:
        self.at.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics, model, *, central_iteration
    ) -> tuple[bool, Metrics]:
        self.at.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    users = int(sys.argv[1])
    rounds = int(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clock = Clock()
    network = PflModel()
    server = torch.optim.SGD(network.parameters(), lr=1.0)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=10**9,
            train_cohort_size=users,
            val_cohort_size=0,
        ),
        backend=make_backend(users),
        model=PyTorchModel(network, torch.optim.SGD, server),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=RATE,
            local_num_epochs=1,
            local_batch_size=BATCH,
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if os.environ["RANK"] == "0":
        # The first round compiles.
        pairs = zip(clock.at[1:], clock.at[2:], strict=False)
        print(users / min(after - before for before, after in pairs))


def make_backend(users: int) -> SimulatedBackend:
    """Return a backend that trains all users in every round, one after another."""
    text = torch.randint(4, WORDS, (users, STEPS * BATCH, LENGTH + 1))
    turns = iter(range(10**9))

    def load_user(user: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset((text[user],))

    def next_user() -> int:
        return next(turns) % users

    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP_NORM, 1.0))
    return SimulatedBackend(
        training_data=FederatedDataset(load_user, next_user),
        val_data=None,
        postprocessors=[WeightByUser(), noise],
    )


def start_processes() -> None:
    """Start this program again under torchrun, with a process for each core."""
    os.environ["OMP_NUM_THREADS"] = "1"
    processes = 1
    if not torch.cuda.is_available():
        os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
        processes = len(os.sched_getaffinity(0))
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nnodes=1",
        f"--nproc_per_node={processes}",
    ]
    os.execv(sys.executable, [sys.executable, *launch, *sys.argv])


if __name__ == "__main__":
    if "WORLD_SIZE" in os.environ:
        main()
    else:
        start_processes()
