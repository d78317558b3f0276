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
# Where the papers' private models stand at a real ε: a page of its own.
OWN = "keyboard"
BEGINNING = (HERE / "beginning.md").read_text()
HEAD = ("", "what it shows", "paper", "ours", "seeds", "verdict", "command")


class Verdict(StrEnum):
    HOLDS = "holds"
    PART = "in part"
    FAILS = "does not hold"
    CANNOT = "cannot be shown here"
    NOT_RUN = "not run"


def choose_verdict(*, holds: bool, in_part: bool = False) -> Verdict:
    """Return the verdict of a claim that holds, holds in part, or does neither."""
    if holds:
        return Verdict.HOLDS
    return Verdict.PART if in_part else Verdict.FAILS


def judge_parts(parts: Sequence[bool]) -> Verdict:
    """Return the verdict of a claim by its parts."""
    return choose_verdict(holds=all(parts), in_part=any(parts))


# Of several claims.
PLURALS = {
    Verdict.HOLDS: "hold",
    Verdict.PART: "hold in part",
    Verdict.FAILS: "do not hold",
    Verdict.CANNOT: "cannot be shown here",
    Verdict.NOT_RUN: "not run",
}


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure of a paper, beside ours."""

    name: str
    about: str
    # What they print, or claim.
    theirs: str
    ours: str
    verdict: Verdict
    # 0 where ours is computed, not trained.
    seeds: int = 0
    command: str = ""
    # In Markdown.
    details: str = ""
    # By file name.
    figures: dict[str, str] = field(default_factory=dict)

    @property
    def has_section(self) -> bool:
        return bool(self.details or self.figures)


def mark_not_run(*, name: str, about: str, theirs: str, command: str, so_far: str = "") -> Item:
    """Return an item that has no results yet, or too few of them."""
    return Item(
        name=name,
        about=about,
        theirs=theirs,
        ours=so_far or "–",
        verdict=Verdict.NOT_RUN,
        command=command,
    )


def mark_impossible(*, name: str, about: str, theirs: str, why: str) -> Item:
    """Return an item that cannot be shown here."""
    return Item(name=name, about=about, theirs=theirs, ours=why, verdict=Verdict.CANNOT)


class Judged(NamedTuple):
    """What the results of an item say of the paper's claim."""

    ours: str
    verdict: Verdict
    details: str = ""
    figures: dict[str, str] = {}


def judge_by_groups(
    *, paper: str, groups: str, name: str, about: str, theirs: str
) -> Callable[[Callable[..., Judged]], Callable[[], Item]]:
    """Make an item of a function that judges the results of one or several groups.

    The item is not run, as long as a run of the groups has no result.

    Args:
        paper: whose list has the groups.
        groups: their names, with spaces between them.
        name: what the paper calls the table or figure.
        about: what it shows.
        theirs: what they print, or claim.
    """

    def with_results(judge: Callable[..., Judged]) -> Callable[[], Item]:
        def make_item() -> Item:
            found = [Group(paper, group) for group in groups.split()]
            lists = [f"{paper}/{group.name}" for group in found]
            command = " ".join(["python experiments/train.py", *lists])
            if not all(group.is_whole for group in found):
                return mark_not_run(
                    name=name,
                    about=about,
                    theirs=theirs,
                    command=command,
                    so_far=_count_results(found),
                )
            judged = judge(*found)
            return Item(
                name=name,
                about=about,
                theirs=theirs,
                ours=judged.ours,
                verdict=judged.verdict,
                seeds=min(group.seeds for group in found),
                command=command,
                details=judged.details,
                figures=judged.figures,
            )

        return make_item

    return with_results


def _count_results(groups: Sequence[Group]) -> str:
    done = sum(group.results_count for group in groups)
    wanted = sum(group.wanted for group in groups)
    return f"{done} of {wanted} runs" if done else ""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [_table_line(head), _table_line(["---"] * len(head))]
    lines += [_table_line(row) for row in rows]
    return "\n".join(lines)


def _table_line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def load_figures(paper: str) -> ModuleType:
    """Load PAPER/figures.py, which has TITLE and `items()`."""
    spec = importlib.util.spec_from_file_location(f"{paper}_figures", HERE / paper / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page() -> dict[Path, str]:
    """Return every file that is made, by its path under experiments/."""
    summary: list[tuple[str, ...]] = []
    sections: list[str] = []
    files: dict[Path, str] = {}
    for paper in PAPERS:
        module = load_figures(paper)
        items: list[Item] = module.items()
        summary += [_summary_row(paper, item) for item in items]
        about = wrap_paragraphs(module.ABOUT.strip())
        sections += [f"## {module.TITLE}", about]
        sections += _sections(paper, items, f"{paper}/figures")
        files |= _figure_files(paper, items)
    own_page = f"{OWN}/README.md"
    own_items: list[Item] = load_figures(OWN).items()
    summary += [_summary_row(OWN, item, own_page) for item in own_items]
    files |= _figure_files(OWN, own_items)
    files[Path(own_page)] = _own_page(own_items)
    counts = _count_verdicts(summary)
    parts = [BEGINNING.strip(), counts, table(HEAD, summary), *sections]
    return {Path("README.md"): "\n\n".join(parts) + "\n", **files}


def _own_page(items: Sequence[Item]) -> str:
    beginning = (HERE / OWN / "beginning.md").read_text().strip()
    ending = (HERE / OWN / "ending.md").read_text().strip()
    parts = [beginning, *_sections(OWN, items, "figures"), ending]
    return "\n\n".join(parts) + "\n"


def _figure_files(paper: str, items: Sequence[Item]) -> dict[Path, str]:
    files = {}
    for item in items:
        for name, svg in item.figures.items():
            files[Path(paper) / "figures" / name] = svg
    return files


def _count_verdicts(summary: Sequence[tuple[str, ...]]) -> str:
    """Say how often there is each verdict."""
    verdicts = [row[HEAD.index("verdict")] for row in summary]
    counts = [f"{verdicts.count(f'**{verdict}**')} {plural}" for verdict, plural in PLURALS.items()]
    sentence = ", ".join(counts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _summary_row(paper: str, item: Item, page_path: str = "") -> tuple[str, ...]:
    name = f"{paper}, {item.name}"
    if item.has_section:
        name = f"[{name}]({page_path}#{_anchor(name)})"
    return (
        name,
        item.about,
        item.theirs,
        item.ours,
        _seeds_cell(item),
        f"**{item.verdict}**",
        f"`{item.command}`" if item.command else "",
    )


def _seeds_cell(item: Item) -> str:
    if item.seeds:
        return str(item.seeds)
    return "" if item.verdict in (Verdict.NOT_RUN, Verdict.CANNOT) else "computed"


def _sections(paper: str, items: Sequence[Item], folder: str) -> list[str]:
    return [_section(paper, item, folder) for item in items if item.has_section]


def _section(paper: str, item: Item, folder: str) -> str:
    title = f"{paper}, {item.name}"
    parts = [f"### {title}", f"{item.about}."]
    parts += [f"![{title}]({folder}/{name})" for name in item.figures]
    if item.details:
        parts.append(wrap_paragraphs(item.details))
    return "\n\n".join(parts)


def wrap_paragraphs(text: str) -> str:
    """Wrap paragraphs; tables stay as they are."""
    parts = []
    for part in text.split("\n\n"):
        is_table = part.startswith("|")
        parts.append(part if is_table else fill(part, 120, break_on_hyphens=False))
    return "\n\n".join(parts)


def _anchor(heading: str) -> str:
    kept = [letter for letter in heading.lower() if letter.isalnum() or letter in " -"]
    return "".join(kept).replace(" ", "-")
