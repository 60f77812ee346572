"""What it costs to save and to put back the position in the data, early and late in a stream.

    python benchmarks/restore_position.py [--late 100000] [--repeats 15] [--batch-size 1] [--kinds cached packed]

It should cost the same at batch 100 as at batch 100,000. Prints a table: for cached, uncached, packed (and cached) data
and a mixture, the medians of measurements that alternate between the two positions. A save is `Stream.state`. A restore
is `Stream.restore` and the first batch that had not been read ahead when the position was saved: tf.data may put off
what costs time until then. The text is made up, in a temporary folder.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from t5xpg.data.caching import cache_task  # noqa: E402
from t5xpg.data.client import DataService, Stream  # noqa: E402
from t5xpg.data.export import export_dataset  # noqa: E402
from t5xpg.data.spec import DatasetConfig  # noqa: E402
from t5xpg.data.task_names import SPAN_CORRUPTION, task_name  # noqa: E402
from t5xpg.progress import Progress  # noqa: E402

EARLY = 100
PREFETCH = 2
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
class Position:
    """A place in a stream, and what it cost to save it and to put it back there, in seconds."""

    batch: int
    state: dict[str, np.ndarray]
    saves: list[float]
    restores: list[float]

    @property
    def size(self) -> int:
        return sum(array.nbytes for array in self.state.values())


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


def positions(stream: Stream, late: int, label: str) -> list[Position]:
    """Read up to the two positions and save each."""
    found = []
    with Progress(label, late, "batches") as progress:
        for batch in (EARLY, late):
            while stream.batches_read < batch:
                next(stream)
                progress.advance()
            found.append(Position(batch, stream.state(), [], []))
    return found


def measure(stream: Stream, position: Position) -> None:
    """Put the position back, then save it."""
    began = time.perf_counter()
    stream.restore(position.state)
    for _ in range(PREFETCH + 1):
        next(stream)
    position.restores.append(time.perf_counter() - began)
    stream.restore(position.state)
    began = time.perf_counter()
    stream.state()
    position.saves.append(time.perf_counter() - began)


def rows(kind: str, found: list[Position]) -> Iterator[str]:
    """Lines of the table: the two positions, and the second's share of the first."""
    early, late = found
    medians = {id(one): [statistics.median(times) for times in (one.saves, one.restores)] for one in found}
    for one in found:
        save, restore = medians[id(one)]
        yield f"{kind:9} {one.batch:9,} {save:9.3f} {restore:9.3f} {one.size:12,}"
    ratios = [b / a for a, b in zip(medians[id(early)], medians[id(late)], strict=True)]
    yield f"{'':9} {'ratio':>9} {ratios[0]:9.2f} {ratios[1]:9.2f} {late.size / early.size:12.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--late", type=int, default=100_000, help="the later of the two batches")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    lines = [f"{'kind':9} {'batch':>9} {'save s':>9} {'restore s':>9} {'bytes':>12}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder)
        sys.path.append(name)
        with DataService(data_dir=folder / "data", cache_dir=folder / "cache") as service:
            opened = []
            for kind in arguments.kinds:
                config = DatasetConfig(
                    **KINDS[kind],  # type: ignore[arg-type]
                    task_feature_lengths=LENGTHS,
                    batch_size=arguments.batch_size,
                    module_import=("bench_tasks",),
                )
                stream = service.open(config, prefetch=PREFETCH)
                opened.append((kind, stream, positions(stream, arguments.late, kind)))
            for repeat in range(arguments.repeats + 1):
                for _, stream, found in opened:
                    for position in found if repeat % 2 else reversed(found):
                        measure(stream, position)
                        if repeat == 0:  # a first time, of which nothing is kept
                            position.saves.clear()
                            position.restores.clear()
        for kind, _, found in opened:
            lines += rows(kind, found)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
