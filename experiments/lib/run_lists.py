"""The runs that tables and figures are made of: PAPER/runs.toml lists them, PAPER/results holds
what came of each.

A group of runs shares a recipe and seeds, and each run differs from the others in a few settings:

    [cohorts]
    about = "more people a round at the same σ"
    item = 2
    recipe = "paper.toml"
    seeds = [1, 2, 3]
    settings = { "privacy.clip_norm" = 15.0 }
    runs.100 = { "participation.cohort" = 100, "privacy.noise_multiplier" = 0.08 }
    runs.1250 = { "participation.cohort" = 1250, "privacy.noise_multiplier" = 1.0 }

A run may name a recipe of its own among its settings. `item` says when a group is run: items 1 to 6
are the papers' main claims, 7 and 8 what stands beside them, 9 and 10 the rest; within such a turn
every group gets its first seed before any gets its second.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from taciturn.recipe.recipe import Recipe
from taciturn.recipe.text import load_recipe

HERE = Path(__file__).parents[1]
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
KEYS = {"about", "item", "recipe", "seeds", "settings", "runs", "measures"}
LAST_OF_TURN = (6, 8, 10)  # items
MEASURES = {"clipped", "head-words", "canaries", "audit", "typed"}


class ListError(Exception):
    """What is wrong with a list of runs."""


@dataclass(frozen=True)
class ListedRun:
    paper: str
    group: str
    name: str
    seed: int
    recipe: str  # a file beside the list
    settings: tuple[str, ...]  # section.key=value, which win over the recipe's
    measures: tuple[str, ...] = ()  # what is looked at besides accuracy
    item: int = LAST_OF_TURN[-1]
    repeats: int = 0  # seeds of its group that come before its own

    @property
    def id(self) -> str:
        return f"{self.group}-{self.name}-{self.seed}"

    @property
    def result(self) -> Path:
        return HERE / self.paper / "results" / f"{self.id}.json"

    @property
    def turn(self) -> tuple[int, int, int]:
        """When it is run, as something to sort by."""
        return next(last for last in LAST_OF_TURN if self.item <= last), self.repeats, self.item

    def loaded(self, *more: str) -> Recipe:
        """Its recipe; `more` settings win over all."""
        return load_recipe(
            HERE / self.paper / self.recipe, [*self.settings, f"run.seed={self.seed}", *more]
        )


def papers() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/runs.toml"))


@cache
def read_list(paper: str) -> tuple[ListedRun, ...]:
    """All runs of a paper, in the order of its list; of each group all runs with the first seed,
    then with the next.
    """
    path = HERE / paper / "runs.toml"
    if not path.exists():
        raise ListError(f"{paper} has no list of runs; there are {', '.join(papers())}")
    found = tuple(
        run
        for group, content in tomllib.loads(path.read_text()).items()
        for run in _group(paper, group, content)
    )
    if len({run.id for run in found}) < len(found):
        raise ListError(f"{path} lists a run twice")
    return found


def choose_runs(what: list[str]) -> list[ListedRun]:
    """Return the runs of papers, or of groups as PAPER/GROUP, in the order in which they are run;
    all there are, where nothing is named.
    """
    found: list[ListedRun] = []
    for one in what or papers():
        paper, _, group = one.partition("/")
        runs = [run for run in read_list(paper) if group in ("", run.group)]
        if not runs:
            raise ListError(
                f"{paper} has no group {group}; it has"
                f" {', '.join(dict.fromkeys(run.group for run in read_list(paper)))}"
            )
        found += runs
    return sorted(found, key=lambda run: run.turn)


def _group(paper: str, group: str, content: dict[str, Any]) -> Iterator[ListedRun]:
    where = f"{paper}/runs.toml, {group}"
    unknown = set(content) - KEYS or set(content.get("measures", ())) - MEASURES
    if (
        unknown
        or not KEYS - {"settings", "measures"} <= set(content)
        or content["item"] not in range(1, LAST_OF_TURN[-1] + 1)
    ):
        raise ListError(
            f"{where}: a group has about, an item from 1 to {LAST_OF_TURN[-1]}, recipe, seeds and"
            f" runs, may have settings and measures, and has {sorted(content)}"
        )
    for repeats, seed in enumerate(content["seeds"]):
        for name, settings in content["runs"].items():
            if not NAME.fullmatch(f"{group}-{name}"):
                raise ListError(
                    f"{where}: {name} names a file, and so is made of small letters, digits, points"
                    " and dashes"
                )
            both = {"recipe": content["recipe"], **content.get("settings", {}), **settings}
            recipe = both.pop("recipe")
            said = tuple(f"{key}={json.dumps(value)}" for key, value in both.items())
            yield ListedRun(
                paper,
                group,
                name,
                seed,
                recipe,
                said,
                tuple(content.get("measures", ())),
                content["item"],
                repeats,
            )
