"""How fast a task is cached, and in how much memory: by this program, and by SeqIO's script on Beam's local runner.

Both cache the span corruption task of MEGABYTES of text, and make the same cache, byte for byte; this program also
caches MANY_MEGABYTES. Documents a second are of the caching alone, from the first document to the last file. Memory is
the largest sum of the proportional set sizes (PSS) of all processes that cache.
"""

import functools
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import memory
from benchmarks.harness import Found, Goal, NotMeasuredError, Row, alternate
from benchmarks.texts import SPLITS, drawn
from t5xpg.base.files import sha256_of_file
from t5xpg.data.cache import caching
from t5xpg.data.cache.runners import BEAM, LOCAL
from t5xpg.data.data_process import DataProcess, Report
from t5xpg.data.tasks.task_names import SPAN_CORRUPTION, task_name
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.manifest import read_manifest

MEGABYTES, MANY_MEGABYTES = 10, 200
REPEATS = 2
OURS, BEAM_NAME = "t5xpg, RUNNER=local", "SeqIO's script, Beam's local runner"
TEXT = "text"  # the dataset


class TimedProcess(DataProcess):
    """Notes how long it cached, from its first report on, and the largest memory of the process with its children."""

    seconds = 0.0
    peak: memory.Peak

    def request(self, call: str, report: Report | None = None, **values: Any) -> Any:
        if call == "plan":
            TimedProcess.peak = memory.Peak(self.pid)
            return super().request(call, report, **values)
        reports: list[float] = []
        result = super().request(call, lambda *_: reports.append(time.perf_counter()), **values)
        TimedProcess.seconds = time.perf_counter() - reports[0]
        return result


def make_text(megabytes: int, folder: Path) -> tuple[int, int]:
    """Export `megabytes` of text; returns the number of its documents and of its bytes."""
    files: dict[str | None, list[Path]] = {split: [folder / f"{split}.jsonl"] for split in SPLITS}
    for split, size in zip(SPLITS, (megabytes * 10**6, 10**5), strict=True):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in drawn(split, size))
    export_dataset(TEXT, data_dir=folder / "data", files=files, log=lambda line: None)
    size = sum(path.stat().st_size for path in (folder / "data" / TEXT).glob("*.jsonl"))
    return sum(record.documents for record in read_manifest(folder / "data" / TEXT).splits.values()), size


def measure(runner: str, documents: int, folder: Path) -> tuple[float, float, dict[str, str]]:
    """Cache the task once; documents a second, the largest memory in MiB, and the digests of the files by name."""
    task, cache = task_name(TEXT, SPAN_CORRUPTION), folder / "cache"
    caching.cache_task(
        task, cache_dir=cache, data_dir=folder / "data", runner=runner, force=True, log=lambda line: None
    )
    digests = {path.name: sha256_of_file(path) for path in sorted((cache / task).iterdir())}
    shutil.rmtree(cache)
    return documents / TimedProcess.seconds, TimedProcess.peak.total / 2**20, digests


def rows(repeats: int | None) -> list[Row]:
    """Documents a second of a small text beside Beam; the memory for that text, and for one many times as large."""
    caching.DataProcess = TimedProcess  # type: ignore[misc]
    memory_of: dict[str, float] = {}
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as here:
        folder = Path(here)
        documents, size = make_text(MEGABYTES, folder)

        def once(label: str, runner: str) -> float:
            rate, most, found = measure(runner, documents, folder)
            if found != (digests or found):
                raise NotMeasuredError("its cache differs from the others")
            digests.update(found)
            memory_of[label] = max(most, memory_of.get(label, most))
            return rate

        runners = {OURS: LOCAL, BEAM_NAME: BEAM}
        found = alternate(
            {label: functools.partial(once, label, runner) for label, runner in runners.items()}, repeats or REPEATS
        )
    with tempfile.TemporaryDirectory() as here:
        rate_of_many, most, _ = measure(LOCAL, make_text(MANY_MEGABYTES, Path(here))[0], Path(here))
    memory_found = {f"t5xpg, {MANY_MEGABYTES} MB of text": (most,)}
    memory_found |= {f"{label}, {MEGABYTES} MB": (one,) for label, one in memory_of.items()}
    fixed = f"span corruption over pydocs drawn again to {size / 1e6:.0f} MB, {documents:,} documents; the same cache"
    return [
        Row(
            name="caching", what="caching a task", unit="documents/s", better="higher", found=found,
            fixed=f"{fixed}; from the first document to the last file", goal=Goal(at_least=10, against=BEAM_NAME),
            facts={"documents_a_second_of_many": rate_of_many},
        ),
        Row(
            name="caching", what="caching a task, memory", unit="MiB", found=Found(memory_found),
            fixed=f"{fixed}; the largest sum of the PSS of all processes", goal=Goal(at_most=1536),
        ),
    ]  # fmt: skip
