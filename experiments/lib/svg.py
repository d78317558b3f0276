"""Figures as SVG, written here and not by a plotting library: they are committed and must come out
of the results byte for byte, on every machine and with every version of everything else. They
follow the reader's light or dark.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from lib.results import Group

WIDTH = 640
HEIGHT = 380
LEFT = 62
RIGHT = 190
TOP = 36
BOTTOM = 48
# The width of a letter of a legend, at most, in pixels.
LETTER = 7
# Okabe and Ito's colours, and two more.
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f7f7f",
    "#8b5a2b",
)
COLOUR_OF_PAPERS = "#888"
DASHES = ' stroke-dasharray="5 4"'
STYLE = (
    "text{font:12px sans-serif;fill:#222}"
    ".small{font-size:11px}"
    ".title{font-size:13px;font-weight:600}\n"
    ".axis{stroke:#888;fill:none}"
    ".grid{stroke:#ddd;fill:none}"
    "svg{background:#fff}\n"
    "@media(prefers-color-scheme:dark)"
    "{text{fill:#ddd}.grid{stroke:#3a3a3a}svg{background:#1b1b1b}}"
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points that belong together. `margin` is half an interval; the paper's own figures are hollow
    and dashed.
    """

    name: str
    points: Sequence[tuple[float, float]]
    margins: Sequence[float] = ()
    of_paper: bool = False
    joined: bool = True

    def finite_margins(self) -> Sequence[float]:
        """Return a margin for every point, 0 where there is none."""
        margins = self.margins or [0.0] * len(self.points)
        return [margin if math.isfinite(margin) else 0.0 for margin in margins]


def curve(group: Group, run: str, name: str) -> Line:
    """Return AccuracyTop1 over the rounds of a run, in %; margins are half of what its seeds differ
    by.
    """
    points = []
    margins = []
    for round, accuracy in group.curve(run):
        if round:
            points.append((round, 100 * accuracy.value))
            margins.append(50 * (accuracy.most - accuracy.least))
    return Line(name=name, points=points, margins=margins)


def curves(group: Group, names: dict[str, str]) -> list[Line]:
    """Return the curves of several runs, under the names that readers know them by."""
    return [curve(group, run, name) for run, name in names.items()]


@dataclass(frozen=True, kw_only=True)
class Scale:
    low: float
    high: float
    # Where the ends are drawn.
    first: float
    last: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return where a value is drawn."""
        low = self._on_scale(self.low)
        high = self._on_scale(self.high)
        value = self._on_scale(value)
        return self.first + (self.last - self.first) * (value - low) / (high - low)

    def _on_scale(self, value: float) -> float:
        return math.log10(value) if self.is_log else value

    def ticks(self) -> list[float]:
        return self._log_ticks() if self.is_log else self._even_ticks()

    def _log_ticks(self) -> list[float]:
        first = math.floor(math.log10(self.low))
        last = math.ceil(math.log10(self.high))
        ticks = []
        for exponent in range(first, last + 1):
            power = 10.0**exponent
            ticks += [power, 2 * power, 5 * power]
        return [tick for tick in ticks if self.low <= tick <= self.high]

    def _even_ticks(self) -> list[float]:
        reach = self.high - self.low
        power = 10 ** math.floor(math.log10(reach / 4))
        steps = [power * times for times in (1, 2, 5, 10)]
        step = next(step for step in steps if reach / step <= 6)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [count * step for count in range(first, last + 1)]


def figure(
    title: str,
    *,
    across: str,
    up: str,
    lines: Sequence[Line],
    log: bool = False,
    log_up: bool = False,
) -> str:
    """Draw a chart of lines, with a legend to the right of it.

    Args:
        title: what stands above it.
        across: what goes across.
        up: what goes up.
        lines: what is drawn.
        log: whether the scale across is logarithmic.
        log_up: whether the scale upwards is.
    """
    x = _scale_across(lines, log)
    y = _scale_up(lines, log_up)
    elements = [
        *_draw_axes(x, y, across, up),
        f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>',
    ]
    colours = _choose_colours(lines)
    for place, line in enumerate(lines):
        colour = colours.get(line.name, COLOUR_OF_PAPERS)
        elements += _draw_line(line, x, y, colour)
        elements += _draw_legend(line, place, colour)
    longest_name = max(len(line.name) for line in lines)
    width = max(WIDTH, WIDTH - RIGHT + 44 + LETTER * longest_name)
    body = "\n".join(elements)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}"'
        f' height="{HEIGHT}">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def _scale_across(lines: Sequence[Line], is_log: bool) -> Scale:
    values = []
    for line in lines:
        values += [across for across, _ in line.points]
    low = min(values)
    high = max(values)
    side = 0 if is_log else 0.02 * (high - low or 1)
    low -= side
    high += side
    # A single value stands in the middle.
    if low == high:
        low /= 2
        high *= 2
    return Scale(low=low, high=high, first=LEFT, last=WIDTH - RIGHT, is_log=is_log)


def _scale_up(lines: Sequence[Line], is_log: bool) -> Scale:
    values = []
    for line in lines:
        for (_, up), margin in zip(line.points, line.finite_margins(), strict=True):
            values += [up - margin, up + margin]
    low = min(values)
    high = max(values)
    room = 0 if is_log else 0.06 * (high - low or 1)
    return Scale(
        low=low - room,
        high=high + room,
        first=HEIGHT - BOTTOM,
        last=TOP,
        is_log=is_log,
    )


def _choose_colours(lines: Sequence[Line]) -> dict[str, str]:
    """Return the colours of our lines; a paper's line has that of ours of the same name."""
    names = dict.fromkeys(line.name for line in lines if not line.of_paper)
    return dict(zip(names, COLOURS * 4, strict=False))


def _draw_axes(x: Scale, y: Scale, across: str, up: str) -> Iterable[str]:
    for tick in x.ticks():
        place = f"{x(tick):.1f}"
        yield f'<path class="grid" d="M{place} {y.first}V{y.last}"/>'
        yield (
            f'<text class="small" text-anchor="middle" x="{place}"'
            f' y="{y.first + 16}">{tick:g}</text>'
        )
    for tick in y.ticks():
        place = y(tick)
        rounded = float(f"{tick:.6g}")
        yield f'<path class="grid" d="M{x.first} {place:.1f}H{x.last}"/>'
        yield (
            f'<text class="small" text-anchor="end" x="{x.first - 6}"'
            f' y="{place + 4:.1f}">{rounded:g}</text>'
        )
    middle_across = (x.first + x.last) / 2
    middle_up = (y.first + y.last) / 2
    yield f'<path class="axis" d="M{x.first} {y.last}V{y.first}H{x.last}"/>'
    yield (
        f'<text text-anchor="middle" x="{middle_across:.0f}"'
        f' y="{HEIGHT - 10}">{escape(across)}</text>'
    )
    yield (
        f'<text text-anchor="middle" transform="translate(16 {middle_up:.0f})'
        f' rotate(-90)">{escape(up)}</text>'
    )


def _draw_line(line: Line, x: Scale, y: Scale, colour: str) -> Iterable[str]:
    if line.joined and len(line.points) > 1:
        yield _draw_way(line, x, y, colour)
    fill = "none" if line.of_paper else colour
    margins = line.finite_margins()
    for (across, up), margin in zip(line.points, margins, strict=True):
        place = f"{x(across):.1f}"
        if margin:
            low = y(up - margin)
            high = y(up + margin)
            yield (f'<path d="M{place} {low:.1f}V{high:.1f}" stroke="{colour}" opacity="0.55"/>')
        yield f'<circle cx="{place}" cy="{y(up):.1f}" r="2.6" fill="{fill}" stroke="{colour}"/>'


def _draw_way(line: Line, x: Scale, y: Scale, colour: str) -> str:
    """Draw what joins the points."""
    dashes = DASHES if line.of_paper else ""
    places = [f"{x(across):.1f} {y(up):.1f}" for across, up in line.points]
    way = "L".join(places)
    return f'<path d="M{way}" fill="none" stroke="{colour}" stroke-width="1.8"{dashes}/>'


def _draw_legend(line: Line, place: int, colour: str) -> Iterable[str]:
    across = WIDTH - RIGHT + 14
    down = TOP + 8 + 18 * place
    dashes = DASHES if line.of_paper else ""
    name = f"{line.name} (paper)" if line.of_paper else line.name
    yield f'<path d="M{across} {down}h18" stroke="{colour}" stroke-width="1.8"{dashes}/>'
    yield f'<text class="small" x="{across + 24}" y="{down + 4}">{escape(name)}</text>'
