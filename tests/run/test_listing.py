"""What `make runs` lists, and what it deletes."""

import json
import os
from pathlib import Path

import pytest

from t5xpg.base.files import read_json, write_json
from t5xpg.run.checkpoint.folders import CheckpointFolders
from t5xpg.run.directory import RunDirectory
from t5xpg.run.listing import list_runs, print_runs, remove_checkpoints, remove_runs
from t5xpg.run.records import JsonlWriter
from tests.refusals import assert_named, refused
from tests.run.test_report import make_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """One finished, one stopped, one that only began, and a folder that is no run."""
    folder = tmp_path / "runs"
    make_run(folder / "mine", steps=1000)
    make_run(folder / "mine_2", steps=600)
    make_run(folder / "begun").metrics_jsonl.unlink()
    (folder / "no run").mkdir()
    for step in (400, 600, 1000):
        save(folder / "mine" / "checkpoints", step)
    return folder


def state_of(runs: Path, name: str = "mine_2") -> str:
    (found,) = (run.state for run in list_runs(runs) if run.name == name)
    return found


def kept(runs: Path) -> list[int]:
    """The checkpoints of the finished run that stay where those of finished runs are deleted."""
    assert remove_checkpoints(runs, yes=True) == 0
    return sorted(int(path.name) for path in (runs / "mine" / "checkpoints").iterdir())


def save(checkpoints: Path, step: int, **losses: float) -> None:
    """Write a folder that passes for a whole checkpoint."""
    if (checkpoints / str(step)).exists():
        (checkpoints / str(step)).rename(checkpoints / f"{step}.unfinished")
    folders = CheckpointFolders(checkpoints, read_only=True)
    write_json(folders.unfinished(step) / "metrics" / "metrics", losses)
    folders.finish(step)


def test_runs_are_listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDirectory(runs / "mine_2").lock(), RunDirectory(runs / "begun").evaluation_lock():
        found = {run.name: run for run in list_runs(runs)}
    assert {name: (run.state, run.step, run.total_steps) for name, run in found.items()} == {
        "mine": ("finished", 1000, 1000), "mine_2": ("busy", 600, 1000), "begun": ("busy", 0, 1000),
    }  # fmt: skip
    assert found["mine"].checkpoints == (400, 600, 1000)
    assert found["begun"].loss is None
    print_runs(runs)
    assert ["mine", "tiny", "finished", "1,000"] in [row.split()[:4] for row in capsys.readouterr().out.splitlines()]
    print_runs(runs, as_json=True)
    assert [one["loss"] for one in json.loads(capsys.readouterr().out)] == [run.loss for run in list_runs(runs)]
    print_runs(runs / "none")
    assert str(runs / "none") in capsys.readouterr().out


def test_runs_of_a_sweep_and_checkpoints_behind_the_last_record_are_listed(runs: Path) -> None:
    make_run(runs / "sweep" / "first", steps=600)
    saved = runs / "sweep" / "first" / "checkpoints" / "601"
    saved.mkdir(parents=True)
    (saved / "commit_success.txt").touch()
    assert [(run.name, run.state, run.step) for run in list_runs(runs)][-1] == ("sweep/first", "stopped", 601)
    assert remove_runs(runs, ["sweep/*"], yes=True) == 0
    assert [run.name for run in list_runs(runs)] == ["begun", "mine", "mine_2"]


def test_a_run_that_diverged_is_listed_as_such(runs: Path) -> None:
    run = RunDirectory(runs / "mine_2")
    record = run.read()
    write_json(run.run_json, {**record, "identity": {**record["identity"], "settings": {"skip_nonfinite": 1}}})
    for step, state in ((601, "stopped"), (602, "diverged")):  # one such update is passed over
        (run.nonfinite / f"step_{step:08d}").mkdir(parents=True)
        assert state_of(runs) == state


def test_an_unreadable_run_is_listed(runs: Path) -> None:
    (runs / "mine_2" / "run.json").write_text("{")
    assert [run.experiment for run in list_runs(runs)] == ["tiny", "tiny", "-"]


def test_runs_are_deleted_after_a_yes(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused("REMOVE=mien", "mine"):
        remove_runs(runs, ["mien"])
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert remove_runs(runs, ["mine*"]) == 1
    assert len(list(runs.iterdir())) == 4
    monkeypatch.setattr("builtins.input", lambda _: "y")
    with RunDirectory(runs / "mine_2").lock(), RunDirectory(runs / "begun").evaluation_lock():
        assert remove_runs(runs, ["*"]) == 1, "not all of them are gone"
    assert_named(capsys.readouterr().out, [f"Process {os.getpid()}", str(runs / "mine_2"), str(runs / "begun")])
    assert sorted(path.name for path in runs.iterdir()) == ["begun", "mine_2", "no run"]
    assert remove_runs(runs, ["*"], yes=True) == 0
    assert [path.name for path in runs.iterdir()] == ["no run"]


def test_checkpoints_of_finished_runs_are_deleted(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "mine_2" / "checkpoints" / "400").mkdir(parents=True)
    assert kept(runs) == [1000]
    assert "400, 600" in capsys.readouterr().out
    assert (runs / "mine_2" / "checkpoints" / "400").exists()
    assert kept(runs) == [1000]


def test_the_best_checkpoint_of_any_run_stays(runs: Path) -> None:
    for step, loss in ((400, 2.5), (600, 2.0), (1000, 2.25)):
        save(runs / "mine" / "checkpoints", step, **{"validation/loss": loss})
    assert kept(runs) == [600, 1000]


def test_the_last_whole_checkpoint_stays(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = runs / "mine" / "checkpoints"
    (checkpoints / "1000" / "metrics" / "metrics").write_text("torn")
    assert kept(runs) == [600, 1000]
    assert_named(capsys.readouterr().err, ["step 1000", "metrics/metrics", "step 600"])
    (checkpoints / "600" / "metrics" / "metrics").write_text("torn")
    save(checkpoints, 400)
    (checkpoints / "400" / "metrics" / "metrics").write_text("torn")
    assert kept(runs) == [400, 600, 1000], "one may be mended"


def test_a_run_on_another_disk_is_deleted_there(runs: Path, tmp_path: Path) -> None:
    (runs / "mine").rename(tmp_path / "elsewhere")
    (runs / "mine").symlink_to(tmp_path / "elsewhere")
    assert remove_runs(runs, ["mine"], yes=True) == 0
    assert not (tmp_path / "elsewhere").exists()
    assert not (runs / "mine").is_symlink()
    (runs / "best").symlink_to("mine_2")
    assert remove_runs(runs, ["best"], yes=True) == 0
    assert (runs / "mine_2").is_dir(), "a run of its own"
    (runs / "best").symlink_to("mine_2")
    assert remove_runs(runs, ["*"], yes=True) == 0
    assert [path.name for path in runs.iterdir()] == ["no run"]


@pytest.mark.parametrize("place", ["mine_2", "sweep/first"])
def test_checkpoints_that_another_run_needs_stay(runs: Path, place: str) -> None:
    run = RunDirectory(runs / place)
    if not run.path.exists():
        run.path.parent.mkdir()
        (runs / "mine_2").rename(run.path)
    record = read_json(run.run_json)
    of_teacher = {"experiment": "other", "step": 600}
    record["identity"] |= {"initial": {"experiment": "tiny", "step": 400}, "teacher": of_teacher}
    write_json(run.run_json, record)
    assert kept(runs) == [400, 1000]


def test_a_run_that_ended_early_is_finished(runs: Path) -> None:
    run = RunDirectory(runs / "mine_2")
    record = read_json(run.run_json)
    record["starts"][-1]["selection"] = {"metric": "validation/loss", "patience": 1}
    write_json(run.run_json, record)
    assert state_of(runs) == "stopped"
    with JsonlWriter(run.metrics_jsonl) as metrics:
        metrics.write({"step": 700, "split": "validation", "loss": 9.0})
    assert state_of(runs) == "stopped"  # killed before it saved that
    (run.checkpoints / "700").mkdir(parents=True)
    assert state_of(runs) == "finished"
