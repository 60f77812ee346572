"""`make record`: what it writes, and that a run from a recording is the run from the data."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.batch import Batch, hash_batch
from t5xpg.data.recording.format import StreamReader, StreamWriter
from t5xpg.data.recording.manifest import MANIFEST, read_recording
from t5xpg.data.recording.reader import RecordedData
from t5xpg.data.stream.client import DataService
from t5xpg.experiment import config
from t5xpg.experiment import prepare as preparation
from t5xpg.experiment.identity import data_config
from t5xpg.run.batch_trail import read_trail
from t5xpg.train import record as recording
from tests.workplace import REPOSITORY, Workplace, assert_same_run

pytestmark = pytest.mark.process

STEPS = 12

# Trains from the recording alone, in a process that cannot import TensorFlow and has no data.
WITHOUT_TENSORFLOW = """
import sys
for name in ("tensorflow", "seqio", "t5", "tensorflow_datasets", "tensorflow_text"):
    sys.modules[name] = None
from t5xpg.__main__ import set_cpu_flags
set_cpu_flags()
from pathlib import Path
from t5xpg import cli, config, training
experiment, runs, recorded = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
def train(name, until=None):
    assert training.train(config.load(experiment), runs / name, until=until, recorded=recorded) == 0
assert cli.main(["train", experiment, f"--run={runs / 'recorded'}", f"--recorded={recorded}"]) == 0
train("recorded_broken", until=7)
train("recorded_broken")
train("live_then_recorded")
"""

LIVE = """
import sys
from t5xpg.__main__ import set_cpu_flags
set_cpu_flags()
from pathlib import Path
from t5xpg import config, training
assert training.train(config.load(sys.argv[1]), Path(sys.argv[2]) / "live_then_recorded", until=5) == 0
"""


def run_program(place: Workplace, program: str, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**place.environment, "PYTHONPATH": str(REPOSITORY), **variables},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def folder(workplace: Workplace) -> Path:
    """A recording of the workplace's experiment."""
    folder = workplace.folder / "recordings" / "small run"
    printed = workplace.run("record", str(workplace.experiment), f"--steps={STEPS}", f"--output={folder}")
    assert f"{folder}: {STEPS} batches to train, 2 to validate, " in printed
    assert f"make train EXP='{workplace.experiment}' RECORDED='{folder}'" in printed
    return folder


def test_the_run_is_the_same_without_tensorflow(workplace: Workplace, folder: Path, tmp_path: Path) -> None:
    runs = workplace.folder / "runs"
    workplace.run("train", str(workplace.experiment), "--run=recorded_live")
    live = runs / "recorded_live"
    with StreamReader(folder, "train") as reader:
        assert [reader.digest(number) for number in range(len(reader))] == read_trail(live / "batches.sha256")
    run_program(workplace, LIVE, str(workplace.experiment), str(runs))
    elsewhere = {"T5XPG_DATA_DIR": str(tmp_path / "no data"), "T5XPG_CACHE_DIR": str(tmp_path / "no cache")}
    run_program(workplace, WITHOUT_TENSORFLOW, str(workplace.experiment), str(runs), str(folder), **elsewhere)
    assert not list(tmp_path.iterdir())
    for name in ("recorded", "recorded_broken", "live_then_recorded"):
        assert_same_run(runs / name, live, STEPS)


def test_train_takes_a_recording(workplace: Workplace, folder: Path) -> None:
    """And says what is wrong with it."""
    arguments = ("train", str(workplace.experiment), f"--recorded={folder}", "--run=recorded_refused")
    printed = workplace.run(*arguments, "--gin.BATCH_SIZE=2", code=1)
    assert "other settings: batch_size was 4, is 2" in printed
    assert "Traceback" not in printed


@pytest.fixture(scope="module")
def service(workplace: Workplace) -> Iterator[DataService]:
    """One data process for all of the tests below."""
    folder = workplace.folder
    with DataService(data_dir=folder / "data", cache_dir=folder / "cache") as running:
        yield running


Record = Callable[..., int]


def recorder(workplace: Workplace, monkeypatch: pytest.MonkeyPatch, service: Any) -> Record:
    """`recording.record` of the workplace's experiment with overrides, out of the streams of `service`."""
    for name, value in workplace.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(recording, "DataService", lambda **_: contextlib.nullcontext(service))

    def call(output: Path, *overrides: str, steps: int = 3, force: bool = False) -> int:
        loaded = config.load(str(workplace.experiment), overrides)
        return recording.record(loaded, steps=steps, output=output, force=force)

    return call


@pytest.fixture
def record(workplace: Workplace, service: DataService, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Records from the data."""
    return recorder(workplace, monkeypatch, service)


@pytest.fixture
def record_again(workplace: Workplace, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    """Records from a recording, which stands in for the data and is there at once."""
    with RecordedData(folder) as data:
        yield recorder(workplace, monkeypatch, data)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in folder.iterdir()}


def test_what_is_recorded(record: Record, workplace: Workplace, service: DataService, tmp_path: Path) -> None:
    assert record(tmp_path / "new") == 0
    experiment = config.load(str(workplace.experiment)).experiment
    source = preparation.prepare(experiment.train_dataset)
    with RecordedData(tmp_path / "new") as data:
        assert preparation.Source(**data.source) == source
        for dataset, count in ((experiment.train_dataset, 3), (experiment.eval_dataset, 2)):
            read = data_config(dataset, experiment.random_seed)
            live, recorded = service.open(read), data.open(read)
            assert data.describe(read) == service.describe(read)
            assert recorded.spec == live.spec
            for _ in range(count):
                assert hash_batch(next(recorded)) == hash_batch(next(live))
            live.close()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()} == {0o666 & ~umask()}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o777 & ~umask()


def umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def test_a_live_position_goes_on_from_a_recording_of_virtual_shards(
    record: Record, workplace: Workplace, service: DataService, tmp_path: Path
) -> None:
    sharded = ("train/spec.DatasetConfig.num_virtual_shards=2", "train/spec.DatasetConfig.pack=True")
    record(tmp_path / "new", *sharded, steps=5)
    experiment = config.load(str(workplace.experiment), sharded).experiment
    read = data_config(experiment.train_dataset, experiment.random_seed)
    live = service.open(read, [1])
    for _ in range(2):
        next(live)
    with RecordedData(tmp_path / "new") as data:
        recorded = data.open(read, [1])
        recorded.restore(live.state())
        for _ in range(3):
            assert hash_batch(next(recorded)) == hash_batch(next(live))
    live.close()


def test_the_same_recording_is_left_and_another_refused(
    record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new"
    record(output)
    before = contents(output)
    capsys.readouterr()
    assert record(output) == 0
    assert f"{output} holds these batches already" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"STEPS was 3, is 4\. Replace it with FORCE=1, or name another folder"):
        record(output, steps=4)
    with pytest.raises(UserError, match=r"train seed was \d+, is \d+; validation seed was \d+, is \d+\. Replace"):
        record(output, "RANDOM_SEED=8")
    with pytest.raises(UserError, match=r"other batches: EVAL_STEPS was 2, is 1\. Replace"):
        record(output, "EVAL_STEPS=1")
    assert contents(output) == before
    assert record(output, steps=4, force=True) == 0
    assert read_recording(output).streams["train"].batches == 4
    assert os.listdir(tmp_path) == ["new"]


def test_a_damaged_recording_is_not_left(record_again: Record, tmp_path: Path) -> None:
    output = tmp_path / "new"
    record_again(output)
    os.truncate(output / "train.batches", 30)
    with pytest.raises(UserError, match=r"train\.batches has 30 bytes instead of .* FORCE=1"):
        record_again(output)
    record_again(output, force=True)
    record_again(output)


def test_the_whole_validation_is_recorded_as_such(record: Record, tmp_path: Path) -> None:
    record(tmp_path / "new", "EVAL_STEPS=None", steps=1)
    streams = read_recording(tmp_path / "new").streams
    assert (streams["train"].ended, streams["validation"].ended) == (False, True)
    assert streams["validation"].batches > 2


@pytest.mark.parametrize("force", [False, True])
def test_nothing_but_a_recording_is_replaced(record_again: Record, tmp_path: Path, force: bool) -> None:
    output = tmp_path / "precious"
    output.write_text("a file")
    with pytest.raises(UserError, match="precious is a file: name a folder with OUTPUT=…"):
        record_again(output, force=force)
    output.unlink()
    output.mkdir()
    (output / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="precious holds other things than a recording: name another folder"):
        record_again(output, force=force)
    (output / MANIFEST).write_text('{"format": 1, "name": "wikitext"}')
    with pytest.raises(UserError, match=r"precious is no recording: its manifest\.json is of something else"):
        record_again(output, force=force)
    assert (output / "thesis.txt").read_text() == "years of work"
    assert os.listdir(tmp_path) == ["precious"]


def test_files_besides_a_recording_are_not_deleted(record_again: Record, tmp_path: Path) -> None:
    record_again(tmp_path / "new")
    (tmp_path / "new" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt besides a recording: take that away"):
        record_again(tmp_path / "new", steps=4, force=True)
    assert (tmp_path / "new" / "notes.txt").read_text() == "mine"


def test_a_link_stays_one(record_again: Record, tmp_path: Path) -> None:
    (tmp_path / "roomy").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "roomy")
    record_again(tmp_path / "link")
    record_again(tmp_path / "link", steps=4, force=True)
    assert (tmp_path / "link").is_symlink()
    assert read_recording(tmp_path / "roomy").streams["train"].batches == 4


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), SystemExit(143)]
)
def test_an_interruption_leaves_nothing_new(
    record_again: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, earlier: bool
) -> None:
    if earlier:
        record_again(tmp_path / "new")
    before = contents(tmp_path / "new") if earlier else None

    def fails(writer: StreamWriter, batch: Batch) -> str:
        if writer.count == 1:
            raise error
        return write(writer, batch)

    write = StreamWriter.write
    monkeypatch.setattr(StreamWriter, "write", fails)
    expected: Any = UserError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught:
        record_again(tmp_path / "new", steps=4, force=True)
    if isinstance(error, OSError):
        kept = "the earlier recording is as it was" if earlier else "nothing was left there"
        assert str(caught.value).startswith(f"There is no room for the recording in {tmp_path}")
        assert f"; {kept}. Make room" in str(caught.value)
    assert os.listdir(tmp_path) == (["new"] if earlier else [])
    if before is not None:
        assert contents(tmp_path / "new") == before


def test_what_a_killed_recording_left_goes_with_the_next(
    record_again: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from t5xpg.base import files

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = tmp_path / f".new.{files._host()}-{gone.pid}.abc.tmp"
    left.mkdir()
    (left / "train.batches").write_bytes(b"unfinished")
    record_again(tmp_path / "new")
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("steps", [0, -1, 10**30])
def test_absurd_numbers_of_steps(record_again: Record, tmp_path: Path, steps: int) -> None:
    with pytest.raises(UserError, match=rf"STEPS={steps}: a recording holds the batches of 1 to 1,000,000,000 steps"):
        record_again(tmp_path / "new", steps=steps)


def test_a_recording_that_will_not_fit_is_not_begun(
    record_again: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused after some batches, instead of filling the disk first."""
    monkeypatch.setattr(recording, "_SAMPLE", 2)
    with pytest.raises(UserError, match=r"The recording would take about \d.* MB, and .* MB free\. Record fewer"):
        record_again(tmp_path / "new", steps=10**9)
    assert not list(tmp_path.iterdir())


def test_a_task_of_its_own_for_the_evaluation(
    record: Record, workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the evaluation reads is made too, where it is another task."""
    prepared: list[str] = []
    prepare = preparation.prepare

    def noted(dataset: Any) -> preparation.Source:
        prepared.append(dataset.mixture_or_task_name)
        if len(prepared) == 2:
            raise UserError("there is no such text")
        return prepare(dataset)

    monkeypatch.setattr(preparation, "prepare", noted)
    loaded = config.load(str(workplace.experiment))
    other = dataclasses.replace(loaded.experiment.eval_dataset, mixture_or_task_name="absent_span_corruption")
    changed = dataclasses.replace(loaded, experiment=dataclasses.replace(loaded.experiment, eval_dataset=other))
    with pytest.raises(UserError, match="there is no such text"):
        recording.record(changed, steps=1, output=tmp_path / "new")
    assert prepared == ["small_span_corruption", "absent_span_corruption"]
    assert not list(tmp_path.iterdir())
