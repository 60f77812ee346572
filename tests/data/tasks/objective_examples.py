"""What the steps of an objective make of documents."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.data.objectives import Objective
from t5xpg.data.tasks import steps


def dataset_of(documents: Iterable[Any]) -> tf.data.Dataset:
    """documents: the ids of each."""
    signature = {"targets": tf.TensorSpec([None], tf.int32)}
    return tf.data.Dataset.from_generator(lambda: ({"targets": ids} for ids in documents), output_signature=signature)


def examples_of(
    documents: Iterable[Any],
    objective: Objective,
    vocabulary: seqio.Vocabulary,
    mode: str | None = None,
    **lengths: int,
) -> list[dict[str, np.ndarray]]:
    """In the order of the documents."""
    dataset, features = dataset_of(documents), steps.output_features(objective, vocabulary)
    with seqio.map_seed_manager(1):
        for step in objective.steps(mode):
            step = seqio.add_kwargs_to_transform(step, sequence_length=lengths, output_features=features)
            dataset = tf.autograph.experimental.do_not_convert(step)(dataset)
    return list(dataset.as_numpy_iterator())
