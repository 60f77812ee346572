"""Files that disappear, are cut short or hold other data under a stream, and between a save and a resume."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import seqio

from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream import source_files
from t5xpg.data.stream.pipeline import ShardedBatches
from t5xpg.data.stream.source_files import SourceFiles
from t5xpg.data.tasks import providers
from tests import refusals
from tests.data.stream import test_positions
from tests.data.stream.test_positions import hashes

TEXT, CACHED = "sample_three", "sample_cached"
TASKS = (TEXT, CACHED)
NEVER = 1e9  # seconds between looks in passing


@pytest.fixture(autouse=True)
def _rare_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "_PERIOD", NEVER)
    monkeypatch.setattr(source_files, "_PAUSES", 0)


@pytest.fixture
def folder(sample_tasks: Path, tmp_path: Path) -> Iterator[Path]:
    """Three files of text, and a cache of three shards, which are put back at the end."""
    for name in ("text", "cache"):
        shutil.copytree(sample_tasks / name, tmp_path / name)
    yield sample_tasks
    for name in ("text", "cache"):
        shutil.rmtree(sample_tasks / name)
        shutil.copytree(tmp_path / name, sample_tasks / name)
    seqio.utils._list_files_for_glob.cache_clear()  # SeqIO remembers what it has listed in this process


def config(name: str, **values: Any) -> DatasetConfig:
    lengths = {"inputs": 40, "targets": 24}
    return DatasetConfig(name, lengths, batch_size=4, use_cached=name == CACHED, **values)


def opened(name: str, **values: Any) -> ShardedBatches:
    return test_positions.opened(config(name, **values))


def files_of(name: str) -> SourceFiles:
    return SourceFiles(providers.find_provider(config(name)), config(name))


def file_of(name: str, folder: Path, split: str = "train") -> Path:
    if name == TEXT:
        return folder / "text" / f"{split}-1.txt"
    return folder / "cache" / CACHED / f"{split}.tfrecord-00001-of-00003"


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def write_over(path: Path) -> None:
    """Other bytes of the same number in the same file."""
    with path.open("r+b") as file:
        file.write(path.read_bytes()[::-1])
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))  # clocks of file systems are coarse


def replace_by_another(path: Path) -> None:
    """Another file under the same name, with the same number of bytes and the same time."""
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    os.replace(other, path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


FAULTS: list[tuple[Callable[[Path], None], str]] = [
    (Path.unlink, "not there"),
    (cut_short, "bytes and had"),
    (write_over, "written to"),
    (replace_by_another, "replaced"),
]
SAME_SIZE = "of the same size"
IDS = [fault.__name__ for fault, _ in FAULTS]
EACH_FAULT = [(name, *fault) for name, fault in zip((CACHED, TEXT) * 2, FAULTS, strict=True)]


def refused(path: Path, what: str, name: str) -> AbstractContextManager[None]:
    remedies = {CACHED: [f"make cache TASK={CACHED} FORCE=1"], TEXT: []}
    return refusals.refused(f"{path} ", what, "Put back what was there", *remedies[name])


@pytest.mark.parametrize(("name", "fault", "what"), EACH_FAULT, ids=IDS)
def test_a_file_that_changes_is_named(folder: Path, name: str, fault: Callable[[Path], None], what: str) -> None:
    path = file_of(name, folder)
    files = files_of(name)
    position = files.to_array()
    kept = shutil.copy(path, folder / "kept")
    fault(path)
    with refused(path, what, name):
        files.check()
    same_size = fault in (write_over, replace_by_another)
    with refused(path, SAME_SIZE if same_size else what, name):
        files_of(name).compare(position)
    shutil.copyfile(kept, path)  # with another time and, after some faults, another inode
    files_of(name).compare(position)


def test_a_stream_stops_and_goes_on_once_its_files_are_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(CACHED, folder)
    stream = opened(CACHED)
    monkeypatch.setattr(source_files, "_PERIOD", 0.0)
    looked_at = opened(CACHED)
    hashes(looked_at, 1)
    hashes(stream, 1)
    position = stream.save()
    expected = hashes(stream, 5)
    kept = shutil.copy(path, folder / "kept")
    write_over(path)
    # no position is given that may lie behind other data, and reading stops as soon as somebody looks
    for use in (stream.save, lambda: stream.restore(position), looked_at.next):
        with refused(path, "written to", CACHED):
            use()
    with refused(path, SAME_SIZE, CACHED):
        opened(CACHED).restore(position)
    shutil.copyfile(kept, path)
    resumed = opened(CACHED)
    resumed.restore(position)
    assert hashes(resumed, 5) == expected


def test_a_file_that_was_added_is_named(folder: Path) -> None:
    position = files_of(TEXT).to_array()
    added = folder / "text" / "train-3.txt"
    added.write_text("one more line\n")
    seqio.utils._list_files_for_glob.cache_clear()
    with refused(added, "was not there then", TEXT):
        files_of(TEXT).compare(position)


def test_files_of_one_name_in_two_folders_are_two(folder: Path, tmp_path: Path) -> None:
    paths = [tmp_path / name / "part.txt" for name in ("one", "other")]
    for path in paths:
        path.parent.mkdir()
        shutil.copy(file_of(TEXT, folder), path)
    source = seqio.TextLineDataSource({"train": str(tmp_path / "o*" / "part.txt")})
    task, settings = seqio.TaskRegistry.get(TEXT).replace(source=source), config(TEXT)
    position = SourceFiles(task, settings).to_array()
    for path in paths:
        before = path.read_bytes()
        write_over(path)
        with refused(path, SAME_SIZE, TEXT):
            SourceFiles(task, settings).compare(position)
        path.write_bytes(before)


@pytest.mark.parametrize("name", TASKS)
def test_the_end_of_a_file_that_was_cut_short_is_not_the_end_of_the_stream(folder: Path, name: str) -> None:
    stream = opened(name, split="validation", num_epochs=1, shuffle=False)
    path = file_of(name, folder, "validation")
    path.write_bytes(b"")
    with refused(path, "has 0 bytes", name):
        list(iter(stream.next, None))


def test_a_damaged_record_is_said_with_the_name_of_its_file(folder: Path) -> None:
    """One bit, and nothing to see from outside: what a bad disk does."""
    path = file_of(CACHED, folder, "validation")
    before, damaged = path.stat(), bytearray(path.read_bytes())
    damaged[-10] ^= 1
    path.write_bytes(damaged)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    stream = opened(CACHED, split="validation", num_epochs=1, shuffle=False)
    with refusals.refused("damaged", str(path), "after 10 examples", "FORCE=1"):
        list(iter(stream.next, None))


def test_large_files_are_told_apart_by_blocks_all_over_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And by their time: the digest does not tell of all of a file."""
    monkeypatch.setattr(source_files, "_BLOCK", 100)
    monkeypatch.setattr(source_files, "_DIGESTED", 3 * 400)
    path = file_of(TEXT, folder)
    position = files_of(TEXT).to_array()
    whole, before = path.read_bytes(), path.stat()
    assert len(whole) > 1000
    for place in (50, len(whole) // 3, len(whole) - 50):
        path.write_bytes(whole[:place] + b"#" + whole[place + 1 :])
        with refused(path, SAME_SIZE, TEXT):
            files_of(TEXT).compare(position)
    path.write_bytes(whole)
    files_of(TEXT).compare(position)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    files = files_of(TEXT)
    os.replace(shutil.copy2(path, folder / "copy"), path)
    files.check()
    os.replace(shutil.copy2(path, folder / "copy"), path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with refused(path, "replaced", TEXT):
        files.check()
