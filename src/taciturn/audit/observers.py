"""Who looks on while a run trains, to say afterwards what it gave away: its canaries and its audit users, if the recipe has any."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from taciturn.audit.audit_users import AuditUsers
from taciturn.audit.planting import PlantedCanaries
from taciturn.core import Algorithm, Fleet, Params
from taciturn.data.vocabulary import Vocabulary
from taciturn.recipe.recipe import Recipe
from taciturn.train import TrainState


class RunObserver(Protocol):
    """Users who were made up, beside a run's own and outside its claim, and what is written down of them."""

    @property
    def source(self) -> str:
        """What they bring into the model, in words, for its card."""
        ...

    @property
    def most_at_once(self) -> int:
        """How many of them report in a round, at most."""
        ...

    def beside(self, fleet: Fleet, most_reports: int) -> Fleet:
        """That fleet with them added, where a total of both holds `most_reports`."""
        ...

    def begin(self, round: int) -> None:
        """A round is about to be summed, perhaps once more."""
        ...

    def observe(self, before: TrainState, after: TrainState) -> None:
        """A round is over, and this is what came of it."""
        ...

    def save(self, folder: Path, mode: int) -> None:
        """Into the run's folder, before the state that knows of these rounds: they are not seen again. `mode` is the model's."""
        ...


def run_observers(
    recipe: Recipe, vocabulary: Vocabulary, algorithm: Algorithm, params: Params, root: bytes
) -> list[RunObserver]:
    """Those of a recipe whose noise is worked out. `params` may be any of the model's shape."""
    found: list[RunObserver] = []
    if recipe.canaries.text is not None:
        found.append(PlantedCanaries(recipe, vocabulary, root))
    if recipe.audit.users:
        found.append(AuditUsers(recipe, algorithm, params, root))
    return found


def with_observers(fleet: Fleet, observers: Sequence[RunObserver], most_reports: int) -> Fleet:
    """That fleet with all of them added; room in a total is kept free for those who are added later."""
    for place, one in enumerate(observers):
        later = sum(other.most_at_once for other in observers[place + 1 :])
        fleet = one.beside(fleet, most_reports - later)
    return fleet
