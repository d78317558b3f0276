"""A simulated fleet with a queue (Popov et al. 2018, Figure 1): a device trains on the model that
it last received, reports when done, and a round closes when K different users have reported.

So a report may be about a model that is some rounds old; how many is its *staleness*. It is charged
in the round in which it is summed, and
bounded like any other: models of older rounds are public. That holds with one clip norm for the
whole run; nothing is claimed about how a cohort comes about. How long a device takes is drawn
without looking at its text: else who reports beside whom would reveal some of it.
"""

import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy

from taciturn import trees
from taciturn.core import FailedRound, Fleet, Key, Message, Params, Program, Report, UserIds
from taciturn.files import write_atomically
from taciturn.fleets.simulation.availability import TooFewDevices


class QueuedFleet:
    everyone_reports = False

    def __init__(
        self, fleet: Fleet, size: int, in_flight: int, folder: Path, coins: int = 0
    ) -> None:
        """`size` is K. `folder` keeps who trains on which model, those models, and those of the
        last round: a server that crashes stops no device, and may ask for that round again. `coins`
        decide who is asked and done when; they are secret.
        """
        self._fleet, self._size, self._in_flight, self._folder = fleet, size, in_flight, folder
        self._generator = np.random.default_rng(coins)
        # user → which model they have
        self._training: dict[int, int] = {}
        # the same of those whose reports wait to be summed
        self._arrived: dict[int, int] = {}
        self._rounds: dict[
            str,
            tuple[int, dict[int, int]],
            # by key: which model was current, and who had which
        ] = {}
        if (folder / "queue.json").exists():
            state = json.loads((folder / "queue.json").read_text())
            self._training, self._arrived = dict(state["training"]), dict(state["arrived"])
            self._rounds = {name: (now, dict(got)) for name, now, got in state["rounds"]}
            self._generator.bit_generator.state = state["generator"]

    @property
    def staleness(self) -> np.ndarray:
        """Return the staleness of every report, those of failed rounds included."""
        return np.array(
            [now - got for now, cohort in self._rounds.values() for got in cohort.values()],
            np.int64,
        )

    def stats(self) -> dict[str, float]:
        stale, uploads = self.staleness, len(self.staleness) + len(self._arrived)
        mean = float(stale.mean()) if len(stale) else 0.0
        return {
            "uploads": uploads,
            "staleness": mean,
            "largest_staleness": int(stale.max(initial=0)),
        }

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        """Return the K users who report next. A device that is done makes room for another, which
        gets the current model.
        """
        allowed = self._fleet.users(eligible)
        # both are right unless a file was changed
        for queue in (self._training, self._arrived):
            for user in set(queue) - set(allowed.tolist()):
                del queue[user]
        # Those who have arrived were there before a crash: no coin is tossed for them again.
        waiting = (
            self._generator.permutation(allowed).tolist() if len(self._arrived) < self._size else []
        )
        while len(self._arrived) < self._size:
            while len(self._training) < self._in_flight and waiting:
                user = waiting.pop()
                if user not in self._training and user not in self._arrived:
                    self._training[user] = len(self._rounds)
            if not self._training:
                few = (
                    f"{len(self._arrived)} devices have reported and {self._size} are needed, but"
                    " no other may take part"
                )
                raise TooFewDevices(
                    f"{few}: take smaller cohorts, fewer rounds, a shorter separation or more users"
                )
            # Devices take a memoryless time, so that each is equally likely to be done next.
            done = sorted(self._training)[self._generator.integers(len(self._training))]
            self._arrived[done] = self._training.pop(done)
        self._save()
        return np.sort(np.array(list(self._arrived)[: self._size]))

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        name = np.asarray(jax.random.key_data(key)).tobytes().hex()
        if name not in self._rounds:
            now = len(self._rounds)
            leaves = {
                f"{index}": np.asarray(leaf)
                for index, leaf in enumerate(jax.tree.leaves(jax.device_get(message.params)))
            }
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(self._path(now), safetensors.numpy.save(leaves), 0o600)
            self._rounds[name] = (
                now,
                {user: self._arrived.get(user, now) for user in cohort.tolist()},
            )
            self._arrived = {}
            self._save()
        now, got = self._rounds[name]
        if set(got) != set(cohort.tolist()):
            raise FailedRound("this round was already summed, with other devices")
        total = None
        for model in sorted(set(got.values()), reverse=True):
            params = message.params if model == now else self._model(model, message.params)
            group = np.array([user for user in cohort.tolist() if got[user] == model], np.int64)
            # One clip norm for the whole run, so only the parameters of an older message differ.
            part = self._fleet.sum_reports(program, message._replace(params=params), group, key)
            total = part if total is None else trees.add(total, part)
        if total is None:
            raise FailedRound("nobody reported")
        return total

    def _path(self, model: int) -> Path:
        return self._folder / f"model-{model}.safetensors"

    def _model(self, model: int, like: Params) -> Params:
        if not self._path(model).exists():
            raise FailedRound(
                f"the model of round {model} is gone, and with it what was trained on it"
            )
        leaves = safetensors.numpy.load(self._path(model).read_bytes())
        return jax.tree.unflatten(
            jax.tree.structure(like), [leaves[f"{index}"] for index in range(len(leaves))]
        )

    def _save(self) -> None:
        """Write the state, then delete the models that no device needs any more."""
        rounds = [(name, now, list(got.items())) for name, (now, got) in self._rounds.items()]
        queues = {"training": list(self._training.items()), "arrived": list(self._arrived.items())}
        state = {**queues, "rounds": rounds, "generator": self._generator.bit_generator.state}
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self._folder / "queue.json", json.dumps(state).encode(), 0o600)
        last = [
            model for now, got in list(self._rounds.values())[-1:] for model in (now, *got.values())
        ]
        needed = {*self._training.values(), *self._arrived.values(), *last}
        for path in set(self._folder.glob("model-*")) - set(map(self._path, needed)):
            path.unlink()
