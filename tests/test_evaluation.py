"""`make eval`: that it measures the run that it says; a user's own task with its cache and its metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import seqio

from t5xpg import evaluation, preparation
from t5xpg.data.spec import DatasetConfig
from t5xpg.errors import UserError
from t5xpg.files import sha256_of_file
from t5xpg.rundir import RunDirectory
from t5xpg.vocabularies import Vocabulary
from tests.workplace import Workplace

MODULE = """
import functools
import os
import seqio
import t5.data

FOLDER = os.path.dirname(__file__)
FEATURE = seqio.Feature(seqio.ByteVocabulary(extra_ids=125), add_eos=True)


def as_floats(targets, predictions):
    assert all(isinstance(text, str) for text in [*targets, *predictions])
    return {"exact": sum(map(str.__eq__, targets, predictions)) / len(targets), "predicted": len(predictions)}


def as_values(targets, predictions):
    return {"shortest": seqio.metrics.Scalar(min(map(len, targets))), "first": seqio.metrics.Text(predictions[0])}


seqio.TaskRegistry.add(
    "user_repeat",
    source=seqio.TextLineDataSource({s: os.path.join(FOLDER, "user", s + ".txt") for s in ("train", "validation")}),
    preprocessors=[
        functools.partial(t5.data.preprocessors.parse_tsv, field_names=["inputs", "targets"]),
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos,
    ],
    output_features={"inputs": FEATURE, "targets": FEATURE},
    metric_fns=[as_floats, as_values],
)
import t5xpg.tasks
seqio.MixtureRegistry.add("user_blend", [("user_repeat", 1), ("small_span_corruption", 1)])
"""
BLEND = [
    "--gin.MIXTURE_OR_TASK_NAME=user_blend",
    "--gin.MODULE_IMPORT=user_tasks",
    "--gin.spec.DatasetConfig.objective=None",
    "--gin.TRAIN_STEPS=2",
    "--gin.WARMUP_STEPS=1",
    "--run=blend",
]


@pytest.fixture(scope="module")
def blend(workplace: Workplace) -> RunDirectory:
    """A run on a mixture of a user's task, which nobody has cached, and one of the table."""
    (workplace.folder / "user").mkdir()
    (workplace.folder / "user_tasks.py").write_text(MODULE)
    for split, count in (("train", 40), ("validation", 10)):
        lines = (f"line {n} of {split}\tline {n}\n" for n in range(count))
        (workplace.folder / "user" / f"{split}.txt").write_text("".join(lines))
    assert "validation, no cache yet (`make train` makes it first" in workplace.run(
        "check", str(workplace.experiment), *BLEND[:-1]
    )
    printed = workplace.run("train", str(workplace.experiment), *BLEND)
    assert "user_repeat is cached\n" in printed
    return RunDirectory(workplace.folder / "runs" / "blend")


def test_a_users_task_is_cached_and_identified(workplace: Workplace, blend: RunDirectory) -> None:
    assert (workplace.folder / "cache" / "user_repeat" / "COMPLETED").exists()
    identity = blend.read()["identity"]
    assert set(identity["data"]["sources"]) == set(identity["cache"]) == {"user_repeat", "small_span_corruption"}
    assert set(identity["data"]["sources"]["user_repeat"]["sha256"]) == {"train", "validation"}
    small = json.loads((workplace.folder / "data" / "small" / "manifest.json").read_text())
    assert identity["data"]["sources"]["small_span_corruption"]["sha256"] == {
        split: record["sha256"] for split, record in small["splits"].items()
    }


def test_the_tasks_own_metrics_are_computed(workplace: Workplace, blend: RunDirectory) -> None:
    blend.data_log.write_text("a training still writes here\n")
    printed = workplace.run("eval", str(workplace.experiment), *BLEND)
    assert "  user_repeat: exact 0, predicted 10, shortest 6\n" in printed
    assert "warning" not in printed.lower(), printed
    measured = json.loads(blend.evaluation_json.read_text())
    assert measured["metrics"] == {"user_repeat": {"exact": 0.0, "predicted": 10.0, "shortest": 6.0}}
    assert measured["task"] == "user_blend"
    assert measured["step"] == 2
    assert blend.data_log.read_text() == "a training still writes here\n"
    assert blend.evaluation_log.exists()


def test_another_experiments_settings_do_not_measure_the_run(workplace: Workplace, blend: RunDirectory) -> None:
    before = blend.evaluation_json.read_bytes() if blend.evaluation_json.exists() else None
    printed = workplace.run("eval", str(workplace.experiment), "--run=blend", code=1)
    assert re.search(r'mixture_or_task_name +"user_blend" in the run, "small_span_corruption" now', printed)
    assert "Traceback" not in printed
    assert before == (blend.evaluation_json.read_bytes() if blend.evaluation_json.exists() else None)


def test_another_model_does_not_predict(workplace: Workplace, blend: RunDirectory) -> None:
    prompt = "--prompt=the <extra_id_0> sees"
    more = ["--run=blend", "--gin.encoder_decoder.T5Config.relative_attention_max_distance=64"]
    printed = workplace.run("infer", str(workplace.experiment), prompt, *more, code=1)
    assert "model.config.relative_attention_max_distance" in printed
    assert "mixture_or_task_name" not in printed
    # what decides nothing may differ: the dataset, dropout
    printed = workplace.run("infer", str(workplace.experiment), prompt, "--run=blend", "--gin.DROPOUT_RATE=0.0")
    assert "small after step 2" in printed


def test_a_cache_that_others_made_is_left_as_it_is(
    workplace: Workplace, blend: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in workplace.environment.items():
        monkeypatch.setenv(name, value)
    folder = workplace.folder / "cache" / "user_repeat"
    text = workplace.folder / "user" / "train.txt"
    identity, content = (folder / "t5xpg_identity.json").read_bytes(), text.read_bytes()
    (folder / "t5xpg_identity.json").unlink()  # as SeqIO's own script leaves it
    text.unlink()
    before = {path.name: path.stat().st_size for path in folder.iterdir()}
    try:
        source = preparation.prepare(DatasetConfig("user_repeat", {}, module_import=("user_tasks",)))
    finally:
        text.write_bytes(content)
        after = {path.name: path.stat().st_size for path in folder.iterdir()}
        files = {name: sha256_of_file(folder / name) for name in before if not name.startswith(".")}
        (folder / "t5xpg_identity.json").write_bytes(identity)
    assert after == before
    assert source == preparation.Source({"task": "user_repeat"}, {"task": "user_repeat", "files": files})
    assert "was made by SeqIO itself, and its text is not here to compare it" in capsys.readouterr().out


def test_text_that_a_mixture_lacks_is_exported_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path))
    exported: list[str] = []

    def cache_task(task: str, **options: object) -> dict[str, object]:
        if "wikitext" not in exported or task == "never":
            raise preparation.caching.MissingTextError("The text is not there.", ["pydocs", "wikitext"])
        return {"task": task}

    monkeypatch.setattr(preparation.caching, "cache_task", cache_task)
    monkeypatch.setattr(preparation.export, "export_dataset", lambda name, **options: exported.append(name))
    assert preparation.cache("blend", log=lambda line: None) == {"task": "blend"}
    assert exported == ["pydocs", "wikitext"]
    with pytest.raises(UserError, match=r"The text is not there\."):
        preparation.cache("never", log=lambda line: None)


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "mine")
    evaluation._check_vocabulary(Vocabulary(), Vocabulary(), run)
    with pytest.raises(
        UserError, match=r"mine was trained with another vocabulary .* sentinels transformers in the run"
    ):
        evaluation._check_vocabulary(Vocabulary(), Vocabulary(sentinels="transformers"), run)


def test_metrics_that_are_one_number_are_kept() -> None:
    values = {
        "float": 0.5, "int": np.int64(3), "scalar": seqio.metrics.Scalar(np.float32(0.25)), "array": np.array(2.0),
        "text": seqio.metrics.Text("3"), "string": "3", "many": np.ones(2), "none": None,
        "picture": seqio.metrics.Image(np.zeros((1, 2, 2, 3))),
    }  # fmt: skip
    assert evaluation._scalars(values) == {"float": 0.5, "int": 3.0, "scalar": 0.25, "array": 2.0}
