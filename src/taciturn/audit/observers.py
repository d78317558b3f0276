"""What observes a run, to show afterwards what it revealed: its canaries and its audit users, if
the recipe has any.
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

    # what they bring into the model, for its card
    source: str
    # that report in a round
    most_at_once: int

    def beside(
        self,
        fleet: Fleet,
        most_reports: int,
        # with them added; a total holds at most so many reports
    ) -> Fleet: ...

    # before the round is summed, perhaps again
    def begin(self, round: int) -> None: ...

    # after a round
    def observe(self, before: TrainState, after: TrainState) -> None: ...

    def save(
        self,
        folder: Path,
        mode: int,
        # before the state: these rounds are not seen again
    ) -> None: ...


def run_observers(
    recipe: Recipe, vocabulary: Vocabulary, algorithm: Algorithm, params: Params, root: bytes
) -> list[RunObserver]:
    """Return the observers of a recipe whose noise is worked out. `params` may be any of the
    model's shape.
    """
    found: list[RunObserver] = []
    if recipe.canaries.text is not None:
        found.append(PlantedCanaries(recipe, vocabulary, root))
    if recipe.audit.users:
        found.append(AuditUsers(recipe=recipe, algorithm=algorithm, params=params, root=root))
    return found


def with_observers(fleet: Fleet, observers: Sequence[RunObserver], most_reports: int) -> Fleet:
    """Add them all to a fleet, keeping room in a total for those added later."""
    for place, one in enumerate(observers):
        later = sum(other.most_at_once for other in observers[place + 1 :])
        fleet = one.beside(fleet, most_reports - later)
    return fleet
