"""Gin files of runs that strangers made: whatever they name, no code of theirs runs."""

import json
from pathlib import Path

import pytest

from t5xpg.evaluate.trained_model import load_run
from t5xpg.experiment import config
from tests.refusals import refused

EXPERIMENT = "demo"
IMPORT = "from t5xpg.data import spec\n"


@pytest.fixture(scope="module")
def operative() -> str:
    return config.load(EXPERIMENT).operative


def run_of(folder: Path, text: str) -> Path:
    """A run directory with this operative.gin."""
    identity = {"settings": {}}
    starts = [{"command": f"t5xpg train {EXPERIMENT}"}]
    run = {"format": 1, "experiment": EXPERIMENT, "identity": identity, "starts": starts}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "operative.gin").write_text(text)
    return folder


def test_a_run_as_it_was_made_is_read(operative: str, tmp_path: Path) -> None:
    loaded = load_run(run_of(tmp_path, operative))
    assert loaded.experiment == config.load(EXPERIMENT).experiment
    assert loaded.name == EXPERIMENT


@pytest.mark.parametrize(
    ("imported", "added", "name"),
    [
        ("import os", "@os.system()", "os"),
        ("import os as spec2", "@spec2.system()", "os"),
        ("from t5xpg.base import files", "@files.remove()", "t5xpg.base.files.remove"),
        ("import antigravity", "1", "antigravity"),
        ("", "@spec.dataclasses.sys.exit()", "t5xpg.data.spec.dataclasses.sys.exit"),
        ("", "@a/b/spec.os.system()", "t5xpg.data.spec.os.system"),
        ("", "{'a': [(@spec.os.getcwd(),)]}", "t5xpg.data.spec.os.getcwd"),
        ("", "{@spec.os.getcwd(): 1}", "t5xpg.data.spec.os.getcwd"),
        ("include 'other.gin'", "1", "subprocess"),
    ],
)
def test_code_that_only_the_run_names_does_not_run(
    operative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imported: str, added: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.gin").write_text("from __gin__ import dynamic_registration\nimport subprocess\n")
    text = operative.replace(IMPORT, f"{IMPORT}{imported}\n", 1)
    with refused(f"names {name} ", "EXP=", "GIN="):
        load_run(run_of(tmp_path, f"{text}\nexperiment.Experiment.eval_period = {added}\n"))


def test_modules_of_tasks_are_imported_only_if_the_user_names_them(
    operative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    text = operative.replace("MODULE_IMPORT = ()", "MODULE_IMPORT = ('evil',)")
    assert text != operative
    run = run_of(tmp_path, text)
    with refused("evil", "MODULE_IMPORT"):
        load_run(run)
    assert not (tmp_path / "ran").exists()
    assert load_run(run, ["MODULE_IMPORT=evil"]).experiment.train_dataset.module_import == ("evil",)


@pytest.mark.parametrize("option", ["experiment", "gin_files"])
def test_code_that_the_users_own_files_name_runs(
    operative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    module = f"models_of_{option}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{module}.py").write_text("def period():\n    return 7\n")
    names = f"import {module}\nexperiment.Experiment.eval_period = @{module}.period()\n"
    header = "from __gin__ import dynamic_registration\n"
    run = run_of(tmp_path, operative.replace(header, f"{header}import {module}\n") + names.splitlines()[1])
    with refused(module):
        load_run(run)
    own = tmp_path / "own.gin"
    own.write_text(f"{header}from t5xpg.experiment import experiment\n{names}")
    value = str(own) if option == "experiment" else [str(own)]
    assert load_run(run, **{option: value}).experiment.eval_period == 7  # type: ignore[arg-type]
