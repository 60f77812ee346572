"""`seqio.Evaluator` in the data process: what goes out for the model, and what comes back of its outputs."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t5xpg.base.metric_values import Generic, Histogram, Image
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.data.stream.remote_evaluator import RemoteEvaluator
from tests.refusals import refused

pytestmark = pytest.mark.process

MODULE = """
import os

import numpy as np
import seqio
import tensorflow as tf
from t5xpg.data import metrics

FOLDER = os.path.dirname(os.path.abspath(__file__))
FEATURES = {name: seqio.Feature(seqio.ByteVocabulary(extra_ids=125), add_eos=True) for name in ("inputs", "targets")}


def parse(dataset):
    def split(line):
        parts = tf.strings.split(line, "=")
        return {"inputs": parts[0], "targets": parts[1], "answers": tf.strings.split(parts[1], "/")}
    return dataset.map(split)


def answers_of(text, example=None, is_target=False):
    return [answer.decode() for answer in example["answers"]] if is_target else text


def with_scores(targets, predictions, aux_values):
    return {"surest": predictions[int(np.argmax(aux_values["scores"]))]}


def values(targets, predictions):
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "mine"
    return {
        "histogram": seqio.metrics.Histogram(np.arange(4), 2),
        "image": seqio.metrics.Image(np.full((1, 2, 2, 3), 1.5)),
        "generic": seqio.metrics.Generic(np.array([1, 2], np.int32), metadata),
        "text": seqio.metrics.Text(b"bytes"), "scalar": seqio.metrics.Scalar(np.float32(0.25)),
        "string": "3", "many": np.ones(2), "none": None, "whole": np.int64(3),
    }


def strange(targets, predictions):
    return {"dictionary": {"a": 1}}


def failing(targets, scores):
    return {"ratio": 1 / (len(targets) - len(scores))}


class Intermediates(seqio.metrics.CollectingMetric):
    model_output_type = seqio.metrics.ModelOutputType.SCORE_WITH_INTERMEDIATES


def add(name, metric_fns, postprocess_fn=None, file="sums.txt", metric_objs=(), features=FEATURES):
    seqio.TaskRegistry.add(
        name,
        source=seqio.TextLineDataSource({"validation": os.path.join(FOLDER, file)}),
        preprocessors=[parse, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
        output_features=features, postprocess_fn=postprocess_fn, metric_fns=metric_fns, metric_objs=metric_objs,
    )


add("m_answers", [metrics.squad, metrics.exact_match], answers_of)
add("m_both", [metrics.bleu, metrics.perplexity, with_scores])
add("m_none", [])
add("m_values", [values])
for function in (strange, failing):
    add("m_" + function.__name__, [function])
add("m_intermediates", [], metric_objs=[Intermediates])
add("m_empty", [values], file="empty.txt")
add("m_language_model", [metrics.exact_match], features={"targets": FEATURES["targets"]})
seqio.MixtureRegistry.add("m_blend", [("m_answers", 1), ("m_none", 5), ("m_both", 1)])
"""
LINES = ["one plus one=2/two", "two plus two=4/four", "three=3/three", "a question of many words=5/five", "six=6/6"]
LENGTHS = {"inputs": 24, "targets": 12}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataService]:
    folder = tmp_path_factory.mktemp("metric tasks")
    (folder / "metric_tasks.py").write_text(MODULE)
    (folder / "sums.txt").write_text("\n".join(LINES) + "\n")
    (folder / "empty.txt").write_text("")
    sys.path.append(str(folder))
    with DataService(data_dir=folder / "data", cache_dir=folder / "cache") as running:
        yield running
    sys.path.remove(str(folder))


def evaluator(service: DataService, name: str, **values: Any) -> RemoteEvaluator:
    settings: dict[str, Any] = {
        "split": "validation",
        "batch_size": 2,
        "shuffle": False,
        "num_epochs": 1,
        "use_cached": False,
    }
    settings |= {"task_feature_lengths": LENGTHS, "module_import": ("metric_tasks",)}
    return service.evaluator(DatasetConfig(name, **(settings | values)))


def tokens(texts: list[str], length: int = LENGTHS["targets"]) -> np.ndarray:
    rows = [[*(byte + 3 for byte in text.encode()), 1][:length] for text in texts]
    return np.array([row + [0] * (length - len(row)) for row in rows], np.int32)


def test_every_task_of_a_mixture_has_its_own_metrics(service: DataService, tmp_path: Path) -> None:
    with evaluator(service, "m_blend", max_batches=2) as found:
        assert [(task.name, task.examples) for task in found.tasks] == [("m_answers", 4), ("m_both", 4)]
        assert set(found.tasks[1].kinds) == {"prediction", "prediction_with_aux", "score"}
        for _ in range(2):  # any number of times
            batches, rows = zip(*found.batches("m_both"), strict=True)
            assert rows == (2, 2)
        asked = tokens([line.split("=")[0] for line in LINES[2:4]], LENGTHS["inputs"])
        assert batches[1]["encoder_input_tokens"].tolist() == asked.tolist()
        assert batches[1]["decoder_target_tokens"].tolist() == tokens(["3/three", "5/five"]).tolist()
        said = ["Two.", "4", "", "the five"]
        outputs = {
            "m_answers": {"prediction": tokens(said)},
            "m_both": {
                "prediction": tokens([line.split("=")[1] for line in LINES[:4]]),
                "score": np.array([-1.0, -2.0, -3.0, -4.0], np.float32),
                "prediction_scores": np.array([-3.0, -0.5, -2.0, -1.0], np.float32),
            },
        }
        metrics = found.measure(outputs, step=7, inferences=tmp_path)
        assert metrics["m_answers"] == {"em": 75.0, "f1": 75.0, "exact_match": 25.0}
        both = metrics["m_both"]
        assert (both["surest"], both["bleu"]) == ("4/four", 0.0)  # no text has four words
        assert "nrefs:1" in str(both["bleu_signature"])
        assert both["nats_per_byte"] == pytest.approx(10 / sum(len(line.split("=")[1]) for line in LINES[:4]))
    lines = [json.loads(line) for line in (tmp_path / "m_answers.jsonl").read_text().splitlines()]
    assert lines[0] == {"inputs": "one plus one", "target": ["2", "two"], "prediction": "Two."}
    lines = [json.loads(line) for line in (tmp_path / "m_both.jsonl").read_text().splitlines()]
    assert lines[3] == {
        "inputs": LINES[3].split("=")[0],
        "target": "5/five",
        "prediction": "5/five",
        "score": -4.0,
        "cut": ["inputs"],
    }


def predicted(service: DataService, name: str) -> dict[str, Any]:
    with evaluator(service, name) as found:
        outputs = {"prediction": tokens([""] * 5), "score": np.zeros(5, np.float32)}
        return found.measure({name: outputs}, step=1)[name]


def test_examples_without_inputs_are_written(service: DataService, tmp_path: Path) -> None:
    values = {"task_feature_lengths": {"targets": 12}, "feature_converter": "LMFeatureConverter", "max_batches": 1}
    with evaluator(service, "m_language_model", **values) as found:
        found.measure({"m_language_model": {"prediction": tokens(["2", "4"])}}, step=1, inferences=tmp_path)
    first = json.loads((tmp_path / "m_language_model.jsonl").read_text().splitlines()[0])
    assert first == {"target": "2/two", "prediction": "2"}


def test_values_that_are_no_numbers(service: DataService) -> None:
    found = predicted(service, "m_values")
    plain = {"text": "bytes", "scalar": 0.25, "string": "3", "none": None, "whole": 3}
    assert {name: found[name] for name in plain} == plain
    histogram, image, generic, many = (found[name] for name in ("histogram", "image", "generic", "many"))
    assert [type(one) for one in (histogram, image, generic, many)] == [Histogram, Image, Generic, Generic]
    assert (histogram.values.tolist(), histogram.bins) == ([0, 1, 2, 3], 2)
    assert (image.pictures.shape, float(image.pictures.max())) == ((1, 2, 2, 3), 1.0)  # clipped
    assert (generic.tensor.tolist(), b"mine" in generic.summary, many.summary) == ([1, 2], True, b"")


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("m_strange", "dictionary of m_strange|dict"),
        ("m_failing", "m_failing|division by zero (ZeroDivisionError in |metric_tasks.py"),
        ("m_intermediates", "m_intermediates|SCORE_WITH_INTERMEDIATES"),
        ("m_empty", "'validation'|m_empty"),
    ],
)
def test_what_is_refused_by_name(service: DataService, task: str, names: str) -> None:
    with refused(*names.split("|")):
        predicted(service, task)
