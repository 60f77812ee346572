"""What `make check` says, in one table, and what `make train` asks of it."""

import json
import re
import shutil
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from t5xpg.base.errors import UserError
from t5xpg.base.files import write_json
from t5xpg.base.paths import shown
from t5xpg.check import checks
from t5xpg.data.cache import caching
from t5xpg.data.stream.length_fit import LengthFit
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.manifest import read_manifest
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.experiment import assembly, config
from t5xpg.experiment.identity import run_identity
from t5xpg.experiment.known_tasks import known_task
from t5xpg.experiment.recipe import DataIdentity, identity_of_text
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from t5xpg.run.checkpoint.initial_checkpoint import InitialCheckpoint
from t5xpg.run.directory import RunDirectory
from tests.refusals import assert_named, refused
from tests.workplace import EXPERIMENT, FINE_TUNING, sentences

# Each override breaks one thing of an experiment that could be trained; what the problem is about, and what it names.
BROKEN = {
    "BATCH_SIZE=x": ("gin", "BATCH_SIZE"),
    "TRAIN_STPES=3": ("gin", "Did you mean TRAIN_STEPS"),
    "distributed.MeshConfig.devices=4096": ("devices", "4096 devices"),
    "encoder_decoder.T5Config.vocab_size=200": ("ids", "200 embeddings"),
    "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 9}": ("spans", "9 tokens"),
    "train/spec.DatasetConfig.split=trian": ("data", "Did you mean train"),
    "MIXTURE_OR_TASK_NAME=smal_span_corruption": ("data", "Did you mean small_span_corruption"),
    "INFER_EVAL_PERIOD=2": ("metrics", "INFER_EVAL_PERIOD"),
    "encoder_decoder.T5Config.mlp_dim=2000000000": ("memory", "MiB"),
}


@pytest.fixture
def place(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with exported text and an experiment; nothing is cached and TensorFlow never started."""
    monkeypatch.setattr("t5xpg.check.checks.DataService", None)
    files = {split: [own_place / f"{split}.txt"] for split in ("train", "validation")}
    for seed, (path,) in enumerate(files.values(), start=1):
        path.write_text(sentences(30, seed))
    export_dataset("small", data_dir=own_place / "data", files=files)
    return own_place


def table(place: Path, capsys: pytest.CaptureFixture[str], *overrides: str, code: int = 0) -> str:
    capsys.readouterr()
    assert checks.check(str(place / "small.gin"), overrides, [], None) == code
    return capsys.readouterr().out


def about(printed: str, verdict: str = "NO") -> list[str]:
    """What the findings with a verdict are about."""
    return re.findall(rf"^(\w+) +{verdict}  ", printed, re.MULTILINE)


def test_an_experiment_that_can_be_trained(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(place.rglob("*"))
    printed = table(place, capsys)
    assert about(printed) == []
    assert {"gin", "batch", "model", "memory", "data", "spans", "ids", "run"} <= {*about(printed, "ok")}
    assert_named(printed, ["seed 7", "4 x 64/32 tokens", "make cache TASK=small_span_corruption"])
    assert sorted(path for path in place.rglob("*") if not path.name.startswith(".")) == before, "nothing is written"
    assert "30 documents" in table(place, capsys, "USE_CACHED_TASKS=False")


ALONE = ("BATCH_SIZE", "MIX", "encoder_decoder.T5Config.mlp")  # with these the rest cannot be looked at


def test_each_mistake_alone_and_all_at_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for override in (override for override in BROKEN if override.startswith(ALONE)):
        printed = table(place, capsys, override, code=1)
        assert (about(printed), BROKEN[override][1] in printed) == ([BROKEN[override][0]], True)
    overrides = [override for override in BROKEN if not override.startswith(ALONE)]
    printed = table(place, capsys, *overrides, code=1)
    assert sorted(about(printed)) == sorted(BROKEN[override][0] for override in overrides)
    assert_named(printed, [BROKEN[override][1] for override in overrides])
    loaded, _ = config.examine(str(place / "small.gin"), overrides)
    assert loaded is not None
    with refused("4096 devices", "9 tokens"):
        checks.require(loaded, RunDirectory(place / "runs" / "small"))


def test_supervised_tasks(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    service = MagicMock()
    service.return_value.__enter__.return_value.fits.return_value = [
        LengthFit("pairs", 10, {"targets": 3}, {"targets": 40}, {"targets": 99}, {"targets": 0})
    ]
    monkeypatch.setattr("t5xpg.check.checks.DataService", service)
    (place / "pairs.tsv").write_text("one\teins\n")
    files = {split: [place / "pairs.tsv"] for split in ("train", "validation")}
    export_dataset("pairs", data_dir=place / "data", files=files, fields={"en": "en", "de": "de"})
    (place / "small.gin").write_text(EXPERIMENT + "include 'gin/objectives/none.gin'\n")

    def of(task: str, *overrides: str, code: int = 0) -> str:
        return table(place, capsys, f"MIXTURE_OR_TASK_NAME={task}", *overrides, code=code)

    printed = of("pairs_translate_en_de", "INFER_EVAL_PERIOD=2", "MAX_CUT_SHARE=0.3")
    assert_named(printed, ["make cache TASK=pairs_translate_en_de\n", "30.0%"])
    assert_named(of("squad", "INFER_EVAL_PERIOD=2"), ["make cache TASK=squad", "squad/v1.1:3.0.0"])
    for task, named in {
        "pairs_translate_en_de": "30%",
        "squad_bytes640": "640 ids",
        "pairs_span_corruption": "pairs_span_corruption",
        "pairs_translate_en_fr": "Did you mean pairs_translate_",
    }.items():
        assert named in of(task, code=1)
    assert "Did you mean test" in of("trivia_qa_open", "train_eval/spec.DatasetConfig.split=tset", code=1)
    for objective, task in (("", "squad"), ("include 'gin/objectives/prefix_lm.gin'\n", "small_span_corruption")):
        (place / "small.gin").write_text(EXPERIMENT + objective)
        assert_named(of(task, code=1), ["objective", "span_corruption"])
    # an outdated cache is named, and not read
    (place / "cache" / "squad").mkdir(parents=True)
    (place / "cache" / "squad" / caching.COMPLETED).touch()
    (place / "small.gin").write_text(EXPERIMENT + "include 'gin/objectives/none.gin'\n")
    monkeypatch.setattr(caching, "cache_task", MagicMock(side_effect=UserError("of another definition")))
    fits = service.return_value.__enter__.return_value.fits
    fits.reset_mock()
    assert "of another definition" in of("squad", code=1)
    fits.assert_not_called()


def start_a_run(place: Path) -> RunDirectory:
    loaded = config.load(str(place / "small.gin"))
    directory = RunDirectory(place / "runs" / "small")
    directory.path.mkdir(parents=True)
    row = known_task("small_span_corruption")
    assert row is not None
    source = DataIdentity(identity_of_text(row, read_manifest(place / "data" / "small")))
    directory.start("small", run_identity(loaded.experiment, source), step=0, command="train")
    return directory


def test_a_run_of_other_settings(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = start_a_run(place)
    (directory.checkpoints / "4").mkdir(parents=True)
    assert "step 4 of 12" in table(place, capsys)
    overrides = ["encoder_decoder.T5Config.emb_dim=64", "RANDOM_SEED=8", "train/spec.DatasetConfig.batch_size=8"]
    printed = table(place, capsys, *overrides, code=1)
    assert_named(
        printed, ["T5Config.emb_dim", "train_dataset.batch_size", "seed", "7 in the run, 8 now", "RUN=small_2"]
    )
    # what may differ between two starts of a run does not matter
    assert table(place, capsys, "CHECKPOINT_PERIOD=2", "MODEL_DIR=elsewhere")
    # other text; a run from a recording reads none that is exported here
    record = directory.read()
    record["identity"]["data"] = {"task": "small_span_corruption", "dataset": "small", "sha256": {"train": "0" * 64}}
    write_json(directory.run_json, record)
    assert "data.sha256.train" in table(place, capsys, code=1)
    checks.require(config.load(str(place / "small.gin")), directory, data=False)


def test_a_run_whose_schedule_would_be_lengthened(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = start_a_run(place)
    printed = table(place, capsys, "TRAIN_STEPS=400", code=1)
    what_to_type = re.search(r'RUN=small_2 GIN="(.*)"$', printed, re.MULTILINE)
    assert what_to_type, printed
    overrides, files = config.split_overrides(what_to_type[1].replace("…", "300"))
    experiment = config.load(str(place / "small.gin"), overrides, files).experiment
    assert experiment.initial == InitialCheckpoint(shown(directory.path))
    assert experiment.total_steps == 300


@pytest.fixture
def tuned(place: Path) -> Path:
    """The place, whose experiment starts from a run of the same model, which is there as far as this looks at it."""
    loaded = config.load(str(place / "small.gin"))
    built = assembly.assemble(loaded.experiment)
    meta = {
        "experiment": "small", "vocabulary": Vocabulary().to_json(), "settings": config.settings(built.experiment.model)
    }  # fmt: skip
    with Checkpointer(place / "runs" / "pretrained" / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(12, built.new_state(), {}, meta)
    (place / "small.gin").write_text(FINE_TUNING.replace("'small'", "'pretrained'"))
    return place


def test_a_checkpoint_to_start_from(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = table(tuned, capsys, "EARLY_STOP_PATIENCE=2")
    assert "step 12" in printed
    assert {"start", "best"} <= {*about(printed, "ok")}
    assert "optimiser" in table(tuned, capsys, "RESET_OPTIMIZER=False", "KEEP_BEST=False")


def test_each_mistake_of_a_start(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = tuned / "runs" / "pretrained" / "checkpoints" / "12" / "meta" / "metadata"
    record = json.loads(meta.read_text())
    for override, what, named in (
        ("INITIAL_CHECKPOINT=pretraned", "start", "Did you mean pretrained"),
        ("encoder_decoder.T5Config.num_encoder_layers=2", "start", "does not fit"),
        ("BEST_METRIC=validation/small/loss", "best", "Did you mean validation/"),
        ("SAME_VOCABULARY=True", "start", "sentinels transformers"),
    ):
        if named == "sentinels transformers":
            write_json(meta, {**record, "vocabulary": {**record["vocabulary"], "sentinels": "transformers"}})
        printed = table(tuned, capsys, override, code=1)
        assert about(printed) == [what]
        assert named in printed
        loaded, _ = config.examine(str(tuned / "small.gin"), [override])
        assert loaded is not None
        with refused(named):
            checks.require(loaded, RunDirectory(tuned / "runs" / "small"))
    table(tuned, capsys, "SAME_VOCABULARY=False")


def test_a_run_that_goes_on_needs_no_start(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = tuned / "runs" / "small" / "checkpoints" / "4" / "meta" / "metadata"
    meta.parent.mkdir(parents=True)
    model = config.load(str(tuned / "small.gin")).experiment.model
    origin = {"named": "pretrained", "experiment": "small", "step": 12, "sha256": "0" * 64}
    write_json(meta, {"experiment": "small", "settings": config.settings(model), "initial": origin})
    shutil.move(tuned / "runs" / "pretrained", tuned / "runs" / "moved")
    assert "small after step 12" in table(tuned, capsys)
    assert "pretrained" in table(tuned, capsys, "INITIAL_CHECKPOINT=moved", code=1)
    assert "INITIAL_CHECKPOINT" in table(tuned, capsys, "INITIAL_CHECKPOINT=gone", code=1)
