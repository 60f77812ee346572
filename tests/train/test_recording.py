"""`make record`: what it writes, and that a run from a recording is the run from the data."""

import contextlib
import errno
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.batch import Batch, hash_batch
from t5xpg.data.recording.format import StreamWriter
from t5xpg.data.recording.manifest import MANIFEST, read_recording
from t5xpg.data.recording.reader import RecordedData
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.experiment import config
from t5xpg.experiment.identity import data_config
from t5xpg.experiment.recipe import DataIdentity
from t5xpg.run.batch_trail import read_trail
from t5xpg.run.best import BestMetric
from t5xpg.train import recording
from tests.data.recording_samples import DESCRIPTION, batches, identity
from tests.refusals import assert_named, refused
from tests.workplace import EXPERIMENT, Workplace, assert_same_run, left_by, run_python

STEPS = 12

# Trains from the recording alone, in two parts, in a process that cannot import TensorFlow and has no data.
WITHOUT_TENSORFLOW = """
import sys
for name in ("tensorflow", "seqio", "t5", "tensorflow_datasets", "tensorflow_text"):
    sys.modules[name] = None
from t5xpg.base.xla_flags import set_xla_flags
set_xla_flags()
from pathlib import Path
from t5xpg import cli
from t5xpg.experiment import config
from t5xpg.train.train import train
experiment, runs, recorded = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
assert train(config.load(experiment), runs / "recorded", until=7, recorded=recorded) == 0
assert cli.main(["train", experiment, f"--run={runs / 'recorded'}", f"--recorded={recorded}"]) == 0
"""


@pytest.mark.process
def test_the_run_is_the_same_without_tensorflow(workplace: Workplace, pretrained: Path, tmp_path: Path) -> None:
    folder = workplace.folder / "recordings" / "small run"
    printed = workplace.run("record", str(workplace.experiment), f"--steps={STEPS}", f"--output={folder}")
    assert_named(printed, [f"{STEPS} batches to train, 2 to validate", f"RECORDED='{folder}'"])
    loaded = config.load(str(workplace.experiment)).experiment
    with RecordedData(folder) as data:
        stream = data.open(data_config(loaded.train_dataset, loaded.random_seed))
        assert [hash_batch(next(stream)) for _ in range(STEPS)] == read_trail(pretrained / "batches.sha256")
    elsewhere = {"T5XPG_DATA_DIR": str(tmp_path / "no data"), "T5XPG_CACHE_DIR": str(tmp_path / "no cache")}
    places = map(str, (workplace.experiment, pretrained.parent, folder))
    run_python(WITHOUT_TENSORFLOW, *places, env={**workplace.environment, **elsewhere})
    assert not list(tmp_path.iterdir())
    assert_same_run(pretrained.with_name("recorded"), pretrained, STEPS)
    arguments = ("train", str(workplace.experiment), f"--recorded={folder}", "--run=recorded_refused")
    workplace.refused(*arguments, "--gin.BATCH_SIZE=2", words=["batch_size was 4, is 2"])


@pytest.mark.process
def test_a_live_position_goes_on_from_a_recording_of_virtual_shards(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workplace.enter(monkeypatch)
    sharded = ("train/spec.DatasetConfig.num_virtual_shards=2", "train/spec.DatasetConfig.pack=True")
    loaded = config.load(str(workplace.experiment), sharded)
    read = data_config(loaded.experiment.train_dataset, loaded.experiment.random_seed)
    with DataService() as service:
        monkeypatch.setattr(recording, "DataService", lambda: contextlib.nullcontext(service))
        recording.record(loaded, steps=5, output=tmp_path / "new")
        with RecordedData(tmp_path / "new") as data:
            assert data.describe(read) == service.describe(read)
            live, recorded = service.open(read, [1]), data.open(read, [1])
            for _ in range(2):
                next(live)
            recorded.restore(live.state())
            for _ in range(3):
                assert hash_batch(next(recorded)) == hash_batch(next(live))


def test_batches_of_several_shapes_are_not_recorded(experiment: Path, tmp_path: Path) -> None:
    loaded = config.load(str(experiment), ["LENGTH_BUCKETS=(32, 64)"])
    with refused("LENGTH_BUCKETS"):
        recording.record(loaded, steps=2, output=tmp_path / "new")


class MadeUpStream:
    def __init__(self, dataset: DatasetConfig) -> None:
        self.spec = dataset.batch_spec(vocab_size=384)
        self._batches = iter(batches(dataset, 9))
        self.identity = identity(dataset)

    def __iter__(self) -> Iterator[Batch]:
        return self._batches


Record = Callable[..., None]


@pytest.fixture
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experiment") / "small.gin"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture
def record(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Records made-up batches: there is neither text nor a data process."""
    monkeypatch.setattr(recording, "make_all", lambda datasets, needed: DataIdentity({"task": "small"}))
    service = SimpleNamespace(describe=lambda dataset: DESCRIPTION, open=MadeUpStream)
    monkeypatch.setattr(recording, "DataService", lambda: contextlib.nullcontext(service))

    def call(output: Path, *overrides: str, steps: int = 3, force: bool = False) -> None:
        loaded, gin = config.load(str(experiment), overrides), " ".join(f"--gin.{one}" for one in overrides)
        recording.record(loaded, steps=steps, output=output, force=force, gin=gin)

    return call


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in folder.iterdir()}


def test_what_is_to_be_typed_has_the_overrides_and_needs_no_metrics_of_tasks(
    record: Record, experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment.write_text(f"{EXPERIMENT}\ninclude 'gin/runs/select_best.gin'\n")
    record(
        tmp_path / "new", "INFER_EVAL_PERIOD=2", "BEST_METRIC=small/edits", "BEST_MODE=min", "RANDOM_SEED=8", steps=6
    )
    printed = capsys.readouterr().out
    (gin,) = shlex.split(printed[printed.index(" GIN=") + len(" GIN=") :])
    found = config.load(str(experiment), *config.split_overrides(gin)).experiment
    assert (found.total_steps, found.infer_eval_period, found.selection) == (6, None, BestMetric())
    assert found.random_seed == 8
    remedy = read_recording(tmp_path / "new").command(tmp_path / "new")
    assert_named(remedy, ["STEPS=6", "RANDOM_SEED=8", f"OUTPUT={tmp_path / 'new'}", "FORCE=1"])


def test_another_recording_is_refused(record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new"
    record(output)
    before = contents(output)
    capsys.readouterr()
    record(output)
    assert f"{output} holds" in capsys.readouterr().out
    for steps, overrides, named in (
        (4, (), "STEPS was 3, is 4"),
        (3, ("RANDOM_SEED=8",), "validation.seed"),
        (3, ("EVAL_STEPS=1",), "EVAL_STEPS was 2, is 1"),
    ):
        with refused(named, "FORCE=1"):
            record(output, *overrides, steps=steps)
    assert contents(output) == before
    (tmp_path / "link").symlink_to(output)
    record(tmp_path / "link", steps=4, force=True)
    assert (tmp_path / "link").is_symlink()
    assert read_recording(output).streams["train"].batches == 4
    assert sorted(os.listdir(tmp_path)) == ["link", "new"]


def test_a_damaged_recording_is_not_left_and_other_files_are_not_deleted(record: Record, tmp_path: Path) -> None:
    output = tmp_path / "new"
    record(output)
    os.truncate(output / "train.npz", 30)
    with refused("train.npz", "30 bytes", "FORCE=1"):
        record(output)
    record(output, force=True)
    record(output)
    (output / "notes.txt").write_text("mine")
    with refused("notes.txt"):
        record(output, steps=4, force=True)
    assert (output / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
def test_nothing_but_a_recording_is_replaced(record: Record, tmp_path: Path, force: bool) -> None:
    output = tmp_path / "precious"
    output.write_text("a file")
    with refused("precious is a file", "OUTPUT="):
        record(output, force=force)
    output.unlink()
    output.mkdir()
    (output / "thesis.txt").write_text("years of work")
    with refused("precious", "another folder"):
        record(output, force=force)
    (output / MANIFEST).write_text('{"format": 1, "name": "wikitext"}')
    with refused("precious is no recording"):
        record(output, force=force)
    assert (output / "thesis.txt").read_text() == "years of work"
    assert os.listdir(tmp_path) == ["precious"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("earlier", [False, True])
def test_an_interruption_leaves_nothing_new(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, earlier: bool
) -> None:
    if earlier:
        record(tmp_path / "new")
    before = {path: contents(path) for path in tmp_path.iterdir()}

    def fails(writer: StreamWriter, batch: Batch) -> str:
        if writer.count == 1:
            raise error
        return write(writer, batch)

    write = StreamWriter.write
    monkeypatch.setattr(StreamWriter, "write", fails)
    with pytest.raises((UserError, KeyboardInterrupt)) as caught:
        record(tmp_path / "new", steps=4, force=True)
    if isinstance(error, OSError):
        assert_named(str(caught.value), ["no room", str(tmp_path), "Make room"])
    assert {path: contents(path) for path in tmp_path.iterdir()} == before


@pytest.mark.process
def test_what_a_killed_recording_left_goes_with_the_next(record: Record, tmp_path: Path) -> None:
    left = tmp_path / left_by("new")
    left.mkdir()
    (left / "train.npz").write_bytes(b"unfinished")
    record(tmp_path / "new")
    assert os.listdir(tmp_path) == ["new"]


def test_the_number_of_steps_has_bounds(record: Record, tmp_path: Path) -> None:
    for steps in (0, 10**30):
        with refused(f"STEPS={steps}", "1,000,000,000"):
            record(tmp_path / "new", steps=steps)
    assert not list(tmp_path.iterdir())
