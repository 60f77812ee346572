"""What is collected of a run's records, and of each task by itself."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from t5xpg.base.files import write_json
from t5xpg.run.results import at_steps, collect, read_results, task_curves, thinned
from tests.refusals import refused
from tests.run.test_report import SAMPLES, make_run, measures, short_run
from tests.written_evaluations import write_evaluation


def test_results_are_those_of_the_records(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    evaluation = {"step": 600, "metrics": {"pydocs_span_corruption": {"accuracy": 0.25}}}
    write_evaluation(run, evaluation, samples=SAMPLES)
    results, record = collect(run), run.read()
    start = record["starts"][0]
    devices = {"platform": "cpu", "kind": "cpu", "count": 1}
    expected = {
        "command": "make train EXP=tiny", "identity": record["identity"], "versions": start["versions"],
        "hardware": {**start["host"], "devices": devices, "xla_flags": start["xla_flags"]},
        "steps": 600, "target_tokens": 300 * 500, "examples": 600 * 16, "samples": SAMPLES,
        "evaluation": {**evaluation, "task": "own", "split": "validation"},
        "best_validation": results["final"]["validation"],
    }  # fmt: skip
    assert {name: results[name] for name in expected} == expected
    for point, step, validation, train_step in (("first", 0, 2.1 + 4, 2), ("final", 600, 2.1 + 80 / 620, 600)):
        assert results[point]["validation"] == {"step": step, **measures(validation)}
        assert results[point]["train"] == {"step": train_step, **measures(2 + 80 / (20 + train_step))}
    assert results["curves"]["validation"]["step"] == [0, 100, 200, 300, 400, 500, 600]
    assert len(results["curves"]["train"]["step"]) == 150
    assert results["timing"] == {
        "training_seconds": 2 * 2.0 + 598 * 0.25, "wall_seconds": pytest.approx(600), "seconds_per_step": 0.25,
        "tokens_per_second": 16000, "target_tokens_per_second": None, "share_of_peak": None,
        "used_by_others": None,
    }  # fmt: skip
    record["identity"]["settings"]["train_dataset.pack"] = True
    record["starts"][0]["time"] += 1e6
    write_json(run.run_json, record)
    assert collect(run)["examples"] is None, "packed rows are not examples"
    assert collect(run)["timing"]["wall_seconds"] is None, "the clock was set back"


def test_starts_before_a_new_beginning_do_not_count(tmp_path: Path) -> None:
    run = short_run(tmp_path / "run")  # died before it saved
    run.start("tiny", {"seed": 0}, step=0, command="t5xpg second")
    assert collect(run)["starts"] == 1
    assert collect(run)["command"] == "t5xpg second"
    run.start("tiny", {"seed": 0}, step=1, command="t5xpg second --gin.TRAIN_STEPS=9")
    assert collect(run)["command"] == "t5xpg second --gin.TRAIN_STEPS=9"


def test_folders_of_a_person_are_not_published(tmp_path: Path) -> None:
    run = short_run(tmp_path / "run")
    record = run.read()
    files = [{"path": "/home/ada/texts/train.en"}, {"path": "texts/train.de"}]
    record["starts"][-1]["data"] = {"name": "own", "source": {"kind": "files", "files": {"train": files}}}
    write_json(run.run_json, record)
    kept = collect(run)["data"]["source"]["files"]["train"]
    assert kept == [{"path": "train.en"}, {"path": "texts/train.de"}]


def test_thinning_takes_weighted_means() -> None:
    losses = ((4.0, 1), (2.0, 3), (None, 3), (1.0, 3), (None, 3))
    lines = [{"step": step, "loss": loss, "target_tokens": n} for step, (loss, n) in enumerate(losses, start=1)]
    assert [(line["step"], line["loss"]) for line in thinned(lines, 3)] == [(2, 2.5), (4, 1.0), (5, None)]
    assert thinned(lines, 5) == lines
    assert thinned([], 5) == []
    assert len(thinned([{"step": step, "loss": 1.0} for step in range(1001)], 200)) <= 200


@pytest.mark.parametrize("count", [3, 4, 7, 50])
def test_a_shorter_run_has_the_first_points_of_a_longer_one(count: int) -> None:
    lines = [{"step": step, "loss": 10 / step, "target_tokens": step % 3 + 1} for step in range(2, 42, 2)]
    points = thinned(lines, count)
    steps = [point["step"] for point in points]
    assert at_steps(lines, steps) == points
    for length in range(len(lines)):
        reached = [point for point in points if point["step"] <= 2 * length]
        assert at_steps(lines[:length], steps) == reached
    later = [point for point in at_steps(lines[1:], steps) if point["step"] > steps[0]]
    assert later == points[1:]
    assert at_steps(lines, [3]) == []  # no record ends there


def test_the_batches_are_digested_up_to_each_evaluation(tmp_path: Path) -> None:
    digests = [hashlib.sha256(str(step).encode()).hexdigest() + "\n" for step in range(1, 201)]
    run = make_run(tmp_path / "run", steps=200)
    assert collect(run)["batches"] is None
    run.batches.write_text("".join(digests))
    expected = [hashlib.sha256("".join(digests[:step]).encode()).hexdigest() for step in (0, 100, 200)]
    assert collect(run)["batches"] == {"step": [0, 100, 200], "sha256": expected}
    for lacking in (digests[:-1], ["-" * 64 + "\n", *digests[1:]]):
        run.batches.write_text("".join(lacking))
        assert collect(run)["batches"] is None


@pytest.mark.parametrize("text", [None, "{", "{}"])
def test_results_that_cannot_be_read_say_what_to_do(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with refused("results.json", "make report"):
        read_results(path)


RECORDS: list[dict[str, Any]] = [
    {"step": 0, "split": "validation", "loss": 6.0},
    {"step": 0, "split": "validation", "task": "a", "loss": 7.0},
    {"step": 5, "split": "train", "loss": 5.0},
    {"step": 5, "split": "validation", "task": "a", "loss": 4.0},
    {"step": 5, "split": "validation", "task": "b_c", "loss": None, "accuracy": 0.5},
    {"step": 5, "split": "infer_eval", "task": "a", "examples": 8, "metrics": {"bleu": 1.5, "signature": "x|y"}},
    {
        "step": 10, "split": "infer_eval", "task": "a", "examples": 8,
        "metrics": {"bleu": None, "signature": "x|z", "h": {"histogram": {}}, "late": 3},
    },
]  # fmt: skip


def test_curves_of_each_task() -> None:
    metrics = {"bleu": [1.5, None], "signature": "x|z", "late": [None, 3]}
    assert task_curves(RECORDS) == {
        "validation": {"a": {"step": [0, 5], "loss": [7.0, 4.0]}, "b_c": {"step": [5], "accuracy": [0.5]}},
        "infer_eval": {"a": {"step": [5, 10], "examples": [8, 8], "metrics": metrics}},
    }
    assert task_curves(RECORDS[:1]) == {}
