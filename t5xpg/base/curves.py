"""Loss curves as SVG, written by hand: the same bytes for the same numbers, whatever fonts and libraries are there.

The background is transparent and the colours follow the reader's light or dark scheme. Colours are Okabe and Ito's,
which colour-blind readers can tell apart; the kinds of line differ in width as well.
"""

import dataclasses
import html
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 880, 430
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 190, 74, 54
_BEFORE_NAME, _LETTER = 98, 8.5  # widths in a label, right of the plot: of its line and value; of a letter of its name
_LABEL_DISTANCE = 21.0  # between the labels at the ends of the curves
_MARKED_POINTS = 40  # with more points than this, only the last one is marked
_TICKS = 7
_CLIFF = 0.1  # share of the steps: in this first part a loss may fall more than in all later steps

_STYLE = """
    text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif; fill: #57606a }
    .title { font-weight: 600; font-size: 16px; fill: #1f2328 }
    .name { fill: #1f2328 } .value { font-weight: 600; fill: #1f2328 }
    .tick { font-size: 13px } .grid { stroke: #8c959f; stroke-opacity: .22 } .axis { stroke: #8c959f }
    .line { fill: none; stroke-linejoin: round; stroke-linecap: round }
    .own { stroke: #0072b2; stroke-width: 2.5 } .mark { fill: #0072b2 }
    .thin { stroke: #0072b2; stroke-width: 1.2; stroke-opacity: .5 }
    .wide { stroke: #e69f00; stroke-width: 8; stroke-opacity: .45 }
    @media (prefers-color-scheme: dark) {
      text { fill: #9198a1 } .title, .name, .value { fill: #f0f6fc }
      .own, .thin { stroke: #56b4e9 } .thin { stroke-opacity: .7 } .mark { fill: #56b4e9 }
    }
"""
# Kinds of curves that are compared with each other: a colour and a width or pattern for each.
COMPARED = ("first", "second", "third", "fourth")
_COMPARED_STYLE = """
    .first { stroke: #0072b2; stroke-width: 3 } .second { stroke: #d55e00; stroke-width: 2 }
    .third { stroke: #009e73; stroke-width: 2; stroke-dasharray: 9 4 }
    .fourth { stroke: #cc79a7; stroke-width: 2; stroke-dasharray: 2 4 }
    .band { fill-opacity: .16 } .band.first { fill: #0072b2 } .band.second { fill: #d55e00 }
    .band.third { fill: #009e73 } .band.fourth { fill: #cc79a7 } path.band { stroke: none }
    @media (prefers-color-scheme: dark) { .first { stroke: #56b4e9 } .band.first { fill: #56b4e9 } }
"""


@dataclass(frozen=True)
class Curve:
    """One line of the picture. Values that are None leave a gap.

    band: at each step the lowest and the highest of the values whose mean is shown, drawn behind the line; or empty.
    kind: "own" (thick, with marks), "thin" (a noisy curve behind it) or "wide" (a broad line under both, to compare
    with); or, in a picture of curves of equal rank, one of `COMPARED`.
    """

    name: str
    kind: str
    steps: Sequence[float]
    values: Sequence[float | None]
    band: Sequence[tuple[float, float] | None] = ()

    @property
    def last(self) -> tuple[float, float] | None:
        """The last step that has a value, and the value."""
        return next(
            ((x, y) for x, y in zip(reversed(self.steps), reversed(self.values), strict=True) if y is not None), None
        )


def draw(title: str, x_label: str, y_label: str, curves: Sequence[Curve], *, without_cliff: bool = False) -> str:
    """An SVG of the curves over steps, each labelled with its name and last value. ValueError if none has a value.

    without_cliff: cut off the high values of the first steps where they would take most of the height, and say so.
    """
    curves = [curve for curve in curves if curve.last is not None]
    if not curves:
        raise ValueError("no curve has a value")
    top = _end_of_cliff(curves) if without_cliff else None
    if top is not None:
        y_label += f" (up to {max(value for _, value in _points(curves)):.3g} at first)"
        below = [[None if v is None or v > top else v for v in curve.values] for curve in curves]
        curves = [dataclasses.replace(curve, values=values) for curve, values in zip(curves, below, strict=True)]
    plot = _Plot(curves)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-labelledby="title description">',
        f'<title id="title">{html.escape(title)}</title>',
        f'<desc id="description">{html.escape(_description(y_label, curves))}</desc>',
        f"<style>{_STYLE}{_COMPARED_STYLE if any(curve.kind in COMPARED for curve in curves) else ''}</style>",
        text(_LEFT - 40, 24, title, "title"),
        text(_LEFT - 40, 50, y_label),
        *plot.axes(x_label),
        *itertools.chain.from_iterable(map(plot.band, curves)),
    ]
    for kind in ("wide", "thin", "own", *reversed(COMPARED)):  # later kinds are drawn over earlier ones
        for curve in curves:
            if curve.kind == kind:
                parts += plot.line(curve)
    return "\n".join([*parts, *plot.labels(curves), "</svg>"]) + "\n"


class _Plot:
    """The part of the picture between the axes: `x` and `y` give the coordinates, the other methods SVG elements."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        values = [value for _, value in _points(curves)]
        values += [edge for curve in curves for edges in curve.band if edges is not None for edge in edges]
        margin = max(_RIGHT, math.ceil(_BEFORE_NAME + _LETTER * max(len(curve.name) for curve in curves)))
        self.right, self.bottom = WIDTH - margin, HEIGHT - _BOTTOM
        self.last_step = float(max(1, *(step for curve in curves for step in curve.steps)))
        self.y_ticks = ticks(min(values), max(values))
        self.low, self.high = min(self.y_ticks[0], min(values)), max(self.y_ticks[-1], max(values))

    def x(self, step: float) -> float:
        return _LEFT + (self.right - _LEFT) * step / self.last_step

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - _TOP) * (value - self.low) / (self.high - self.low)

    def axes(self, x_label: str) -> list[str]:
        """The grid, the axis of the steps, and the ticks and label of both axes."""
        parts = []
        for tick in self.y_ticks:
            parts.append(_rule("grid", _LEFT, self.y(tick), self.right, self.y(tick)))
            parts.append(text(_LEFT - 10, self.y(tick) + 4.5, _tick_text(tick, self.y_ticks), "tick", "end"))
        parts.append(_rule("axis", _LEFT, self.bottom, self.right, self.bottom))
        x_ticks = ticks(0.0, self.last_step, whole=True)
        for tick in x_ticks:
            if tick <= self.last_step:
                parts.append(_rule("axis", self.x(tick), self.bottom, self.x(tick), self.bottom + 5))
                parts.append(text(self.x(tick), self.bottom + 21, _tick_text(tick, x_ticks), "tick", "middle"))
        return [*parts, text((_LEFT + self.right) / 2, HEIGHT - 9, x_label, anchor="middle")]

    def band(self, curve: Curve) -> list[str]:
        """The area between the lowest and the highest values of a curve; nothing if it has fewer than two of them."""
        edges = [(self.x(step), *pair) for step, pair in zip(curve.steps, curve.band, strict=False) if pair is not None]
        if len(edges) < 2:
            return []
        outline = [(x, self.y(low)) for x, low, _ in edges] + [(x, self.y(high)) for x, _, high in reversed(edges)]
        path = "L".join(f"{number(x)} {number(y)}" for x, y in outline)
        return [f'<path class="band {curve.kind}" d="M{path}Z"/>']

    def line(self, curve: Curve) -> list[str]:
        """The line of a curve, with gaps where it has no values, and with marks if it is of the kind "own"."""
        values = zip(curve.steps, curve.values, strict=True)
        points = [None if value is None else (self.x(step), self.y(value)) for step, value in values]
        pieces = [
            [point for point in group if point is not None]
            for is_gap, group in itertools.groupby(points, key=lambda point: point is None)
            if not is_gap
        ]
        elements = []
        for piece in pieces:
            if len(piece) > 1:
                path = "L".join(f"{number(x)} {number(y)}" for x, y in piece)
                elements.append(f'<path class="line {curve.kind}" d="M{path}"/>')
            elif curve.kind != "own":  # a point alone: a dot of the line's own width
                elements.append(
                    f'<path class="line {curve.kind}" d="M{number(piece[0][0])} {number(piece[0][1])}h.01"/>'
                )
        if curve.kind == "own":
            marks = [point for piece in pieces for point in piece]
            for x, y in marks if len(marks) <= _MARKED_POINTS else marks[-1:]:
                elements.append(f'<circle class="mark" cx="{number(x)}" cy="{number(y)}" r="3"/>')
        return elements

    def labels(self, curves: Sequence[Curve]) -> list[str]:
        """For each curve a piece of its line, its last value and its name, beside the end of the line."""
        parts = []
        ends = [(curve, curve.last[1]) for curve in curves if curve.last is not None]
        heights = spread([self.y(value) for _, value in ends], _LABEL_DISTANCE, _TOP, self.bottom)
        start = self.right + 14
        for (curve, value), height in zip(ends, heights, strict=True):
            parts.append(f'<path class="line {curve.kind}" d="M{start} {number(height)}h20"/>')
            if curve.kind == "own":
                parts.append(f'<circle class="mark" cx="{start + 10}" cy="{number(height)}" r="3"/>')
            parts.append(
                f'<text x="{start + 30}" y="{number(height + 5)}"><tspan class="value">{value:.3f}</tspan>'
                f'<tspan class="name" dx="6">{html.escape(curve.name)}</tspan></text>'
            )
        return parts


def _points(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """Step and value of all points of the curves."""
    return [(s, v) for curve in curves for s, v in zip(curve.steps, curve.values, strict=True) if v is not None]


def _end_of_cliff(curves: Sequence[Curve]) -> float | None:
    """The highest value after the first part of the steps (`_CLIFF`), or at the end of a shorter curve, if the values
    before that take more than half of the height; else None."""
    end = max(step for curve in curves for step in curve.steps)
    points = _points(curves)
    later = [value for step, value in points if step >= _CLIFF * end]
    later += [curve.last[1] for curve in curves if curve.last is not None]
    low, high = min(value for _, value in points), max(value for _, value in points)
    return max(later) if high - low > 2 * (max(later) - low) > 0 else None


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Between four and eight round numbers, evenly spaced, around `low` and `high`. whole: only whole numbers."""
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):  # they may differ by rounding alone
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / _TICKS
    if whole:
        rough = max(rough, 1.0)
    scale = 10.0 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    distance = next(factor * scale for factor in factors if factor * scale >= rough * (1 - 1e-9))
    first, last = math.floor(low / distance + 1e-9), math.ceil(high / distance - 1e-9)
    return [round(index * distance, 12) for index in range(first, last + 1)]


def spread(positions: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """The positions moved apart to at least `distance`, in the same order, as little as possible, within the bounds.

    It is an isotonic regression of what is left of them without the distances: neighbours that are too close form a
    group around its own mean, and groups that meet become one.
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    groups: list[list[float]] = []
    for rank, index in enumerate(order):
        group = [positions[index] - rank * distance]
        while groups and statistics.fmean(groups[-1]) > statistics.fmean(group):
            group = groups.pop() + group
        groups.append(group)
    means = [statistics.fmean(group) for group in groups for _ in group]
    highest = high - distance * (len(positions) - 1)
    result = [0.0] * len(positions)
    for rank, (index, mean) in enumerate(zip(order, means, strict=True)):
        result[index] = max(low, min(highest, mean)) + rank * distance
    return result


def _description(y_label: str, curves: Sequence[Curve]) -> str:
    ends = [f"{curve.name} {curve.last[1]:.3f} at step {curve.last[0]:,}" for curve in curves if curve.last is not None]
    return f"{y_label}: {'; '.join(ends)}."


def _tick_text(tick: float, all_ticks: Sequence[float]) -> str:
    distance = all_ticks[1] - all_ticks[0]
    # distances are 1, 2, 2.5 or 5 of some power of ten, as far as the difference of two floats says
    decimals = next((count for count in range(12) if abs(round(distance, count) - distance) < 1e-3 * distance), 12)
    return f"{tick:,.{decimals}f}"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    """An SVG element with text that begins at (x, y). anchor: "middle" or "end" puts that part of the text there."""
    kind = f' class="{kind}"' if kind else ""
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text{kind} x="{number(x)}" y="{number(y)}"{anchor}>{html.escape(words)}</text>'


def _rule(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="{kind}" d="M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"/>'


def number(value: float) -> str:
    """A coordinate of an SVG picture, in at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
