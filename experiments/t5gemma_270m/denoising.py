"""The task `pydocs_denoising_gemma3`: texts with masked words as inputs, and the whole texts as targets.

T5's "BERT-style" objective (Raffel et al. 2020, table 3), with whole words. A decoder that was trained to write text
continues it here; what it cannot know from the words before, the encoder has to tell.
"""

from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf

import t5xpg.tasks  # noqa: F401  registers the task of the text
from t5xpg.data.objectives.span_corruption import whole_word_spans
from t5xpg.data.vocab.seqio_vocabularies import from_seqio

NOISE_DENSITY = 0.25  # share of the words of a text
_TEXT = "pydocs_span_corruption_pydocs_gemma3"


def whole_text(example: Mapping[str, Any], first_sentinel: int) -> dict[str, Any]:
    """Span corruption's example with other targets: its inputs, whose sentinels are replaced by their spans.

    first_sentinel: the lowest id of a sentinel; there are none but sentinels from there on.
    """
    inputs, spans = example["inputs"], example["targets"]
    starts = tf.where(spans >= first_sentinel)[:, 0]
    masked = tf.RaggedTensor.from_row_starts(spans, starts)[:, 1:]
    visible = tf.RaggedTensor.from_tensor(inputs[:, None])
    is_masked = inputs >= first_sentinel
    count = tf.size(starts, out_type=tf.int32)
    rows = tf.where(is_masked, tf.cumsum(tf.cast(is_masked, tf.int32)) - 1, count + tf.range(tf.size(inputs)))
    return {"inputs": inputs, "targets": tf.gather(tf.concat([masked, visible], axis=0), rows).flat_values}


def denoise(dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Mapping[str, Any]) -> Any:
    """Masks words of the texts ("targets"); those whose text is too long with its end are left out."""
    vocabulary = output_features["targets"].vocabulary
    ids = from_seqio(vocabulary)
    first_sentinel = ids.sentinel_id(ids.num_sentinels - 1)
    # any number of masked words fits
    lengths = {"inputs": sequence_length["inputs"], "targets": 2 * sequence_length["inputs"]}
    dataset = whole_word_spans(dataset, lengths, output_features, noise_density=NOISE_DENSITY)
    dataset = dataset.map(lambda example: whole_text(example, first_sentinel), num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.filter(lambda example: tf.size(example["targets"]) < sequence_length["targets"])


if _TEXT in seqio.TaskRegistry.names():  # where the vocabulary has been made
    of_text = seqio.TaskRegistry.get(_TEXT)
    seqio.TaskRegistry.add(
        "pydocs_denoising_gemma3",
        source=of_text.source,
        preprocessors=[*of_text.preprocessors[:-2], denoise, seqio.preprocessors.append_eos_after_trim],
        output_features=of_text.output_features,
    )
