"""What is collected and shown of each task by itself."""

from typing import Any

from t5xpg.run.results import task_curves
from t5xpg.run.results_page import task_tables
from tests.refusals import assert_named

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
    assert task_curves(RECORDS) == {
        "validation": {"a": {"step": [0, 5], "loss": [7.0, 4.0]}, "b_c": {"step": [5], "accuracy": [0.5]}},
        "infer_eval": {
            "a": {
                "step": [5, 10],
                "examples": [8, 8],
                "metrics": {"bleu": [1.5, None], "signature": "x|z", "late": [None, 3]},
            }
        },
    }
    assert task_curves(RECORDS[:1]) == {}


def test_tables_of_the_last_values() -> None:
    results = {"evaluation": None, "tasks": task_curves(RECORDS)}
    losses, metrics = task_tables(results)
    assert losses.splitlines()[2:] == ["| a | 5 | 4.000 | - |", "| b_c | 5 | - | 0.500 |"]
    assert_named(metrics, ["bleu | 10 | - |", "signature | 10 | x&#124;z |", "late | 10 | 3 |"])
    # the whole split, where it was measured
    results["evaluation"] = {"step": 12, "tasks": {"a": {"loss": 3.5, "accuracy": 0.25, "batches": 9}}}
    assert task_tables(results)[0].splitlines()[2:] == ["| a | 12 | 3.500 | 0.250 |"]
