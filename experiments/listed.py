"""The runs that tables and figures are made of: PAPER/runs.toml lists them, PAPER/results holds what came of each.

A group of runs shares a recipe and seeds, and each run differs from the others in a few settings:

    [cohorts]
    about = "more people a round at the same σ"
    recipe = "paper.toml"
    seeds = [1, 2, 3]
    settings = { "privacy.clip_norm" = 15.0 }
    runs.100 = { "participation.cohort" = 100, "privacy.noise_multiplier" = 0.08 }
    runs.1250 = { "participation.cohort" = 1250, "privacy.noise_multiplier" = 1.0 }

A run may name a recipe of its own among its settings.
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

HERE = Path(__file__).parent
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
KEYS = {"about", "recipe", "seeds", "settings", "runs", "measures"}
MEASURES = {"clipped", "head-words", "canaries", "audit"}


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

    @property
    def id(self) -> str:
        return f"{self.group}-{self.name}-{self.seed}"

    @property
    def result(self) -> Path:
        return HERE / self.paper / "results" / f"{self.id}.json"

    @property
    def command(self) -> str:
        return f"python experiments/train.py {self.paper}/{self.group}"

    def loaded(self, *more: str) -> Recipe:
        """Its recipe; `more` settings win over all."""
        return load_recipe(HERE / self.paper / self.recipe, [*self.settings, f"run.seed={self.seed}", *more])


def papers() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/runs.toml"))


@cache
def listed(paper: str) -> tuple[ListedRun, ...]:
    """All runs of a paper, in the order of its list; of each group all runs with the first seed, then with the next."""
    path = HERE / paper / "runs.toml"
    if not path.exists():
        raise ListError(f"{paper} has no list of runs; there are {', '.join(papers())}")
    found = tuple(run for group, content in tomllib.loads(path.read_text()).items() for run in _group(paper, group, content))
    if len({run.id for run in found}) < len(found):
        raise ListError(f"{path} lists a run twice")
    return found


def chosen(what: list[str]) -> list[ListedRun]:
    """The runs of papers, or of groups as PAPER/GROUP; all there are, where nothing is named."""
    found: list[ListedRun] = []
    for one in what or papers():
        paper, _, group = one.partition("/")
        runs = [run for run in listed(paper) if group in ("", run.group)]
        if not runs:
            raise ListError(f"{paper} has no group {group}; it has {', '.join(dict.fromkeys(run.group for run in listed(paper)))}")
        found += runs
    return found


def _group(paper: str, group: str, content: dict[str, Any]) -> Iterator[ListedRun]:
    where = f"{paper}/runs.toml, {group}"
    unknown = set(content) - KEYS or set(content.get("measures", ())) - MEASURES
    if unknown or not {"about", "recipe", "seeds", "runs"} <= set(content):
        raise ListError(f"{where}: a group has about, recipe, seeds and runs, may have settings and measures, and has {sorted(content)}")
    for seed in content["seeds"]:
        for name, settings in content["runs"].items():
            if not NAME.fullmatch(f"{group}-{name}"):
                raise ListError(f"{where}: {name} names a file, and so is made of small letters, digits, points and dashes")
            both = {"recipe": content["recipe"], **content.get("settings", {}), **settings}
            recipe = both.pop("recipe")
            said = tuple(f"{key}={json.dumps(value)}" for key, value in both.items())
            yield ListedRun(paper, group, name, seed, recipe, said, tuple(content.get("measures", ())))
