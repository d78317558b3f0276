"""The simulated fleet on a Ray cluster: any number of workers, with always the same bits.

Workers may join, leave and die. A worker holds one device (a GPU, or a CPU core), the recipe and a
view of the users' text. For each round it is sent the message, the users' key and pieces of the
cohort, and returns a piece's sum. Sums are integers, and a user's report has the same bits in any
position beside any others, so it does not matter which worker added what, in which order, or how
often a piece was begun: one lost with its worker is given to another. The curator, with the root,
the ledger and the noise, stays where the run was started.

**Assumes:** the cluster belongs to the curator: anyone who sees both a total and the next model
knows the noise between, and workers hold users' text. Ray encrypts nothing unless it is set to
(RAY_USE_TLS). None of it is written to disk: only messages and sums are in Ray's memory, and what
does not fit there fails instead of being spilled.
"""

import hashlib
import logging
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

LOG = logging.getLogger("taciturn.fleet.ray")

# The users of a piece; the same for any number of workers, since products of other shapes round
# differently.
CPU_PIECE = 8
GPU_PIECE = 128
# After this number of seconds without any result the cluster is given up.
PATIENCE = 300.0
# If this number of workers die in a row, the fault is not theirs.
MOST_DEATHS = 100
ONE_CORE = {
    "NPROC": "1",
    "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "1",
}
# A worker may share the GPU with the process that keeps the ledger.
ONE_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}

# A message and the data of a key, as they are sent to workers.
Sent = tuple[Message, np.ndarray]


class RayError(TaciturnError):
    """The cluster cannot be reached, or does not hold together."""


def join(address: str | None) -> None:
    """Join the cluster at `address`, or start one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if address is not None and ("RAY_AUTH_TOKEN" in os.environ or token.exists()):
        # Clusters then ask for it; Ray itself gives it only to those that it started.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError:
        raise RayError(
            "`engine=ray` needs Ray, which is not installed: pip install 'taciturn[ray]'"
        ) from None
    if address is None:
        _start_here(ray)
        return
    _check_reachable(address)
    try:
        ray.init(address, **QUIET)
    except ConnectionError as error:
        raise RayError(
            f"the Ray cluster at {address} refused this machine ({error}). If it asks for a token,"
            " copy ~/.ray/auth_token from its head; its Ray has to be of the same version as this"
            " one"
        ) from None


def _start_here(ray: Any) -> None:
    ray.init(
        num_cpus=len(os.sched_getaffinity(0)),
        include_dashboard=False,
        _system_config={"automatic_object_spilling_enabled": False},
        **QUIET,
    )


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

    # A hash of their sum.
    bits: str
    # Its device, JAX, and name.
    machine: str


class Worker:
    """One device. It reads what it trains on itself, from the folder that the recipe names."""

    def __init__(self, recipe: Recipe, population_id: str, piece: int) -> None:
        people = build.population(recipe)
        if people.id != population_id:
            raise RayError(
                f"{recipe.data.population} has other users on {os.uname().nodename} than where the"
                " run began: copy it again"
            )
        algorithm = build.algorithm(recipe, len(people.vocabulary))
        self._program = device_program(algorithm)
        self._fleet = _make_fleet(recipe, people, piece)

    def run_self_test(self, sent: Sent) -> SelfTest:
        message, key = _receive(sent)
        total = self._fleet.sum_simulated_users(self._program, message, key)
        leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(total)]
        device_kind = jax.local_devices()[0].device_kind
        return SelfTest(
            bits=hashlib.sha256(b"".join(leaves)).hexdigest(),
            machine=f"{device_kind}, JAX {jax.__version__}, on {os.uname().nodename}",
        )

    def sum_piece(self, sent: Sent, users: UserIds) -> Report:
        message, key = _receive(sent)
        total = self._fleet.sum_reports(self._program, message, users, key)
        return jax.device_get(total)


def _make_fleet(recipe: Recipe, population: Population, piece: int) -> SimulatedFleet:
    return SimulatedFleet(
        population=population,
        layout=build.layout(recipe, population.vocabulary),
        weight_cap=recipe.participation.weight_cap,
        cohort=piece,
    )


def _receive(sent: Sent) -> tuple[Message, Key]:
    message, key_data = sent
    key = jax.random.wrap_key_data(jnp.asarray(key_data))
    return jax.tree.map(jnp.asarray, message), key


def _recipe_for_workers(recipe: Recipe) -> Recipe:
    """Return the recipe without its seed, from which the root of a simulation is made."""
    paths = {}
    for name in ("population", "general"):
        path = getattr(recipe.data, name)
        if path:
            paths[name] = str(Path(path).resolve())
    return recipe.with_settings("run", seed=None).with_settings("data", **paths)


class _Assignment(NamedTuple):
    worker: Any
    piece: UserIds


class _RoundOfWork:
    """What is left of a round, who is at which piece of it, and the sum so far."""

    def __init__(self, sent: Any, pieces: list[UserIds], idle: list[Any]) -> None:
        self._sent = sent
        self._pieces_left = deque(pieces)
        # Workers without a piece.
        self.idle = idle
        # What workers are at, by their pending answers.
        self.working: dict[Any, _Assignment] = {}
        self.total: PyTree = None

    @property
    def is_unfinished(self) -> bool:
        return bool(self._pieces_left or self.working)

    def hand_out(self) -> None:
        """Give pieces to idle workers."""
        while self._pieces_left and self.idle:
            assignment = _Assignment(worker=self.idle.pop(), piece=self._pieces_left.popleft())
            answer = assignment.worker.sum_piece.remote(self._sent, assignment.piece)
            self.working[answer] = assignment

    def put_back(self, assignment: _Assignment) -> None:
        """Leave to another a piece whose worker died."""
        self._pieces_left.append(assignment.piece)

    def add(self, part: PyTree, assignment: _Assignment) -> None:
        """Add the sum of a piece."""
        self.total = part if self.total is None else jax.tree.map(np.add, self.total, part)
        self.idle.append(assignment.worker)


class RayFleet:
    everyone_reports = True

    def __init__(self, recipe: Recipe, population: Population) -> None:
        import ray
        import ray.exceptions

        self._ray = ray
        has_gpus = bool(ray.cluster_resources().get("GPU"))
        self._kind = "GPU" if has_gpus else "CPU"
        self._piece = GPU_PIECE if has_gpus else CPU_PIECE
        # It trains no one.
        self._here = _make_fleet(recipe, population, self._piece)
        self._recipe = _recipe_for_workers(recipe)
        self._population_id = population.id
        self._worker_class: Any = ray.remote(Worker).options(
            runtime_env={"env_vars": ONE_GPU if has_gpus else ONE_CORE},
            num_cpus=1,
            num_gpus=1 if has_gpus else None,
        )
        # What all workers are tested with: the first round's message.
        self._test_question: Any = None
        # Workers that are being tested, by their pending answers.
        self._tests: dict[Any, Any] = {}
        # Workers that passed the test.
        self._workers: list[Any] = []
        # Workers that did not, kept so that their slots stay taken.
        self._refused: list[Any] = []
        # Deaths since any user was trained.
        self._deaths = 0
        # The result of the first worker, with which all others have to agree.
        self._first_test: SelfTest | None = None

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return self._here.users(eligible)

    def stats(self) -> dict[str, float]:
        return {}

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        """Sum on workers.

        They build the program from the recipe, as the curator built `program`.
        """
        del program
        key_data = np.asarray(jax.random.key_data(key))
        sent = self._ray.put((jax.device_get(message), key_data))
        self._test_question = self._test_question or sent
        work = _RoundOfWork(sent, pieces=self._split(cohort), idle=list(self._workers))
        while work.is_unfinished:
            self._test_newcomers()
            work.hand_out()
            for answer in self._wait_for_answers([*work.working, *self._tests]):
                if answer in self._tests:
                    work.idle += self._finish_test(answer)
                else:
                    self._finish_piece(answer, work)
        return jax.tree.map(jnp.asarray, work.total)

    def _finish_piece(self, answer: Any, work: _RoundOfWork) -> None:
        """Add the sum of a piece, or leave the piece to another worker."""
        assignment = work.working.pop(answer)
        part = self._fetch(answer, assignment.worker)
        if part is None:
            work.put_back(assignment)
            return
        self._deaths = 0
        work.add(part, assignment)

    def _split(self, cohort: UserIds) -> list[UserIds]:
        """Group users of similar length, the longest first.

        There is at least one piece, so that there is a sum of no one too.
        """
        ordered = self._here.sort_longest_first(cohort)
        starts = range(0, max(len(ordered), 1), self._piece)
        return [ordered[start : start + self._piece] for start in starts]

    def _test_newcomers(self) -> None:
        """Start and test a worker for each device that has none.

        That is in the first round, on nodes that joined, and in place of workers that died.
        """
        devices = int(self._ray.cluster_resources().get(self._kind, 0))
        workers = len(self._workers) + len(self._refused) + len(self._tests)
        for _ in range(devices - workers):
            worker = self._worker_class.remote(self._recipe, self._population_id, self._piece)
            answer = worker.run_self_test.remote(self._test_question)
            self._tests[answer] = worker

    def _wait_for_answers(self, pending: list[Any]) -> list[Any]:
        done = []
        if pending:
            done, _ = self._ray.wait(pending, timeout=PATIENCE)
        if not done:
            refused = ""
            if self._refused:
                refused = f" {len(self._refused)} give other bits than the first and were refused."
            raise RayError(
                f"no worker of the Ray cluster answers.{refused} Nothing is lost; repair it (ray"
                " status), then `tt.resume()`"
            )
        return done

    def _fetch(self, answer: Any, worker: Any) -> PyTree:
        """Return a worker's answer, or nothing if it died."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(answer)
        except exceptions.RayTaskError as error:
            # It says all there is to say.
            raise (error.cause if isinstance(error.cause, TaciturnError) else error)  # noqa: B904
        # The worker died, or its answer was lost with its node.
        except (exceptions.RayActorError, exceptions.ObjectLostError) as error:
            self._deaths += 1
            if self._first_test is None or self._deaths > MOST_DEATHS:
                raise RayError(
                    f"workers end before they have trained any user: {str(error).splitlines()[-1]}"
                ) from None
            self._workers = [other for other in self._workers if other != worker]
            return None

    def _finish_test(self, answer: Any) -> list[Any]:
        """Return the worker, if it gives the same bits as the first.

        Otherwise sums would depend on which workers there are.
        """
        worker = self._tests.pop(answer)
        test: SelfTest | None = self._fetch(answer, worker)
        if test is None:
            return []
        if self._first_test is None:
            self._first_test = test
        if test.bits == self._first_test.bits:
            self._workers.append(worker)
            return [worker]
        self._refused.append(worker)
        LOG.warning(
            "a worker (%s) gives other bits than the first (%s) and is not used. Take machines of"
            " one kind, with the same versions",
            test.machine,
            self._first_test.machine,
        )
        return []
