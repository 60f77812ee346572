"""The data process as the training process sees it: exact positions, errors, and its end."""

import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from t5xpg.base.files import write_json
from t5xpg.data import data_process
from t5xpg.data.batch import hash_batch
from t5xpg.data.data_process import DataProcessError
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import BatchStream, DataService, NoBatchYetError
from t5xpg.data.text.manifest import Manifest, SplitRecord, canonical_line
from tests.refusals import refused
from tests.workplace import PATIENCE, REPOSITORY

pytestmark = pytest.mark.process

LENGTHS = {"inputs": 40, "targets": 24}


def service(folder: Path, **values: Any) -> DataService:
    return DataService(data_dir=folder / "data", cache_dir=folder / "cache", **values)


@pytest.fixture(scope="module")
def first(sample_tasks: Path) -> Iterator[DataService]:
    with service(sample_tasks) as running:
        yield running


@pytest.fixture(scope="module")
def second(sample_tasks: Path) -> Iterator[DataService]:
    with service(sample_tasks) as running:
        yield running


def config(name: str = "sample_one", **values: Any) -> DatasetConfig:
    settings: dict[str, Any] = {"task_feature_lengths": LENGTHS, "batch_size": 8, "use_cached": False}
    return DatasetConfig(name, **(settings | {"module_import": ("sample_tasks",)} | values))


@pytest.mark.parametrize(
    "settings",
    [
        config("sample_cached", use_cached=True, pack=True, num_virtual_shards=2),
        config("sample_plain", split="validation", num_epochs=1, shuffle=False, num_virtual_shards=2, batch_size=2),
    ],
    ids=["cached and packed, two shards", "evaluation"],
)
def test_a_fresh_process_goes_on_with_the_same_batches(
    first: DataService, second: DataService, settings: DatasetConfig
) -> None:
    assert first.describe(settings).cached == settings.use_cached
    stream, resumed = first.open(settings, prefetch=3), second.open(settings, prefetch=1)
    for _ in range(2):
        next(stream)
    state = stream.state()
    expected = [hash_batch(batch) for batch in itertools.islice(stream, 6)]
    assert len(set(expected)) == len(expected) >= 2
    resumed.restore(state)
    assert resumed.batches_read == 2
    once_more = resumed.state()
    stream.restore(once_more)  # a position taken right after it was put back
    for one in (resumed, stream):
        assert [hash_batch(batch) for batch in itertools.islice(one, 6)] == expected
        one.close()


def test_positions_of_processes_make_up_that_of_the_whole(first: DataService, second: DataService) -> None:
    settings = config("sample_plain", num_virtual_shards=3, batch_size=3)
    low, high = first.open(settings, (0, 1)), second.open(settings, (2,))
    for stream in (low, low, high, high):
        next(stream)
    whole = first.open(settings)
    whole.restore({**low.state(), **high.state()})
    for batch in (next(whole) for _ in range(3)):
        left, right = next(low), next(high)
        for name, rows in batch.items():
            np.testing.assert_array_equal(rows, np.concatenate([left[name], right[name]]))
    low.restore(whole.state())
    left = next(low)
    for name, rows in next(whole).items():
        np.testing.assert_array_equal(rows[:2], left[name])
    with refused("same batch"):
        whole.restore({**low.state(), **high.state()})
    with refused("virtual shard [2]"):
        high.restore(low.state())


def test_position_at_the_start_and_at_the_end(first: DataService) -> None:
    stream = first.open(config("sample_plain", split="validation", num_epochs=1, shuffle=False))
    start = stream.state()
    hashes = [hash_batch(batch) for batch in stream]
    assert len(hashes) == stream.batches_read == 2
    end = stream.state()
    for again in (lambda: stream.restore(start), stream.rewind):
        again()
        assert [hash_batch(batch) for batch in stream] == hashes
    stream.rewind()
    stream.restore(end)
    assert list(stream) == []


def test_a_position_of_other_settings_is_refused(first: DataService) -> None:
    stream = first.open(config("sample_plain"))
    other = first.open(config("sample_plain", batch_size=4, seed=1))
    with refused("sample_plain", "batch_size was 4, is 8", "seed was 1, is 0"):
        stream.restore(other.state())


def export(folder: Path, name: str, content: bytes) -> DatasetConfig:
    """A stream of an export of these lines."""
    (folder / "data" / name).mkdir(parents=True)
    (folder / "data" / name / "train.jsonl").write_bytes(content)
    manifest = Manifest(name, {}, {}, None, 2, {"train": SplitRecord(documents=2, bytes=33, sha256="")})
    write_json(folder / "data" / name / "manifest.json", manifest.to_json())
    lengths = {"inputs": 40, "targets": 40}
    return config(f"{name}_span_corruption", task_feature_lengths=lengths, module_import=())


def test_an_export_made_since_the_start_is_found_and_its_broken_line_shown(
    first: DataService, sample_folder: Path
) -> None:
    stream = first.open(export(sample_folder, "torn", b'{"text": "a line"}\n{"text": "torn\n'))
    for use in (lambda: next(stream), stream.state):
        with refused('{"text": "torn'):
            use()


@pytest.mark.parametrize("way", ["killed", "failed"])
def test_a_dying_data_process_is_named_with_its_last_lines(sample_tasks: Path, tmp_path: Path, way: str) -> None:
    log, settings = tmp_path / "folder" / "data process.log", config("sample_plain")
    with service(sample_tasks, log=log) as dying:
        uses: list[Callable[[], object]] = [lambda: dying.describe(settings), lambda: dying.open(settings)]
        if way == "killed":
            stream = dying.open(settings)
            next(stream)
            os.kill(dying.pid, signal.SIGKILL)
            uses += [lambda: list(stream), stream.state]  # what has been read ahead comes before the end
            names = [str(dying.pid), "signal 9", "out of memory", "same command again"]
        else:
            dying._process._connection.send_bytes(b"no request, by any means")
            names = [str(dying.pid), "exit code 1", "UnpicklingError"]
        for use in uses:
            with pytest.raises(DataProcessError) as caught:
                use()
            assert [name for name in names if name not in str(caught.value)] == []
    assert ("UnpicklingError" in log.read_text()) == (way == "failed")


def test_a_file_that_disappears_is_named_as_the_user_knows_it(first: DataService, sample_folder: Path) -> None:
    lines = [canonical_line(f"{number} " + "words and more words " * 5) for number in range(40)]
    stream = first.open(export(sample_folder, "vanishing", b"".join(lines)))
    next(stream)
    path = (sample_folder / "data" / "vanishing").resolve() / "train.jsonl"
    path.unlink()
    with refused(str(path), "make data DATASET=vanishing FORCE=1"):
        stream.state()


def test_who_waits_for_a_batch_can_give_up() -> None:
    come = threading.Event()

    class Slow(BatchStream):
        def _read(self, number: int) -> Any:
            come.wait()
            return {"number": np.int64(number)}

    stream = Slow(config(), [0], 1, {}, None)
    stream.gives_up = lambda: True
    with pytest.raises(NoBatchYetError):
        next(stream)
    come.set()
    assert [next(stream)["number"] for _ in range(2)] == [0, 1]
    stream.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say so")
def test_a_data_process_that_is_stopped_is_named(first: DataService, monkeypatch: pytest.MonkeyPatch) -> None:
    let_it_go_on = Mock(side_effect=lambda line, **options: os.kill(first.pid, signal.SIGCONT))
    monkeypatch.setattr(data_process, "_PATIENCE", 0.2)
    monkeypatch.setattr(data_process, "print", let_it_go_on, raising=False)
    os.kill(first.pid, signal.SIGSTOP)
    assert first.describe(config()).name == "sample_one"
    assert f"kill -CONT {first.pid}" in let_it_go_on.call_args_list[0].args[0]


def test_interrupts_do_not_reach_the_data_process(first: DataService) -> None:
    stream = first.open(config("sample_plain"))
    os.kill(first.pid, signal.SIGINT)
    assert len({hash_batch(next(stream)) for _ in range(4)}) == 4
    assert os.getpgid(first.pid) != os.getpgid(0)


def test_the_data_process_ends_when_its_parent_is_killed_and_leaves_no_files(
    sample_folder: Path, tmp_path: Path
) -> None:
    program = f"""
        import sys, time
        from pathlib import Path
        from t5xpg.data.stream.client import DataService
        from t5xpg.data.spec import DatasetConfig
        service = DataService(data_dir=Path("data"), cache_dir=Path("cache"))
        next(service.open({config("sample_cached", use_cached=True, pack=True)!r}))
        print(service.pid, flush=True)
        time.sleep(600)
    """
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{sample_folder}", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=sample_folder, env=environment) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert any(path.name.startswith("__autograph_generated_file") for path in tmp_path.rglob("*.py"))
        parent.kill()
    deadline = time.monotonic() + PATIENCE
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(worker)
    assert list(tmp_path.iterdir()) == []


def test_the_data_process_ends_amid_answers_that_nobody_reads_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = data_process.DataProcess("t5xpg.data.stream.worker", log=tmp_path / "log")
    with pytest.raises(data_process.DataProcessError):
        process.request("unknown")
    assert len(list(tmp_path.iterdir())) == 2
    for _ in range(20):
        process._connection.send(("unknown", {}))
    process.hang_up()
    assert process._process.wait(PATIENCE) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    names = set(re.findall(r"^\w+(?:Error|Interrupt)\b.*", (tmp_path / "log").read_text(), re.MULTILINE))
    assert names == {"KeyError: 'unknown'"}  # the calls', and none of the connection
    process.wait()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan that nobody waits for stays in the table as a zombie. So does, for a moment, the first thread of a
    # process while another one starts a program in its place.
    threads, status = list(Path("/proc").glob(f"{pid}/task/*")), Path(f"/proc/{pid}/stat")
    return len(threads) != 1 or not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")
