"""What a finished run remembers: its canaries, looked for in its model with the ledger's word beside it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from taciturn import build
from taciturn.data.population import HeldOutUsers
from taciturn.evaluation.accuracy import Scores, evaluate
from taciturn.evaluation.canaries import Canary, load_canaries
from taciturn.evaluation.secret_sharer import REFERENCES, Finding, measure
from taciturn.loading import guarantee_of, load_word_model
from taciturn.planting import FILE_NAME
from taciturn.privacy.ledger import Guarantee
from taciturn.run import RunError, recipe_of

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Remembered:
    guarantee: Guarantee
    scores: Scores  # on held-out users: a model that learned nothing remembers nothing
    findings: list[Finding]
    seen: dict[Canary, float]  # how often the training met each, as was to be expected; local epochs not counted

    def kinds(self) -> list[tuple[int, int, list[Finding]]]:
        """By (n_u, n_e), as in Ramaswamy et al. 2020, Table 4; the best remembered first."""
        kinds = sorted({(one.canary.users, one.canary.copies) for one in self.findings})
        return [(users, copies, self._of(users, copies)) for users, copies in kinds]

    def _of(self, users: int, copies: int) -> list[Finding]:
        mine = (one for one in self.findings if (one.canary.users, one.canary.copies) == (users, copies))
        return sorted(mine, key=lambda one: one.rank)


def remembered(folder: Path, references: int = REFERENCES, progress: Progress = lambda done, all: None) -> Remembered:
    """Both attacks of the Secret Sharer on every canary that was planted in a run."""
    if not (folder / FILE_NAME).exists():
        raise RunError(
            f"no canaries were planted in {folder}: train with [canaries] text = a folder of public text, and look then"
        )
    loaded, recipe = load_word_model(folder), recipe_of(folder)
    guarantee = guarantee_of(loaded)
    seen = load_canaries(folder / FILE_NAME, loaded.vocabulary)
    network = build.language_model(recipe.model, len(loaded.vocabulary))
    held_out = HeldOutUsers(build.population(recipe).folder).texts
    scores = evaluate(network, loaded.params, held_out, build.evaluation_cut(recipe, loaded.vocabulary))
    findings = measure(loaded.model, loaded.vocabulary, list(seen), references, progress=progress)
    in_all = {canary: often * guarantee.releases for canary, often in seen.items()}
    return Remembered(guarantee, scores, findings, in_all)


def rank_text(rank: int) -> str:
    """As the paper prints it.

    >>> [rank_text(rank) for rank in (1, 762, 1_640, 41_200, 1_551_000)]
    ['1', '762', '1.6k', '41k', '1.55M']
    """
    if rank < 1000:
        return str(rank)
    if rank < 1_000_000:
        return f"{rank / 1000:.{1 if rank < 10_000 else 0}f}k"
    return f"{rank / 1e6:.{2 if math.floor(rank / 1e4) % 100 else 1}f}M"
