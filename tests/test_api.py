"""`import t5xpg`: the documented lines, against the program's own numbers."""

import json
import shlex
import shutil
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest

import t5xpg
from t5xpg.base.markdown import one_line
from t5xpg.evaluate.predictor import Predictor
from t5xpg.run.command_options import overrides_of
from t5xpg.run.directory import RunDirectory
from tests.refusals import refused
from tests.small_models import FAMILIES
from tests.small_tokenizers import pieces_beside
from tests.t5x_goldens import unpack
from tests.workplace import Workplace

FOLDER = FAMILIES / "byt5"


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="lode"):
        t5xpg.lode  # noqa: B018
    with refused("byt5_tinny", "byt5_tiny"):
        t5xpg.Experiment("byt5_tinny")
    with refused("'nothing'"):
        t5xpg.load("nothing")


def test_overrides_are_those_of_gin() -> None:
    changed = t5xpg.Experiment("byt5_tiny").override(TRAIN_STEPS=7, LEARNING_RATE=np.float64(0.5))
    changed = changed.override("gin/optimizers/adafactor.gin", RANDOM_SEED=3)
    assert (changed.load().experiment.total_steps, changed.load().experiment.random_seed) == (7, 3)
    assert type(changed.load().experiment.optimizer).__name__ == "Adafactor"
    with refused("TRAIN_STEPS"):
        t5xpg.Experiment("byt5_tiny").override(TRAIN_STEP=7).load()


@pytest.mark.process
def test_a_run_is_trained_and_asked(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    workplace.enter(monkeypatch)
    experiment = t5xpg.Experiment(str(workplace.experiment)).override(
        TRAIN_STEPS=2, WARMUP_STEPS=1, EVAL_PERIOD=1, EVAL_STEPS=None
    )
    run = experiment.train("asked")
    given = ["--gin.TRAIN_STEPS=2", "--gin.WARMUP_STEPS=1", "--gin.EVAL_PERIOD=1", "--gin.EVAL_STEPS=None"]
    typed = RunDirectory(run.path).read()["starts"][-1]["command"]
    assert typed.startswith(f"t5xpg train {shlex.quote(str(workplace.experiment))} ")
    assert list(overrides_of(typed)) == given
    losses = run.metrics.query("split == 'validation'")
    assert list(losses["step"]) == [0, 1, 2]
    evaluated = run.evaluate()
    np.testing.assert_allclose(losses["loss"].iloc[-1], evaluated["loss"], rtol=1e-6)

    model = t5xpg.load("asked")
    assert model.step == 2
    texts = ["the <extra_id_0> is closed", "a <extra_id_0>"]
    assert len(model.generate(texts, max_decode_length=8)) == 2
    assert len(model.generate(texts, num_beams=2, max_decode_length=8, alpha=1.0)) == 2
    assert model.generate(texts, max_new_tokens=3) == model.generate(texts, max_decode_length=3)
    drawn = model.answers(texts, method="sample", num_decodes=3, seed=1, max_decode_length=8)
    assert [(len(one.texts), len(one.scores or ())) for one in drawn] == [(3, 3)] * 2
    assert [one.texts[0] for one in drawn] == model.generate(
        texts, method="sample", num_decodes=3, seed=1, max_decode_length=8
    )
    for function in (model.generate, model.encode, lambda texts: model.loss(texts, texts)):
        with refused("Text 1", "tokens"):
            function(["a", "a" * 100])
    with monkeypatch.context() as without_answers, refused("Text 9", "tokens"):  # before any batch is answered
        without_answers.delattr(Predictor, "answers")
        model.generate([*"aaaaaaaaa", "a" * 100])
    for options, named in (
        ({"method": "bream"}, "method"), ({"num_beams": 0}, "num_decodes"), ({"max_new_token": 3}, "max_new_tokens"),
    ):  # fmt: skip
        with refused(named):
            model.generate(texts, **options)
    for function in (model.generate, model.encode):
        with refused("['a']"):
            function("a")

    encoded = model.encode(texts)
    size = experiment.load().experiment.model.config.emb_dim
    assert [one.shape for one in encoded] == [(len(model.vocabulary.encode(text)) + 1, size) for text in texts]
    np.testing.assert_allclose(model.encode(texts[1:])[0], encoded[1], atol=1e-5)

    # of what the program itself predicts and measures: an example's loss is that of the example alone
    first, both = model.loss(["ab"], ["<extra_id_0>c"]), model.loss(["ab", "b"], ["<extra_id_0>c", "<extra_id_0>cccc"])
    assert both.shape == (2,)
    np.testing.assert_allclose(first[0], both[0], rtol=1e-5)
    said = workplace.run("infer", str(workplace.experiment), "--run=asked", f"--prompt={texts[1]}", *given)
    (answer,) = [line.removeprefix("prediction  ") for line in said.splitlines() if line.startswith("prediction")]
    assert one_line(model.generate(texts[1:])[0]) == answer


def test_a_folder_of_transformers_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path / "runs"))
    first, again = t5xpg.load(str(FOLDER)), t5xpg.load(str(FOLDER))
    assert first.run == again.run
    assert json.loads((first.run / "run.json").read_text())["identity"]["imported"]["source"] == str(FOLDER)
    assert first.loss([], []).shape == (0,)
    assert first.encode([]) == []
    monkeypatch.chdir(FOLDER.parent)
    assert t5xpg.load(f"./{FOLDER.name}").run == first.run
    shutil.copytree(FOLDER, version := tmp_path / f"{FOLDER.name}@v2")
    assert t5xpg.load(str(version)).run != first.run
    shutil.copytree(FOLDER, plain := tmp_path / FOLDER.name)
    with refused("FORCE=1"):  # another folder of this name, and none that was imported
        t5xpg.load(str(plain))
    record = json.loads((first.run / "run.json").read_text())
    record["identity"]["imported"]["source"] = "google/byt5-small@68377bd"
    (first.run.parent / "a_broken_one").mkdir()
    (first.run.parent / "a_broken_one" / "run.json").write_text("{")
    (first.run / "run.json").write_text(json.dumps(record))
    assert t5xpg.load("google/byt5-small").run == first.run
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: snapshot)
    snapshot = shutil.copytree(FOLDER, tmp_path / "snapshots" / "68377bd")
    assert t5xpg.load("google/byt5-small@main").run == first.run
    assert t5xpg.load("google/byt5-small@68377bd").run == first.run
    assert first.generate(["a"], max_decode_length=4) == again.generate(["a"], max_decode_length=4)


def test_t5x_and_mesh_tensorflow_are_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path / "runs"))
    t5x, mesh = unpack("t5_1_1", tmp_path), unpack("mesh_tensorflow", tmp_path)
    (t5x / "checkpoint_5" / "state").mkdir()
    for entry in (t5x / "checkpoint_5").iterdir():  # as orbax lays it out
        if entry.name != "state":
            entry.rename(t5x / "checkpoint_5" / "state" / entry.name)
    pieces_beside(mesh)
    for folder, checkpoint in ((t5x, t5x / "checkpoint_5"), (mesh, mesh / "model.ckpt-5")):
        assert t5xpg.load(str(folder)).run == t5xpg.load(str(folder)).run == t5xpg.load(str(checkpoint)).run
    shutil.copytree(t5x / "checkpoint_5", t5x / "checkpoint_6")
    with refused("FORCE=1"):  # the last of the folder is another one now
        t5xpg.load(str(t5x))
    shutil.rmtree(t5x / "checkpoint_5" / "state")  # what was imported is needed no more
    assert t5xpg.load(str(t5x / "checkpoint_5" / "state")).step == 0
