"""What may be published: runs of one commit, several seeds of one experiment, beside figures of others."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from t5xpg.base import environment
from t5xpg.base.files import read_json, write_json
from t5xpg.run import provenance, seed_summary
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import JsonlWriter
from t5xpg.run.report import PAGE, publish
from t5xpg.run.results import collect
from t5xpg.study import references
from tests.refusals import assert_named, refused
from tests.run.test_report import make_run, measures
from tests.workplace import contents
from tests.written_evaluations import write_evaluation

A, B = ({"commit": letter * 40, "clean": True} for letter in "ab")
BLEU = {"step": 100, "split": "test", "task": "t", "loss": 1.0}
WAY = {"predicted": {"t": {"examples": 8, "decoding": {"method": "beam"}}}}
REFERENCE = """
[[reference]]
name = "Transformer (Someone 2021)"
metric = "bleu"
split = "test"
value = 41.02
parameters = 2_600_000
source = "https://a.b/c"
[[reference]]
name = "larger"
metric = "bleu"
split = "test"
value = 45
flops = 3.14e15
source = "a paper of 2020"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    return folder


def changed(run: RunDirectory, *, seed: int | None = None, starts: list[Any] | None = None, **identity: Any) -> None:
    """Change what run.json says."""
    record = read_json(run.run_json)
    record["identity"] |= {"seed": record["identity"]["seed"] if seed is None else seed, **identity}
    for start, git in zip(record["starts"], starts or (), strict=bool(starts)):
        start["git"] = git
    write_json(run.run_json, record)


def predicting(path: Path, seed: int, bleu: float | None, **more: Any) -> RunDirectory:
    """A run of a seed that was evaluated on test."""
    run = make_run(path, steps=100)
    settings = {"train_dataset.batch_size": 16, "train_dataset.pack": False, "train_dataset.seed": seed}
    changed(run, seed=seed, settings=settings)
    evaluation = {**BLEU, **WAY, "git": environment.git_state(), "metrics": {"t": {"bleu": bleu, "note": "x"}}, **more}
    write_evaluation(run, evaluation)
    return run


def test_a_mean_over_fewer_seeds_says_so(tmp_path: Path, home: Path) -> None:
    """One had no finite number."""
    runs = [predicting(tmp_path / str(seed), seed, bleu) for seed, bleu in ((7, 40.0), (1, 41.0), (2, None))]
    (home / "references.toml").write_text(REFERENCE)
    page = publish(runs[0], home, seeds=runs[1:], references=references.of_experiment(home))
    assert "| 40.5 (40 to 41), of 2 seeds |" in page.read_text(encoding="utf-8")


def test_an_evaluation_is_named_by_what_it_has_otherwise(tmp_path: Path) -> None:
    run = predicting(tmp_path / "run", 7, 40.0)
    write_evaluation(run, {**BLEU, **WAY, "metrics": {"t": {"bleu": 30.0}}}, task="other_task")
    assert list(collect(run)["other_splits"]) == ["test", "test, other_task"]
    write_evaluation(run, {"step": 100, "mean_of_checkpoints": 3})
    names = ["test, step 100", "test, step 100, other_task", "validation, step 100"]
    assert list(collect(run)["other_splits"]) == names
    assert "| bleu | test, step 100, other_task | 30 |" in PAGE.block(collect(run))


def test_only_the_code_of_a_commit_is_published(tmp_path: Path, home: Path) -> None:
    for number, (starts, evaluated, *reasons) in enumerate(
        (
            ([{**A, "clean": False}], A, "trained with changes", "aaaaaaaaaaaa"),
            ([None], A, "trained with code of which no commit"),
            ([A, B], B, "trained with several commits", "aaaaaaaaaaaa, bbbbbbbbbbbb"),
            ([A], {**B, "clean": False}, "evaluated with changes", "bbbbbbbbbbbb"),
            ([A], None, "evaluated with code of which no commit"),
        )
    ):
        run = make_run(tmp_path / f"run_{number}", steps=100, starts=len(starts))
        changed(run, starts=starts)
        write_evaluation(run, {"step": 100, "git": evaluated})
        before = contents(home)
        with refused(str(run.path), *reasons, "ALLOW_CHANGED=1"):
            publish(run, home)
        assert contents(home) == before
        page = publish(run, home, allow_changed=True)
        assert_named(page.read_text(encoding="utf-8"), ["**Not the code of", *reasons])


def test_an_evaluation_may_be_of_a_later_commit(tmp_path: Path, home: Path) -> None:
    run = make_run(tmp_path / "run", steps=100, starts=2)
    changed(run, starts=[A, A])
    write_evaluation(run, {"step": 100, "git": B})
    text = publish(run, home).read_text(encoding="utf-8")
    assert_named(text, ["aaaaaaaaaaaa", "bbbbbbbbbbbb"])
    assert "Not the code" not in text
    assert "git" not in read_json(home / "results.json")["evaluation"]


@pytest.mark.parametrize(("used", "alone"), [(0.01, True), (0.2, False)])
def test_times_are_left_out_where_other_programs_ran(tmp_path: Path, home: Path, used: float, alone: bool) -> None:
    run = make_run(tmp_path / "run", steps=100)
    with JsonlWriter(run.timing_jsonl, last_step=-1) as timing:
        for step, share in ((10, used / 2), (20, used * 1.5)):
            line = {"step": step, "time": step, "seconds_per_step": 0.5, "flops_per_second": 3e9}
            timing.write({**line, "used_by_others": share})
    text = publish(run, home).read_text(encoding="utf-8")
    assert f"programs used {used:.0%} of" in text
    assert ("500 ms a step" in text) == alone
    assert read_json(home / "results.json")["training_flops"] == 20 * 1.5e9


def test_seeds_and_references_stand_side_by_side(tmp_path: Path, home: Path) -> None:
    trivial = {"trivial": {"t": {"copy": {"bleu": 3.25}, "other": {"bleu": 1}}}}
    runs = [predicting(tmp_path / str(seed), seed, bleu, **trivial) for seed, bleu in ((7, 40.0), (1, 41.5), (2, 41.0))]
    (home / "references.toml").write_text(REFERENCE)
    page = publish(runs[0], home, seeds=runs[1:], references=references.of_experiment(home))
    rows = [
        "| 40.83 (40 to 41.5) | 1,800,000 | - |",
        "(https://a.b/c) | 41.02 | 2,600,000 | - |",
        "| 45 | - | 3.1e15 FLOP |",
    ]
    assert_named(page.read_text(encoding="utf-8"), [*rows, "| 3.25 | - | - |", "| test | 40.83 | 40 | 41.5 | 3 |"])
    results = read_json(home / "results.json")
    first, second = results["seeds"]
    assert (first["seed"], first["steps"], second["seed"]) == (1, 100, 2)
    assert first["final"] == {"validation": {"step": 100, **measures(2.1 + 80 / 120)}}
    assert first["other_splits"]["test"]["metrics"]["t"]["bleu"] == 41.5


def test_runs_that_differ_in_more_than_the_seed_are_refused(tmp_path: Path, home: Path) -> None:
    first, same = predicting(tmp_path / "first", 7, 40.0), predicting(tmp_path / "same", 7, 41.0)
    other, commit = (predicting(tmp_path / name, 1, 41.0) for name in ("other", "commit"))
    changed(other, settings={"train_dataset.batch_size": 32, "train_dataset.pack": False, "train_dataset.seed": 1})
    changed(commit, starts=[A])
    sampling = {"predicted": {"t": {"examples": 8, "decoding": {"method": "sample"}}}}
    sampled = predicting(tmp_path / "sampled", 1, 41.0, **sampling)
    changed(shorter := make_run(tmp_path / "shorter", steps=50), seed=1)
    for run, *named in (
        (same, "seed, 7"),
        (other, "settings.train_dataset.batch_size 16 and 32", "RUNS="),
        (sampled, 'evaluation.test.t.decoding.method "beam" and "sample"'),
        (shorter, "steps 100 and 50", "evaluation.test"),
        (commit, "several commits", "0123456789", "aaaa"),
    ):
        with refused(str(first.path), str(run.path), *named):
            publish(first, home, seeds=[run])
    assert list(home.iterdir()) == []


def test_seeds_are_all_of_the_last_step_or_all_of_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def results(seed: int, evaluated: int, best: int, steps: int = 100, early: str | None = None) -> dict[str, Any]:
        return {
            "identity": {"seed": seed}, "experiment": "a", "total_steps": 100, "versions": {}, "steps": steps,
            "sources": {}, "evaluation": {"step": evaluated}, "selected": {"step": best, "ended_early": early},
            "final": {"validation": {}},
        }  # fmt: skip

    monkeypatch.setattr(seed_summary, "collect", lambda run: run.results)
    first, last, best = results(7, 100, 100), Mock(results=results(1, 100, 50)), Mock(results=results(2, 50, 50))
    for others in ([last], [best]):
        assert len(seed_summary.results_of_seeds(tmp_path, first, others)) == 1
    with refused('evaluated step "last" and "best"'):
        seed_summary.results_of_seeds(tmp_path, first, [last, best])
    published = seed_summary.results_of_seeds(tmp_path, first, [last])
    with refused('evaluated step "last" and "best"'):  # also one after the other
        seed_summary.results_of_seeds(tmp_path, {**first, "seeds": published}, [best])
    early = Mock(results=results(3, 50, 50, steps=60, early="no better"))
    assert len(seed_summary.results_of_seeds(tmp_path, first, [best, early])) == 2, "the last step is a result"
    with refused('steps "all" and 60'):
        seed_summary.results_of_seeds(tmp_path, first, [Mock(results=results(3, 50, 50, steps=60))])


def test_later_seeds_join_what_is_published(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = runs = [predicting(tmp_path / str(seed), seed, 40.0 + seed) for seed in (7, 1, 2)]
    changed(second, starts=[A])
    page = publish(first, home, seeds=[second, third], allow_changed=True)
    together = contents(home)
    assert "ADD=" not in capsys.readouterr().out
    publish(first, home)
    assert_named(capsys.readouterr().out, ["seeds 1, 2", "ADD="])
    for run in runs[1:]:
        publish(None, home, seeds=[run])
    assert contents(home) == together
    made_with = provenance.format_commit(environment.git_state())
    assert_named(page.read_text(encoding="utf-8"), [f"{made_with}, commit aaaaaaaaaaaa", "**Not the code of"])
    dirty = predicting(tmp_path / "dirty", 3, 43.0)
    changed(dirty, starts=[{**A, "clean": False}])
    other = predicting(tmp_path / "other", 4, 44.0)
    changed(other, settings={"train_dataset.seed": 4})
    for run, *named in (
        (third, "results.json", "the same seed, 2"),
        (dirty, "changes that are not in"),
        (other, "results.json", "settings."),
    ):
        with refused(str(run.path), *named):
            publish(None, home, seeds=[run])
    assert contents(home) == together


def test_a_reference_of_no_number_here_is_refused(tmp_path: Path, home: Path) -> None:
    run = predicting(tmp_path / "run", 7, 40.0)
    mixture = predicting(tmp_path / "mixture", 7, 40.0, metrics={"t": {"bleu": 1.0}, "u": {"bleu": 2.0}})
    for of, old, new, *named in (
        (run, '"bleu"', '"blue"', "'blue'", "Did you mean bleu?"),
        (run, '"test"', '"dev"', "'bleu'", f"make eval EXP=tiny RUN={run.path} SPLIT=dev"),
        (run, "41.02", '"41.02"', "references.toml, line 6", "value", "'41.02'"),
        (run, "metric =", "metrik =", "line 2", "metric"),
        (mixture, "", "", "'bleu'", "t/bleu, u/bleu"),
    ):
        (home / "references.toml").write_text(REFERENCE.replace(old, new, 1))
        with refused(*named):
            publish(of, home, references=references.of_experiment(home))
    assert [path.name for path in home.iterdir()] == ["references.toml"]
