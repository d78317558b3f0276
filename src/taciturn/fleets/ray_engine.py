"""The simulated fleet on a Ray cluster: any number of workers, which may join, leave and die, with
always the same bits.

A worker holds one device (a GPU, or a CPU core), the recipe and a view of the users' text. For each
round it is sent the message, the users' key and pieces of the cohort, and returns a piece's sum.
Sums are integers, and a user's report has the same bits in any position beside any others, so it
does not matter which worker added what, in which order, or how often a piece was begun: one lost
with its worker is given to another. The curator, with the root, the ledger and the noise, stays
where the run was started.

**Assumes:** the cluster belongs to the curator: anyone who sees both a total and the next model
knows the noise between, and workers hold users' text. Ray encrypts nothing unless it is told to
(RAY_USE_TLS). None of it is written to disk: only messages and sums are in Ray's memory, and what
does not fit there fails instead of being spilled.
"""

import hashlib
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from taciturn.core import Key, Message, Program, PyTree, Report, UserIds
from taciturn.data.population import Population
from taciturn.errors import TaciturnError
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.privacy.curator import device_program
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe

# users; the same for any number of workers, since products of other shapes round differently
CPU_PIECE, GPU_PIECE = (
    8,
    128,
)
# without any result, after which the cluster is given up
PATIENCE = 300.0
# of workers in a row: then the fault is not theirs
MOST_DEATHS = 100
ONE_CORE = {
    "NPROC": "1",
    "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "1",
}
# beside the process that keeps the ledger
ONE_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


class RayError(TaciturnError):
    """The cluster cannot be reached, or does not hold together."""


def join(address: str | None) -> None:
    """Join the cluster at `address`, or start one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if address is not None and ("RAY_AUTH_TOKEN" in os.environ or token.exists()):
        # clusters then ask for it; Ray itself gives it only to those that it started
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError:
        raise RayError(
            "--engine ray needs Ray, which is not installed: pip install 'taciturn[ray]'"
        ) from None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        _check_reachable(address)
        try:
            ray.init(address, **quiet)
        except ConnectionError as error:
            to_do = (
                "If it asks for a token, copy ~/.ray/auth_token from its head; its Ray has to be of"
                " the same version as this one"
            )
            raise RayError(
                f"the Ray cluster at {address} refused this machine ({error}). {to_do}"
            ) from None
        return
    own: dict[str, Any] = {
        "include_dashboard": False,
        "_system_config": {"automatic_object_spilling_enabled": False},
    }
    ray.init(num_cpus=len(os.sched_getaffinity(0)), **own, **quiet)


def _check_reachable(address: str) -> None:
    """Check first: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise RayError(
            f"there is no Ray cluster at {address} ({error}). Start its head and name HOST:PORT:"
            " ray start --head"
        ) from None


def is_joined() -> bool:
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


class SelfTest(NamedTuple):
    """What a worker is, and its result on simulated users."""

    # of their sum
    bits: str
    # device, JAX, Taciturn
    about: str


class Worker:
    """One device. It reads what it trains on itself, from the folder that the recipe names."""

    def __init__(self, recipe: Recipe, population: str, piece: int) -> None:
        people = build.population(recipe)
        if people.id != population:
            raise RayError(
                f"{recipe.data.population} has other users on {os.uname().nodename} than where the"
                " run began: copy it again"
            )
        self._program = device_program(build.algorithm(recipe, len(people.vocabulary)))
        self._fleet = _fleet(recipe, people, piece)

    def tested(self, sent: tuple[Message, np.ndarray]) -> SelfTest:
        message, key = _received(sent)
        made = self._fleet.made_up_total(self._program, message, key)
        digest = hashlib.sha256(
            b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(made))
        ).hexdigest()
        return SelfTest(
            digest,
            f"{jax.local_devices()[0].device_kind}, JAX {jax.__version__}, on"
            f" {os.uname().nodename}",
        )

    def total(self, sent: tuple[Message, np.ndarray], users: UserIds) -> Report:
        message, key = _received(sent)
        return jax.device_get(self._fleet.sum_reports(self._program, message, users, key))


def _fleet(recipe: Recipe, population: Population, piece: int) -> SimulatedFleet:
    return SimulatedFleet(
        population,
        build.layout(recipe, population.vocabulary),
        recipe.participation.weight_cap,
        piece,
    )


def _received(sent: tuple[Message, np.ndarray]) -> tuple[Message, Key]:
    message, key = sent
    return jax.tree.map(jnp.asarray, message), jax.random.wrap_key_data(jnp.asarray(key))


class RayFleet:
    everyone_reports = True

    def __init__(self, recipe: Recipe, population: Population) -> None:
        import ray
        import ray.exceptions

        self._ray = ray
        self._kind = "GPU" if ray.cluster_resources().get("GPU") else "CPU"
        self._piece = GPU_PIECE if self._kind == "GPU" else CPU_PIECE
        # trains no one
        self._here = _fleet(recipe, population, self._piece)
        paths = {
            name: str(Path(one).resolve())
            for name in ("population", "general")
            if (one := getattr(recipe.data, name))
        }
        # Without its seed, from which the root of a simulation is made.
        told = recipe.with_settings("run", seed=None).with_settings("data", **paths)
        options = {"num_gpus": 1, "num_cpus": 1} if self._kind == "GPU" else {"num_cpus": 1}
        environment = {"env_vars": ONE_GPU if self._kind == "GPU" else ONE_CORE}
        hired = ray.remote(Worker).options(runtime_env=environment, **options)
        self._hire: Callable[[], Any] = lambda: hired.remote(told, population.id, self._piece)
        # that all are tested with: the first round's message
        self._question: Any = None
        # workers by their pending answers
        self._tests: dict[Any, Any] = {}
        # that passed the test
        self._workers: list[Any] = []
        # kept, so that their slots stay taken
        self._refused: list[Any] = []
        # since any user was trained
        self._deaths = 0
        self._bits: SelfTest | None = (
            # of the first worker, with which all others have to agree
            None
        )

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return self._here.users(eligible)

    def stats(self) -> dict[str, float]:
        return {}

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        """Sum on workers, which build the program from the recipe, as the curator built
        `program`.
        """
        del program
        sent = self._ray.put((jax.device_get(message), np.asarray(jax.random.key_data(key))))
        self._question = self._question or sent
        left, total = deque(self._pieces(cohort)), None
        idle, working = list(self._workers), {}
        while left or working:
            self._tests |= {
                worker.tested.remote(self._question): worker for worker in self._newcomers()
            }
            while left and idle:
                worker, piece = idle.pop(), left.popleft()
                working[worker.total.remote(sent, piece)] = worker, piece
            for answer in self._answers([*working, *self._tests]):
                if worker := self._tests.pop(answer, None):
                    idle += self._hired(self._got(answer, worker), worker)
                    continue
                worker, piece = working.pop(answer)
                part = self._got(answer, worker)
                if part is None:
                    left.append(piece)
                else:
                    self._deaths = 0
                    total = part if total is None else jax.tree.map(np.add, total, part)
                    idle.append(worker)
        return jax.tree.map(jnp.asarray, total)

    def _pieces(self, cohort: UserIds) -> list[UserIds]:
        """Group users of similar length, the longest first; at least one piece, so that there is a
        sum of no one too.
        """
        ordered = self._here.longest_first(cohort)
        return [
            ordered[start : start + self._piece]
            for start in range(0, max(len(ordered), 1), self._piece)
        ]

    def _newcomers(self) -> list[Any]:
        """Start a worker for each device that has none: in the first round, on nodes that joined,
        in place of those that died.
        """
        known = len(self._workers) + len(self._refused) + len(self._tests)
        return [
            self._hire()
            for _ in range(int(self._ray.cluster_resources().get(self._kind, 0)) - known)
        ]

    def _answers(self, asked: list[Any]) -> list[Any]:
        done, _ = self._ray.wait(asked, timeout=PATIENCE) if asked else ([], [])
        if not done:
            lost = (
                f" {len(self._refused)} give other bits than the first and were refused."
                if self._refused
                else ""
            )
            raise RayError(
                f"no worker of the Ray cluster answers.{lost} Nothing is lost; repair it (ray"
                " status), then add --resume"
            )
        return done

    def _got(self, answer: Any, worker: Any) -> PyTree:
        """Return a worker's answer, or nothing if it died."""
        try:
            return self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, TaciturnError) else error)  # noqa: B904 (it says all there is to say)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError) as error:
            # or its answer was lost with its node
            self._deaths += 1
            if self._bits is None or self._deaths > MOST_DEATHS:
                raise RayError(
                    f"workers end before they have trained any user: {str(error).splitlines()[-1]}"
                ) from None
            self._workers = [one for one in self._workers if one != worker]
            return None

    def _hired(self, tested: SelfTest | None, worker: Any) -> list[Any]:
        """Return the worker, if it gives the same bits as the first; otherwise sums would depend on
        which workers there are.
        """
        if tested is None:
            return []
        self._bits = self._bits or tested
        if tested.bits == self._bits.bits:
            self._workers.append(worker)
            return [worker]
        self._refused.append(worker)
        other = (
            f"a worker ({tested.about}) gives other bits than the first ({self._bits.about}) and is"
            " not used"
        )
        print(
            f"taciturn: {other}. Take machines of one kind, with the same versions", file=sys.stderr
        )
        return []
