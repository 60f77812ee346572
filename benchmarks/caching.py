"""How fast a task is cached, and in how much memory: by this program, and by SeqIO's script on Beam's local runner.

    python benchmarks/caching.py [--datasets pydocs] [--megabytes 10 100] [--repeats 3] [--beam-up-to 200] [--folder F]

Caches the span corruption task of an export (`make data DATASET=pydocs`), or of as many megabytes of text as are asked
for: documents drawn from the export, each with a number in front, so that no two are equal. Megabytes of 0 are the
export as it is. Both make the same cache, byte for byte, which is looked at here, too.

Prints a table of medians over repeats in which the two alternate, and their ratio. The whole command is what
`make cache` takes: it begins with the import of TensorFlow. Documents a second are of the caching alone, from the first
document to the last file. Memory is the largest sum of the proportional set sizes (PSS) of all processes that cache.
Beam holds all of a text in memory: sizes beyond `--beam-up-to` are cached without it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks import memory  # noqa: E402
from benchmarks.harness import Found, Goal, Row, alternate  # noqa: E402
from t5xpg.base import paths  # noqa: E402
from t5xpg.base.files import sha256_of_file  # noqa: E402
from t5xpg.data.cache import command  # noqa: E402
from t5xpg.data.cache.process import CacheProcess  # noqa: E402
from t5xpg.data.cache.runners import BEAM, LOCAL  # noqa: E402
from t5xpg.data.tasks.task_names import SPAN_CORRUPTION, task_name  # noqa: E402
from t5xpg.data.text.export import export_dataset  # noqa: E402
from t5xpg.data.text.manifest import read_manifest  # noqa: E402

MEGABYTES, MANY_MEGABYTES = 10, 200  # of text, in `make bench`
REPEATS = 2
OURS, BEAM_NAME = "t5xpg, RUNNER=local", "SeqIO's script, Beam's local runner"


@dataclass(frozen=True)
class Measured:
    """One caching: seconds of the whole command and of the caching alone, the largest memory in bytes."""

    whole: float
    command: float
    memory: int


class TimedProcess(CacheProcess):
    """Notes how long it cached, from its first report on, and the largest memory of it and its children."""

    seconds = 0.0
    peak: memory.Peak

    def cache(self, tasks: Sequence[str]) -> Iterator[dict[str, Any]]:
        began = None
        for message in super().cache(tasks):
            began = began or time.perf_counter()
            yield message
        assert began is not None
        TimedProcess.seconds = time.perf_counter() - began

    def plan(self, log: Callable[[str], None]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        TimedProcess.peak = memory.watch(self._child.pid)
        return super().plan(log)


def make_text(dataset: str, megabytes: int, folder: Path) -> str:
    """An export of so many megabytes of the documents of another; its name."""
    source = paths.data_directory() / dataset
    documents = read_manifest(source).splits  # says what is wrong where there is none
    if not megabytes:
        (folder / "data").mkdir(exist_ok=True)
        shutil.copytree(source, folder / "data" / dataset)
        return dataset
    texts = {}
    for split in ("train", "validation"):
        assert split in documents
        lines = (source / f"{split}.jsonl").read_text("utf-8").splitlines()
        texts[split] = [json.loads(line)["text"] for line in lines]
    draw = random.Random(0)
    name = f"{dataset}{megabytes}"
    files: dict[str | None, list[Path]] = {split: [folder / f"{split}.jsonl"] for split in texts}
    for split, size in (("train", megabytes * 10**6), ("validation", 10**5)):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            number = 0
            while size > 0:
                text = f"{number} {draw.choice(texts[split])}"
                number, size = number + 1, size - len(text.encode("utf-8"))
                file.write(json.dumps({"text": text}) + "\n")
    export_dataset(name, data_dir=folder / "data", files=files, log=lambda line: None)
    for split in texts:
        (folder / f"{split}.jsonl").unlink()
    return name


def measure(task: str, runner: str, folder: Path) -> tuple[Measured, dict[str, str]]:
    """Cache a task; the digests of the files that were written."""
    began = time.perf_counter()
    cache = folder / "cache"
    command.cache_task(
        task, cache_dir=cache, data_dir=folder / "data", runner=runner, force=True, log=lambda line: None
    )
    measured = Measured(time.perf_counter() - began, TimedProcess.seconds, TimedProcess.peak.total)
    found = {path.name: sha256_of_file(path) for path in sorted((cache / task).iterdir())}
    shutil.rmtree(cache)
    return measured, found


def lines_of(name: str, documents: int, size: int, runs: dict[str, list[Measured]]) -> Iterator[str]:
    """Lines of the table: each runner, and how they compare."""
    rates = {}
    for runner, measured in runs.items():
        whole, seconds = (statistics.median(getattr(one, field) for one in measured) for field in ("whole", "caching"))
        largest = max(one.memory for one in measured)
        rates[runner] = documents / seconds
        yield (
            f"{name:14} {size / 1e6:8,.1f} {documents:10,} {runner:12} {whole:9.1f} {seconds:9.1f} "
            f"{rates[runner]:12,.0f} {largest / 2**20:10,.0f}"
        )
    if len(rates) > 1:
        yield f"{'':14} {'':8} {'':10} {'ratio':12} {'':9} {'':9} {rates[LOCAL] / rates[BEAM]:12.1f}"


def made(dataset: str, megabytes: int, folder: Path) -> tuple[str, int, int]:
    """Make a text: its name, how many documents it has, its bytes."""
    name = make_text(dataset, megabytes, folder)
    splits = read_manifest(folder / "data" / name).splits
    size = sum(os.path.getsize(path) for path in (folder / "data" / name).glob("*.jsonl"))
    return name, sum(record.documents for record in splits.values()), size


def rows(repeats: int | None) -> list[Row]:
    """Documents a second of a small text beside Beam; the memory for that and for a text of many times the size."""
    command.CacheProcess = TimedProcess  # type: ignore[misc]
    largest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as here:
        folder = Path(here)
        name, documents, size = made("pydocs", MEGABYTES, folder)
        task = task_name(name, SPAN_CORRUPTION)

        def contestant(label: str, runner: str) -> Callable[[], float]:
            def once() -> float:
                one, _ = measure(task, runner, folder)
                largest[label] = max(largest.get(label, 0.0), one.memory / 2**20)
                return documents / one.caching

            return once

        found = alternate({OURS: contestant(OURS, LOCAL), BEAM_NAME: contestant(BEAM_NAME, BEAM)}, repeats or REPEATS)
    with tempfile.TemporaryDirectory() as here:
        name, many, _ = made("pydocs", MANY_MEGABYTES, Path(here))
        one, _ = measure(task_name(name, SPAN_CORRUPTION), LOCAL, Path(here))
    memory_found = {f"t5xpg, {MANY_MEGABYTES} MB of text": (one.memory / 2**20,)}
    memory_found |= {f"{label}, {MEGABYTES} MB": (value,) for label, value in largest.items()}
    fixed = f"span corruption over pydocs drawn again to {size / 1e6:.0f} MB, {documents:,} documents; the same cache"
    facts = {"documents_a_second_of_many": many / one.caching}
    return [
        Row(
            name="caching", what="caching a task", unit="documents/s", better="higher", found=found,
            fixed=f"{fixed}; from the first document to the last file", goal=Goal(at_least=10, against=BEAM_NAME),
            facts=facts,
        ),
        Row(
            name="caching", what="caching a task, memory", unit="MiB", found=Found(memory_found),
            fixed=f"{fixed}; the largest sum of the PSS of all processes", goal=Goal(at_most=1536),
        ),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--datasets", nargs="+", default=["pydocs"], help="exports to take the text from")
    parser.add_argument("--megabytes", nargs="+", type=int, default=[0, 10, 100], help="sizes of text; 0: the export")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--beam-up-to", type=int, default=200, metavar="MEGABYTES", help="the largest text for Beam")
    parser.add_argument("--folder", type=Path, help="where to work (default: the folder for temporary files)")
    arguments = parser.parse_args()
    command.CacheProcess = TimedProcess  # type: ignore[misc]
    lines = [
        f"{'text':14} {'MB':>8} {'documents':>10} {'runner':12} {'command s':>9} {'caching s':>9} {'documents/s':>12} "
        f"{'memory MiB':>10}"
    ]
    for dataset in arguments.datasets:
        for megabytes in arguments.megabytes:
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                name, documents, size = made(dataset, megabytes, Path(folder))
                runners = [LOCAL, BEAM] if megabytes <= arguments.beam_up_to else [LOCAL]
                runs: dict[str, list[Measured]] = {runner: [] for runner in runners}
                held = set()
                for _ in range(arguments.repeats):
                    for runner in runs:
                        measured, files = measure(task_name(name, SPAN_CORRUPTION), runner, Path(folder))
                        runs[runner].append(measured)
                        held.add(json.dumps(files))
                assert len(held) == 1, f"the caches of {name} differ"
            lines += lines_of(name, documents, size, runs)
            print("\n".join(lines[-3:]), flush=True)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
