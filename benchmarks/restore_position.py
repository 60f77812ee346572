"""What it costs to restore the position in the data, early and late in a stream: it should cost the same.

    python -m benchmarks.restore_position 100000

measures late at batch 100,000 instead of 10,000, which is all that `make bench` has time for. Measurements alternate
between early and late: for cached, uncached, packed (and cached) data and a mixture. Repeats are made at positions a
hundred batches apart, as the size of a position varies with how full the buffers of the pipeline are. A restore is
`Stream.restore` and the first batch that had not been read ahead when the position was saved, because tf.data may defer
work until then. The text is made up, in a temporary folder.
"""

import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import Found, Row
from benchmarks.page import text
from t5xpg.base.progress import Progress
from t5xpg.data.cache.command import cache_task
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService, Stream
from t5xpg.data.tasks.task_names import SPAN_CORRUPTION, task_name
from t5xpg.data.text.export import export_dataset

EARLY = 100
APART = 100
PREFETCH = 2
LATE, REPEATS = 10_000, 3
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
    """Positions at one batch and after it, and the seconds that it took to save and to restore them."""

    batch: int
    states: list[dict[str, np.ndarray]]
    saves: list[float]
    restores: list[float]


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
    """Read up to the early and the late batch, and save `count` positions at each and after it."""
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
    """Time restoring a position, then saving it."""
    began = time.perf_counter()
    stream.restore(state)
    for _ in range(PREFETCH + 1):
        next(stream)
    place.restores.append(time.perf_counter() - began)
    stream.restore(state)
    began = time.perf_counter()
    stream.state()
    place.saves.append(time.perf_counter() - began)


def measured(late: int, repeats: int) -> dict[str, list[Place]]:
    """The early and the late place of each kind of data, with what they cost."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder)
        sys.path.append(name)
        with DataService(data_dir=folder / "data", cache_dir=folder / "cache") as service:
            streams, found = {}, {}
            for kind in KINDS:
                config = DatasetConfig(
                    **KINDS[kind],  # type: ignore[arg-type]
                    task_feature_lengths=LENGTHS,
                    batch_size=1,
                    module_import=("bench_tasks",),
                )
                streams[kind] = service.open(config, prefetch=PREFETCH)
                found[kind] = places(streams[kind], late, repeats, kind)
            for kind, stream in streams.items():  # to warm up: nothing of it is kept
                measure(stream, Place(0, [], [], []), found[kind][0].states[0])
            for repeat in range(repeats):
                for kind, stream in streams.items():
                    for place in found[kind] if repeat % 2 else reversed(found[kind]):
                        measure(stream, place, place.states[repeat])
    return found


def rows(repeats: int | None, late: int = LATE) -> list[Row]:
    """Seconds until a stream continues, late in it and early in it."""
    return [
        Row(
            name="restore_position", what=f"restoring a position in {kind} data", unit="s",
            fixed=f"until the next batch is there; batch 1, {LENGTHS['inputs']}/{LENGTHS['targets']}",
            found=Found({f"at batch {place.batch:,}": tuple(place.restores) for place in reversed(both)}),
            facts={"seconds_to_save": {str(place.batch): statistics.median(place.saves) for place in both}},
        )
        for kind, both in measured(late, repeats or REPEATS).items()
    ]  # fmt: skip


if __name__ == "__main__":
    print(text(rows(15, int(sys.argv[1]))))
