"""Every ε states its δ: the rule, for pages, pictures and terminals.

An ε is half a promise: at a larger δ the same noise has a smaller one. So whoever reads a figure of
ε must see its δ without looking elsewhere.

**A figure of ε** is a number that is said to be one (`ε = 4`, `ε 4.00`, `an ε of 3.6`,
`"epsilon": 4.0`), or that stands in a column, or in a row, that is headed ε. An ε of 0 or ∞ is
none: it is the same at every δ. Neither is what somebody types: a command, a recipe, a program.

**A δ is stated** by its value or its formula (`δ = 1e-05`, `a δ of 10⁻⁵`, `δ = 1/users²`,
`(4.00, 1.6e-05)`), or in a column of its own. The word alone is not enough.

**Where** it must stand:

- in a table: in the same row, in the head of the table, or in the caption right above it;
- in words: in the same paragraph or item of a list;
- in a terminal: in the same line, in the head of its table, or in the first line of the output;
- in a picture: anywhere in it;
- or, on a page, in a heading above, in the first paragraph under the nearest heading, or in the
  first paragraph of the page, where this says that it is of *every ε* of the page.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import NamedTuple

# Not that of a formula, e^ε.
EPSILON = r"(?:(?<!\^)[εΕ]|\bepsilon\b)"
# A cell or a value that is not the same at every δ.
NUMBER = re.compile(r"(?<![\w^.])(?!0+(?:\.0+)?(?![\w.]))\d")
SAYS = r"(?:=|≈|≤|≥|<|>|:|of|is|was|are|about|at least|at most|up to|spent|counted)"
FIGURE = re.compile(
    rf"{EPSILON}[\"'`*]*\s*(?:{SAYS}[\s*]*)*(?!0+(?:\.0+)?(?![\w.])(?!,\d))\d"
    # "The ε of this run is at least 28.8".
    rf"|{EPSILON} [^.,;:|()\d]{{1,50}}\b(?:is|from|at least|at most)\s+(?:at least\s+)?\d"
)
# By its value or formula; or a pair.
STATED = re.compile(
    r"(?:δ|\bdelta\b)[\"'`*]*\s*(?:(?:=|≈|≤|<|:|of|is|was|at)[\s*]*)*(?:\.?\d|\(?1/|users|[KN]\^)"
    r"|(?:1/users²|1/[NK]²|users\^−1\.1|[NK]\^−1\.1)"
    r"|\(\d[\d.]*, \d[\d.]*e-\d+\)"
    r"|\bat the same δ"
)
OF_THE_PAGE = re.compile(r"\b(?:every|each|all) ε\b", re.IGNORECASE)
HEAD_OF_DELTAS = re.compile(r"^\W*(?:δ|delta)\W*$|\(ε, δ\)")
HEADING = re.compile(r"^(#{1,6}) (.*)")
LIST_ITEM = re.compile(r"\s*(?:[-*] |\d+\. )")
FENCE = re.compile(r"^\s*```(\w*)")
# What somebody types.
TYPED = {"sh", "bash", "python", "toml", "js", "javascript", "html", "dockerfile", "yaml", "sql"}
PROMPT = re.compile(r"^\s*(?:\$ |taciturn |python |make |cat |head |#)")
# Columns of a table in a terminal.
COLUMN = re.compile(rf"(?:^|\s\s|[│┃|])\s*{EPSILON}(?: at \S+ = \S+)?\s*(?:\s\s|[│┃|]|$)")
COLUMN_OF_DELTAS = re.compile(r"(?:\s\s|[│┃|])\s*δ\s*(?:\s\s|[│┃|]|$)")


class Bare(NamedTuple):
    """An ε without its δ."""

    line: int
    text: str


@dataclass
class Section:
    """What stands above a block: headings, and the first paragraph under the nearest."""

    headings: dict[int, str] = field(default_factory=dict)
    first: str = ""

    def enter(self, level: int, title: str) -> None:
        kept = {at: words for at, words in self.headings.items() if at < level}
        self.headings = kept | {level: title}
        self.first = ""

    @property
    def states_delta(self) -> bool:
        return any(STATED.search(words) for words in (*self.headings.values(), self.first))


def bare_on_page(markdown: str) -> list[Bare]:
    """Find every ε of a page in Markdown that has no δ."""
    section = Section()
    found = []
    caption = ""
    is_first = True
    for at, kind, lines in _blocks(markdown):
        block = "\n".join(lines)
        if kind == "heading":
            marks, _, title = block.partition(" ")
            section.enter(len(marks), title)
            caption = ""
            if FIGURE.search(_without_code(title)) and not section.states_delta:
                found.append(Bare(at, title))
            continue
        if kind == "words":
            if is_first and OF_THE_PAGE.search(block) and STATED.search(block):
                return []
            is_first = False
            if not LIST_ITEM.match(block):
                section.first = section.first or block
        if not section.states_delta:
            found += _bare_in_block(kind, at, lines, caption)
        caption = block if kind == "words" else ""
    return found


def _bare_in_block(kind: str, at: int, lines: list[str], caption: str) -> Iterator[Bare]:
    if kind == "words":
        words = _without_code(" ".join(lines))
        if FIGURE.search(words) and not STATED.search(" ".join(lines)):
            yield Bare(at, words.strip())
    elif kind == "table" and not STATED.search(caption):
        rows = [_cells(line) for line in lines]
        for offset, row in _bare_rows(rows[0], rows[2:]):
            yield Bare(at + 2 + offset, " | ".join(row))
    elif kind == "output":
        for line, text in bare_in_output("\n".join(lines)):
            yield Bare(at + line - 1, text)


def _bare_rows(head: list[str], rows: list[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Find rows with an ε that has no δ, neither in the row nor in the head."""
    if any(STATED.search(cell) for cell in head):
        return
    of_epsilon = {at for at, cell in enumerate(head) if re.search(EPSILON, cell)}
    of_delta = {at for at, cell in enumerate(head) if HEAD_OF_DELTAS.search(cell)}
    for offset, row in enumerate(rows):
        has_figure = any(
            FIGURE.search(_without_code(cell)) or (at in of_epsilon and NUMBER.search(cell))
            for at, cell in enumerate(row)
        )
        is_headed = re.search(rf"^\W*{EPSILON}\W*$", row[0]) if row else None
        has_figure |= bool(is_headed) and any(NUMBER.search(cell) for cell in row[1:])
        has_delta = any(
            STATED.search(cell) or (at in of_delta and NUMBER.search(cell))
            for at, cell in enumerate(row)
        )
        if has_figure and not has_delta:
            yield offset, row


def bare_in_output(text: str) -> list[Bare]:
    """Find every ε of what a terminal shows that has no δ."""
    if re.match(r"\s*(?:\{|\[\s*\{)", text):
        return _bare_in_json(text)
    lines = _join_continued(text.splitlines())
    first = next((line for line in lines if line.strip() and not PROMPT.match(line)), "")
    if STATED.search(first):
        return []
    found = []
    above: list[str] = []
    of_epsilon = False
    for at, line in enumerate(lines, 1):
        if not line.strip() or PROMPT.match(line):
            above = []
            of_epsilon = False
            continue
        is_head = bool(COLUMN.search(line)) and not FIGURE.search(line)
        of_epsilon |= is_head
        has_figure = FIGURE.search(line) or (of_epsilon and not is_head and NUMBER.search(line))
        # The head of a table, and its title.
        stated = any(STATED.search(words) for words in ([line, *above] if of_epsilon else [line]))
        has_column = of_epsilon and any(COLUMN_OF_DELTAS.search(words) for words in above)
        if has_figure and not stated and not has_column:
            found.append(Bare(at, line.strip()))
        above.append(line)
    return found


def _join_continued(lines: list[str]) -> list[str]:
    """Put a sentence into one line that is continued on indented ones; the others are empty.

    Not in tables, whose columns are wide apart.
    """
    joined = list(lines)
    at = 0
    for number, line in enumerate(lines):
        begins = re.match(r"\s*\S", lines[at]) and not re.search(r"\S\s{3,}\S", line)
        if number and begins and re.match(r"\s{4,}\S", line):
            joined[at] += f" {line.strip()}"
            joined[number] = ""
        else:
            at = number
    return joined


def _bare_in_json(text: str) -> list[Bare]:
    if FIGURE.search(text) and '"delta"' not in text:
        return [Bare(1, text)]
    return []


def bare_in_picture(svg: str) -> list[Bare]:
    """Find an ε in a picture that has no δ in it."""
    return _bare_in_figure(" ".join(re.findall(r">([^<>]+)<", html.unescape(svg))))


def _bare_in_figure(words: str) -> list[Bare]:
    has_axis = re.search(EPSILON, words) and NUMBER.search(words)
    if (FIGURE.search(words) or has_axis) and not STATED.search(words):
        return [Bare(1, words.strip())]
    return []


def bare_in_html(page: str) -> list[Bare]:
    """Find every ε of a page in HTML that has no δ."""
    outline = _Outline()
    outline.feed(page)
    found = bare_on_page("\n".join(outline.lines))
    for words in outline.figures:
        found += _bare_in_figure(words)
    return found


class _Outline(HTMLParser):
    """A page in HTML as one in Markdown, and what its figures say."""

    BLOCK = re.compile(
        r"article|details|div|figure|footer|h[1-6]|header|li|main|ol|p|pre|section|summary|table"
        r"|tr|ul"
    )
    HIDDEN = frozenset(("script", "style"))

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.figures: list[str] = []
        self._words: list[str] = []
        self._cells: list[str] = []
        self._rows = 0
        # Inside how many of these tags.
        self._within = {"figure": 0, "pre": 0, "hidden": 0}

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if self.BLOCK.fullmatch(tag) and not self._within["figure"]:
            self._end_block("")
        self._count(tag, 1)
        if tag == "table":
            self._rows = 0

    def handle_endtag(self, tag: str) -> None:
        if tag == "figure":
            self.figures.append(self._take())
        elif tag == "pre":
            self.lines += ["```text", *"".join(self._words).splitlines(), "```", ""]
            self._words = []
        elif tag in {"td", "th"}:
            self._cells.append(self._take())
        elif tag == "tr":
            self._end_row()
        elif self.BLOCK.fullmatch(tag) and not self._within["figure"]:
            self._end_block("#" * int(tag[1]) + " " if tag[0] == "h" and tag[1:].isdigit() else "")
        self._count(tag, -1)

    def handle_data(self, data: str) -> None:
        if not self._within["hidden"]:
            self._words.append(data)

    def _count(self, tag: str, change: int) -> None:
        kind = "hidden" if tag in self.HIDDEN else tag
        if kind in self._within:
            self._within[kind] += change

    def _take(self) -> str:
        words = " ".join(" ".join(self._words).split())
        self._words = []
        return words

    def _end_block(self, mark: str) -> None:
        words = self._take()
        if words:
            self.lines += [f"{mark}{words}", ""]

    def _end_row(self) -> None:
        if not self._rows:
            self.lines.append("")
        self.lines.append("| " + " | ".join(self._cells) + " |")
        self._rows += 1
        if self._rows == 1:
            self.lines.append("|---|")
        self._cells = []


def _without_code(words: str) -> str:
    return re.sub(r"`[^`]*`", "``", words)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _blocks(markdown: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the blocks of a page, each with its first line's number and what it is."""
    lines = markdown.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        began = at
        fence = FENCE.match(line)
        if fence:
            at += 1
            while at < len(lines) and not lines[at].strip().startswith("```"):
                at += 1
            at += 1
            if fence[1] not in TYPED:
                yield began + 2, "output", lines[began + 1 : at - 1]
        elif HEADING.match(line):
            at += 1
            yield began + 1, "heading", [line]
        elif line.startswith("|"):
            while at < len(lines) and lines[at].startswith("|"):
                at += 1
            yield began + 1, "table", lines[began:at]
        elif line.strip():
            at += 1
            while at < len(lines) and _continues(lines[at]):
                at += 1
            yield began + 1, "words", lines[began:at]
        else:
            at += 1


def _continues(line: str) -> bool:
    begins_another = LIST_ITEM.match(line) or re.match(r"\s*(?:```|\||#{1,6} )", line)
    return bool(line.strip()) and not begins_another
