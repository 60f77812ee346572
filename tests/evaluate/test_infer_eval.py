"""The training process's side of the metrics of tasks: what the model is asked, and in which order it answers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t5xpg.base.metric_values import Histogram
from t5xpg.data.batch import LM, MASKED_LM, Batch, BatchSpec, with_targets
from t5xpg.data.stream.remote_evaluator import EvaluatedTask
from t5xpg.evaluate.infer_eval import InferEval, ModelOutputs
from tests.refusals import refused

S, T = 4, 3
SPEC = BatchSpec(2, {"inputs": S, "targets": T})


def batch_of(numbers: list[int]) -> Batch:
    """Rows told apart by their first input token, longer from one to the next; rows of 0 fill up."""
    inputs = np.zeros((2, S), np.int32)
    targets = np.zeros((2, T), np.int32)
    inputs[: len(numbers), 0] = numbers
    for row, number in enumerate(numbers):
        inputs[row, 1 : min(number, S)] = 9
    targets[: len(numbers), 0] = numbers
    return with_targets({"encoder_input_tokens": inputs}, targets, SPEC)


class Evaluator:
    """Two tasks, of three examples and of two."""

    tasks = (EvaluatedTask("a", 3, ("prediction", "score")), EvaluatedTask("b", 2, ("prediction_with_aux",)))

    spec = SPEC

    def __init__(self) -> None:
        self.measured: list[tuple[Mapping[str, Any], int, Path | None]] = []

    def batches(self, task: str) -> Iterator[tuple[Batch, int]]:
        for numbers in ([1, 2], [3]) if task == "a" else ([4, 5],):
            yield batch_of(numbers), len(numbers)

    def measure(self, outputs: Mapping[str, Any], step: int, inferences: Path | None) -> dict[str, Any]:
        self.measured.append((outputs, step, inferences))
        return {"a": {"exact": 50.0, "note": "text"}, "b": {"lengths": Histogram(np.ones(2))}}


def predict(params: Any, batch: Batch, row_numbers: np.ndarray) -> np.ndarray:
    lengths = np.count_nonzero(batch["encoder_input_tokens"], axis=1)
    assert list(lengths) == sorted(lengths, reverse=True)
    return np.stack([params * batch["encoder_input_tokens"][:, 0], row_numbers, row_numbers + 1], axis=1)


def score(params: Any, batch: Batch) -> np.ndarray:
    return -(batch["decoder_target_tokens"] * batch["decoder_loss_weights"]).sum(axis=1).astype(np.float32)


def test_outputs_of_every_task_in_the_order_of_its_examples(capsys: pytest.CaptureFixture[str]) -> None:
    evaluator = Evaluator()
    opened: list[int] = []

    def open_it() -> Any:
        opened.append(1)
        return evaluator

    infer_eval = InferEval(open_it, ModelOutputs(predict, score))
    for step in (3, 6):
        found = infer_eval.measure(10, step)
    assert len(opened) == 1  # the first time
    outputs, step, inferences = evaluator.measured[-1]
    assert (step, inferences) == (6, None)
    assert outputs["a"]["prediction"].tolist() == [[10, 0, 1], [20, 1, 2], [30, 2, 3]]
    assert outputs["a"]["score"].tolist() == [-1, -2, -3]
    assert set(outputs["b"]) == {"prediction", "prediction_scores"}
    assert outputs["b"]["prediction"].tolist() == [[40, 0, 1], [50, 1, 2]]
    assert outputs["b"]["prediction_scores"].tolist() == [-41, -53]  # of what was predicted
    assert [(one.task, one.examples) for one in found] == [("a", 3), ("b", 2)]
    assert "metrics  5 examples" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "converter", "needs"),
    [("score", MASKED_LM, "targets, scores"), ("prediction_with_aux", LM, "targets, predictions, aux_values")],
)
def test_scores_that_a_model_does_not_give_are_named_first(kind: str, converter: str, needs: str) -> None:
    evaluator: Any = Evaluator()
    evaluator.tasks = (EvaluatedTask("a", 3, ("prediction",)), EvaluatedTask("c", 1, (kind,)))
    evaluator.spec = BatchSpec(2, {"inputs": S, "targets": S}, feature_converter=converter)
    none: Any = None  # nothing is computed
    with refused(needs, converter, "METRICS=('exact_match',)"):
        InferEval(lambda: evaluator, ModelOutputs(none, none)).measure(10, 3)
