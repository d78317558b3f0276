"""A simulated fleet with a queue (Popov et al. 2018, Figure 1).

A device trains on the model that it last received, and reports when done; a round closes when K
different users have reported. So a report may be about a model that is some rounds old; how many is
its *staleness*. It is charged in the round in which it is summed, and bounded like any other:
models of older rounds are public. That holds with one clip norm for the whole run; nothing is
claimed about how a cohort forms. How long a device takes is drawn without looking at its
text: else who reports beside whom would reveal some of it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors.numpy

from taciturn import trees
from taciturn.core import FailedRound, Fleet, Key, Message, Params, Program, Report, UserIds
from taciturn.files import write_atomically
from taciturn.fleets.simulation.availability import TooFewDevices


class _Round(NamedTuple):
    """A round that was summed; models are known by the number of the round they were current in."""

    model: int
    # The model that each of its users had trained on.
    trained_on: dict[int, int]


class QueuedFleet:
    everyone_reports = False

    def __init__(
        self, fleet: Fleet, *, size: int, in_flight: int, folder: Path, coins: int = 0
    ) -> None:
        """Open the fleet, with its queue if there is one.

        Args:
            fleet: Sums the reports.
            size: K: the number of users in a round.
            in_flight: The number of devices that train at a time.
            folder: Keeps who trains on which model, those models, and those of the last round: a
                server that crashes stops no device, and may ask for that round again.
            coins: A secret seed, which decides who is asked and done when.
        """
        self._fleet = fleet
        self._size = size
        self._in_flight = in_flight
        self._folder = folder
        self._state_path = folder / "queue.json"
        self._generator = np.random.default_rng(coins)
        # The model that each user trains on.
        self._training: dict[int, int] = {}
        # The model of each user whose report waits to be summed.
        self._arrived: dict[int, int] = {}
        # Rounds by their keys.
        self._rounds: dict[str, _Round] = {}
        if self._state_path.exists():
            self._restore()

    def _restore(self) -> None:
        state = json.loads(self._state_path.read_text())
        self._training = dict(state["training"])
        self._arrived = dict(state["arrived"])
        for name, model, trained_on in state["rounds"]:
            self._rounds[name] = _Round(model, dict(trained_on))
        self._generator.bit_generator.state = state["generator"]

    @property
    def staleness(self) -> np.ndarray:
        """Return the staleness of every report, those of failed rounds included."""
        staleness = []
        for round in self._rounds.values():
            staleness += [round.model - model for model in round.trained_on.values()]
        return np.array(staleness, np.int64)

    def stats(self) -> dict[str, float]:
        staleness = self.staleness
        return {
            "uploads": len(staleness) + len(self._arrived),
            "staleness": float(staleness.mean()) if len(staleness) else 0.0,
            "largest_staleness": int(staleness.max(initial=0)),
        }

    def users(self, eligible: Callable[[UserIds], UserIds]) -> UserIds:
        """Return the K users who report next.

        A device that is done makes room for another, which gets the current model.
        """
        allowed = self._fleet.users(eligible)
        self._drop_all_but(set(allowed.tolist()))
        waiting: list[int] = []
        # Those who have arrived were there before a crash: no coin is tossed for them again.
        if len(self._arrived) < self._size:
            waiting = self._generator.permutation(allowed).tolist()
        while len(self._arrived) < self._size:
            self._hand_out_models(waiting)
            if not self._training:
                raise TooFewDevices(
                    f"{len(self._arrived)} devices have reported and {self._size} are needed, but"
                    " no other may take part: take smaller cohorts, fewer rounds, a shorter"
                    " separation or more users"
                )
            self._let_one_finish()
        self._save()
        return np.sort(np.array(list(self._arrived)[: self._size]))

    def _drop_all_but(self, allowed: set[int]) -> None:
        """Drop users that may not take part, of which there are none unless a file was changed."""
        for queue in (self._training, self._arrived):
            for user in set(queue) - allowed:
                del queue[user]

    def _hand_out_models(self, waiting: list[int]) -> None:
        """Give the current model to those who wait, until enough devices train."""
        while len(self._training) < self._in_flight and waiting:
            user = waiting.pop()
            if user not in self._training and user not in self._arrived:
                self._training[user] = len(self._rounds)

    def _let_one_finish(self) -> None:
        """Let a device report.

        Devices take a memoryless time, so that each is equally likely to be done next.
        """
        place = self._generator.integers(len(self._training))
        user = sorted(self._training)[place]
        self._arrived[user] = self._training.pop(user)

    def sum_reports(self, program: Program, message: Message, cohort: UserIds, key: Key) -> Report:
        name = _name_round(key)
        if name not in self._rounds:
            self._close_round(name, message.params, cohort)
        round = self._rounds[name]
        users = cohort.tolist()
        if set(round.trained_on) != set(users):
            raise FailedRound("this round was already summed, with other devices")
        total = None
        models = set(round.trained_on.values())
        for model in sorted(models, reverse=True):
            group = [user for user in users if round.trained_on[user] == model]
            part = self._fleet.sum_reports(
                program,
                message if model == round.model else self._older_message(message, model),
                np.array(group, np.int64),
                key,
            )
            total = part if total is None else trees.add(total, part)
        if total is None:
            raise FailedRound("nobody reported")
        return total

    def _older_message(self, message: Message, model: int) -> Message:
        """Return the message of an older round.

        One clip norm holds for the whole run, so only the parameters differ.
        """
        params = self._load_model(model, like=message.params)
        return message._replace(params=params)

    def _close_round(self, name: str, params: Params, cohort: UserIds) -> None:
        """Keep the round's model and who had which, and begin the next queue."""
        model = len(self._rounds)
        self._save_model(model, params)
        trained_on = {user: self._arrived.get(user, model) for user in cohort.tolist()}
        self._rounds[name] = _Round(model, trained_on)
        self._arrived = {}
        self._save()

    def _model_path(self, model: int) -> Path:
        return self._folder / f"model-{model}.safetensors"

    def _save_model(self, model: int, params: Params) -> None:
        leaves = {}
        for index, leaf in enumerate(jax.tree.leaves(jax.device_get(params))):
            leaves[f"{index}"] = np.asarray(leaf)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self._model_path(model), safetensors.numpy.save(leaves), 0o600)

    def _load_model(self, model: int, like: Params) -> Params:
        path = self._model_path(model)
        if not path.exists():
            raise FailedRound(
                f"the model of round {model} is gone, and with it what was trained on it"
            )
        leaves = safetensors.numpy.load(path.read_bytes())
        in_order = [leaves[f"{index}"] for index in range(len(leaves))]
        return jax.tree.unflatten(jax.tree.structure(like), in_order)

    def _save(self) -> None:
        """Write the state, then delete the models that no device needs any more."""
        content = json.dumps(self._state())
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self._state_path, content.encode(), 0o600)
        self._delete_models_but(self._models_needed())

    def _state(self) -> dict[str, Any]:
        rounds = [
            (name, round.model, list(round.trained_on.items()))
            for name, round in self._rounds.items()
        ]
        return {
            "training": list(self._training.items()),
            "arrived": list(self._arrived.items()),
            "rounds": rounds,
            "generator": self._generator.bit_generator.state,
        }

    def _models_needed(self) -> set[int]:
        """Return the models that devices have, and those of the last round."""
        needed = {*self._training.values(), *self._arrived.values()}
        if self._rounds:
            last = list(self._rounds.values())[-1]
            needed.add(last.model)
            needed.update(last.trained_on.values())
        return needed

    def _delete_models_but(self, needed: set[int]) -> None:
        paths_needed = {self._model_path(model) for model in needed}
        for path in set(self._folder.glob("model-*")) - paths_needed:
            path.unlink()


def _name_round(key: Key) -> str:
    """Name a round by its key, which no other has."""
    key_data = np.asarray(jax.random.key_data(key))
    return key_data.tobytes().hex()
