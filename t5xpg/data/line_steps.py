"""Lines of documents to be predicted from those before them, as a SeqIO preprocessor. Imports TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping

import seqio
import tensorflow as tf

from t5xpg.data.seqio_vocabularies import from_seqio
from t5xpg.errors import UserError

_BLANK = " \t\r\f\v"


def next_line(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Mapping[str, seqio.Feature],
    lines: int = 4,
) -> tf.data.Dataset:
    """Documents ("targets", tokens) to examples: `targets` a line without its end, `inputs` the text before it.

    At most `lines` of a document are asked for, spread evenly, from a place that its tokens decide: the same ones
    whatever the seed. None is blank, the first of its document or too long for the targets and their end; of the text
    before it as much is kept, from its end, as the inputs and their end have room for. Graph operations alone.
    Raises UserError for a vocabulary in which a line's end is no token of its own.
    """
    vocabulary = from_seqio(output_features["targets"].vocabulary)
    ends_of_line = vocabulary.encode_plain("\n")
    if len(ends_of_line) != 1 or vocabulary.decode(ends_of_line) != "\n":
        raise UserError(
            f"Lines are told apart by their ends, and the vocabulary ({vocabulary.kind}) has no token for those: use "
            "bytes."
        )
    (end,) = ends_of_line
    blank = tf.constant([end, *(vocabulary.encode_plain(character)[0] for character in _BLANK)], tf.int32)
    longest, context = sequence_length["targets"] - 1, sequence_length["inputs"] - 1

    def examples(document: Mapping[str, tf.Tensor]) -> tf.data.Dataset:
        tokens = tf.concat([tf.cast(document["targets"], tf.int32), [end]], 0)
        stops = tf.cast(tf.where(tf.equal(tokens, end))[:, 0], tf.int32)  # [lines], the places of their ends
        starts = tf.concat([[0], stops[:-1] + 1], 0)
        is_visible = tf.reduce_all(tf.not_equal(tokens[:, None], blank), axis=1)
        visible = tf.cumsum(tf.cast(is_visible, tf.int32), exclusive=True)
        can_be_asked = (
            (starts > 0) & (tf.gather(visible, stops) > tf.gather(visible, starts)) & (stops - starts <= longest)
        )
        places = tf.cast(tf.where(can_be_asked)[:, 0], tf.int32)
        taken = tf.minimum(tf.size(places), lines)
        stride = tf.size(places) // tf.maximum(taken, 1)
        chosen = tf.gather(places, tf.reduce_sum(tokens) % tf.maximum(stride, 1) + stride * tf.range(taken))

        def example(start: tf.Tensor, stop: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"inputs": tokens[tf.maximum(start - context, 0) : start], "targets": tokens[start:stop]}

        return tf.data.Dataset.from_tensor_slices((tf.gather(starts, chosen), tf.gather(stops, chosen))).map(example)

    return dataset.flat_map(examples)
