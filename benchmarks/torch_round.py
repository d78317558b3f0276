"""The paper round in plain PyTorch, as one would write it first: one user after another. For
`python benchmarks/in_turns.py torch`.

It needs PyTorch and nothing else: python benchmarks/torch_round.py USERS ROUNDS prints users/s of
the best round. On a CPU every core trains its share of the users in a process of its own, which is
the fastest way there.
"""

import os
import sys
import time

import torch  # pyright: ignore[reportMissingImports]
from torch import multiprocessing, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

WORDS = 10_000
WIDTH = 96
UNITS = 256
STEPS = 20
BATCH = 8
LENGTH = 10
RATE = 0.1
CLIP_NORM = 15.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(WORDS, WIDTH) / WIDTH**0.5)
        self.lstm = nn.LSTM(WIDTH, UNITS, batch_first=True)
        self.output = nn.Linear(UNITS, WIDTH, bias=False)
        self.bias = nn.Parameter(torch.zeros(WORDS))

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        words = functional.normalize(self.embedding)
        states, _ = self.lstm(functional.embedding(rows[:, :-1], words))
        scores = self.output(states) @ words.T + self.bias
        return functional.cross_entropy(scores.reshape(-1, WORDS), rows[:, 1:].reshape(-1))


def train_users(model: Model, start: list[torch.Tensor], users: torch.Tensor) -> list[torch.Tensor]:
    """Return the sum of the users' clipped updates."""
    total = [torch.zeros_like(value) for value in start]
    for user in users:
        update = train_user(model, start, user)
        with torch.no_grad():
            add_clipped(total, update)
    return total


def train_user(model: Model, start: list[torch.Tensor], user: torch.Tensor) -> list[torch.Tensor]:
    """Return a user's update."""
    params = list(model.parameters())
    with torch.no_grad():
        for param, value in zip(params, start, strict=True):
            param.copy_(value)
    optimizer = torch.optim.SGD(params, RATE)
    for rows in user:
        optimizer.zero_grad(set_to_none=True)
        model.loss(rows).backward()
        optimizer.step()
    with torch.no_grad():
        return [param - value for param, value in zip(params, start, strict=True)]


def add_clipped(total: list[torch.Tensor], update: list[torch.Tensor]) -> None:
    norms = [torch.linalg.vector_norm(change) for change in update]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    for sum_, change in zip(total, update, strict=True):
        sum_.add_(change * torch.clamp(CLIP_NORM / norm, max=1.0))


def work(users: torch.Tensor, tasks, results) -> None:
    """Train a core's users whenever there is a model, until there is none."""
    torch.set_num_threads(1)
    model = Model()
    while (start := tasks.get()) is not None:
        results.put(train_users(model, start, users))


def time_rounds_on_cpu(users: torch.Tensor, rounds: int) -> list[float]:
    context = multiprocessing.get_context("spawn")
    cores = len(os.sched_getaffinity(0))
    tasks = context.Queue()
    results = context.Queue()
    workers = []
    for core in range(cores):
        arguments = (users[core::cores], tasks, results)
        worker = context.Process(target=work, args=arguments, daemon=True)
        worker.start()
        workers.append(worker)
    start = [param.detach() for param in Model().parameters()]
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        for _ in workers:
            tasks.put(start)
        totals = [results.get() for _ in workers]
        total = [sum(parts) for parts in zip(*totals, strict=True)]
        start = release(start, total, len(users))
        seconds.append(time.perf_counter() - began)
    for _ in workers:
        tasks.put(None)
    return seconds[1:]


def time_rounds_on_gpu(users: torch.Tensor, rounds: int) -> list[float]:
    model = Model().cuda()
    users = users.cuda()
    start = [param.detach().clone() for param in model.parameters()]
    seconds = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        start = release(start, train_users(model, start, users), len(users))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def release(start: list[torch.Tensor], total: list[torch.Tensor], users: int) -> list[torch.Tensor]:
    """Return the next model: the noised average of the updates is added to this one."""
    params = []
    for value, sum_ in zip(start, total, strict=True):
        noised = sum_ + CLIP_NORM * torch.randn_like(sum_)
        params.append(value + noised / users)
    return params


def main() -> None:
    users = int(sys.argv[1])
    rounds = int(sys.argv[2])
    torch.manual_seed(0)
    text = torch.randint(4, WORDS, (users, STEPS, BATCH, LENGTH + 1))
    time_rounds = time_rounds_on_gpu if torch.cuda.is_available() else time_rounds_on_cpu
    seconds = time_rounds(text, rounds)
    print(users / min(seconds))


if __name__ == "__main__":
    main()
