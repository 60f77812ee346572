"""The data process starts without libraries that a stream does not need, and has them when somebody uses them."""

import pytest

from tests.workplace import run_python

pytestmark = pytest.mark.process

PROGRAM = """
import sys
import t5xpg.data.metrics

assert not {"numpy", "sklearn", "sacrebleu", "rouge_score", "nltk", "seqio", "tensorflow", "jax"} & set(sys.modules)
from t5xpg.data.stream.worker import Calls

Calls()
for name in ("keras", "sklearn", "nltk", "matplotlib", "sacrebleu", "tensorflow_text", "pyglove", "jax", "flax",
             "tensorflow_datasets", "tensorflow._api.v2.compat.v1", "requests", "h5py"):
    assert name not in sys.modules, name
import tensorflow as tf
import tensorflow_text
assert tf.compat.v1.Summary.Value is tf.compat.v1.Summary().value.add().__class__
from tensorflow.compat import v1
assert isinstance(v1.Graph(), tf.Graph)
from t5.evaluation import metrics

assert metrics.bleu(["a b c d"], ["a b c d"])["bleu"] > 99
assert metrics.mean_multiclass_f1(2)([0, 1], [0, 1]) == {"mean_2class_f1": 100.0}
from tensorflow.keras import layers
assert tf.keras.layers.Dense(2)(tf.zeros([1, 3])).shape == (1, 2) and layers.Dense is tf.keras.layers.Dense
import pyglove, seqio, seqio.evaluation
datasets = seqio.dataset_providers.tfds
assert datasets.Split.TEST == "test" and issubclass(datasets.core.GeneratorBasedBuilder, datasets.core.DatasetBuilder)
assert seqio.PyGloveTunableMixture("searched", [("pydocs_span_corruption", pyglove.floatv(0.0, 1.0))]).tasks
assert seqio.JSONLogger is seqio.loggers.JSONLogger
assert seqio.Evaluator is seqio.evaluation.Evaluator
assert isinstance(seqio.metrics.Scalar(1), seqio.metrics.MetricValue)
assert not hasattr(seqio, "Evaluators")
import clu.metrics, jax
assert issubclass(seqio.metrics.Metric, clu.metrics.Metric)
assert seqio.TaskRegistry.get("pydocs_span_corruption").metric_objs == []
assert issubclass(tensorflow_text.keras.layers.ToDense, tf.keras.layers.Layer)
"""


def test_what_a_stream_does_not_need_is_imported_when_it_is_used() -> None:
    run_python(PROGRAM)
