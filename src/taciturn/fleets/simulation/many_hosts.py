"""The simulated fleet on several hosts: each trains its share of a cohort, and the shares' sums are added up.

Host 0 runs the curator, with the root, the ledger and the noise. The others know the recipe and the users' text, get a message, a
cohort and the users' key for each round, and add up; `serve` is all they do. They and the network between them belong to the curator:
whoever sees both a total and the next model knows the noise between, and nothing here encrypts.
A host that dies ends the run on all of them; `--resume` goes on from what host 0 saved.
"""

import hashlib
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from taciturn.core import Key, Message, Program, PyTree, Report, UserIds
from taciturn.errors import TaciturnError
from taciturn.fleets.simulation.in_process import SimulatedFleet

STOP, SUM = 0, 1
GONE = "another host is gone, or a device failed. Nothing is lost; go on with --resume on all of them"
PATIENCE = 30  # seconds without a sign of life after which a host is given up


class HostsError(TaciturnError):
    """The hosts cannot work together, or one is gone."""


def join(coordinator: str | None, hosts: int | None, host: int | None) -> None:
    """Meet the other hosts. To be called before JAX computes anything. Without arguments, as SLURM or Kubernetes say."""
    jax.distributed.initialize(coordinator, hosts, host, heartbeat_timeout_seconds=PATIENCE)


def announced(text: str = "") -> str:
    """What host 0 has to say to the others before the first round."""
    content = np.frombuffer(text.encode(), np.uint8)
    (size,) = _told(np.array([len(content)]))
    return bytes(_told(content if jax.process_index() == 0 else np.zeros(int(size), np.uint8))).decode()


class ManyHosts:
    everyone_reports = True

    def __init__(self, fleet: SimulatedFleet, users: str) -> None:
        """`users` names the users' text, which every host must have its own copy of, or see the same."""
        self._fleet = fleet
        firsts = {device.process_index: device for device in reversed(jax.devices())}
        self._mesh = jax.sharding.Mesh(np.array([firsts[host] for host in sorted(firsts)]), ("hosts",))
        name = np.frombuffer(hashlib.sha256(users.encode()).digest(), np.int32)
        if np.any(multihost_utils.process_allgather(name) != name):
            raise HostsError("the hosts have different users in their populations: give all of them the same folder")

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        return self._fleet.users(eligible)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        """On host 0, while the others serve."""
        try:
            _told((np.array([SUM, len(cohort)]), np.zeros(0)))
            _told((np.asarray(cohort, np.int32), message, jax.random.key_data(key)))
            return self._total(program, message, cohort, key)
        except jax.errors.JaxRuntimeError as error:
            raise HostsError(f"{GONE} ({str(error).splitlines()[0]})") from error

    def stats(self) -> dict[str, float]:
        return self._fleet.stats()

    def serve(self, program: Program, message: Message) -> None:
        """On the other hosts, until host 0 is done. `message` gives the shapes of those to come."""
        while True:
            (command, size), _ = _told((np.zeros(2, int), np.zeros(0)))
            if command == STOP:
                return
            blank = np.zeros(int(size), np.int32), message, np.zeros(2, np.uint32)
            cohort, now, key = _told(blank)
            now = jax.tree.map(jnp.asarray, now)
            self._total(program, now, np.asarray(cohort), jax.random.wrap_key_data(jnp.asarray(key)))

    @staticmethod
    def stop() -> None:
        """Host 0 is done."""
        _told((np.array([STOP, 0]), np.zeros(0)))

    def _total(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        # By number, not by place in the cohort: who else is in it must not decide where, and so how, a user is trained.
        share = cohort[cohort % jax.process_count() == jax.process_index()]
        part = self._fleet.sum_reports(program, message, share, key)
        hosts, everywhere = jax.sharding.PartitionSpec("hosts"), jax.sharding.PartitionSpec()
        rows = jax.sharding.NamedSharding(self._mesh, hosts)
        parts = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(rows, np.asarray(leaf)[None]), part)
        # One program, and waited for: collectives that overlap could meet in another order on another host.
        total = jax.block_until_ready(self._add(parts, jax.sharding.NamedSharding(self._mesh, everywhere)))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf.addressable_data(0)), total)

    @staticmethod
    @partial(jax.jit, static_argnums=1)
    def _add(parts: Report, where: jax.sharding.NamedSharding) -> Report:
        """The sum of all hosts' parts, on every host."""
        sums = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=leaf.dtype), parts)
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, where), sums)


def _told(tree: PyTree) -> PyTree:
    """What host 0 says, on every host."""
    return multihost_utils.broadcast_one_to_all(tree)
