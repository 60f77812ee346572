"""How cost grows, as one SVG: a panel for each size that is varied, seconds a step above, memory below.

All axes are logarithmic, so that what grows like the arithmetic runs along its line. Written by hand, as the
loss curves are (`t5xpg.base.curves`): the same bytes for the same numbers, transparent, in the reader's light or dark
colours.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from t5xpg.base.curves import number, text

WIDTH = 1120
_LEFT, _TOP, _GAP = 64, 92, 22
_PANEL_HEIGHT, _BETWEEN = 190, 62

_STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif; fill: #57606a }
    .title { font-weight: 600; font-size: 16px; fill: #1f2328 } .name { font-weight: 600; fill: #1f2328 }
    .tick { font-size: 12px } .grid { stroke: #8c959f; stroke-opacity: .22 }
    .line { fill: none; stroke-linejoin: round; stroke-linecap: round }
    .own { stroke: #0072b2; stroke-width: 2.5 } .own-mark { fill: #0072b2 }
    .other { stroke: #d55e00; stroke-width: 2.5 } .other-mark { fill: #d55e00 }
    .arithmetic { stroke: #8c959f; stroke-width: 1.4; stroke-dasharray: 4 4 }
    @media (prefers-color-scheme: dark) {
      text { fill: #9198a1 } .title, .name { fill: #f0f6fc }
      .own { stroke: #56b4e9 } .own-mark { fill: #56b4e9 } .other { stroke: #e69f00 } .other-mark { fill: #e69f00 }
    }
"""


@dataclass(frozen=True)
class Series:
    """A size that is varied: the points of one line. kind: "own", or "other" for the second line of a panel.

    expected: what the arithmetic says of `seconds`, in any unit; drawn through the last point.
    """

    name: str
    kind: str
    sizes: Sequence[int]
    seconds: Sequence[float]
    bytes: Sequence[float]
    expected: Sequence[float]


@dataclass(frozen=True)
class Panel:
    label: str
    series: Sequence[Series]


def draw(title: str, panels: Sequence[Panel]) -> str:
    """The picture. Raises ValueError where there is nothing to draw."""
    drawn = [panel for panel in panels if any(series.sizes for series in panel.series)]
    if not drawn:
        raise ValueError("no panel has a point")
    height = _TOP + 2 * _PANEL_HEIGHT + _BETWEEN + 52
    every = [series for panel in drawn for series in panel.series]
    seconds = _Scale([value for series in every for value in series.seconds])
    memory = _Scale([value for series in every for value in series.bytes])
    width = (WIDTH - _LEFT - 16 - _GAP * (len(drawn) - 1)) / len(drawn)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-labelledby="title">',
        f'<title id="title">{html.escape(title)}</title>',
        f"<style>{_STYLE}</style>",
        text(14, 24, title, "title"),
        *_legend(every),
    ]
    lower = _TOP + _PANEL_HEIGHT + _BETWEEN
    for top, scale, what, unit in ((_TOP, seconds, "time of a step", _time), (lower, memory, "memory", _memory)):
        parts.append(text(14, top - 14, what))
        for tick in scale.ticks():
            y = top + _PANEL_HEIGHT * (1 - scale.part(tick))
            parts.append(f'<path class="grid" d="M{_LEFT} {number(y)}H{WIDTH - 16}"/>')
            parts.append(text(_LEFT - 8, y + 4, unit(tick), "tick", "end"))
    for index, panel in enumerate(drawn):
        left = _LEFT + index * (width + _GAP)
        across = _Scale([float(size) for series in panel.series for size in series.sizes])
        for series in panel.series:
            xs = [left + 8 + (width - 16) * across.part(size) for size in series.sizes]
            last = series.seconds[-1] / series.expected[-1]
            line = [value * last for value in series.expected]
            parts += _line(xs, [_height(_TOP, seconds, value) for value in line], "arithmetic", mark=False)
            parts += _line(xs, [_height(_TOP, seconds, value) for value in series.seconds], series.kind)
            parts += _line(xs, [_height(lower, memory, value) for value in series.bytes], series.kind)
        bottom = lower + _PANEL_HEIGHT
        ends = sorted({size for series in panel.series for size in series.sizes})
        for size in (ends[0], ends[-1]):
            anchor = "start" if size == ends[0] else "end"
            x = left + 8 + (width - 16) * across.part(size)
            parts.append(text(x, bottom + 18, f"{size:,}", "tick", anchor))
        parts.append(text(left + width / 2, bottom + 40, panel.label, "name", "middle"))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


class _Scale:
    """A logarithmic axis from the smallest to the largest of some values."""

    def __init__(self, values: Sequence[float]) -> None:
        self.low, self.high = math.log2(min(values)), math.log2(max(values))
        if self.high - self.low < 1:
            self.low, self.high = self.low - 0.5, self.high + 0.5

    def part(self, value: float) -> float:
        """0 at the lowest, 1 at the highest; beyond these where a value is."""
        return (math.log2(value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Powers of ten, with halves of them where there are few."""
        first, last = math.floor(self.low * math.log10(2)), math.ceil(self.high * math.log10(2))
        factors = (1, 2, 5) if last - first <= 2 else (1,)
        ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        return [tick for tick in ticks if -1e-9 <= self.part(tick) <= 1 + 1e-9]


def _height(top: float, scale: _Scale, value: float) -> float:
    return top + _PANEL_HEIGHT * (1 - min(1.0, max(0.0, scale.part(value))))


def _legend(every: Sequence[Series]) -> list[str]:
    parts, x = [], 14.0
    names = {series.kind: series.name for series in every} | {"arithmetic": "as the matrix products' operations grow"}
    for kind in ("own", "other", "arithmetic"):
        if kind in names:
            parts.append(f'<path class="line {kind}" d="M{number(x)} 46h26"/>')
            parts.append(text(x + 34, 50, names[kind]))
            x += 64 + 7 * len(names[kind])
    return parts


def _line(xs: Sequence[float], ys: Sequence[float], kind: str, mark: bool = True) -> list[str]:
    points = [f"{number(x)} {number(y)}" for x, y in zip(xs, ys, strict=True)]
    found = [f'<path class="line {kind}" d="M{"L".join(points)}"/>'] if len(points) > 1 else []
    if mark:
        found += [
            f'<circle class="{kind}-mark" cx="{number(x)}" cy="{number(y)}" r="3"/>'
            for x, y in zip(xs, ys, strict=True)
        ]
    return found


def _time(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{1000 * seconds:g} ms"


def _memory(size: float) -> str:
    return f"{size / 1e9:g} GB" if size >= 1e9 else f"{size / 1e6:g} MB"
