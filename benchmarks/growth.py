"""How the cost of a training step grows with the length, width, depth, batch and vocabulary.

Each point is a process of its own (`benchmarks.growth_ours`). A step's time is compared with the operations of its
matrix products (`Job.flops`): one size is varied, and from any point to any larger one, the time should not grow faster
than the operations. bench/growth.json has all points, bench/growth.svg the picture.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.growth_picture import Panel, Series, draw
from benchmarks.harness import REPOSITORY, Found, Goal, NotMeasuredError, Row, number, report_of, say
from benchmarks.jobs import JOBS, Job
from t5xpg.base.files import write_json, write_text

POINTS, PICTURE = REPOSITORY / "bench" / "growth.json", REPOSITORY / "bench" / "growth.svg"
BASE = dataclasses.replace(JOBS["small"], batch=8)
CHUNK = 256
FIXED = "t5xpg, AdamW, float32, packed masks, dropout 0, 2 segments a row"
# Two measurements of the same point differ by this factor now and then; see the spread of the row `step`.
NOISE = 1.15


@dataclass(frozen=True)
class Axis:
    """One size that is varied. label: its name in the picture. chunk: the queries in a chunk of attention, or None."""

    name: str
    label: str
    sizes: tuple[int, ...]
    chunk: int | None = None

    def job(self, size: int) -> Job:
        """The job of one point: the small job with a batch of 8, or of 1 where the length is varied."""
        if self.name == "length":
            return dataclasses.replace(BASE, inputs=size, targets=size // 4, batch=1)
        if self.name == "width":  # with more heads of the same size; T5's MLP is four times as wide
            return dataclasses.replace(BASE, emb=size, mlp=4 * size, heads=size // BASE.head_dim)
        if self.name == "depth":
            return dataclasses.replace(BASE, encoder_layers=size, decoder_layers=size // 2)
        return dataclasses.replace(BASE, **{self.name: size})


AXES = (
    Axis("length", "input bytes", (256, 1024, 4096, 8192)),
    Axis("length", "input bytes", (512, 2048, 8192), CHUNK),
    Axis("width", "width", (64, 128, 512)),
    Axis("depth", "encoder layers", (2, 4, 16)),
    Axis("batch", "rows", (2, 8, 32)),
    Axis("vocabulary", "vocabulary", (384, 4096, 32768)),
)
BY_CHUNKS = 1  # the index in AXES of the axis whose attention is by chunks

Point = dict[str, Any]


def rows(repeats: int | None) -> list[Row]:
    """One row for each axis, all measured `repeats` times (once by default); writes the points and the picture."""
    rounds = [[_points(axis) for axis in AXES] for _ in range(repeats or 1)]
    # the last round's points are published; the values of all rounds show how reliable they are
    record = [{**dataclasses.asdict(axis), "points": points} for axis, points in zip(AXES, rounds[-1], strict=True)]
    write_json(POINTS, {"fixed": FIXED, "axes": record})
    write_text(PICTURE, picture(rounds[-1]))
    found = [_row(axis, [measured[index] for measured in rounds]) for index, axis in enumerate(AXES)]
    return [*found, _memory_row([measured[BY_CHUNKS] for measured in rounds])]


def _points(axis: Axis) -> list[Point]:
    """The points of an axis that can be measured, each alone in a process of its own."""
    found = []
    for size in axis.sizes:
        sizes = json.dumps(dataclasses.asdict(axis.job(size)))
        chunk = ["--chunk", str(axis.chunk)] if axis.chunk else []
        try:
            point = report_of(["-m", "benchmarks.growth_ours", sizes, *chunk], seconds=120)
        except NotMeasuredError as reason:
            say(f"  {_what(axis)}, {size:,}: {reason}")
            continue
        found.append({"size": size, **point})
        speed = number(point["flops"] / point["seconds"] / 1e9)
        say(f"  {_what(axis)}, {size:,}: {number(1000 * point['seconds'])} ms, {speed} GFLOP/s")
    return found


def steepest(points: Sequence[Point], of: str, against: str) -> float | None:
    """The growth of `of` over that of `against` from one point to a larger one: the largest of all such pairs."""
    found = [
        (larger[of] / smaller[of]) / (larger[against] / smaller[against])
        for index, smaller in enumerate(points)
        for larger in points[index + 1 :]
    ]
    return max(found, default=None)


def _row(axis: Axis, rounds: Sequence[Sequence[Point]]) -> Row:
    return Row(
        name="growth", what=f"time of a step against its operations, {_what(axis)}", unit="times",
        fixed=FIXED, found=_found(rounds, "seconds", "flops"), goal=Goal(at_most=NOISE), facts={"points": rounds[-1]},
    )  # fmt: skip


def _memory_row(rounds: Sequence[Sequence[Point]]) -> Row:
    return Row(
        name="growth", what=f"memory against the length, {_what(AXES[BY_CHUNKS])}", unit="times",
        fixed=FIXED, found=_found(rounds, "memory", "size"), goal=Goal(at_most=1.0),
    )  # fmt: skip


def _found(rounds: Sequence[Sequence[Point]], of: str, against: str) -> Found:
    values = tuple(value for points in rounds if (value := steepest(points, of, against)) is not None)
    return Found({"t5xpg": values}) if values else Found({}, {"t5xpg": "fewer than two points could be measured"})


def _what(axis: Axis) -> str:
    chunks = f", attention by chunks of {axis.chunk}" if axis.chunk else ""
    return f"{axis.name} {axis.sizes[0]:,} to {axis.sizes[-1]:,}{chunks}"


def picture(measured: Sequence[Sequence[Point]]) -> str:
    """The picture of all axes' points; axes of one name share a panel."""
    panels: dict[str, list[Series]] = {}
    for axis, points in zip(AXES, measured, strict=True):
        series = Series(
            name=f"attention by chunks of {axis.chunk}" if axis.chunk else "all at once",
            kind="other" if axis.chunk else "own",
            sizes=[point["size"] for point in points],
            seconds=[point["seconds"] for point in points],
            bytes=[point["memory"] for point in points],
            expected=[point["flops"] for point in points],
        )
        panels.setdefault(axis.label, []).extend([series] if points else [])
    return draw("How a training step's cost grows", [Panel(label, series) for label, series in panels.items()])
