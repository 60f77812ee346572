import json
from pathlib import Path
from typing import Any

from t5xpg.run.directory import RunDirectory, SharedRunDirectory
from tests.refusals import refused

IDENTITY: dict[str, Any] = {
    "seed": 0,
    "settings": {"TRAIN_STEPS": 20, "lengths": (64, 32)},
    "data": {"name": "pydocs", "splits": {"train": {"sha256": "ab"}}},
}
DEVICES = {"platform": "cpu", "kind": "cpu", "count": 1}


def start(path: Path, identity: dict[str, Any] = IDENTITY, step: int = 0, experiment: str = "tiny") -> dict[str, Any]:
    return RunDirectory(path).start(experiment, identity, step=step, command="t5xpg train", devices=DEVICES)


def test_every_start_is_recorded_and_the_identity_stays(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "a folder" / "run")
    assert not run.exists()
    start(run.path)
    record = run.read()
    assert record["experiment"] == "tiny"
    assert record["identity"] == json.loads(json.dumps(IDENTITY))
    (first,) = record["starts"]
    assert (first["step"], first["command"], first["devices"]) == (0, "t5xpg train", DEVICES)
    assert first["host"]["cores"] >= 1
    assert {"python", "t5xpg", "jax", "orbax", "seqio", "t5", "tensorflow"} <= set(first["versions"])
    second = start(run.path, step=10)
    assert run.read() == second
    assert [one["step"] for one in second["starts"]] == [0, 10]
    assert (second["starts"][0], second["identity"]) == (first, record["identity"])


def test_folders_that_orbax_takes_for_patterns_are_refused(tmp_path: Path) -> None:
    for name in ("a[b", "a\\b", "a*b"):
        with refused(str(tmp_path / name), "RUN="):
            start(tmp_path / name / "run")
    assert not list(tmp_path.iterdir())


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    before = start(tmp_path / "run")
    settings = {**IDENTITY["settings"], "OPTIMIZER": "x" * 100}
    other = {"seed": 1, "settings": settings, "data": {**IDENTITY["data"], "splits": {"train": {"sha256": "cd"}}}}
    differing = ['"tiny" in the run, "small" now', "seed ", "0 in the run, 1 now", "OPTIMIZER", f'"{"x" * 56}…" now']
    with refused(
        str(tmp_path / "run"), *differing, "data.splits.train.sha256", '"ab" in the run, "cd" now', "RUN=run_2"
    ):
        start(tmp_path / "run", other, experiment="small")
    assert RunDirectory(tmp_path / "run").read() == before
    start(tmp_path / "many", {f"name{index:02}": 0 for index in range(30)})
    with refused("name19", "10 more"):
        start(tmp_path / "many", {f"name{index:02}": 1 for index in range(30)})


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with refused(str(tmp_path), "thesis.tex"):
        start(tmp_path)


def test_a_start_that_was_interrupted_before_it_was_recorded_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".run.json.1234.tmp").write_text("{", encoding="utf-8")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.gin").touch()
    shared = SharedRunDirectory(tmp_path, 1)  # what further processes wrote is none either
    shared.data_log.parent.mkdir(parents=True)
    shared.data_log.touch()
    start(tmp_path)


def test_what_is_not_known_yet_is_not_compared(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.check("tiny", {"seed": 0})
    start(run.path)
    run.check("tiny", {"seed": 0})
    with refused("seed", "0 in the run, 1 now"):
        run.check("tiny", {"seed": 1})
    with refused("settings", "not set now"):
        start(run.path, {"seed": 0})  # by the start all has to be known


def test_an_unreadable_record_says_what_to_do(tmp_path: Path) -> None:
    for text in ("{", '{"format": 99}'):
        (tmp_path / "run.json").write_text(text, encoding="utf-8")
        with refused("run.json", "start over"):
            RunDirectory(tmp_path).read()
