"""Draw a run's page: one file without scripts, which loads nothing over the network. report.py
gathers its content.
"""

import math
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import NamedTuple

from taciturn.evaluation.intervals import Interval

# of a chart, about a pixel each on a phone
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = (
    320,
    170,
    44,
    50,
    12,
    22,
)
# a figure as people read it
Write = Callable[[float], str]


class Html(str):
    """Text that is already markup. All other text is escaped when it is put into a tag, wherever it
    comes from.
    """


class Span(NamedTuple):
    """What a group of people had before, if known, and what they have now."""

    name: str
    # who they are
    note: str
    before: float | None
    now: Interval
    # in words
    gain: str


def page(name: str, parts: Sequence[Html]) -> str:
    template = Template((files("taciturn.runs") / "report.html").read_text("utf-8"))
    return template.substitute(name=escape(name), body="\n".join(parts))


def tag(kind: str, *inside: str, **attributes: object) -> Html:
    """
    >>> tag("p", "1 < 2", tag("b", "yes"), class_="quiet", width=1 / 3)
    '<p class="quiet" width="0.3">1 &lt; 2<b>yes</b></p>'
    """
    written = {
        name: f"{value:.1f}" if isinstance(value, float) else escape(str(value))
        for name, value in attributes.items()
    }
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{value}"' for name, value in written.items()
    )
    return Html(
        f"<{kind}{named}>{''.join(one if isinstance(one, Html) else escape(one) for one in inside)}</{kind}>"
    )


def section(title: str, *inside: str) -> Html:
    return tag("section", tag("h2", title), *inside)


def tile(title: str, figure: str, note: str) -> Html:
    """Show a figure; what follows it, its margin and unit, is set smaller."""
    value, _, rest = figure.partition(" ")
    return tag(
        "div",
        tag("small", title),
        tag("b", value, tag("span", f" {rest}")),
        tag("small", note),
        class_="tile",
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], bold: int | None = None) -> Html:
    """Show rows; on a phone each becomes a card, whose figures are labelled by their columns."""
    head = tag("thead", tag("tr", *(tag("th", name) for name in columns)))
    named = [
        [tag("td", cell, data_name=name) for name, cell in zip(columns, row, strict=True)]
        for row in rows
    ]
    body = [tag("tr", *cells, class_="this" if n == bold else "") for n, cells in enumerate(named)]
    return tag("div", tag("table", head, tag("tbody", *body)), class_="scrolls")


def chart(
    title: str,
    points: Sequence[tuple[int, Interval]],
    write: Write,
    mark: Write,
    from_zero: bool = False,
    kind: str = "",
) -> Html:
    """Draw a curve over rounds, with a band of its margins; infinite values are left out. `mark`
    writes the axis.
    """
    shown = [(round, one) for round, one in points if math.isfinite(one.value)]
    if not shown:
        return tag(
            "figure", tag("figcaption", title), tag("p", "no finite figures", class_="quiet")
        )
    marks = ticks(
        min(0.0 if from_zero else one.ends[0] for _, one in shown),
        max(one.ends[1] for _, one in shown),
    )
    low, high, (final, end) = marks[0], marks[-1], shown[-1]
    last = max(1, final)

    def x(round: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * round / last

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [
        tag("text", f"{round:,}", x=x(round), y=HEIGHT - 5, text_anchor="middle")
        for round in {0, last // 2, last}
    ]
    for one in marks:
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(one), y2=y(one), class_="grid"))
        parts.append(tag("text", mark(one), x=LEFT - 6, y=y(one) + 4, text_anchor="end"))
    if any(one.margin > 0 for _, one in shown):
        above, below = ([(x(round), y(one.ends[side])) for round, one in shown] for side in (1, 0))
        parts.append(tag("polygon", points=_path([*above, *below[::-1]]), class_="band"))
    parts.append(
        tag(
            "polyline",
            points=_path([(x(round), y(one.value)) for round, one in shown]),
            class_="curve",
        )
    )
    for round, one in shown:
        said = f"round {round:,}: {write(one.value)}" + (
            f" ± {write(one.margin)}" if one.margin > 0 else ""
        )
        parts.append(_dot(x(round), y(one.value), 2.2 if len(shown) < 40 else 1.2, "dot", said))
    parts.append(tag("text", write(end.value), x=x(final) + 4, y=y(end.value) + 4, class_="last"))
    drawn = tag(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}, up to {write(end.value)}",
    )
    return tag("figure", tag("figcaption", title), drawn, class_=kind)


def groups(spans: Sequence[Span], write: Write, mark: Write) -> Html:
    """Draw a line for each group, all on one scale: from where they were to where they are."""
    places = [place for one in spans for place in (*one.now.ends, one.before) if place is not None]
    marks = ticks(min(places), max(places))
    low, high = marks[0], marks[-1]

    def x(value: float) -> float:
        return 6 + (WIDTH - 12) * (value - low) / (high - low)

    def line(kind: str, one: float, other: float) -> Html:
        return tag("line", x1=x(one), x2=x(other), y1=13, y2=13, class_=kind)

    rows = []
    for one in spans:
        drawn = [
            tag("line", x1=x(place), x2=x(place), y1=0, y2=26, class_="grid") for place in marks
        ]
        if one.before is not None:
            drawn += [
                line("way", one.before, one.now.value),
                _dot(x(one.before), 13, 4, "before", f"start {write(one.before)}"),
            ]
        drawn += [
            line("whisker", *one.now.ends),
            _dot(x(one.now.value), 13, 5, "dot", f"now {write(one.now.value)}"),
        ]
        way = (
            write(one.now.value)
            if one.before is None
            else f"{write(one.before)} → {write(one.now.value)}"
        )
        who = tag("div", tag("b", one.name), tag("small", one.note))
        picture = tag("svg", *drawn, viewBox=f"0 0 {WIDTH} 26", aria_hidden="true")
        rows.append(
            tag(
                "div", who, picture, tag("div", tag("b", one.gain), tag("small", way)), class_="row"
            )
        )
    scale = [tag("text", mark(place), x=x(place), y=12, text_anchor="middle") for place in marks]
    empty, axis = tag("div"), tag("svg", *scale, viewBox=f"0 0 {WIDTH} 16", aria_hidden="true")
    return tag("div", *rows, tag("div", empty, axis, empty, class_="row scale"))


def ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers that enclose the range.

    >>> ticks(0.181, 0.204), ticks(0, 4.01)
    ([0.18, 0.19, 0.2, 0.21], [0.0, 2.0, 4.0, 6.0])
    """
    # less than that is rounding of sums
    spread = max(high - low, 1e-9 * max(abs(low), abs(high))) or 1.0
    power = 10.0 ** math.floor(math.log10(spread / 2))
    step = next(power * times for times in (1, 2, 5, 10) if spread / (power * times) <= 3)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)]


def _dot(x: float, y: float, size: float, kind: str, said: str) -> Html:
    return tag("circle", tag("title", said), cx=x, cy=y, r=size, class_=kind)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
