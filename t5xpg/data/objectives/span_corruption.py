"""Span corruption (Raffel et al. 2020, section 3.1.4), also of whole words."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.data.objectives.objective import (
    Lengths,
    Objective,
    ObjectiveLengths,
    Step,
    documents_of,
    is_number,
    sentinels_problem,
)
from t5xpg.data.vocab.vocabulary import BYTES, Vocabulary


@dataclass(frozen=True)
class SpanCorruption(Objective):
    """The span corruption objective, as `t5.data.preprocessors` takes it.

    whole_words: spans begin and end where words do, as SpanBERT's (Joshi et al. 2020, section 3.1); shares and lengths
    are those of words then.
    """

    noise_density: float = 0.15  # share of the tokens that is masked
    mean_noise_span_length: float = 3.0  # tokens in a masked span: 3 for T5, 20 for ByT5
    whole_words: bool = False

    name = "span_corruption"
    reserved_argument = "reserved_for_packing"

    def __post_init__(self) -> None:
        self._check_density()
        if not is_number(self.mean_noise_span_length) or not 1.0 <= self.mean_noise_span_length < math.inf:
            raise UserError(
                f"SpanCorruption.mean_noise_span_length is {self.mean_noise_span_length!r}: it must be a number of at "
                "least 1."
            )
        limit = self.mean_noise_span_length / (self.mean_noise_span_length + 1)
        if self.noise_density > limit or (self.whole_words and self.noise_density == limit):
            raise UserError(
                f"SpanCorruption.noise_density is {self.noise_density!r}: with a mean_noise_span_length of "
                f"{self.mean_noise_span_length!r} it must be below {limit:.3g}, so that there is text between spans."
            )

    @classmethod
    def known_steps(cls) -> tuple[Step, ...]:
        from t5.data import preprocessors as t5

        return t5.span_corruption, span_corruption

    @property
    def summary(self) -> str:
        return f"{super().summary} and a mean span of {self.mean_noise_span_length:g}"

    def lengths(self, lengths: Lengths, vocabulary: Vocabulary | None = None, reserved: int = 0) -> ObjectiveLengths:
        inputs = lengths["inputs"] - reserved
        if not self.whole_words:
            found = span_lengths(inputs, self)
            return ObjectiveLengths(found.text_tokens, found.target_tokens, found.spans)
        # examples with longer targets are left out, here half of them
        text = inputs - 1
        # each piece can be a word; bytes need one that is no letter between two words
        words = (text + 1) / 2 if vocabulary is not None and vocabulary.kind == BYTES else text
        # t5 rounds twice, makes at least one span, and rolls one over the end, where it is two
        spans = max(1, math.floor((words * self.noise_density + 0.5) / self.mean_noise_span_length + 0.5)) + 1
        # each has two tokens of targets or more
        most = min(spans, (lengths["targets"] - 1) // 2)
        return ObjectiveLengths(text, math.ceil(self.noise_density * text) + 2, most)

    def vocabulary_problem(self, task: str, vocabulary: Vocabulary) -> str | None:
        if problem := sentinels_problem(task, vocabulary):
            return problem
        if self.whole_words and not any(vocabulary.word_flags()[1]):
            return (
                f"WHOLE_WORDS=True: the vocabulary of {task} has no token that begins with a space and so a word. "
                "Set it to False, or choose another vocabulary."
            )
        return None


@dataclass(frozen=True)
class SpanLengths:
    """What span corruption makes of one length of inputs: tokens of text that fill it, of their targets, and spans."""

    noise_density: float
    mean_noise_span_length: float
    text_tokens: int
    target_tokens: int
    spans: int


def span_lengths(inputs_length: int, objective: SpanCorruption) -> SpanLengths:
    """The lengths that fill inputs of `inputs_length` tokens."""
    density, mean = objective.noise_density, objective.mean_noise_span_length

    def of(text: int) -> tuple[int, int]:
        """Lengths of inputs and targets as t5's helper counts them."""
        noise = round(text * density)
        spans = round(noise / mean)
        return text - noise + spans + 1, noise + spans + 1

    # t5 counts upwards from here; no text below the second number is too long, whatever is rounded
    text = max(inputs_length - 1, int((inputs_length - 3) / (1 - density + density / mean)) - 1)
    while of(text + 1)[0] <= inputs_length:
        text += 1
    inputs, targets = of(text)
    if density == 0.5 and targets > inputs:  # t5 makes the two equal
        text, targets = text - 1, targets - 1
    noise = min(max(round(text * density), 1), text - 1)
    spans = max(round(noise / mean), 1)
    # t5's helper does not know that there is always one span, which tells for very short inputs
    return SpanLengths(density, mean, text, max(targets, noise + spans + 1), spans)


def span_numbers(objectives: Collection[Objective | None], lengths: Lengths) -> SpanLengths | None:
    """The lengths of span corruption in a stream, where all of its tasks have the same; else None."""
    first = next(iter(objectives), None)
    if not isinstance(first, SpanCorruption) or first.whole_words or any(one != first for one in objectives):
        return None
    return span_lengths(lengths["inputs"], first)


def span_corruption(
    dataset: Any, sequence_length: Lengths, output_features: Any, whole_words: bool = False, **numbers: Any
) -> Any:
    """`t5.span_corruption`, or the same with spans of whole words."""
    from t5.data import preprocessors as t5

    step = whole_word_spans if whole_words else t5.span_corruption
    return step(dataset, sequence_length=sequence_length, output_features=output_features, **numbers)


def whole_word_spans(
    dataset: Any,
    sequence_length: Lengths,
    output_features: Mapping[str, Any],
    noise_density: float = 0.15,
    mean_noise_span_length: float = 1.0,
    reserved_for_packing: int = 0,
) -> Any:
    """Span corruption whose spans are words, with what stands between them (SpanBERT, Joshi et al. 2020, section 3.1).

    `t5.random_spans_noise_mask` over the words of an example, of which the first is never masked. Words are letters,
    digits and underscores in a row; of pieces, what has such characters, from one that begins with a space on. Examples
    without a masked word, and those whose targets are too long with their end, are left out. Each document is divided
    into examples of its own length, from half the longest on: of one length, their inputs would say how much is masked.
    """
    import seqio
    import tensorflow as tf
    from t5.data import preprocessors as t5

    from t5xpg.data.vocab.seqio_vocabularies import from_seqio

    vocabulary = output_features["targets"].vocabulary
    of_word, begins = (tf.constant(flags) for flags in from_seqio(vocabulary).word_flags())

    @seqio.map_over_dataset(num_seeds=2)
    def corrupt(example: Mapping[str, Any], seeds: Sequence[Any]) -> dict[str, Any]:
        tokens = tf.cast(example["targets"], tf.int32)
        in_word = tf.gather(of_word, tokens)
        first = in_word & (~tf.concat([[False], in_word[:-1]], 0) | tf.gather(begins, tokens))
        number = tf.cumsum(tf.cast(first, tf.int32))  # of the word of a token, or before it, from 1 on
        count = tf.reduce_sum(tf.cast(first, tf.int32))
        masked = t5.random_spans_noise_mask(count, noise_density, seeds, mean_noise_span_length, random_roll=True)
        masked = tf.concat([[False, False], masked[1:], [False]], 0)  # by number; the first word is not
        noise = tf.gather(masked, number) & (in_word | tf.gather(masked, number + 1))
        end = tf.reduce_max(tf.where(noise, tf.range(1, tf.size(tokens) + 1), 0))
        return {
            "inputs": t5.noise_span_to_unique_sentinel(tokens, noise, vocabulary, seeds=None),
            "targets": t5.nonnoise_span_to_unique_sentinel(tokens[:end], noise[:end], vocabulary, seeds=None),
        }

    longest = sequence_length["inputs"] - reserved_for_packing - 1
    dataset = corrupt(t5.split_tokens(documents_of(dataset, output_features), max(1, longest // 2), longest))
    return dataset.filter(
        lambda example: (tf.size(example["targets"]) > 0) & (tf.size(example["targets"]) < sequence_length["targets"])
    )
