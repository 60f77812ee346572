"""The prediction of lines, such as those of code."""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.data.objectives.objective import Lengths, Objective, ObjectiveLengths, Step
from t5xpg.data.vocab.vocabulary import Vocabulary


@dataclass(frozen=True)
class NextLine(Objective):
    """A line of a document is predicted from those before it. For vocabularies with a token that ends lines."""

    lines: int = 4  # the most lines of a document that are predicted

    name = "next_line"

    def __post_init__(self) -> None:
        self._check_count("lines")

    @classmethod
    def known_steps(cls) -> tuple[Step, ...]:
        return (next_line,)

    def lengths(self, lengths: Lengths, vocabulary: Vocabulary | None = None, reserved: int = 0) -> ObjectiveLengths:
        text = lengths["inputs"] - reserved - 1
        return ObjectiveLengths(text + lengths["targets"] - 1, lengths["targets"])  # longer lines become no targets

    def vocabulary_problem(self, task: str, vocabulary: Vocabulary) -> str | None:
        if vocabulary.end_of_line is None:
            return (
                f"{task}: lines are divided by their ends, and the vocabulary ({vocabulary.kind}) has no token for "
                "those alone: use bytes, or pieces of make vocab NORMALIZATION=identity."
            )
        return None


def next_line(dataset: Any, sequence_length: Lengths, output_features: Mapping[str, Any], lines: int = 4) -> Any:
    """Documents ("targets", tokens) to examples: `targets` a line without its end, `inputs` the end of the text before
    it.

    At most `lines` of a document become targets, spread evenly, from a place that its tokens decide, whatever the seed;
    none that is blank, the first, or too long with its end. Graph operations alone. Raises UserError for a vocabulary
    in which a line's end is no token of its own.
    """
    import tensorflow as tf

    from t5xpg.data.vocab.seqio_vocabularies import from_seqio

    vocabulary = from_seqio(output_features["targets"].vocabulary)
    if problem := NextLine(lines).vocabulary_problem("next_line", vocabulary):
        raise UserError(problem)
    end = vocabulary.end_of_line
    texts = map(vocabulary.decode, zip(range(vocabulary.size)))
    blank = tf.constant([token for token, text in enumerate(texts) if not text.strip(string.whitespace)], tf.int32)
    longest, context = sequence_length["targets"] - 1, sequence_length["inputs"] - 1

    def examples(document: Mapping[str, Any]) -> Any:
        tokens = tf.concat([tf.cast(document["targets"], tf.int32), [end]], 0)
        stops = tf.cast(tf.where(tf.equal(tokens, end))[:, 0], tf.int32)  # [lines], the places of their ends
        starts = tf.concat([[0], stops[:-1] + 1], 0)
        is_visible = tf.reduce_all(tf.not_equal(tokens[:, None], blank), axis=1)
        visible = tf.cumsum(tf.cast(is_visible, tf.int32), exclusive=True)
        is_candidate = (
            (starts > 0) & (tf.gather(visible, stops) > tf.gather(visible, starts)) & (stops - starts <= longest)
        )
        places = tf.cast(tf.where(is_candidate)[:, 0], tf.int32)
        count = tf.minimum(tf.size(places), lines)
        stride = tf.size(places) // tf.maximum(count, 1)
        chosen = tf.gather(places, tf.reduce_sum(tokens) % tf.maximum(stride, 1) + stride * tf.range(count))

        def example(start: Any, stop: Any) -> dict[str, Any]:
            return {"inputs": tokens[tf.maximum(start - context, 0) : start], "targets": tokens[start:stop]}

        return tf.data.Dataset.from_tensor_slices((tf.gather(starts, chosen), tf.gather(stops, chosen))).map(example)

    return dataset.flat_map(examples)
