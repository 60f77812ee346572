"""ENGINE=t5x: which Python it runs in, what it is given, what is said of its log. A small program stands for T5X.

With T5X itself it is tried by `python -m benchmarks.t5x_agreement`.
"""

import json
import sys
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from t5xpg.base import locks, paths
from t5xpg.cli import main
from t5xpg.data.objectives import SpanCorruption
from t5xpg.data.spec import DatasetConfig
from t5xpg.exchange.t5x import engine
from t5xpg.experiment import config
from tests.refusals import refused
from tests.workplace import Workplace, run_python

# It is started as `python -m t5x.train`, says what T5X says, and notes how it was called.
PROGRAM = """
import json, os, sys
flags = dict(flag[2:].split("=", 1) for flag in sys.argv[1:] if "experiment.gin" not in flag)
macros = next(flag for flag in sys.argv[1:] if flag.endswith("experiment.gin")).split("=", 1)[1]
folder = os.path.dirname(macros)
kept = {name: value for name, value in os.environ.items() if name.startswith("T5XPG")}
json.dump({"flags": flags, "environment": kept}, open(os.path.join(folder, "called.json"), "w"))
print("I1121 logging_writer.py:48] [10] collection=train accuracy=0.25, cross_ent_loss=2.5, learning_rate=0.01, "
      "loss_per_nonpadding_target_token=0.1")
print("I1121 logging_writer.py:48] [10] collection=training_eval/task accuracy=0.5, cross_ent_loss=2.25, "
      "loss_per_nonpadding_target_token=0.2")
print("[1] something else=3")
if os.path.exists(os.path.join(folder, "fail")):
    raise ValueError("the shapes do not fit")
"""


@pytest.fixture
def t5x(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to train in, with a Python that can import the program above."""
    package = tmp_path / "lib" / "t5x"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    monkeypatch.setenv("T5X_PYTHON", sys.executable)
    monkeypatch.setattr(engine, "make_all", lambda datasets, needed: None)
    return tmp_path / "run"


def loaded(*overrides: str) -> config.LoadedConfig:
    return config.load("byt5_tiny", ["EMA_DECAY=None", *overrides], ["gin/optimizers/adafactor.gin"])


@pytest.mark.process
def test_t5x_is_given_the_experiment(t5x: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine.train(loaded("NOISE_DENSITY=0.3"), t5x)
    called = json.loads((t5x / "called.json").read_text())
    assert called["flags"] == {"gin_search_paths": str(paths.REPOSITORY), "gin_file": "gin/engines/t5x.gin"}
    objective = {"kind": "span_corruption", "noise_density": 0.3, "mean_noise_span_length": 1.0, "whole_words": True}
    assert json.loads(called["environment"]["T5XPG_ENGINE_OBJECTIVE"]) == objective
    assert called["environment"]["T5XPG_DATA_DIR"] == str(paths.data_directory())
    said = capsys.readouterr().out
    assert all(word in said for word in ("2.5000", "0.2500", "0.01", "2.2500", "0.5000", "make import CHECKPOINT="))
    assert "something else" in (t5x / "t5x.log").read_text()
    record = json.loads((t5x / "t5xpg.json").read_text())
    assert (record["vocabulary"]["extra_ids"], record["model"]["emb_dim"]) == (125, 128)


@pytest.mark.process
def test_a_run_goes_on_with_its_own_settings_alone_and_what_goes_wrong_is_said(t5x: Path) -> None:
    engine.train(loaded(), t5x)
    engine.train(loaded("TRAIN_STEPS=800"), t5x)
    (t5x / "fail").touch()
    with refused("the shapes do not fit", "t5x.log"):
        engine.train(loaded(), t5x)
    with refused("BATCH_SIZE = 8"):
        engine.train(loaded("BATCH_SIZE=8"), t5x)
    with refused("'noise_density': 0.3"):
        engine.train(loaded("NOISE_DENSITY=0.3"), t5x)
    with locks.hold(t5x / ".lock", doing="busy", instead=""), refused("busy"):
        engine.train(loaded(), t5x)
    (t5x / "experiment.gin").unlink()
    with refused("not trained in it"):
        engine.train(loaded(), t5x)


@pytest.mark.process
def test_what_t5x_trains_is_stored(t5x: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(t5x.parent))
    monkeypatch.setenv("T5XPG_RUNS_DIR", "memory://bucket/runs")
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    files = ["--gin.EMA_DECAY=None", "--gin_file=gin/optimizers/adafactor.gin"]
    for mirrored in ("t5x.log", "fail"):  # the second time, it fails
        assert main(["train", "byt5_tiny", "--engine=t5x", "--run=mine", *files]) == (mirrored == "fail")
        assert any(name.startswith(f"/bucket/runs/mine/objects/{mirrored}") for name in MemoryFileSystem.store)
        (paths.runs_directory() / "mine" / "fail").touch()


def test_sums_are_divided_by_the_tokens() -> None:
    line = "x] [5] collection=train accuracy=0.1, cross_ent_loss=300.0, loss_per_nonpadding_target_token=6.0"
    for tokens in (None, 50):
        assert "6.0000" in (engine.summary(line, tokens) or "")
    assert engine.summary("[5] uptime=3", None) is None


@pytest.mark.process
def test_where_t5x_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("T5X_PYTHON", raising=False)
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    with refused("T5X_PYTHON=/path/to/python"):
        engine.train(loaded(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for named in (str(tmp_path / "no python"), sys.executable):
        monkeypatch.setenv("T5X_PYTHON", named)
        with refused(named):
            engine.python_with_t5x()


def test_options_that_t5x_does_not_take(own_place: Path) -> None:
    Workplace(own_place).refused(
        "train", str(own_place / "small.gin"), "--engine=t5x", "--profile", words=["ENGINE=t5x"]
    )


@pytest.mark.process
def test_tasks_are_registered_as_the_experiment_has_them(workplace: Workplace) -> None:
    objective = SpanCorruption(noise_density=0.5, mean_noise_span_length=4.0)
    config = DatasetConfig("small_span_corruption", {"inputs": 32, "targets": 32}, objective=objective)
    program = (
        "import seqio\n"
        "from t5xpg.exchange.t5x import engine_tasks\n"
        "task = seqio.get_mixture_or_task('small_span_corruption')\n"
        "keywords = [step.keywords for step in task.preprocessors if hasattr(step, 'keywords')]\n"
        "print([words['noise_density'] for words in keywords if 'noise_density' in words])\n"
        "assert engine_tasks.vocabulary('small_span_corruption') == task.output_features['inputs'].vocabulary\n"
    )
    told = {"T5XPG_ENGINE_OBJECTIVE": json.dumps(config.to_json()["objective"]), "T5XPG_ENGINE_MODULES": "json"}
    assert run_python(program, env={**workplace.environment, **told}).splitlines()[-1] == "[0.5]"
