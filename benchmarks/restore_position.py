"""What it costs to save and to put back the position in the data, early and late in a stream.

    python benchmarks/restore_position.py [--late 100000] [--repeats 15] [--batch-size 1] [--kinds cached packed]

It should cost the same at batch 100 as at batch 100,000 (10,000 in `make bench`, which has less time). Prints a table:
for cached, uncached, packed (and cached) data and a mixture, the medians of measurements that alternate between early
and late. Each is made at another batch, a hundred apart: how much a position holds goes up and down with how full the
buffers of the pipeline are. A save is `Stream.state`. A restore is `Stream.restore` and the first batch that had not
been read ahead when the position was saved: tf.data may put off what costs time until then. The text is made up, in a
temporary folder.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.harness import Found, Row  # noqa: E402
from t5xpg.base.progress import Progress  # noqa: E402
from t5xpg.data.cache.command import cache_task  # noqa: E402
from t5xpg.data.spec import DatasetConfig  # noqa: E402
from t5xpg.data.stream.client import DataService, Stream  # noqa: E402
from t5xpg.data.tasks.task_names import SPAN_CORRUPTION, task_name  # noqa: E402
from t5xpg.data.text.export import export_dataset  # noqa: E402

EARLY = 100
APART = 100
PREFETCH = 2
LATE, REPEATS = 10_000, 5  # in `make bench`
LENGTHS = {"inputs": 128, "targets": 64}
LARGE, SMALL, MIXTURE = task_name("large", SPAN_CORRUPTION), task_name("small", SPAN_CORRUPTION), "bench_mixture"
KINDS = {
    "cached": {"mixture_or_task_name": LARGE},
    "uncached": {"mixture_or_task_name": LARGE, "use_cached": False},
    "packed": {"mixture_or_task_name": LARGE, "pack": True},
    "mixture": {"mixture_or_task_name": MIXTURE},
}
MODULE = f"""
import seqio

import t5xpg.tasks

if "{MIXTURE}" not in seqio.MixtureRegistry.names():
    seqio.MixtureRegistry.add("{MIXTURE}", [("{LARGE}", 2.0), ("{SMALL}", 1.0)])
"""
WORDS = ["the", "model", "reads", "sentence", "fills", "left", "out", "with", "words", "not", "seen", "before"]


@dataclass
class Place:
    """Positions from one batch on, and what it cost to save them and to put them back, in seconds."""

    batch: int
    states: list[dict[str, np.ndarray]]
    saves: list[float]
    restores: list[float]

    def medians(self) -> tuple[float, float, float]:
        """Of the seconds of saves and restores, and of the bytes of the positions."""
        sizes = [sum(array.nbytes for array in state.values()) for state in self.states]
        return statistics.median(self.saves), statistics.median(self.restores), statistics.median(sizes)


def make_data(folder: Path) -> None:
    """Two exports and their caches, and a module with the mixture of both."""
    draw = random.Random(0)
    data_dir, cache_dir = folder / "data", folder / "cache"
    for name, documents in (("large", 3000), ("small", 800)):
        for split, count in (("train", documents), ("validation", 20)):
            lines = (" ".join(draw.choices(WORDS, k=draw.randrange(50, 400))) for _ in range(count))
            (folder / f"{name}-{split}.txt").write_text("\n".join(lines) + "\n")
        files: dict[str | None, list[Path]] = {
            split: [folder / f"{name}-{split}.txt"] for split in ("train", "validation")
        }
        export_dataset(name, data_dir=data_dir, files=files)
        cache_task(task_name(name, SPAN_CORRUPTION), cache_dir=cache_dir, data_dir=data_dir)
    (folder / "bench_tasks.py").write_text(MODULE)


def places(stream: Stream, late: int, count: int, label: str) -> list[Place]:
    """Read up to the early and the late batch, and save `count` positions from each on."""
    found = [Place(batch, [], [], []) for batch in (EARLY, late)]
    with Progress(label, late + count * APART, "batches") as progress:
        for place in found:
            for number in range(count):
                while stream.batches_read < place.batch + number * APART:
                    next(stream)
                    progress.advance()
                place.states.append(stream.state())
    return found


def measure(stream: Stream, place: Place, state: dict[str, np.ndarray]) -> None:
    """Put a position back, then save it."""
    began = time.perf_counter()
    stream.restore(state)
    for _ in range(PREFETCH + 1):
        next(stream)
    place.restores.append(time.perf_counter() - began)
    stream.restore(state)
    began = time.perf_counter()
    stream.state()
    place.saves.append(time.perf_counter() - began)


def lines_of(kind: str, found: list[Place]) -> Iterator[str]:
    """Lines of the table: early, late, and the second as a multiple of the first."""
    early, late = (place.medians() for place in found)
    for place, (save, restore, size) in zip(found, (early, late), strict=True):
        yield f"{kind:9} {place.batch:9,} {save:9.3f} {restore:9.3f} {size:12,.0f}"
    ratios = [b / a for a, b in zip(early, late, strict=True)]
    yield f"{'':9} {'ratio':>9} {ratios[0]:9.2f} {ratios[1]:9.2f} {ratios[2]:12.2f}"


def measured(kinds: Sequence[str], late: int, repeats: int, batch_size: int) -> dict[str, list[Place]]:
    """The early and the late place of each kind of data, with what they cost."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder)
        sys.path.append(name)
        with DataService(data_dir=folder / "data", cache_dir=folder / "cache") as service:
            streams, found = {}, {}
            for kind in kinds:
                config = DatasetConfig(
                    **KINDS[kind],  # type: ignore[arg-type]
                    task_feature_lengths=LENGTHS,
                    batch_size=batch_size,
                    module_import=("bench_tasks",),
                )
                streams[kind] = service.open(config, prefetch=PREFETCH)
                found[kind] = places(streams[kind], late, repeats, kind)
            for kind, stream in streams.items():  # a first time, of which nothing is kept
                measure(stream, Place(0, [], [], []), found[kind][0].states[0])
            for repeat in range(repeats):
                for kind, stream in streams.items():
                    for place in found[kind] if repeat % 2 else reversed(found[kind]):
                        measure(stream, place, place.states[repeat])
    return found


def rows(repeats: int | None) -> list[Row]:
    """Seconds until a stream goes on, late in it and early in it."""
    return [
        Row(
            name="restore_position", what=f"restoring a position in {kind} data", unit="s",
            fixed=f"until the next batch is there; batch 1, {LENGTHS['inputs']}/{LENGTHS['targets']}",
            found=Found({f"at batch {place.batch:,}": tuple(place.restores) for place in (late, early)}),
            facts={"seconds_to_save": {str(place.batch): place.medians()[0] for place in (early, late)}},
        )
        for kind, (early, late) in measured(list(KINDS), LATE, repeats or REPEATS, 1).items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--late", type=int, default=100_000, help="the later of the two batches")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    found = measured(arguments.kinds, arguments.late, arguments.repeats, arguments.batch_size)
    print(f"{'kind':9} {'batch':>9} {'save s':>9} {'restore s':>9} {'bytes':>12}")
    for kind, both in found.items():
        print("\n".join(lines_of(kind, both)))


if __name__ == "__main__":
    main()
