"""What is typed to go on with a run."""

from pathlib import Path

import pytest

from t5xpg.run.command_options import options_of, overrides_of
from t5xpg.run.directory import RunDirectory


def test_the_overrides_are_those_of_the_command() -> None:
    for options, found in (
        ("", []),
        ("--gin.A=1 --run=x '--gin.B={\"x\": 2}'", ["--gin.A=1", '--gin.B={"x": 2}']),
        ("--gin-overrides '--gin.A=1 --gin_file=f.gin'", ["--gin.A=1 --gin_file=f.gin"]),
    ):
        assert list(overrides_of(f"t5xpg train tiny {options}")) == found


def test_a_run_is_named_with_what_it_was_last_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)

    def options(path: Path, *commands: str) -> str:
        for command in commands:
            RunDirectory(path).start("tiny", {"seed": 0}, step=0, command=command)
        return options_of(RunDirectory(path))

    plain, seed = "t5xpg train tiny", "t5xpg train tiny --gin.RANDOM_SEED=1 --run=x"
    assert options(tmp_path / "runs" / "tiny", plain) == "EXP=tiny"
    assert options(tmp_path / "runs" / "tiny", f"{plain} --gin.A=1 --gin.B=2") == "EXP=tiny GIN='--gin.A=1 --gin.B=2'"
    named = tmp_path / "runs" / "seed_1"
    assert options(named, plain, seed) == "EXP=tiny RUN=seed_1 GIN=--gin.RANDOM_SEED=1"
    assert options(tmp_path / "tiny", plain) == "EXP=tiny RUN=./tiny"
    given = options(tmp_path / "runs" / "tiny", "t5xpg train my/tiny.gin --gin_file=a.gin")
    assert given == "EXP=my/tiny.gin GIN=--gin_file=a.gin"
    monkeypatch.chdir(named)
    assert options(tmp_path / "my runs" / "tiny", plain) == f"EXP=tiny RUN='{tmp_path}/my runs/tiny'"
