"""Secrets planted in a run: synthetic users who share canaries, beside its fleet and outside its claim (Ramaswamy et al. 2020, §IV-A).

Which canaries, and what else their users write, follows from the run's root and a public text. RUN/canaries.json says what was planted,
for `taciturn audit` to look for.
"""

from dataclasses import dataclass
from pathlib import Path

import jax

from taciturn import randomness
from taciturn.audit.canaries import SyntheticUser, expected_sightings, make_canaries, save_canaries, synthetic_users
from taciturn.core import Fleet
from taciturn.data.public import PublicCorpus
from taciturn.data.texts import Texts
from taciturn.data.vocabulary import Vocabulary
from taciturn.fleets.simulation.in_process import SimulatedFleet
from taciturn.fleets.simulation.synthetic_users import WithSyntheticUsers, by_coins
from taciturn.recipe import build
from taciturn.recipe.recipe import Recipe

FILE_NAME = "canaries.json"


@dataclass(frozen=True)
class Planted:
    users: list[SyntheticUser]
    texts: Texts  # of these users
    source: str  # of what they write besides

    def save(self, folder: Path, recipe: Recipe, vocabulary: Vocabulary) -> None:
        seen = expected_sightings(self.users, recipe.canaries.rate, 1, build.layout(recipe, vocabulary))
        save_canaries(folder / FILE_NAME, seen, vocabulary)


def planted(recipe: Recipe, vocabulary: Vocabulary, root: bytes) -> Planted | None:
    """What a recipe plants, if it does."""
    section = recipe.canaries
    if section.text is None:
        return None
    if jax.process_count() > 1:
        raise ValueError("[canaries] are for runs on one host")
    corpus = PublicCorpus.load(Path(section.text))
    if corpus.vocabulary.words != vocabulary.words:
        raise ValueError("[canaries] text has other words than the population; make it with --vocabulary POPULATION")
    seed = int.from_bytes(randomness.derive(root, "canaries", 0)[:8], "big")
    canaries = make_canaries(vocabulary, seed, section.users, section.copies, section.per_cell)
    users = synthetic_users(canaries, corpus, seed, section.sentences)
    return Planted(users, Texts.of([user.tokens for user in users], len(vocabulary)), corpus.source)


def with_planted(
    fleet: Fleet, planted: Planted | None, recipe: Recipe, vocabulary: Vocabulary, most_reports: int
) -> Fleet:
    if planted is None:
        return fleet
    section = recipe.canaries
    cohort = section.rate * len(planted.users)
    beside = SimulatedFleet(planted, build.layout(recipe, vocabulary), recipe.participation.weight_cap, cohort)
    return WithSyntheticUsers(fleet, beside, by_coins(len(planted.users), section.rate), most_reports)
