"""The papers' pages: experiments/README.md with one line for each table, figure and claim of the
text, and PAPER/README.md with its parts, tables and figures, made of the committed results.

A paper's figures.py says, for each of its tables, figures and claims, what they print, what the
results say, and whether the claim holds. What has no results yet is «not measured yet», with the
command that would measure it.
"""

import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import NamedTuple

from lib.results import Group
from lib.run_lists import HERE
from lib.verdicts import PLURALS, Part, Verdict, judge_together

PAPERS = ("mcmahan2018", "ramaswamy2020", "popov2018", "xu2023")
# Where the papers' private models stand at a real ε: a page of its own.
OWN = "keyboard"
BEGINNING = (HERE / "beginning.md").read_text()
# Whose figures ours stand beside: in our own rows, a bar that was set before.
PAPER_SAYS = "paper"
BAR_SAYS = "bar"
PARTS_HEAD = ("claim", "measured", "verdict")
NOTHING = "–"
# Behind the name of a row, and what it means.
PILOT = "†"
ABOUT_PILOT = (
    "This row is made from the pilot's start, of public texts some of which may not be given away:"
    " nobody else can make it."
)
HOW_TO_READ = (
    "Every row has the parts of its claim, each judged by itself: [how](../README.md#verdicts)."
    " Intervals of differences are 95 %, over seeds; ± of an accuracy is half a 95 % interval over"
    " held-out people, and brackets give the range over seeds."
)


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table, figure or claim of a paper, beside ours."""

    name: str
    about: str
    # What they print, or claim.
    theirs: str
    ours: str
    # Of which the verdict is made; none where it cannot be.
    parts: Sequence[Part] = ()
    without_parts: Verdict = Verdict.NOT_RUN
    # 0 where ours is computed, not trained.
    seeds: int = 0
    command: str = ""
    # In Markdown.
    details: str = ""
    # By file name.
    figures: dict[str, str] = field(default_factory=dict)
    # Made from the pilot's start, which nobody else can get.
    of_pilot: bool = False

    @property
    def verdict(self) -> Verdict:
        if not self.parts:
            return self.without_parts
        return judge_together(part.verdict for part in self.parts)


def mark_not_run(*, name: str, about: str, theirs: str, command: str, so_far: str = "") -> Item:
    """Return an item that has no results yet, or too few of them."""
    return Item(
        name=name,
        about=about,
        theirs=theirs,
        ours=so_far or NOTHING,
        command=command,
    )


def mark_impossible(*, name: str, about: str, theirs: str, why: str) -> Item:
    """Return an item that cannot be shown here."""
    return Item(name=name, about=about, theirs=theirs, ours=why, without_parts=Verdict.CANNOT)


class Judged(NamedTuple):
    """What the results of an item say of the paper's claim."""

    ours: str
    parts: Sequence[Part]
    details: str = ""
    figures: dict[str, str] = {}


def judge_by_groups(
    *, paper: str, groups: str, name: str, about: str, theirs: str, of_pilot: bool = False
) -> Callable[[Callable[..., Judged]], Callable[[], Item]]:
    """Make an item of a function that judges the results of one or several groups.

    The item is not measured, as long as a run of the groups has no result.

    Args:
        paper: whose list has the groups.
        groups: their names, with spaces between them.
        name: what the paper calls the table or figure.
        about: what it shows.
        theirs: what they print, or claim.
        of_pilot: whether the runs are from the pilot's start.
    """

    def with_results(judge: Callable[..., Judged]) -> Callable[[], Item]:
        def make_item() -> Item:
            found = [Group(paper, group) for group in groups.split()]
            lists = [f"{paper}/{group.name}" for group in found]
            command = " ".join(["python experiments/train.py", *lists])
            if not all(group.is_whole for group in found):
                item = mark_not_run(
                    name=name,
                    about=about,
                    theirs=theirs,
                    command=command,
                    so_far=_count_results(found),
                )
                return replace(item, of_pilot=of_pilot)
            judged = judge(*found)
            return Item(
                name=name,
                about=about,
                theirs=theirs,
                ours=judged.ours,
                seeds=min(group.seeds for group in found),
                command=command,
                parts=judged.parts,
                details=judged.details,
                figures=judged.figures,
                of_pilot=of_pilot,
            )

        return make_item

    return with_results


def _count_results(groups: Sequence[Group]) -> str:
    """Say how far the groups are that are not whole."""
    counts = []
    for group in groups:
        if group.results_count and not group.is_whole:
            counts.append(f"{group.results_count} of {group.wanted} runs of {group.name}")
    return ", ".join(counts)


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
    files: dict[Path, str] = {}
    tables: list[str] = []
    verdicts: list[Verdict] = []
    for paper in PAPERS:
        module = load_figures(paper)
        items: list[Item] = module.items()
        verdicts += [item.verdict for item in items]
        tables += [f"## {module.TITLE}", _summary(paper, items, beside=PAPER_SAYS)]
        files |= _figure_files(paper, items)
        files[Path(paper) / "README.md"] = _paper_page(module, items)
    own = load_figures(OWN)
    own_items: list[Item] = own.items()
    # A row that nobody else can make is not on the first page.
    tables += [f"## {own.TITLE}", own.ABOUT.strip()]
    shown = [item for item in own_items if not item.of_pilot]
    tables.append(_summary(OWN, shown, beside=BAR_SAYS))
    files |= _figure_files(OWN, own_items)
    files[Path(OWN) / "README.md"] = _own_page(own_items)
    ending = (HERE / "ending.md").read_text().strip()
    parts = [BEGINNING.strip(), _count_verdicts(verdicts), *tables, ending]
    return {Path("README.md"): "\n\n".join(map(wrap_paragraphs, parts)) + "\n", **files}


def _paper_page(module: ModuleType, items: Sequence[Item]) -> str:
    parts = [f"# {module.TITLE}", module.ABOUT.strip()]
    if any(item.of_pilot for item in items):
        parts.append(f"{PILOT} {ABOUT_PILOT}")
    parts.append(HOW_TO_READ)
    parts += [_section(item, beside=PAPER_SAYS) for item in items]
    ending = HERE / module.PAPER / "ending.md"
    if ending.exists():
        parts.append(ending.read_text().strip())
    return "\n\n".join(map(wrap_paragraphs, parts)) + "\n"


def _own_page(items: Sequence[Item]) -> str:
    beginning = (HERE / OWN / "beginning.md").read_text().strip()
    of_pilot = (HERE / OWN / "of_pilot.md").read_text().strip()
    ending = (HERE / OWN / "ending.md").read_text().strip()
    for_everybody = [_section(item, beside=BAR_SAYS) for item in items if not item.of_pilot]
    only_ours = [_section(item, beside=BAR_SAYS) for item in items if item.of_pilot]
    return "\n\n".join([beginning, *for_everybody, of_pilot, *only_ours, ending]) + "\n"


def _figure_files(paper: str, items: Sequence[Item]) -> dict[Path, str]:
    files = {}
    for item in items:
        for name, svg in item.figures.items():
            files[Path(paper) / "figures" / name] = svg
    return files


def _count_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Say how often there is each verdict."""
    counts = [f"{verdicts.count(verdict)} {plural}" for verdict, plural in PLURALS.items()]
    return f"Of {len(verdicts)} rows of the papers {', '.join(counts)}."


def _summary(paper: str, items: Sequence[Item], *, beside: str) -> str:
    """Return one line for each item."""
    rows = []
    for item in items:
        link = f"[{_name(item)}]({paper}/README.md#{_anchor(item.name)})"
        ours = show_minus(item.ours)
        rows.append([f"{link}: {item.about}", f"**{item.verdict}**", item.theirs, ours])
    return table(("item", "verdict", beside, "ours"), rows)


def _name(item: Item) -> str:
    return f"{item.name} {PILOT}" if item.of_pilot else item.name


def _section(item: Item, *, beside: str) -> str:
    about = f"{capitalise(item.about)}."
    parts = [f"## {item.name}", about, _outcome(item, beside)]
    if item.parts:
        parts.append(show_minus(table(PARTS_HEAD, item.parts)))
    parts += [f"![{item.name}](figures/{name})" for name in item.figures]
    if item.details:
        parts.append(show_minus(item.details))
    if item.command:
        parts.append(f"```\n{item.command}\n```")
    return wrap_paragraphs("\n\n".join(parts))


def _outcome(item: Item, beside: str) -> str:
    """Say in words what a row of the first page says."""
    sentences = [f"**{str(item.verdict).capitalize()}**{_seeds(item)}."]
    if item.theirs:
        sentences.append(f"{capitalise(beside)}: {item.theirs}.")
    if item.ours != NOTHING:
        sentences.append(f"Ours: {show_minus(item.ours)}.")
    return " ".join(sentences)


def show_minus(text: str) -> str:
    """Show numbers below zero with a minus sign, not a hyphen; ranges and names keep theirs.

    >>> show_minus("-0.46 at 1e-9 of blogs-1600")
    '−0.46 at 1e-9 of blogs-1600'
    """
    return re.sub(r"(?<![\w.)-])-(?=\d)", "−", text)


def capitalise(text: str) -> str:
    """Begin with a capital letter; a symbol stays as it is.

    >>> capitalise("words"), capitalise("ε")
    ('Words', 'ε')
    """
    return f"{text[0].upper()}{text[1:]}" if text[0].isascii() else text


def _seeds(item: Item) -> str:
    if item.verdict in (Verdict.NOT_RUN, Verdict.CANNOT, Verdict.ONE_SEED):
        return ""
    if not item.seeds:
        return ", computed"
    return f", {item.seeds} {'seed' if item.seeds == 1 else 'seeds'}"


def wrap_paragraphs(text: str) -> str:
    """Wrap paragraphs; tables, lists, headings and commands stay as they are."""
    parts = []
    for part in text.split("\n\n"):
        stays = part.startswith(("|", "#", "```", "- ", "!["))
        parts.append(part if stays else fill(part, 120, break_on_hyphens=False))
    return "\n\n".join(parts)


def _anchor(heading: str) -> str:
    kept = [letter for letter in heading.lower() if letter.isalnum() or letter in " -"]
    return "".join(kept).replace(" ", "-")
