"""Draw a run's page: one file without scripts, which loads nothing over the network.

page.py gathers its content.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import NamedTuple

from taciturn.evaluation.intervals import Interval

# Of a chart, about a pixel each on a phone.
WIDTH = 320
HEIGHT = 170
LEFT = 44
RIGHT = 50
TOP = 12
BOTTOM = 22
# Of a row of `groups`, and what is left free on each side of it.
ROW_HEIGHT = 26
ROW_MARGIN = 6
# A curve of this many points or more has small dots.
MANY_POINTS = 40


class Html(str):
    """Text that is already markup.

    All other text is escaped when it is put into a tag, wherever it comes from.
    """


@dataclass(frozen=True)
class Notation:
    """How figures are written, as people read them."""

    in_text: Callable[[float], str]
    on_axis: Callable[[float], str]


class Point(NamedTuple):
    """A figure of a curve."""

    round: int
    figure: Interval


@dataclass(frozen=True, kw_only=True)
class Span:
    """What a group of people had before, if known, and what they have now."""

    name: str
    # Who they are.
    note: str
    before: float | None
    now: Interval
    # In words.
    gain: str


def page(name: str, parts: Sequence[Html]) -> str:
    """Return the whole page."""
    template = Template((files("taciturn.runs") / "report.html").read_text("utf-8"))
    return template.substitute(name=escape(name), body="\n".join(parts))


def tag(kind: str, *inside: str, **attributes: object) -> Html:
    """Return a tag with what stands inside it, escaped where it is not markup.

    >>> tag("p", "1 < 2", tag("b", "yes"), class_="quiet", width=1 / 3)
    '<p class="quiet" width="0.3">1 &lt; 2<b>yes</b></p>'
    """
    named = "".join(_attribute(name, value) for name, value in attributes.items())
    content = "".join(part if isinstance(part, Html) else escape(part) for part in inside)
    return Html(f"<{kind}{named}>{content}</{kind}>")


def _attribute(name: str, value: object) -> str:
    written = f"{value:.1f}" if isinstance(value, float) else escape(str(value))
    return f' {name.rstrip("_").replace("_", "-")}="{written}"'


def section(title: str, *inside: str) -> Html:
    """Return a section of the page under its title."""
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
    names = [tag("th", name) for name in columns]
    head = tag("thead", tag("tr", *names))
    body = []
    for number, row in enumerate(rows):
        cells = [tag("td", cell, data_name=name) for name, cell in zip(columns, row, strict=True)]
        body.append(tag("tr", *cells, class_="this" if number == bold else ""))
    return tag("div", tag("table", head, tag("tbody", *body)), class_="scrolls")


# Charts: a curve over rounds.


@dataclass(frozen=True, kw_only=True)
class _Axes:
    """Where a round and a value lie on a chart."""

    last_round: int
    # The lowest and the highest mark.
    low: float
    high: float

    def x(self, round: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * round / self.last_round

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (self.high - value) / (self.high - self.low)

    def place(self, round: int, value: float) -> tuple[float, float]:
        return self.x(round), self.y(value)


def chart(
    title: str,
    points: Sequence[Point],
    notation: Notation,
    *,
    from_zero: bool = False,
    kind: str = "",
) -> Html:
    """Draw a curve over rounds, with a band of its margins; leave out infinite values.

    Args:
        title: above the chart.
        points: the figures of the curve, by round.
        notation: how they are written.
        from_zero: whether the axis begins at 0.
        kind: the class of the figure, in the page's style.
    """
    caption = tag("figcaption", title)
    shown = [point for point in points if math.isfinite(point.figure.value)]
    if not shown:
        return tag("figure", caption, tag("p", "no finite figures", class_="quiet"))
    lowest = 0.0 if from_zero else min(point.figure.ends[0] for point in shown)
    highest = max(point.figure.ends[1] for point in shown)
    marks = ticks(lowest, highest)
    end = shown[-1]
    axes = _Axes(last_round=max(1, end.round), low=marks[0], high=marks[-1])
    drawing = tag(
        "svg",
        *_draw_rounds(axes),
        *_draw_grid(axes, marks, notation),
        *_draw_band(axes, shown),
        _draw_curve(axes, shown),
        *_draw_dots(axes, shown, notation),
        _write_end(axes, end, notation),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}, up to {notation.in_text(end.figure.value)}",
    )
    return tag("figure", caption, drawing, class_=kind)


def _draw_rounds(axes: _Axes) -> list[Html]:
    parts = []
    for round in {0, axes.last_round // 2, axes.last_round}:
        label = tag(
            "text",
            f"{round:,}",
            x=axes.x(round),
            y=HEIGHT - 5,
            text_anchor="middle",
        )
        parts.append(label)
    return parts


def _draw_grid(axes: _Axes, marks: Sequence[float], notation: Notation) -> list[Html]:
    parts = []
    for mark in marks:
        y = axes.y(mark)
        line = tag(
            "line",
            x1=LEFT,
            x2=WIDTH - RIGHT,
            y1=y,
            y2=y,
            class_="grid",
        )
        label = tag(
            "text",
            notation.on_axis(mark),
            x=LEFT - 6,
            y=y + 4,
            text_anchor="end",
        )
        parts += [line, label]
    return parts


def _draw_band(axes: _Axes, shown: Sequence[Point]) -> list[Html]:
    """Draw the margins, where there are any."""
    if not any(point.figure.margin > 0 for point in shown):
        return []
    above = []
    below = []
    for round, figure in shown:
        low, high = figure.ends
        above.append(axes.place(round, high))
        below.append(axes.place(round, low))
    below.reverse()
    outline = _path(above + below)
    return [tag("polygon", points=outline, class_="band")]


def _draw_curve(axes: _Axes, shown: Sequence[Point]) -> Html:
    way = [axes.place(round, figure.value) for round, figure in shown]
    return tag("polyline", points=_path(way), class_="curve")


def _draw_dots(axes: _Axes, shown: Sequence[Point], notation: Notation) -> list[Html]:
    size = 2.2 if len(shown) < MANY_POINTS else 1.2
    dots = []
    for round, figure in shown:
        words = f"round {round:,}: {notation.in_text(figure.value)}"
        if figure.margin > 0:
            words += f" ± {notation.in_text(figure.margin)}"
        dot = _dot(
            x=axes.x(round),
            y=axes.y(figure.value),
            size=size,
            kind="dot",
            words=words,
        )
        dots.append(dot)
    return dots


def _write_end(axes: _Axes, end: Point, notation: Notation) -> Html:
    """Write the last figure beside the curve's end."""
    x, y = axes.place(end.round, end.figure.value)
    return tag("text", notation.in_text(end.figure.value), x=x + 4, y=y + 4, class_="last")


# Groups of people: a line each.


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """Where a value lies on the scale that all groups share."""

    marks: Sequence[float]

    def x(self, value: float) -> float:
        low = self.marks[0]
        high = self.marks[-1]
        return ROW_MARGIN + (WIDTH - 2 * ROW_MARGIN) * (value - low) / (high - low)

    def line(self, kind: str, ends: tuple[float, float]) -> Html:
        """Draw a line from one value to another."""
        return tag(
            "line",
            x1=self.x(ends[0]),
            x2=self.x(ends[1]),
            y1=ROW_HEIGHT // 2,
            y2=ROW_HEIGHT // 2,
            class_=kind,
        )

    def dot(self, kind: str, value: float, size: int, words: str) -> Html:
        """Draw a dot at a value."""
        return _dot(
            x=self.x(value),
            y=ROW_HEIGHT // 2,
            size=size,
            kind=kind,
            words=words,
        )

    def mark(self, value: float) -> Html:
        """Draw a line from top to bottom."""
        return tag(
            "line",
            x1=self.x(value),
            x2=self.x(value),
            y1=0,
            y2=ROW_HEIGHT,
            class_="grid",
        )


def groups(spans: Sequence[Span], notation: Notation) -> Html:
    """Draw a line for each group, all on one scale: from where they were to where they are."""
    places = _list_places(spans)
    marks = ticks(min(places), max(places))
    scale = _Scale(marks=marks)
    rows = [_draw_row(span, scale, notation) for span in spans]
    return tag("div", *rows, _draw_scale(scale, notation))


def _list_places(spans: Sequence[Span]) -> list[float]:
    """List all that the scale has to hold."""
    places: list[float] = []
    for span in spans:
        places.extend(span.now.ends)
        if span.before is not None:
            places.append(span.before)
    return places


def _draw_row(span: Span, scale: _Scale, notation: Notation) -> Html:
    """Draw a group: who they are, their line, and what they gained."""
    way = notation.in_text(span.now.value)
    if span.before is not None:
        way = f"{notation.in_text(span.before)} → {way}"
    return tag(
        "div",
        _stack(span.name, span.note),
        _draw_line(span, scale, notation),
        _stack(span.gain, way),
        class_="row",
    )


def _stack(words: str, note: str) -> Html:
    return tag("div", tag("b", words), tag("small", note))


def _draw_line(span: Span, scale: _Scale, notation: Notation) -> Html:
    """Draw the way from the start, if that is known, to the figure of now and its margin."""
    now = span.now.value
    words = f"now {notation.in_text(now)}"
    return tag(
        "svg",
        *[scale.mark(value) for value in scale.marks],
        *_draw_way(span, scale, notation),
        scale.line("whisker", span.now.ends),
        scale.dot("dot", now, size=5, words=words),
        viewBox=f"0 0 {WIDTH} {ROW_HEIGHT}",
        aria_hidden="true",
    )


def _draw_way(span: Span, scale: _Scale, notation: Notation) -> list[Html]:
    if span.before is None:
        return []
    words = f"start {notation.in_text(span.before)}"
    way = (span.before, span.now.value)
    return [scale.line("way", way), scale.dot("before", span.before, size=4, words=words)]


def _draw_scale(scale: _Scale, notation: Notation) -> Html:
    """Draw the scale in the column of the lines, with nothing on either side of it."""
    empty = tag("div")
    marks = []
    for value in scale.marks:
        label = tag(
            "text",
            notation.on_axis(value),
            x=scale.x(value),
            y=12,
            text_anchor="middle",
        )
        marks.append(label)
    axis = tag("svg", *marks, viewBox=f"0 0 {WIDTH} 16", aria_hidden="true")
    return tag("div", empty, axis, empty, class_="row scale")


def ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers that enclose the range.

    >>> ticks(0.181, 0.204), ticks(0, 4.01)
    ([0.18, 0.19, 0.2, 0.21], [0.0, 2.0, 4.0, 6.0])
    """
    # A narrower range is only the rounding of sums.
    rounding = 1e-9 * max(abs(low), abs(high))
    spread = max(high - low, rounding) or 1.0
    step = _round_step(spread)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    # There are two marks at least.
    last = max(last, first + 1)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _round_step(spread: float) -> float:
    """Return the smallest round number of which three or fewer span the range."""
    power = 10.0 ** math.floor(math.log10(spread / 2))
    for times in (1, 2, 5):
        step = power * times
        if spread / step <= 3:
            return step
    return power * 10


def _dot(*, x: float, y: float, size: float, kind: str, words: str) -> Html:
    return tag("circle", tag("title", words), cx=x, cy=y, r=size, class_=kind)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
