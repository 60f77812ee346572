"""Published results against those of a run that repeats them: every kind of difference alone."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

from t5xpg.study.reproduce.comparison import (
    CHANGED,
    DIFFERENT,
    NOT_COMPARED,
    SAME,
    TOLERANCE,
    UNKNOWN,
    WITHIN,
    ResultsComparison,
    compare,
    identity,
    other_run,
)

Results = dict[str, Any]


def results(steps: int = 4) -> Results:
    """Results as `results.collect` makes them: training recorded at each step, validation at every second one."""
    validation, train = (
        [{"step": step, "loss": 6.0 - step / 4, "accuracy": step / 8} for step in range(first, steps + 1, period)]
        for first, period in ((0, 2), (1, 1))
    )
    devices = {"kind": "cpu", "mesh": {"data": 1, "model": 1}}
    return {
        "format": 1,
        "command": "t5xpg train tiny",
        "git": {"commit": "ab" * 20, "clean": True},
        "versions": {"jax": "0.10.2", "jaxlib": "0.10.2"},
        "hardware": {"cpu": "Some CPU", "cores": 2, "devices": devices, "xla_flags": ""},
        "identity": {
            "seed": 7,
            "settings": {"optimizer": "AdamW", "optimizer.b1": 0.9},
            "data": {"task": "t", "sha256": {"train": "12" * 32}},
            "cache": {"format": 2, "preprocessors": [{"function": "parse"}]},
            "vocabulary": {"kind": "bytes", "size": 384},
            "initial": {"step": 8, "sha256": "34" * 32},
            "teacher": {"step": 8, "sha256": "56" * 32},
        },
        "num_params": 100,
        "steps": steps,
        "target_tokens": 10 * steps,
        "examples": 4 * steps,
        "first": {"train": train[0], "validation": validation[0]},
        "final": {"train": train[-1], "validation": validation[-1]},
        "best_validation": validation[-1],
        "curves": {
            split: {name: [one[name] for one in values] for name in ("step", "loss", "accuracy")}
            for split, values in (("validation", validation), ("train", train))
        },
        "batches": {"step": [0, 2, 4], "sha256": ["00" * 32, "22" * 32, "44" * 32]},
        "samples": [{"input": "a", "prediction": "b", "target": "c"}],
        "evaluation": {"step": steps, "loss": 5.1, "target_tokens": 40, "data": {}, "metrics": {"t": {"f1": 0.5}}},
    }


def changed(path: str, value: Any) -> Results:
    """`results()` with the value at "a/b/0" replaced; a callable is given the value that is there."""
    found = results()
    inner: Any = found
    *names, last = (int(name) if name.isdigit() else name for name in path.split("/"))
    for name in names:
        inner = inner[name]
    inner[last] = value(inner[last]) if callable(value) else value
    return found


def row_of(comparison: ResultsComparison, what: str) -> Any:
    rows = [row for row in (*comparison.numbers, *comparison.conditions) if row.what.startswith(what)]
    assert len(rows) == 1, rows
    return rows[0]


def up(share: float) -> Callable[[float], float]:
    return lambda value: value * (1 + share)


def test_equal_results_are_the_same_bit_for_bit() -> None:
    comparison = compare(results(), results(), steps=4)
    assert (comparison.same, comparison.exact, comparison.largest, comparison.changed) == (True, True, 0, [])
    assert {row.verdict for row in (*comparison.numbers, *comparison.conditions)} == {SAME}
    assert (len(comparison.numbers), len(comparison.conditions)) == (8, 10)


# What differs, by how much it does at the place named, and the row that says so. The last bit is enough.
NUMBERS = [
    ("curves/validation/loss/1", lambda value: math.nextafter(value, 9), "validation loss at step 2"),
    ("curves/validation/loss/0", None, "validation loss at step 0"),
    ("curves/train/loss/3", up(1e-9), "training loss at step 4"),
    ("first/validation/loss", up(0.1), "validation loss at step 0"),
    ("final/train/accuracy", up(0.1), "training accuracy at step 4"),
    ("best_validation/loss", up(0.1), "validation loss at step 4"),
    ("batches/sha256/1", "23" * 32, "batches to step 2"),
    ("num_params", 101, "parameters"),
    ("target_tokens", 41, "target tokens"),
    ("examples", 15, "examples"),
    ("evaluation/loss", up(1e-12), "evaluation: loss"),
    ("evaluation/metrics/t/f1", 0.25, "evaluation: metrics/t/f1"),
    ("samples/0/prediction", "x", "sample predictions"),
]


def test_any_other_number_is_different() -> None:
    for path, value, what in NUMBERS:
        for published, here in ((changed(path, value), results()), (results(), changed(path, value))):
            comparison = compare(published, here, steps=4)
            assert not comparison.same
            assert comparison.largest > 0
            assert row_of(comparison, what).verdict == DIFFERENT
            assert [row.verdict for row in comparison.numbers].count(DIFFERENT) == 1
            assert comparison.changed == []


# What the numbers rest on: a value that changed is named, and decides nothing by itself.
CONDITIONS = [
    ("git/commit", "cd" * 20, "code"),
    ("versions/jax", "0.11.0", "versions: jax"),
    ("hardware/cores", 8, "hardware: cores"),
    ("identity/seed", 8, "seed"),
    ("identity/settings/optimizer.b1", 0.8, "settings: optimizer.b1"),
    ("identity/data/sha256/train", "21" * 32, "data: sha256.train"),
    ("identity/cache/preprocessors/0/function", "other", "cache: preprocessors.0.function"),
    ("identity/vocabulary/size", 385, "vocabulary: size"),
    ("identity/initial/sha256", "43" * 32, "initial: sha256"),
    ("identity/teacher/sha256", "65" * 32, "teacher: sha256"),
]


def test_what_changed_is_named() -> None:
    for path, value, what in CONDITIONS:
        for published, here in ((changed(path, value), results()), (results(), changed(path, value))):
            comparison = compare(published, here, steps=4)
            assert comparison.same
            assert comparison.changed == [what.partition(":")[0]]
            row = row_of(comparison, what)
            assert row.verdict == CHANGED
            assert row.published != row.here


def test_another_run_is_known_before_it_is_trained() -> None:
    for path, value, what in CONDITIONS[3:]:
        rows = list(identity(changed(path, value)["identity"], results()["identity"]))
        assert bool(other_run(rows)) == (not what.startswith("cache")), path
    assert not other_run(list(identity(results()["identity"], results()["identity"])))


def test_what_only_one_side_records_is_no_change() -> None:
    """Older results lack what is recorded by now, and a start lacks what is not known before it."""
    here = results()
    here["identity"]["settings"]["optimizer.new"] = 1
    here["identity"]["data"]["more"] = {"a": 1}
    here["curves"]["validation"]["new_measure"] = [1, 2, 3]
    here["versions"]["more"] = "1"
    old = results()
    del old["batches"]
    del old["identity"]["vocabulary"]
    old.update(samples=None, evaluation=None, examples=None)
    comparison = compare(old, here, steps=4)
    assert comparison.same
    assert comparison.changed == []
    assert row_of(comparison, "batches").verdict == NOT_COMPARED
    assert row_of(comparison, "examples").verdict == NOT_COMPARED


def test_a_cache_identity_of_another_format_is_not_compared() -> None:
    earlier = changed("identity/cache", {"task": {"preprocessors": [{"function": "other"}]}})
    comparison = compare(earlier, results(), steps=4)
    assert comparison.changed == []
    assert row_of(comparison, "cache").verdict == NOT_COMPARED


def test_code_is_what_the_files_are_where_git_knows_them() -> None:
    later = changed("git/commit", "cd" * 20)
    assert row_of(compare(results(), later, steps=4, changed_files=[]), "code").verdict == SAME
    row = row_of(compare(results(), later, steps=4, changed_files=["t5xpg/optim/step.py"]), "code")
    assert (row.verdict, row.here) == (CHANGED, "cdcdcdcdcdcd: t5xpg/optim/step.py differs")
    dirty = changed("git/clean", False)
    assert row_of(compare(dirty, later, steps=4, changed_files=[]), "code").verdict == CHANGED
    assert row_of(compare(changed("git", None), later, steps=4), "code").verdict == UNKNOWN


OTHER = {
    "hardware/cpu": "Another CPU", "hardware/cores": 4, "hardware/devices/kind": "H100",
    "hardware/devices/mesh/data": 4, "hardware/xla_flags": "--xla_cpu_max_isa=AVX2", "versions/jaxlib": "9.9",
}  # fmt: skip


@pytest.mark.parametrize("path", OTHER)
def test_other_hardware_and_another_stack_have_a_tolerance(path: str) -> None:
    def against(**numbers: Any) -> ResultsComparison:
        here = changed(path, OTHER[path])
        for place, number in numbers.items():
            here["curves"]["validation"][place][1] = number
        return compare(results(), here, steps=4)

    equal = against()
    assert (equal.same, equal.exact, equal.changed) == (True, False, [path.partition("/")[0]])
    near = against(loss=5.5 * (1 + 0.9 * TOLERANCE), accuracy=0.25 + 0.5 * TOLERANCE)
    assert near.same
    assert near.largest == pytest.approx(0.9 * TOLERANCE, rel=0.1)
    assert row_of(near, "validation loss at step 2").verdict == WITHIN
    for far in ({"loss": 5.5 * (1 + 2 * TOLERANCE)}, {"accuracy": 0.25 + 2 * TOLERANCE}, {"loss": None}):
        assert not against(**far).same


def test_on_other_hardware_data_and_counts_are_the_same_and_predictions_may_differ() -> None:
    elsewhere = changed("hardware/cpu", "Another CPU")
    for path, same in (("batches/sha256/2", False), ("target_tokens", False), ("samples/0/prediction", True)):
        published = changed(path, 17 if path == "target_tokens" else "x" * 64)
        assert compare(published, elsewhere, steps=4).same == same, path


def test_a_part_of_the_steps_is_compared_with_that_part() -> None:
    here = results(steps=2)
    here["evaluation"] = here["samples"] = None
    comparison = compare(results(), here, steps=2)
    assert comparison.same
    assert [(row.what, row.verdict) for row in comparison.numbers] == [
        ("batches to step 2", SAME), ("validation loss at step 2 (2 points compared)", SAME),
        ("training loss at step 2 (2 points compared)", SAME), ("parameters", SAME), ("evaluation", NOT_COMPARED),
    ]  # fmt: skip
    assert compare(changed("curves/validation/loss/2", 1.0), here, steps=2).same
    assert not compare(changed("curves/validation/loss/1", 1.0), here, steps=2).same
    assert row_of(compare(results(), {**results(), "evaluation": None}, steps=4), "evaluation").verdict == DIFFERENT
    # nothing was published so early but the validation before the first update
    early = copy.deepcopy(here)
    early["curves"]["train"] = {"step": []}
    early["first"]["train"] = early["final"]["train"] = None
    published = changed("first/train/step", 2)
    published["curves"]["train"] = {name: values[1:] for name, values in published["curves"]["train"].items()}
    early["curves"]["validation"] = {name: values[:1] for name, values in early["curves"]["validation"].items()}
    assert row_of(compare(published, early, steps=1), "training").verdict == NOT_COMPARED
