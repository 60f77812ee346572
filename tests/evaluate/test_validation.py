"""The loss of a held-out split, and of every task of a mixture."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import TaskDescription
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.validation import TaskValidation, Validation, task_configs

CONFIG = DatasetConfig("blend", {"inputs": 8, "targets": 4}, split="validation", num_epochs=1, max_batches=3)


class Batches(Iterator[dict[str, np.ndarray]]):
    """A finite stream of batches with one number each."""

    def __init__(self, numbers: list[float]) -> None:
        self.config = CONFIG
        self.numbers = numbers
        self.batches_read = 0
        self.rewound = 0

    def __next__(self) -> dict[str, np.ndarray]:
        if self.batches_read == len(self.numbers):
            raise StopIteration
        self.batches_read += 1
        return {"number": np.array(self.numbers[self.batches_read - 1])}

    def rewind(self) -> None:
        self.rewound += 1
        self.batches_read = 0


def eval_step(params: float, batch: Any) -> dict[str, float]:
    """Of a batch with the number n: n targets, whose loss is `params` each."""
    number = float(batch["number"])
    return {
        "cross_entropy": params * number,
        "weights": number,
        "correct": 0.0,
        "target_bytes": 2 * number,
        "z_loss": 0.0,
    }


def of(numbers: list[float]) -> Any:
    return Batches(numbers)


@pytest.mark.parametrize(("kept_bytes", "rewound"), [(64, 0), (8, 1)])
def test_the_same_batches_each_time(kept_bytes: int, rewound: int) -> None:
    stream = of([1.0, 3.0])
    validation = Validation(stream, eval_step, lambda batch: batch, kept_bytes)
    first = validation.measure(2.0)
    assert (first["loss"], first["nats_per_byte"], first["target_tokens"], first["batches"]) == (2.0, 1.0, 4, 2)
    assert first["bits_per_byte"] == pytest.approx(1 / math.log(2))
    assert validation.measure(2.0) == first
    assert stream.rewound == rewound


def test_a_split_without_targets() -> None:
    for numbers in ([], [0.0, 0.0]):
        with pytest.raises(UserError, match="The split 'validation' of blend gave no target to measure"):
            Validation(of(numbers), eval_step, lambda batch: batch).measure(1.0)


def test_every_task_by_itself_and_one_without_targets_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[int] = []

    def streams() -> dict[str, Any]:
        opened.append(1)
        return {"a": of([1.0]), "empty": of([0.0]), "b": of([2.0, 2.0])}

    validation = TaskValidation(streams, eval_step, lambda batch: batch)
    assert not opened
    for params in (2.0, 3.0):
        found = validation.measure(params)
        assert {task: (values["loss"], values["target_tokens"]) for task, values in found.items()} == {
            "a": (params, 1), "b": (params, 4),
        }  # fmt: skip
    assert len(opened) == 1
    said = capsys.readouterr().err
    assert said.count("gave no target to measure") == said.count("Its loss is left out.") == 1


def test_a_mixture_has_tasks_and_a_task_none() -> None:
    def described(name: str, tasks: tuple[str, ...]) -> TaskDescription:
        return TaskDescription(name, tasks, ("validation",), True, {}, Vocabulary(), None, False)

    found = task_configs(CONFIG, described("blend", ("a", "b")))
    assert [config.mixture_or_task_name for config in found] == ["a", "b"]
    assert {(config.split, config.max_batches) for config in found} == {("validation", 3)}
    assert [config.mixture_or_task_name for config in task_configs(CONFIG, described("blend", ("a",)))] == ["a"]
    assert task_configs(CONFIG, described("blend", ("blend",))) == []
