"""The loss of a held-out split, and of every task of a mixture."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import TaskDescription
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.validation import Validation, measure_tasks, rotate_inputs, task_configs
from tests.refusals import refused

CONFIG = DatasetConfig("blend", {"inputs": 8, "targets": 4}, split="validation", num_epochs=1, max_batches=3)


class Batches(Iterator[dict[str, np.ndarray]]):
    """A finite stream."""

    def __init__(self, batches: list[dict[str, np.ndarray]]) -> None:
        self.config = CONFIG
        self.batches = batches
        self.batches_read = 0
        self.rewound = 0

    def __next__(self) -> dict[str, np.ndarray]:
        if self.batches_read == len(self.batches):
            raise StopIteration
        self.batches_read += 1
        return self.batches[self.batches_read - 1]

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


def rows_of(inputs: list[int], targets: list[int]) -> dict[str, np.ndarray]:
    """Rows of one token twice, and one target each; 0 is padding."""
    columns = np.array(inputs, np.int32)[:, None], np.array(targets, np.int32)[:, None]
    weights = (columns[1] != 0).astype(np.int32)
    return {
        "encoder_input_tokens": np.repeat(columns[0], 2, axis=1), "decoder_target_tokens": columns[1],
        "decoder_loss_weights": weights,
    }  # fmt: skip


def copying(params: Any, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """A model whose target is the input, with 0.5 nats, and anything else 0.5 and their distance."""
    distance = np.abs(rows["encoder_input_tokens"][:, :1] - rows["decoder_target_tokens"])
    weights = rows["decoder_loss_weights"]
    return {"cross_entropy": np.float32(((0.5 + distance) * weights).sum()), "weights": np.float32(weights.sum())}


def of(numbers: list[float]) -> Any:
    return Batches([{"number": np.array(number)} for number in numbers])


@pytest.mark.parametrize(("cache_bytes", "rewound"), [(64, 0), (8, 1)])
def test_the_same_batches_each_time(cache_bytes: int, rewound: int) -> None:
    stream = of([1.0, 3.0])
    validation = Validation(stream, eval_step, lambda batch: batch, cache_bytes)
    first = validation.measure(2.0)
    assert (first["loss"], first["nats_per_byte"], first["target_tokens"], first["batches"]) == (2.0, 1.0, 4, 2)
    assert "encoder_use" not in first, "of batches without an encoder"
    assert first["bits_per_byte"] == pytest.approx(1 / math.log(2))
    assert validation.measure(2.0) == first
    assert stream.rewound == rewound


def test_a_split_without_targets() -> None:
    for numbers in ([], [0.0, 0.0]):
        with refused("'validation'", "blend"):
            Validation(of(numbers), eval_step, lambda batch: batch).measure(1.0)


def test_the_rise_of_the_loss_with_rotated_inputs_in_nats_per_target_token() -> None:
    """Padding is not rotated, and the batches stay as they are."""
    alone = rows_of([8, 0], [9, 0])  # has no other example
    stream: Any = Batches([rows_of([5, 6, 9, 0], [5, 6, 9, 0]), alone, rows_of([3, 1, 0], [3, 1, 0])])
    validation = Validation(stream, copying, lambda batch: batch)
    found = validation.measure(None)
    assert found == validation.measure(None)
    assert found["encoder_use"] == pytest.approx((4 + 1 + 3 + 2 + 2) / 5)
    assert found["loss"] == pytest.approx((6 * 0.5 + 1) / 6)


def test_batches_whose_inputs_are_not_rotated() -> None:
    packed = rows_of([5, 6], [5, 6]) | {"encoder_segment_ids": np.ones((2, 2), np.int32)}
    language_model = {name: one for name, one in rows_of([5, 6], [5, 6]).items() if not name.startswith("encoder")}
    for batch in (packed, language_model, rows_of([5, 0], [5, 0])):
        assert rotate_inputs(batch) is None


def test_every_task_by_itself_and_one_without_targets_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    streams = {"a": of([1.0]), "empty": of([0.0]), "b": of([2.0, 2.0])}
    validations = {task: Validation(stream, eval_step, lambda batch: batch) for task, stream in streams.items()}
    for params in (2.0, 3.0):
        found = measure_tasks(validations, params)
        assert {task: (values["loss"], values["target_tokens"]) for task, values in found.items()} == {
            "a": (params, 1), "b": (params, 4),
        }  # fmt: skip
    assert capsys.readouterr().err.count("left out") == 1


def test_a_mixture_has_tasks_and_a_task_none() -> None:
    def described(name: str, tasks: tuple[str, ...]) -> TaskDescription:
        return TaskDescription(name, tasks, ("validation",), True, {}, Vocabulary(), None, False)

    found = task_configs(CONFIG, described("blend", ("a", "b")))
    assert [config.mixture_or_task_name for config in found] == ["a", "b"]
    assert {(config.split, config.max_batches) for config in found} == {("validation", 3)}
    assert [config.mixture_or_task_name for config in task_configs(CONFIG, described("blend", ("a",)))] == ["a"]
    assert task_configs(CONFIG, described("blend", ("blend",))) == []
