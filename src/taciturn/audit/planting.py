"""Canaries planted in a run: synthetic users who share them, beside its fleet and outside its claim (Ramaswamy et al. 2020, §IV-A).

Which canaries, and what else their users write, follows from the run's root and a public text. RUN/canaries.json says what was planted,
for `taciturn audit run` to look for.
"""

from pathlib import Path

import jax

from taciturn import randomness
from taciturn.audit.canaries import expected_sightings, make_canaries, save_canaries, synthetic_users
from taciturn.core import Fleet
from taciturn.data.public import PublicCorpus
from taciturn.data.texts import Texts
from taciturn.data.vocabulary import Vocabulary
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.fleets.simulation.synthetic_users import WithSyntheticUsers, by_coins
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe
from taciturn.train import TrainState

FILE_NAME = "canaries.json"


class PlantedCanaries:
    """Those of a recipe; a `RunObserver`. There is nothing to see before the model is finished."""

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary, root: bytes) -> None:
        if jax.process_count() > 1:
            raise ValueError("[canaries] are for runs on one host")
        section, self._vocabulary = recipe.canaries, vocabulary
        assert section.text  # or the recipe plants nothing
        corpus = PublicCorpus.load(Path(section.text))
        corpus.check_words(vocabulary, "[canaries] text")
        seed = int.from_bytes(randomness.derive(root, "canaries", 0)[:8], "big")
        canaries = make_canaries(vocabulary, seed, section.users, section.copies, section.per_cell)
        self._users = synthetic_users(canaries, corpus, seed, section.sentences)
        self.texts = Texts.of([user.tokens for user in self._users], len(vocabulary))
        self.most_at_once, self._rate = len(self._users), section.rate
        self._layout, self._weight_cap = build.layout(recipe, vocabulary), recipe.participation.weight_cap
        self.source = f"what {len(self._users)} synthetic users wrote, who took part beside the people ({corpus.source})"

    def beside(self, fleet: Fleet, most_reports: int) -> Fleet:
        theirs = SimulatedFleet(self, self._layout, self._weight_cap, self._rate * len(self._users))
        return WithSyntheticUsers(fleet, theirs, by_coins(len(self._users), self._rate), most_reports)

    def begin(self, round: int) -> None: ...

    def observe(self, before: TrainState, after: TrainState) -> None: ...

    def save(self, folder: Path, mode: int) -> None:
        """Once: what was planted does not change. It is nobody's secret, whatever the model is."""
        if not (folder / FILE_NAME).exists():
            seen = expected_sightings(self._users, self._rate, 1, self._layout)
            save_canaries(folder / FILE_NAME, seen, self._vocabulary)
