"""The papers' page: experiments/README.md and its figures, made of the committed results.

A paper's figures.py says, for each of its tables and figures, what they print, what the results
say, and whether the claim holds. What has no results yet is «not run», with the command that would
run it.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import NamedTuple

from lib.results import Group
from lib.run_lists import HERE

PAPERS = ("mcmahan2018", "ramaswamy2020", "popov2018", "xu2023")
OWN = "keyboard"  # what the papers' private models come to at a real ε; a page of its own
BEGINNING = (HERE / "beginning.md").read_text()


class Verdict(StrEnum):
    HOLDS = "holds"
    PART = "in part"
    FAILS = "does not hold"
    CANNOT = "cannot be shown here"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper, beside ours."""

    name: str
    about: str
    theirs: str  # what they print, or claim
    ours: str
    verdict: Verdict
    seeds: int = 0  # 0: computed, not trained
    command: str = ""
    details: str = ""  # in Markdown
    figures: dict[str, str] = field(default_factory=dict)  # by file name


def not_run(name: str, about: str, theirs: str, command: str, so_far: str = "") -> Item:
    return Item(name, about, theirs, so_far or "–", Verdict.NOT_RUN, command=command)


def cannot(name: str, about: str, theirs: str, why: str) -> Item:
    return Item(name, about, theirs, why, Verdict.CANNOT)


class Judged(NamedTuple):
    """What the results of an item come to."""

    ours: str
    verdict: Verdict
    details: str = ""
    figures: dict[str, str] = {}


def judged(
    paper: str, groups: str, name: str, about: str, theirs: str
) -> Callable[[Callable[..., Judged]], Callable[[], Item]]:
    """An item that is judged by the results of one or several groups: not run, as long as a run of
    them has none.
    """

    def with_results(judge: Callable[..., Judged]) -> Callable[[], Item]:
        def item() -> Item:
            found = [Group(paper, group) for group in groups.split()]
            command = " ".join(
                ["python experiments/train.py", *(f"{paper}/{group.name}" for group in found)]
            )
            if not all(group.is_whole for group in found):
                done, wanted = (
                    sum(group.done for group in found),
                    sum(group.wanted for group in found),
                )
                return not_run(
                    name, about, theirs, command, f"{done} of {wanted} runs" if done else ""
                )
            ours, verdict, details, figures = judge(*found)
            return Item(
                name,
                about,
                theirs,
                ours,
                verdict,
                min(group.seeds for group in found),
                command,
                details,
                figures,
            )

        return item

    return with_results


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def figures_of(paper: str) -> ModuleType:
    """PAPER/figures.py, which has TITLE and `items()`."""
    spec = importlib.util.spec_from_file_location(f"{paper}_figures", HERE / paper / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page() -> dict[Path, str]:
    """Every file that is made, by its path under experiments/."""
    made: dict[Path, str] = {}
    summary, sections = [], []
    for paper in PAPERS:
        module = figures_of(paper)
        items: list[Item] = module.items()
        summary += [_row(paper, item) for item in items]
        sections += [
            f"## {module.TITLE}",
            wrapped(module.ABOUT.strip()),
            *(_section(paper, item) for item in items if item.details or item.figures),
        ]
        made |= {
            Path(paper) / "figures" / name: svg
            for item in items
            for name, svg in item.figures.items()
        }
    module = figures_of(OWN)
    items = module.items()
    summary += [_row(OWN, item, f"{OWN}/README.md") for item in items]
    shown = [_section(OWN, item, "figures") for item in items if item.details or item.figures]
    own = [
        (HERE / OWN / "beginning.md").read_text().strip(),
        *shown,
        (HERE / OWN / "ending.md").read_text().strip(),
    ]
    made |= {
        Path(OWN) / "figures" / name: svg for item in items for name, svg in item.figures.items()
    }
    made[Path(OWN) / "README.md"] = "\n\n".join(own) + "\n"
    counts = ", ".join(
        f"{sum(f'**{verdict}**' in row[-2] for row in summary)} {verdict}" for verdict in Verdict
    )
    head = ("", "what it shows", "paper", "ours", "seeds", "verdict", "command")
    top = f"{BEGINNING.strip()}\n\n{counts[0].upper()}{counts[1:]}.\n\n{table(head, summary)}"
    return {Path("README.md"): "\n\n".join([top, *sections]) + "\n", **made}


def _row(paper: str, item: Item, where: str = "") -> tuple[str, ...]:
    name = f"{paper}, {item.name}"
    linked = f"[{name}]({where}#{_anchor(name)})" if item.details or item.figures else name
    seeds = (
        str(item.seeds)
        if item.seeds
        else ""
        if item.verdict in (Verdict.NOT_RUN, Verdict.CANNOT)
        else "computed"
    )
    return (
        linked,
        item.about,
        item.theirs,
        item.ours,
        seeds,
        f"**{item.verdict}**",
        f"`{item.command}`" if item.command else "",
    )


def _section(paper: str, item: Item, folder: str = "") -> str:
    drawn = [
        f"![{paper}, {item.name}]({folder or f'{paper}/figures'}/{name})" for name in item.figures
    ]
    return "\n\n".join(
        [
            f"### {paper}, {item.name}",
            f"{item.about}.",
            *drawn,
            *filter(None, [wrapped(item.details)]),
        ]
    )


def wrapped(text: str) -> str:
    """Wrap paragraphs; tables stay as they are."""
    return "\n\n".join(
        part if part.startswith("|") else fill(part, 120, break_on_hyphens=False)
        for part in text.split("\n\n")
    )


def _anchor(heading: str) -> str:
    kept = "".join(sign for sign in heading.lower() if sign.isalnum() or sign in " -")
    return kept.replace(" ", "-")
