"""Figures as SVG, written here and not by a plotting library: they are committed and must come out
of the results byte for byte, on every machine and with every version of everything else. They
follow the reader's light or dark.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from lib.results import Group

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 380, 62, 190, 36, 48
LETTER = 7  # of a legend, at most, in pixels
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f7f7f",
    "#8b5a2b",
)  # Okabe and Ito's, and two more
STYLE = """text{font:12px sans-serif;fill:#222}.small{font-size:11px}.title{font-size:13px;font-weight:600}
.axis{stroke:#888;fill:none}.grid{stroke:#ddd;fill:none}svg{background:#fff}
@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#3a3a3a}svg{background:#1b1b1b}}"""


@dataclass(frozen=True)
class Line:
    """Points that belong together. `margin` is half an interval; the paper's own figures are hollow
    and dashed.
    """

    name: str
    points: Sequence[tuple[float, float]]
    margins: Sequence[float] = ()
    of_paper: bool = False
    joined: bool = True


def curve(group: Group, run: str, name: str) -> Line:
    """AccuracyTop1 over the rounds of a run, in %; margins are half of what its seeds differ by."""
    found = [(round, one) for round, one in group.curve(run) if round]
    return Line(
        name,
        [(round, 100 * one.value) for round, one in found],
        [50 * (one.most - one.least) for _, one in found],
    )


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    first: float  # where the ends are drawn
    last: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (
            math.log10(one) if self.is_log else one for one in (self.low, self.high, value)
        )
        return self.first + (self.last - self.first) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        if self.is_log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            return [
                tick
                for power in powers
                for tick in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
                if self.low <= tick <= self.high
            ]
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        step = next(
            step * times for times in (1, 2, 5, 10) if (self.high - self.low) / (step * times) <= 6
        )
        first = math.ceil(self.low / step - 1e-9)
        return [count * step for count in range(first, math.floor(self.high / step + 1e-9) + 1)]


def figure(
    title: str, across: str, up: str, lines: Sequence[Line], log: bool = False, log_up: bool = False
) -> str:
    """A chart of lines, with a legend to the right of it; `log` is about what goes across."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [
        y + sign * margin
        for line in lines
        for (_, y), margin in zip(line.points, _margins(line), strict=True)
        for sign in (-1, 1)
    ]
    room = 0.06 * (max(ys) - min(ys) or 1)
    side = 0 if log else 0.02 * (max(xs) - min(xs) or 1)
    x = Scale(min(xs) - side, max(xs) + side, LEFT, WIDTH - RIGHT, log)
    y = Scale(
        min(ys) - (0 if log_up else room),
        max(ys) + (0 if log_up else room),
        HEIGHT - BOTTOM,
        TOP,
        log_up,
    )
    if x.low == x.high:
        x = Scale(x.low / 2, x.high * 2, LEFT, WIDTH - RIGHT, log)
    drawn = [
        *_axes(x, y, across, up),
        f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>',
    ]
    colours = dict(
        zip(
            dict.fromkeys(line.name for line in lines if not line.of_paper),
            COLOURS * 4,
            strict=False,
        )
    )
    for place, line in enumerate(lines):
        colour = "#888" if line.of_paper and line.name not in colours else colours[line.name]
        drawn += [*_line(line, x, y, colour), *_legend(line, place, colour)]
    body, width = (
        "\n".join(drawn),
        max(WIDTH, WIDTH - RIGHT + 44 + LETTER * max(len(line.name) for line in lines)),
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}"'
        f' height="{HEIGHT}">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def _margins(line: Line) -> Sequence[float]:
    found = line.margins or [0.0] * len(line.points)
    return [margin if math.isfinite(margin) else 0.0 for margin in found]


def _axes(x: Scale, y: Scale, across: str, up: str) -> Iterable[str]:
    for tick in x.ticks():
        yield f'<path class="grid" d="M{x(tick):.1f} {y.first}V{y.last}"/>'
        yield (
            f'<text class="small" text-anchor="middle" x="{x(tick):.1f}"'
            f' y="{y.first + 16}">{tick:g}</text>'
        )
    for tick in y.ticks():
        yield f'<path class="grid" d="M{x.first} {y(tick):.1f}H{x.last}"/>'
        yield (
            f'<text class="small" text-anchor="end" x="{x.first - 6}"'
            f' y="{y(tick) + 4:.1f}">{float(f"{tick:.6g}"):g}</text>'
        )
    yield f'<path class="axis" d="M{x.first} {y.last}V{y.first}H{x.last}"/>'
    yield (
        f'<text text-anchor="middle" x="{(x.first + x.last) / 2:.0f}"'
        f' y="{HEIGHT - 10}">{escape(across)}</text>'
    )
    yield (
        f'<text text-anchor="middle" transform="translate(16 {(y.first + y.last) / 2:.0f})'
        f' rotate(-90)">{escape(up)}</text>'
    )


def _line(line: Line, x: Scale, y: Scale, colour: str) -> Iterable[str]:
    places = [(x(a), y(b)) for a, b in line.points]
    if line.joined and len(places) > 1:
        dashes = ' stroke-dasharray="5 4"' if line.of_paper else ""
        way = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
        yield f'<path d="M{way}" fill="none" stroke="{colour}" stroke-width="1.8"{dashes}/>'
    for (a, b), (_, value), margin in zip(places, line.points, _margins(line), strict=True):
        if margin:
            yield (
                f'<path d="M{a:.1f} {y(value - margin):.1f}V{y(value + margin):.1f}"'
                f' stroke="{colour}" opacity="0.55"/>'
            )
        fill = "none" if line.of_paper else colour
        yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.6" fill="{fill}" stroke="{colour}"/>'


def _legend(line: Line, place: int, colour: str) -> Iterable[str]:
    across, down = WIDTH - RIGHT + 14, TOP + 8 + 18 * place
    dashes = ' stroke-dasharray="5 4"' if line.of_paper else ""
    name = f"{line.name} (paper)" if line.of_paper else line.name
    yield f'<path d="M{across} {down}h18" stroke="{colour}" stroke-width="1.8"{dashes}/>'
    yield f'<text class="small" x="{across + 24}" y="{down + 4}">{escape(name)}</text>'
