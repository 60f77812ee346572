"""What may be published: runs of one commit, several seeds of one experiment, beside figures of others."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from t5xpg.base import environment
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, write_json
from t5xpg.run import comparison_tables, provenance, seed_summary
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import JsonlWriter
from t5xpg.run.report import publish
from t5xpg.run.results import collect
from t5xpg.study import references
from tests.run.test_report import make_run, measures
from tests.written_pages import wrong_files

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


def predicting(path: Path, seed: int, bleu: float, **more: Any) -> RunDirectory:
    """A run of a seed that was evaluated on test."""
    run = make_run(path, steps=100)
    settings = {"train_dataset.batch_size": 16, "train_dataset.pack": False, "train_dataset.seed": seed}
    changed(run, seed=seed, settings=settings)
    evaluation = {**BLEU, **WAY, "git": environment.git_state(), "metrics": {"t": {"bleu": bleu, "note": "x"}}, **more}
    (run.evaluation / "test").mkdir(parents=True)
    write_json(run.evaluation / "test" / "evaluation.json", evaluation)
    return run


def test_a_mean_over_fewer_seeds_says_so() -> None:
    """One had no finite number."""
    key = ("t", "bleu", "test")
    assert comparison_tables._spread(key, [40.0, 41.0], 3) == "40.5 (40 to 41), of 2 seeds"
    assert comparison_tables._spread(key, [40.0, 41.0], 2) == "40.5 (40 to 41)"


def test_an_evaluation_of_another_task_or_of_other_parameters_is_no_split(tmp_path: Path) -> None:
    run = predicting(tmp_path / "run", 7, 40.0)
    of_split = run.evaluation / "test" / "evaluation.json"
    (run.evaluation / "other_task").mkdir()
    write_json(run.evaluation / "other_task" / "evaluation.json", {**read_json(of_split), "split": "validation"})
    assert list(collect(run)["other_splits"]) == ["test"]
    write_json(run.evaluation_json, {**read_json(of_split), "split": "validation", "mean_of_checkpoints": 3})
    assert "other_splits" not in collect(run), "of a single checkpoint"


@pytest.mark.parametrize(
    ("starts", "evaluated", "reason"),
    [
        ([{**A, "clean": False}], A, "it was trained with changes that are not in commit aaaaaaaaaaaa. "),
        ([None], A, "it was trained with code of which no commit is known. "),
        ([A, B], B, r"it was trained with several commits \(aaaaaaaaaaaa, bbbbbbbbbbbb\). "),
        ([A], {**B, "clean": False}, "it was evaluated with changes that are not in commit bbbbbbbbbbbb. "),
        ([A], None, "it was evaluated with code of which no commit is known. "),
    ],
)
def test_only_the_code_of_a_commit_is_published(
    tmp_path: Path, home: Path, starts: list[Any], evaluated: Any, reason: str
) -> None:
    run = make_run(tmp_path / "run", steps=100, starts=len(starts))
    changed(run, starts=starts)
    write_json(run.evaluation_json, {"step": 100, "git": evaluated})
    with pytest.raises(UserError, match=rf"run is not published: {reason}.*ALLOW_CHANGED=1"):
        publish(run, home)
    assert list(home.iterdir()) == []
    text = publish(run, home, allow_changed=True).read_text(encoding="utf-8")
    assert (
        f"**Not the code of one commit:** what is shown {reason.removeprefix('it ').rstrip()}".replace("\\", "") in text
    )


def test_an_evaluation_may_be_of_a_later_commit(tmp_path: Path, home: Path) -> None:
    run = make_run(tmp_path / "run", steps=100, starts=2)
    changed(run, starts=[A, A])
    write_json(run.evaluation_json, {"step": 100, "git": B})
    text = publish(run, home).read_text(encoding="utf-8")
    assert "| source | commit aaaaaaaaaaaa; evaluated with commit bbbbbbbbbbbb |" in text
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
    assert f"| load | other programs used {used:.0%} of the cores |" in text
    assert ("500 ms a step" in text) == alone
    assert ("| time | left out: more than 5% of the cores were used by others |" in text) != alone
    assert read_json(home / "results.json")["training_flops"] == 20 * 1.5e9


def test_seeds_and_references_stand_side_by_side(tmp_path: Path, home: Path) -> None:
    trivial = {"trivial": {"t": {"copy": {"bleu": 3.25}, "other": {"bleu": 1}}}}
    runs = [predicting(tmp_path / str(seed), seed, bleu, **trivial) for seed, bleu in ((7, 40.0), (1, 41.5), (2, 41.0))]
    (home / "references.toml").write_text(REFERENCE)
    page = publish(runs[0], home, seeds=runs[1:], references=references.of_experiment(home))
    lines = page.read_text(encoding="utf-8").splitlines()
    for line in (
        "|  | bleu, test | parameters | training compute |",
        "| this experiment, mean of 3 seeds (lowest to highest) | 40.83 (40 to 41.5) | 1,800,000 | - |",
        "| [Transformer (Someone 2021)](https://a.b/c) | 41.02 | 2,600,000 | - |",
        "| larger (a paper of 2020) | 45 | - | 3.1e15 FLOP |",
        "| copying the input | 3.25 | - | - |",
        "| other | 1 | - | - |",
        "| seeds 7, 1, 2 | split | mean | lowest | highest | n |",
        "| t / bleu | test | 40.83 | 40 | 41.5 | 3 |",
        "| nats per target token | test | 1.000 | 1.000 | 1.000 | 3 |",
    ):
        assert line in lines, line
    assert wrong_files(home) == []
    results = read_json(home / "results.json")
    assert [one["seed"] for one in results["seeds"]] == [1, 2]
    assert results["seeds"][0]["final"] == {"validation": {"step": 100, **measures(2.1 + 80 / 120)}}
    assert results["seeds"][0]["other_splits"]["test"]["metrics"]["t"]["bleu"] == 41.5
    assert collect(runs[0])["steps"] == results["seeds"][0]["steps"] == 100


def test_runs_that_differ_in_more_than_the_seed_are_refused(tmp_path: Path, home: Path) -> None:
    first = predicting(tmp_path / "first", 7, 40.0)

    def refused(run: RunDirectory, message: str) -> None:
        with pytest.raises(UserError, match=message):
            publish(first, home, seeds=[run])
        assert list(home.iterdir()) == []

    refused(predicting(tmp_path / "same", 7, 41.0), r"same and .*first have the same seed, 7: name runs of other seeds")
    other = predicting(tmp_path / "other", 1, 41.0)
    changed(other, settings={"train_dataset.batch_size": 32, "train_dataset.pack": False, "train_dataset.seed": 1})
    refused(
        other, r"first and .*other differ in more than the seed: settings.train_dataset.batch_size 16 and 32\. RUNS="
    )
    sampled = {"predicted": {"t": {"examples": 8, "decoding": {"method": "sample"}}}}
    refused(
        predicting(tmp_path / "sampled", 1, 41.0, **sampled),
        r'the seed: evaluation.test.t.decoding.method "beam" and "sample"\. ',
    )
    shorter = make_run(tmp_path / "shorter", steps=50)
    changed(shorter, seed=1)
    refused(shorter, r"steps 100 and 50; .*evaluation.test.* and not set")
    commit = predicting(tmp_path / "commit", 1, 41.0)
    changed(commit, starts=[A])
    refused(commit, r"first and .*commit is not published: it was trained with several commits \(0123456789\w\w, aaaa")


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
    with pytest.raises(UserError, match='evaluated step "last" and "best"'):
        seed_summary.results_of_seeds(tmp_path, first, [last, best])
    published = seed_summary.results_of_seeds(tmp_path, first, [last])
    with pytest.raises(UserError, match='evaluated step "last" and "best"'):  # also one after the other
        seed_summary.results_of_seeds(tmp_path, {**first, "seeds": published}, [best])
    early = Mock(results=results(3, 50, 50, steps=60, early="no better"))
    assert len(seed_summary.results_of_seeds(tmp_path, first, [best, early])) == 2, "the last step is a result"
    with pytest.raises(UserError, match='steps "all" and 60'):
        seed_summary.results_of_seeds(tmp_path, first, [Mock(results=results(3, 50, 50, steps=60))])


def test_later_seeds_join_what_is_published(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = runs = [predicting(tmp_path / str(seed), seed, 40.0 + seed) for seed in (7, 1, 2)]
    changed(second, starts=[A])
    page = publish(first, home, seeds=[second, third], allow_changed=True)
    together = (page.read_bytes(), (home / "results.json").read_bytes())
    assert "left out" not in capsys.readouterr().out
    publish(first, home)
    assert "seeds 1, 2, which were published before, are left out: ADD=… puts" in capsys.readouterr().out
    for run in runs[1:]:
        publish(None, home, seeds=[run])
    assert (page.read_bytes(), (home / "results.json").read_bytes()) == together
    text = page.read_text(encoding="utf-8")
    assert f"{provenance.format_commit(environment.git_state())}, commit aaaaaaaaaaaa" in text
    assert "**Not the code of one commit:** what is shown was trained with several commits (0123456789" in text
    with pytest.raises(UserError, match=r"2 and .*results\.json have the same seed, 2: name runs of other seeds"):
        publish(None, home, seeds=[third])
    changed(predicting(tmp_path / "dirty", 3, 43.0), starts=[{**A, "clean": False}])
    with pytest.raises(UserError, match=r"dirty is not published: it was trained with changes that are not in"):
        publish(None, home, seeds=[RunDirectory(tmp_path / "dirty")])
    changed(third, seed=3, settings={"train_dataset.seed": 3})
    with pytest.raises(UserError, match=r"results\.json and .*2 differ in more than the seed: settings\."):
        publish(None, home, seeds=[third])
    assert (page.read_bytes(), (home / "results.json").read_bytes()) == together


def test_a_reference_of_no_number_here_is_refused(tmp_path: Path, home: Path) -> None:
    run = predicting(tmp_path / "run", 7, 40.0)
    for old, new, message in (
        ('"bleu"', '"blue"', r"Someone 2021\): metric 'blue' is not measured on test. Did you mean bleu\?"),
        (
            '"test"',
            '"dev"',
            r"metric 'bleu': the run was not evaluated on dev: make eval EXP=tiny RUN=.*/run SPLIT=dev",
        ),
        ("41.02", '"41.02"', r"references.toml, line 6: \[reference\] value: .* number, and it is '41.02'"),
        ("metric =", "metrik =", r"line 2: \[reference\] metric is missing"),
    ):
        (home / "references.toml").write_text(REFERENCE.replace(old, new, 1))
        with pytest.raises(UserError, match=message):
            publish(run, home, references=references.of_experiment(home))
    assert [path.name for path in home.iterdir()] == ["references.toml"]
    (home / "references.toml").write_text(REFERENCE)
    mixture = {"metrics": {"t": {"bleu": 1.0}, "u": {"bleu": 2.0}}}
    run = predicting(tmp_path / "mixture", 7, 40.0, **mixture)
    with pytest.raises(UserError, match=r"metric 'bleu' is one of several tasks: t/bleu, u/bleu"):
        publish(run, home, references=references.of_experiment(home))
