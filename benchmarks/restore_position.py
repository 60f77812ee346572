"""What it costs to restore the position in the data, early and late in a stream: it should cost the same.

Measured for cached, uncached, packed (and cached) data and a mixture. Repeats are made at positions a hundred batches
apart, as the size of a position varies with how full the buffers of the pipeline are. A restore is `Stream.restore` and
the first batch that had not been read ahead when the position was saved, because tf.data may defer work until then. The
text is made up, in a temporary folder.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Row, alternate, say
from t5xpg.data.cache.caching import cache_task
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


def make_data(folder: Path) -> None:
    """Two exports and their caches, and a module with the mixture of both."""
    draw = random.Random(0)
    data_dir, cache_dir = folder / "data", folder / "cache"
    for name, documents in (("large", 3000), ("small", 800)):
        files: dict[str | None, list[Path]] = {}
        for split, count in (("train", documents), ("validation", 20)):
            lines = (" ".join(draw.choices(WORDS, k=draw.randrange(50, 400))) for _ in range(count))
            (file := folder / f"{name}-{split}.txt").write_text("\n".join(lines) + "\n")
            files[split] = [file]
        export_dataset(name, data_dir=data_dir, files=files)
        cache_task(task_name(name, SPAN_CORRUPTION), cache_dir=cache_dir, data_dir=data_dir)
    (folder / "bench_tasks.py").write_text(MODULE)


def restoring(stream: Stream, batch: int, count: int) -> Callable[[], float]:
    """Read on to the batch and save `count` positions; the seconds of restoring the next of them."""
    states = []
    for number in range(count):
        while stream.batches_read < batch + number * APART:
            next(stream)
        states.append(stream.state())
    left = iter(states)

    def once() -> float:
        began = time.perf_counter()
        stream.restore(next(left))
        for _ in range(PREFETCH + 1):
            next(stream)
        return time.perf_counter() - began

    return once


def row(kind: str, stream: Stream, count: int) -> Row:
    say(f"  {kind}: reading {LATE:,} batches")
    early, late = restoring(stream, EARLY, count), restoring(stream, LATE, count)
    stream.restore(stream.state())  # to warm up
    return Row(
        name="restore_position", what=f"restoring a position in {kind} data", unit="s",
        fixed=f"until the next batch is there; batch 1, {LENGTHS['inputs']}/{LENGTHS['targets']}",
        found=alternate({f"at batch {LATE:,}": late, f"at batch {EARLY:,}": early}, count),
    )  # fmt: skip


def rows(repeats: int | None) -> list[Row]:
    """Seconds until a stream continues, late in it and early in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder)
        sys.path.append(name)
        common = {"task_feature_lengths": LENGTHS, "batch_size": 1, "module_import": ("bench_tasks",)}
        with DataService(data_dir=folder / "data", cache_dir=folder / "cache") as service:
            return [
                row(kind, service.open(DatasetConfig(**own, **common), prefetch=PREFETCH), repeats or REPEATS)
                for kind, own in KINDS.items()
            ]
