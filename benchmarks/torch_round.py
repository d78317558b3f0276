"""The paper round in plain PyTorch, as one would write it first: one user after another. For
`python benchmarks/in_turns.py torch`.

It needs PyTorch and nothing else: python benchmarks/torch_round.py USERS ROUNDS prints users/s of
the best round. On a CPU every core trains its share of the users in a process of its own, which is
the fastest way there.
"""

import os
import sys
import time

import torch
from torch import multiprocessing, nn
from torch.nn import functional

WORDS, WIDTH, UNITS = 10_000, 96, 256
STEPS, BATCH, LENGTH = 20, 8, 10
RATE, CLIP_NORM = 0.1, 15.0


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


def users_total(model: Model, start: list[torch.Tensor], users: torch.Tensor) -> list[torch.Tensor]:
    """The sum of the users' clipped updates."""
    params, total = list(model.parameters()), [torch.zeros_like(one) for one in start]
    for user in users:
        with torch.no_grad():
            for param, value in zip(params, start, strict=True):
                param.copy_(value)
        optimizer = torch.optim.SGD(params, RATE)
        for rows in user:
            optimizer.zero_grad(set_to_none=True)
            model.loss(rows).backward()
            optimizer.step()
        with torch.no_grad():
            update = [param - value for param, value in zip(params, start, strict=True)]
            norm = torch.linalg.vector_norm(
                torch.stack([torch.linalg.vector_norm(one) for one in update])
            )
            for sum_, one in zip(total, update, strict=True):
                sum_.add_(one * torch.clamp(CLIP_NORM / norm, max=1.0))
    return total


def work(users: torch.Tensor, tasks, results) -> None:
    torch.set_num_threads(1)
    model = Model()
    while (start := tasks.get()) is not None:
        results.put(users_total(model, start, users))


def rounds_on_cpu(users: torch.Tensor, rounds: int) -> list[float]:
    context = multiprocessing.get_context("spawn")
    cores = len(os.sched_getaffinity(0))
    tasks, results = context.Queue(), context.Queue()
    workers = [
        context.Process(target=work, args=(users[core::cores], tasks, results), daemon=True)
        for core in range(cores)
    ]
    for worker in workers:
        worker.start()
    start, seconds = [one.detach() for one in Model().parameters()], []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        for _ in workers:
            tasks.put(start)
        totals = [results.get() for _ in workers]
        start = released(start, [sum(parts) for parts in zip(*totals, strict=True)], len(users))
        seconds.append(time.perf_counter() - began)
    for _ in workers:
        tasks.put(None)
    return seconds[1:]


def rounds_on_gpu(users: torch.Tensor, rounds: int) -> list[float]:
    model, users, seconds = Model().cuda(), users.cuda(), []
    start = [one.detach().clone() for one in model.parameters()]
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        start = released(start, users_total(model, start, users), len(users))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def released(
    start: list[torch.Tensor], total: list[torch.Tensor], users: int
) -> list[torch.Tensor]:
    return [
        value + (sum_ + CLIP_NORM * torch.randn_like(sum_)) / users
        for value, sum_ in zip(start, total, strict=True)
    ]


def main() -> None:
    users, rounds = int(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    text = torch.randint(4, WORDS, (users, STEPS, BATCH, LENGTH + 1))
    seconds = (rounds_on_gpu if torch.cuda.is_available() else rounds_on_cpu)(text, rounds)
    print(users / min(seconds))


if __name__ == "__main__":
    main()
