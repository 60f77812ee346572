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
import contextlib
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from t5xpg import paths  # noqa: E402
from t5xpg.data import caching  # noqa: E402
from t5xpg.data.cache_process import BEAM, LOCAL, CacheProcess  # noqa: E402
from t5xpg.data.export import export_dataset  # noqa: E402
from t5xpg.data.manifest import read_manifest  # noqa: E402
from t5xpg.data.task_names import SPAN_CORRUPTION, task_name  # noqa: E402
from t5xpg.files import sha256_of_file  # noqa: E402

_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class Measured:
    """One caching: seconds of the whole command and of the caching alone, the largest memory in bytes."""

    whole: float
    caching: float
    memory: int


class TimedProcess(CacheProcess):
    """Notes how long it cached, from its first report on, and the largest memory of it and its children."""

    seconds = 0.0
    memory = 0

    def cache(self, tasks: Sequence[str]) -> Iterator[dict[str, Any]]:
        began = None
        for message in super().cache(tasks):
            began = began or time.perf_counter()
            yield message
        assert began is not None
        TimedProcess.seconds = time.perf_counter() - began

    def plan(self) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        TimedProcess.memory = 0
        threading.Thread(target=_watch, args=(self._child.pid,), daemon=True).start()
        return super().plan()


def _watch(pid: int) -> None:
    while size := sum(_pss(one) for one in _tree(pid)):
        TimedProcess.memory = max(TimedProcess.memory, size)
        time.sleep(_SAMPLE_SECONDS)


def _tree(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return [pid, *(one for child in children for one in _tree(child))]


def _pss(pid: int) -> int:
    """The proportional set size of a process in bytes; 0 where it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


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
    caching.cache_task(
        task, cache_dir=cache, data_dir=folder / "data", runner=runner, force=True, log=lambda line: None
    )
    measured = Measured(time.perf_counter() - began, TimedProcess.seconds, TimedProcess.memory)
    found = {path.name: sha256_of_file(path) for path in sorted((cache / task).iterdir())}
    shutil.rmtree(cache)
    return measured, found


def rows(name: str, documents: int, size: int, runs: dict[str, list[Measured]]) -> Iterator[str]:
    """Lines of the table: each runner, and how they compare."""
    rates = {}
    for runner, measured in runs.items():
        whole, seconds = (statistics.median(getattr(one, field) for one in measured) for field in ("whole", "caching"))
        memory = max(one.memory for one in measured)
        rates[runner] = documents / seconds
        yield (
            f"{name:14} {size / 1e6:8,.1f} {documents:10,} {runner:12} {whole:9.1f} {seconds:9.1f} "
            f"{rates[runner]:12,.0f} {memory / 2**20:10,.0f}"
        )
    if len(rates) > 1:
        yield f"{'':14} {'':8} {'':10} {'ratio':12} {'':9} {'':9} {rates[LOCAL] / rates[BEAM]:12.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--datasets", nargs="+", default=["pydocs"], help="exports to take the text from")
    parser.add_argument("--megabytes", nargs="+", type=int, default=[0, 10, 100], help="sizes of text; 0: the export")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--beam-up-to", type=int, default=200, metavar="MEGABYTES", help="the largest text for Beam")
    parser.add_argument("--folder", type=Path, help="where to work (default: the folder for temporary files)")
    arguments = parser.parse_args()
    caching.CacheProcess = TimedProcess  # type: ignore[misc]
    lines = [
        f"{'text':14} {'MB':>8} {'documents':>10} {'runner':12} {'command s':>9} {'caching s':>9} {'documents/s':>12} "
        f"{'memory MiB':>10}"
    ]
    for dataset in arguments.datasets:
        for megabytes in arguments.megabytes:
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                name = make_text(dataset, megabytes, Path(folder))
                splits = read_manifest(Path(folder) / "data" / name).splits
                documents = sum(record.documents for record in splits.values())
                size = sum(os.path.getsize(path) for path in (Path(folder) / "data" / name).glob("*.jsonl"))
                runners = [LOCAL, BEAM] if megabytes <= arguments.beam_up_to else [LOCAL]
                runs: dict[str, list[Measured]] = {runner: [] for runner in runners}
                held = set()
                for _ in range(arguments.repeats):
                    for runner in runs:
                        measured, files = measure(task_name(name, SPAN_CORRUPTION), runner, Path(folder))
                        runs[runner].append(measured)
                        held.add(json.dumps(files))
                assert len(held) == 1, f"the caches of {name} differ"
            lines += rows(name, documents, size, runs)
            print("\n".join(lines[-3:]), flush=True)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
