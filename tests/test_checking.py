"""What `make check` says, in one table, and what `make train` asks of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from t5xpg import checking, config
from t5xpg.data.export import export_dataset
from t5xpg.errors import UserError
from t5xpg.files import write_json, write_text
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.preparation import Source
from t5xpg.rundir import RunDirectory
from t5xpg.training import run_identity
from tests.workplace import EXPERIMENT, sentences

# Each override breaks one thing of an experiment that could be trained; what the table then says of it.
BROKEN = {
    "BATCH_SIZE=x": (r"^gin      NO  BATCH_SIZE .* whole number, not 'x'", r"^the rest --  "),
    "TRAIN_STPES=3": (r"^gin      NO  .* knows TRAIN_STPES\. Did you mean TRAIN_STEPS",),
    "partitioning.MeshConfig.devices=4096": (r"^devices  NO  The mesh asks for 4096 devices",),
    "encoder_decoder.T5Config.vocab_size=200": (r"^ids      NO  .* has 384 ids and the model 200 embeddings",),
    "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 9}": (r"^spans    NO  Targets of 9 tokens are too short",),
    "train/spec.DatasetConfig.split=trian": (r"^data     NO  .* no split 'trian'\. Did you mean train",),
    "MIXTURE_OR_TASK_NAME=smal_span_corruption": (
        r"^data     NO  There is no task or mixture named smal_span_corruption\. Did you mean small_span_corruption",
    ),
    "encoder_decoder.T5Config.mlp_dim=2000000000": (r"^memory   NO  A step takes about .* MiB",),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with exported text and an experiment; nothing is cached and TensorFlow never started."""
    for name in ("DATA", "CACHE", "RUNS"):
        monkeypatch.setenv(f"T5XPG_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setattr("t5xpg.checking.data.DataService", None)
    files = {}
    for split, seed in (("train", 1), ("validation", 2)):
        files[split] = [tmp_path / f"{split}.txt"]
        files[split][0].write_text(sentences(30, seed))
    export_dataset("small", data_dir=tmp_path / "data", files=files)
    (tmp_path / "small.gin").write_text(EXPERIMENT)
    return tmp_path


def table(place: Path, capsys: pytest.CaptureFixture[str], *overrides: str, code: int = 0) -> str:
    capsys.readouterr()
    assert checking.check(str(place / "small.gin"), overrides, [], None) == code
    return capsys.readouterr().out


def test_an_experiment_that_can_be_trained(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(place.rglob("*"))
    printed = table(place, capsys)
    assert "NO" not in printed
    for line in (
        r"^gin      ok  .*small.gin, seed 7",
        r"^batch    ok  4 x 64/32 tokens in 1 part",
        r"^model    ok  [\d,]+ parameters, ",
        r"^memory   ok  about \d+ MiB a device",
        r"^data     ok  small_span_corruption, train: `make train` makes first .*make cache TASK=small_span_corruption",
        r"^spans    ok  \d+ tokens of text give 1 span and \d+ target tokens of 32",
        r"^ids      ok  384 of the vocabulary, 384 of the model",
        r"^run      ok  new, in ",
        r"^it can be trained$",
    ):
        assert re.search(line, printed, re.MULTILINE), (line, printed)
    assert sorted(path for path in place.rglob("*") if not path.name.startswith(".")) == before, "nothing is written"
    assert table(place, capsys, "USE_CACHED_TASKS=False").count("train, not cached, 30 documents") == 1


@pytest.mark.parametrize("override", BROKEN)
def test_each_mistake_alone(place: Path, capsys: pytest.CaptureFixture[str], override: str) -> None:
    printed = table(place, capsys, override, code=1)
    for line in BROKEN[override]:
        assert re.search(line, printed, re.MULTILINE), (line, printed)
    assert re.search(r"^1 problem: it cannot be trained so$", printed, re.MULTILINE), printed


def test_all_problems_at_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [
        override
        for override in BROKEN
        if not override.startswith(("BATCH_SIZE", "MIX", "encoder_decoder.T5Config.mlp"))
    ]
    printed = table(place, capsys, *overrides, code=1)
    for override in overrides:
        for line in BROKEN[override]:
            assert re.search(line, printed, re.MULTILINE), (line, printed)
    assert f"\n{len(overrides)} problems: it cannot be trained so\n" in printed
    loaded, _ = config.examine(str(place / "small.gin"), overrides)
    assert loaded is not None
    with pytest.raises(UserError) as caught:
        checking.require(loaded, RunDirectory(place / "runs" / "small"))
    message = str(caught.value)
    assert message.startswith(f"{len(overrides) - 1} things stand in the way of training small:\n  The mesh asks for")
    assert "Targets of 9 tokens" in message
    assert "200 embeddings" in message
    with pytest.raises(UserError) as caught:
        checking.require(loaded, RunDirectory(place / "runs" / "small"), data=False)
    assert str(caught.value).startswith("The mesh asks for 4096 devices"), "one problem is said as it is"


def test_sentinels_that_would_run_out(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = "TASK_FEATURE_LENGTHS={'inputs': 2048, 'targets': 2048}"
    printed = table(place, capsys, lengths, "MEAN_NOISE_SPAN_LENGTH=1.0", code=1)
    assert re.search(r"^spans    NO  .* sentinels for \d+ spans .* vocabulary has 125", printed, re.MULTILINE), printed


def test_text_that_is_not_as_it_was_exported(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place / "data" / "small" / "train.jsonl"
    write_text(file, file.read_text()[:-20])
    printed = table(place, capsys, code=1)
    assert re.search(r"^data     NO  (.|\n)*train\.jsonl(.|\n)*make data DATASET=small", printed, re.MULTILINE), printed


def test_an_empty_split(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = place / "data" / "small" / "manifest.json"
    record = json.loads(manifest.read_text())
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    record["splits"]["validation"] = {"documents": 0, "bytes": 0, "sha256": empty}
    write_json(manifest, record)
    write_text(place / "data" / "small" / "validation.jsonl", "")
    assert "The split 'validation' of small is empty" in table(place, capsys, code=1)


def start_a_run(place: Path) -> RunDirectory:
    loaded = config.load(str(place / "small.gin"))
    directory = RunDirectory(place / "runs" / "small")
    directory.path.mkdir(parents=True)
    directory.start("small", run_identity(loaded.experiment, Source({})) | {"data": {}}, step=0, command="train")
    return directory


def test_a_run_of_other_settings(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = start_a_run(place)
    record = directory.read()
    del record["identity"]["data"]
    write_json(directory.run_json, record)
    (directory.checkpoints / "4").mkdir(parents=True)
    assert re.search(r"^run      ok  goes on after step 4 of 12, in ", table(place, capsys), re.MULTILINE)
    overrides = ["encoder_decoder.T5Config.emb_dim=64", "RANDOM_SEED=8", "train/spec.DatasetConfig.batch_size=8"]
    printed = table(place, capsys, *overrides, code=1)
    assert "T5Config.emb_dim 32 in the run, 64 now\n" in printed
    assert "seed 7 in the run, 8 now\n" in printed
    assert "train_dataset.batch_size 4 in the run, 8 now\n" in printed
    assert "RUN=small_2" in printed
    # what may differ between two starts of a run does not matter
    assert table(place, capsys, "CHECKPOINT_PERIOD=2", "MODEL_DIR=elsewhere")


def test_a_run_of_other_text(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = start_a_run(place)
    record = directory.read()
    record["identity"]["data"] = {"task": "small_span_corruption", "dataset": "small", "sha256": {"train": "0" * 64}}
    write_json(directory.run_json, record)
    assert re.search(r"data\.sha256\.train 0{64} in the run, [0-9a-f]{64} now", table(place, capsys, code=1))
    # a run from a recording reads other text than is exported here
    checking.require(config.load(str(place / "small.gin")), directory, data=False)


def test_checkpoints_without_a_record_of_the_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = RunDirectory(place / "runs" / "small")
    model: EncoderDecoderModel = config.load(str(place / "small.gin")).experiment.model
    meta = directory.checkpoints / "4" / "meta" / "metadata"
    meta.parent.mkdir(parents=True)
    write_json(meta, {"experiment": "small", "settings": config.settings(model)})
    assert "goes on after step 4" in table(place, capsys)
    printed = table(place, capsys, "encoder_decoder.T5Config.emb_dim=64", code=1)
    assert "T5Config.emb_dim 32 in the run, 64 now\n" in printed
    write_text(meta, "{")
    assert "new, in" in table(place, capsys, "encoder_decoder.T5Config.emb_dim=64")


def test_a_folder_of_somebody_else(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "runs" / "small").mkdir(parents=True)
    (place / "runs" / "small" / "thesis.tex").write_text("")
    assert re.search(r"^run      NO  .* no run directory.*thesis.tex", table(place, capsys, code=1), re.MULTILINE)
