"""The commands of the experiments' pages are those that the recipes they name can be trained
with.
"""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from taciturn.recipe.text import load_recipe

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PAGES = sorted(EXPERIMENTS.glob("*/README.md"))


def trainings(page: str) -> list[str]:
    """Every `taciturn train RECIPE` of a page, in one line each."""
    return re.findall(r"^taciturn train experiments/.*$", page.replace("\\\n", " "), re.MULTILINE)


def refused(command: str) -> bool:
    """Whether the command is without the consent that a recipe without privacy asks for, or with
    one that is not asked for.
    """
    words = command.partition("#")[0].split()
    settings = [after for word, after in pairwise(words) if word == "--set"]
    recipe = load_recipe(EXPERIMENTS.parent / words[2], settings)
    return recipe.is_private == ("--non-private" in words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_whoever_types_a_command_of_a_page_is_not_sent_away(page):
    assert not [command for command in trainings(page.read_text()) if refused(command)]


def test_a_command_that_would_be_refused_is_noticed():
    """The twins."""
    assert refused("taciturn train experiments/popov2018/ten.toml --set run.rounds=2")
    assert refused("taciturn train experiments/popov2018/private.toml --non-private")
    assert sum(len(trainings(page.read_text())) for page in PAGES) >= 1
