"""What observes a run, to show afterwards what it revealed.

That is its canaries and its audit users, if the recipe has any.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from taciturn.audit.audit_users import AuditUsers
from taciturn.audit.canaries import PlantedCanaries
from taciturn.core import Algorithm, Fleet, Params
from taciturn.data.vocabulary import Vocabulary
from taciturn.recipe.recipe import Recipe
from taciturn.training import TrainState


class RunObserver(Protocol):
    """Synthetic users beside a run's own and outside its claim, and the record of them."""

    # What they bring into the model, for its card.
    source: str
    # How many of them report in a round, at most.
    most_at_once: int

    def beside(self, fleet: Fleet, most_reports: int) -> Fleet:
        """Return the fleet with them added.

        Args:
            fleet: of the people, and of other observers.
            most_reports: how many reports a total holds at most, theirs included.
        """
        ...

    def begin(self, round: int) -> None:
        """Take note of a round before it is summed, perhaps not for the first time."""
        ...

    def observe(self, before: TrainState, after: TrainState) -> None:
        """Record what can be seen after a round."""
        ...

    def save(self, folder: Path, mode: int) -> None:
        """Save the record; it is done before the state is saved, as its rounds are not seen again.

        Args:
            folder: the run's.
            mode: of the model's file.
        """
        ...


def run_observers(
    recipe: Recipe, vocabulary: Vocabulary, algorithm: Algorithm, params: Params, root: bytes
) -> list[RunObserver]:
    """Return the observers of a recipe.

    Args:
        recipe: its noise must be worked out.
        vocabulary: of the run.
        algorithm: of the run.
        params: any of the model's shape.
        root: of all random numbers of the run.
    """
    observers: list[RunObserver] = []
    if recipe.canaries.text is not None:
        observers.append(PlantedCanaries(recipe, vocabulary, root))
    if recipe.audit.users:
        audit_users = AuditUsers(recipe=recipe, algorithm=algorithm, params=params, root=root)
        observers.append(audit_users)
    return observers


def with_observers(fleet: Fleet, observers: Sequence[RunObserver], most_reports: int) -> Fleet:
    """Add them all to a fleet, keeping room in a total for those added later."""
    for place, observer in enumerate(observers):
        later = sum(other.most_at_once for other in observers[place + 1 :])
        fleet = observer.beside(fleet, most_reports - later)
    return fleet
