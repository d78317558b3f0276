"""The runs that tables and figures are made of: PAPER/runs.toml lists them, PAPER/results holds
the result of each.

A group of runs shares a recipe and seeds, and each run differs from the others in a few settings:

    [cohorts]
    about = "more people a round at the same σ"
    item = 2
    recipe = "paper.toml"
    seeds = [1, 2, 3]
    settings = { "privacy.clip_norm" = 15.0 }
    runs.100 = { "participation.cohort" = 100, "privacy.noise_multiplier" = 0.08 }
    runs.1250 = { "participation.cohort" = 1250, "privacy.noise_multiplier" = 1.0 }

A run may name a recipe of its own among its settings. A group with `seeded = false` is run without
`run.seed`, as real people's runs are: its seeds only count the runs. `item` says when a group is
run: items 1 to 6 are the papers' main claims, 7 and 8 what stands beside them, 9 and 10 the rest;
within such a turn every group gets its first seed before any gets its second.
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
KEYS = {"about", "item", "recipe", "seeds", "seeded", "settings", "runs", "measures"}
OPTIONAL_KEYS = {"seeded", "settings", "measures"}
# The last item of each turn.
LAST_OF_TURN = (6, 8, 10)
MEASURES = {"clipped", "head-words", "canaries", "audit", "typed"}


class ListError(Exception):
    """What is wrong with a list of runs."""


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    paper: str
    group: str
    name: str
    seed: int
    # A file beside the list.
    recipe: str
    # section.key=value, which win over the recipe's.
    settings: tuple[str, ...]
    # What is looked at besides accuracy.
    measures: tuple[str, ...] = ()
    # Whether the run is given its seed. Noise that follows from one can be subtracted again.
    is_seeded: bool = True
    item: int = LAST_OF_TURN[-1]
    # Seeds of its group that come before its own.
    repeats: int = 0

    @property
    def id(self) -> str:
        return f"{self.group}-{self.name}-{self.seed}"

    @property
    def result(self) -> Path:
        return HERE / self.paper / "results" / f"{self.id}.json"

    @property
    def turn(self) -> tuple[int, int, int]:
        """Return when it is run, as something to sort by."""
        last_item = next(last for last in LAST_OF_TURN if self.item <= last)
        return last_item, self.repeats, self.item

    def load_recipe(self, *more: str) -> Recipe:
        """Load its recipe; `more` settings win over all."""
        path = HERE / self.paper / self.recipe
        seed = [f"run.seed={self.seed}"] if self.is_seeded else []
        return load_recipe(path, [*self.settings, *seed, *more])


def papers() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/runs.toml"))


@cache
def read_list(paper: str) -> tuple[ListedRun, ...]:
    """Return all runs of a paper, in the order of its list; of each group all runs with the first
    seed, then with the next.
    """
    path = HERE / paper / "runs.toml"
    if not path.exists():
        raise ListError(f"{paper} has no list of runs; there are {', '.join(papers())}")
    runs: list[ListedRun] = []
    for group, content in tomllib.loads(path.read_text()).items():
        runs += _list_group(paper, group, content)
    ids = {run.id for run in runs}
    if len(ids) < len(runs):
        raise ListError(f"{path} lists a run twice")
    return tuple(runs)


def choose_runs(what: list[str]) -> list[ListedRun]:
    """Return the runs of papers, or of groups as PAPER/GROUP, in the order in which they are run;
    all there are, where nothing is named.
    """
    chosen: list[ListedRun] = []
    for name in what or papers():
        paper, _, group = name.partition("/")
        listed = read_list(paper)
        runs = [run for run in listed if group in ("", run.group)]
        if not runs:
            groups = dict.fromkeys(run.group for run in listed)
            raise ListError(f"{paper} has no group {group}; it has {', '.join(groups)}")
        chosen += runs
    return sorted(chosen, key=lambda run: run.turn)


def _list_group(paper: str, group: str, content: dict[str, Any]) -> Iterator[ListedRun]:
    where = f"{paper}/runs.toml, {group}"
    _check_keys(where, content)
    for repeats, seed in enumerate(content["seeds"]):
        for name, settings in content["runs"].items():
            _check_name(where, group, name)
            common = {"recipe": content["recipe"], **content.get("settings", {})}
            both = common | settings
            recipe = both.pop("recipe")
            yield ListedRun(
                paper=paper,
                group=group,
                name=name,
                seed=seed,
                recipe=recipe,
                settings=tuple(f"{key}={json.dumps(value)}" for key, value in both.items()),
                measures=tuple(content.get("measures", ())),
                is_seeded=content.get("seeded", True),
                item=content["item"],
                repeats=repeats,
            )


def _check_keys(where: str, content: dict[str, Any]) -> None:
    unknown = set(content) - KEYS
    unknown |= set(content.get("measures", ())) - MEASURES
    missing = KEYS - OPTIONAL_KEYS - set(content)
    items = range(1, LAST_OF_TURN[-1] + 1)
    if unknown or missing or content["item"] not in items:
        raise ListError(
            f"{where}: a group has about, an item from 1 to {LAST_OF_TURN[-1]}, recipe, seeds and"
            f" runs, may have seeded, settings and measures, and has {sorted(content)}"
        )


def _check_name(where: str, group: str, name: str) -> None:
    if not NAME.fullmatch(f"{group}-{name}"):
        raise ListError(
            f"{where}: {name} names a file, and so is made of small letters, digits, points"
            " and dashes"
        )
