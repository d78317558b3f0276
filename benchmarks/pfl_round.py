"""The paper round on pfl-research: simulated backend, federated averaging, central Gaussian noise.
For `python benchmarks/in_turns.py pfl`.

python benchmarks/pfl_round.py USERS ROUNDS prints users/s of the best round. It starts itself again
under torchrun with a process for each core, which is pfl's own way to use them all.
"""

import os
import sys
import time

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch_round import BATCH, CLIP_NORM, LENGTH, RATE, STEPS, WORDS, Model


class PflModel(Model):
    def metrics(
        self, rows: torch.Tensor
    ) -> dict:  # which pfl wants to be there; nothing is evaluated here
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
    users, rounds = int(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    text = torch.randint(4, WORDS, (users, STEPS * BATCH, LENGTH + 1))
    turns = iter(range(10**9))
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset((text[user],)), lambda: next(turns) % users
    )
    network, clock = PflModel(), Clock()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP_NORM, 1.0))
    backend = SimulatedBackend(
        training_data=data, val_data=None, postprocessors=[WeightByUser(), noise]
    )
    course = NNAlgorithmParams(
        central_num_iterations=rounds + 1,
        evaluation_frequency=10**9,
        train_cohort_size=users,
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_learning_rate=RATE, local_num_epochs=1, local_batch_size=BATCH)
    FederatedAveraging().run(
        algorithm_params=course,
        backend=backend,
        model=model,
        model_train_params=local,
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if os.environ["RANK"] == "0":
        seconds = [
            after - before for before, after in zip(clock.at[1:], clock.at[2:], strict=False)
        ]
        print(users / min(seconds))


if __name__ == "__main__":
    if "WORLD_SIZE" in os.environ:
        main()
    else:
        os.environ |= {"OMP_NUM_THREADS": "1"} | (
            {} if torch.cuda.is_available() else {"PFL_PYTORCH_DEVICE": "cpu"}
        )
        cores = 1 if torch.cuda.is_available() else len(os.sched_getaffinity(0))
        launch = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nnodes=1",
            f"--nproc_per_node={cores}",
        ]
        os.execv(sys.executable, [sys.executable, *launch, *sys.argv])
