"""The steps that make inputs and targets of tokens ("targets"), as SeqIO preprocessors: t5's where it has them. The
arguments of a step are the fields of its class in `objectives`, by which it is known and changed. Imports TensorFlow.
"""

import dataclasses
import functools
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf
from t5.data import preprocessors as t5

from t5xpg.base.errors import UserError
from t5xpg.data.objectives import (
    CHOSEN,
    IidDenoising,
    LanguageModel,
    MaskedLM,
    NextLine,
    Objective,
    Passkey,
    PrefixLM,
    SpanCorruption,
    features_of,
)
from t5xpg.data.tasks.lengths import vocabulary_problem
from t5xpg.data.tasks.seqio_vocabularies import from_seqio
from t5xpg.data.vocab.sentinels import CLS, MASK


def next_line(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Mapping[str, seqio.Feature],
    lines: int = 4,
) -> tf.data.Dataset:
    """Documents ("targets", tokens) to examples: `targets` a line without its end, `inputs` the end of the text before
    it.

    At most `lines` of a document become targets, spread evenly, from a place that its tokens decide, whatever the seed;
    none that is blank, the first, or too long with its end. Graph operations alone. Raises UserError for a vocabulary
    in which a line's end is no token of its own.
    """
    vocabulary = from_seqio(output_features["targets"].vocabulary)
    if problem := vocabulary_problem("next_line", NextLine(lines), vocabulary):
        raise UserError(problem)
    end = vocabulary.end_of_line
    texts = map(vocabulary.decode, zip(range(vocabulary.size)))
    blank = tf.constant([token for token, text in enumerate(texts) if not text.strip(string.whitespace)], tf.int32)
    longest, context = sequence_length["targets"] - 1, sequence_length["inputs"] - 1

    def examples(document: Mapping[str, tf.Tensor]) -> tf.data.Dataset:
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

        def example(start: tf.Tensor, stop: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"inputs": tokens[tf.maximum(start - context, 0) : start], "targets": tokens[start:stop]}

        return tf.data.Dataset.from_tensor_slices((tf.gather(starts, chosen), tf.gather(stops, chosen))).map(example)

    return dataset.flat_map(examples)


Step = Callable[..., tf.data.Dataset]
Features = Mapping[str, seqio.Feature]

# Of the feature CHOSEN. No position is 0: that is padding, and what pads is dropped where examples are packed.
NOT_CHOSEN_VALUE, CHOSEN_VALUE = 1, 2

_LONGEST_DOCUMENT = 65536  # tokens that t5's objectives take of one document
_DOCUMENTS = 128  # so many documents t5 puts behind each other before it cuts them into examples
_FIRST_TOKEN = 3  # ids below it are padding, end and unknown


def span_corruption(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features, whole_words: bool = False,
    **numbers: Any,
) -> tf.data.Dataset:  # fmt: skip
    """`t5.span_corruption`, or the same with spans of whole words."""
    step = whole_word_spans if whole_words else t5.span_corruption
    return step(dataset, sequence_length=sequence_length, output_features=output_features, **numbers)


def whole_word_spans(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 1.0,
    reserved_for_packing: int = 0,
) -> tf.data.Dataset:
    """Span corruption whose spans are words, with what stands between them (SpanBERT, Joshi et al. 2020, section 3.1).

    `t5.random_spans_noise_mask` over the words of an example, of which the first is never masked. Words are letters,
    digits and underscores in a row; of pieces, what has such characters, from one that begins with a space on. Examples
    without a masked word, and those whose targets are too long with their end, are left out. Each document is divided
    into examples of its own length, from half the longest on: of one length, their inputs would say how much is masked.
    """
    vocabulary = output_features["targets"].vocabulary
    of_word, begins = (tf.constant(flags) for flags in from_seqio(vocabulary).word_flags())

    @seqio.map_over_dataset(num_seeds=2)
    def corrupt(example: Mapping[str, tf.Tensor], seeds: Sequence[Any]) -> dict[str, tf.Tensor]:
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
    dataset = corrupt(t5.split_tokens(_documents(dataset, output_features), max(1, longest // 2), longest))
    return dataset.filter(
        lambda example: (tf.size(example["targets"]) > 0) & (tf.size(example["targets"]) < sequence_length["targets"])
    )


def iid_denoising(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features, noise_density: float = 0.15
) -> tf.data.Dataset:
    """`t5.iid_denoising`, which has a density of 0.15, with others: every token is masked by itself."""
    dataset = _text(dataset, output_features)
    dataset = t5.split_tokens_to_inputs_length(
        dataset, output_features=output_features, sequence_length=sequence_length
    )
    return t5.denoise(
        dataset,
        output_features,
        inputs_fn=t5.noise_span_to_unique_sentinel,
        targets_fn=t5.nonnoise_span_to_unique_sentinel,
        noise_density=noise_density,
        noise_mask_fn=t5.iid_noise_mask,
    )


def prefix_lm(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    noise_density: float = 0.5,
    reserved: int = 0,
) -> tf.data.Dataset:
    """`t5.prefix_lm` with room for `reserved` tokens in front of the inputs."""
    lengths = {**sequence_length, "inputs": sequence_length["inputs"] - reserved}
    return t5.prefix_lm(dataset, lengths, output_features, noise_density=noise_density)


def masked_lm(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    noise_density: float = 0.15,
    mask_share: float = 0.8,
    random_share: float = 0.1,
) -> tf.data.Dataset:
    """BERT's objective (Devlin et al. 2019, section 3.1): [CLS] and text, some of whose tokens are to be predicted.

    Each token is chosen with probability `noise_density`; of those, `mask_share` become [MASK] and `random_share` any
    token of text. Gives `inputs`, `targets` (the text as it was) and `chosen`, of one length, at most
    `sequence_length["inputs"]` - 1: the end is left to `seqio.preprocessors.append_eos_after_trim`.
    """
    seqio_vocabulary = output_features["targets"].vocabulary
    vocabulary = from_seqio(seqio_vocabulary)
    cls, mask = (tf.constant(vocabulary.named_id(name), tf.int32) for name in (CLS, MASK))
    first_extra = seqio_vocabulary.vocab_size - seqio_vocabulary.extra_ids

    @seqio.map_over_dataset(num_seeds=3)
    def choose(example: Mapping[str, tf.Tensor], seeds: Sequence[Any]) -> dict[str, tf.Tensor]:
        tokens = tf.cast(example["targets"], tf.int32)
        length = tf.size(tokens)
        chosen = t5.iid_noise_mask(length, noise_density, seeds[:1])
        lot = tf.random.stateless_uniform([length], seed=seeds[1])
        others = tf.random.stateless_uniform(
            [length], minval=_FIRST_TOKEN, maxval=first_extra, dtype=tf.int32, seed=seeds[2]
        )
        replaced = tf.where(lot < mask_share, mask, tf.where(lot < mask_share + random_share, others, tokens))
        flags = tf.where(chosen, CHOSEN_VALUE, NOT_CHOSEN_VALUE)
        return {
            "inputs": tf.concat([[cls], tf.where(chosen, replaced, tokens)], 0),
            "targets": tf.concat([[cls], tokens], 0),
            CHOSEN: tf.concat([[NOT_CHOSEN_VALUE], flags], 0),
        }

    dataset = _text(dataset, output_features)
    dataset = t5.split_tokens(dataset, max_tokens_per_segment=sequence_length["inputs"] - 2)
    return choose(dataset)


def passkey(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features, digits: int = 5
) -> tf.data.Dataset:
    """Stretches of text with a number in a line of its own (`inputs`), and the number (`targets`).

    Number and place are drawn; all are equally likely. Inputs have the length that they may have, less their end.
    """
    encode = from_seqio(output_features["targets"].vocabulary).encode_plain
    before, of_digits, behind = (
        tf.constant(encode(s), tf.int32) for s in (Passkey.BEFORE, "0123456789", Passkey.BEHIND)
    )

    @seqio.map_over_dataset(num_seeds=2)
    def hide(example: Mapping[str, tf.Tensor], seeds: Sequence[Any]) -> dict[str, tf.Tensor]:
        tokens = tf.cast(example["targets"], tf.int32)
        number = tf.gather(of_digits, tf.random.stateless_uniform([digits], seeds[0], maxval=10, dtype=tf.int32))
        place = tf.random.stateless_uniform([], seeds[1], maxval=tf.size(tokens) + 1, dtype=tf.int32)
        return {
            "inputs": tf.concat([tokens[:place], before, number, behind, tokens[place:]], 0),
            "targets": number,
        }

    text = sequence_length["inputs"] - 1 - Passkey(digits).line_length
    return hide(t5.split_tokens(_text(dataset, output_features), max_tokens_per_segment=text))


def prepend_mode(dataset: tf.data.Dataset, output_features: Features, mode: str) -> tf.data.Dataset:
    """A named token in front of the inputs."""
    token = from_seqio(output_features["inputs"].vocabulary).named_id(mode)

    @seqio.map_over_dataset
    def prepend(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        inputs = example["inputs"]
        return {**example, "inputs": tf.concat([tf.constant([token], inputs.dtype), inputs], 0)}

    return prepend(dataset)


def _documents(dataset: tf.data.Dataset, output_features: Features) -> tf.data.Dataset:
    """Documents, of very long ones a part, as all of t5's denoising objectives begin."""
    return t5.select_random_chunk(
        dataset, output_features=output_features, feature_key="targets", max_length=_LONGEST_DOCUMENT
    )


def _text(dataset: tf.data.Dataset, output_features: Features) -> tf.data.Dataset:
    """Documents behind each other."""
    documents = _documents(dataset, output_features)
    return t5.reduce_concat_tokens(documents, feature_key="targets", batch_size=_DOCUMENTS)


# The class of each step that makes inputs and targets, and the step that stands for a class.
_CLASSES: Mapping[Step, type[Objective]] = {
    t5.span_corruption: SpanCorruption,
    span_corruption: SpanCorruption,
    t5.iid_denoising: IidDenoising,
    t5.prefix_lm: PrefixLM,
    t5.full_lm: LanguageModel,
    iid_denoising: IidDenoising,
    prefix_lm: PrefixLM,
    masked_lm: MaskedLM,
    next_line: NextLine,
    passkey: Passkey,
}
_STEPS: Mapping[type[Objective], Step] = {kind: step for step, kind in _CLASSES.items()}
# What a step calls the number of tokens that it leaves room for in front of the inputs.
_RESERVED: Mapping[Step, str] = {
    t5.span_corruption: "reserved_for_packing", span_corruption: "reserved_for_packing", prefix_lm: "reserved"
}  # fmt: skip


def steps(objective: Objective, mode: str | None = None) -> list[Step]:
    """From tokens ("targets") to the examples of an objective, behind the token of a mode where there is one."""
    step = _STEPS[_class_of(objective)]
    if isinstance(objective, LanguageModel):
        return [step]  # it puts the ends between documents: an example begins and stops anywhere
    reserved = {} if mode is None else {_RESERVED[step]: 1}
    prepend = [] if mode is None else [functools.partial(prepend_mode, mode=mode)]
    step = functools.partial(step, **_numbers(objective), **reserved)
    return [step, *prepend, seqio.preprocessors.append_eos_after_trim]


def output_features(objective: Objective, vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
    """What a task with the steps of an objective gives."""
    # the end that is added to the chosen and the others was not chosen
    flags = seqio.PassThroughVocabulary(size=CHOSEN_VALUE + 1, eos_id=NOT_CHOSEN_VALUE)
    kinds = {name: flags if name == CHOSEN else vocabulary for name in features_of(objective)}
    return {name: seqio.Feature(kind, add_eos=True) for name, kind in kinds.items()}


def objective_of(task: seqio.Task) -> Objective | None:
    """The objective of a task's steps; None where it has none that is known here."""
    for step in task.preprocessors:
        function, arguments = _unwrap(step)
        if (kind := _kind_of(function)) is not None:
            names = [field.name for field in dataclasses.fields(kind) if field.name in arguments]
            return kind(**{name: arguments[name] for name in names})
    return None


def reserved_of(task: seqio.Task) -> int:
    """Tokens in front of the inputs that a task's objective leaves room for."""
    found = map(_unwrap, task.preprocessors)
    names = ((arguments, name) for function, arguments in found for one, name in _RESERVED.items() if one is function)
    return next((int(arguments.get(name) or 0) for arguments, name in names), 0)


def with_objective(task: seqio.Task, objective: Objective) -> seqio.Task:
    """The task with other numbers of its objective; its cache stays valid. UserError where it has none of that kind."""
    if objective_of(task) == objective:
        return task
    steps = list(task.preprocessors)
    for place, (function, arguments) in enumerate(map(_unwrap, task.preprocessors)):
        # t5's own i.i.d. denoising takes no numbers
        if _kind_of(function) is _class_of(objective) and function is not t5.iid_denoising:
            own = span_corruption if function is t5.span_corruption else function  # which knows of words
            steps[place] = functools.partial(own, **{**arguments, **_numbers(objective)})
    if steps == list(task.preprocessors):
        kind = _class_of(objective)
        wanted = next(step for step, known in _CLASSES.items() if known is kind)  # t5's own, where it has one
        raise UserError(
            f"The experiment sets the objective {_class_of(objective).__name__}, and {task.name} has no step "
            f"{wanted.__module__}.{wanted.__name__}: leave the objective out (include 'gin/objectives/none.gin' behind "
            "gin/runs/pretrain.gin), or choose another task."
        )
    return task.replace(preprocessors=steps)


def _kind_of(function: Any) -> type[Objective] | None:
    # not by hash: other steps may be objects that have none
    return next((kind for step, kind in _CLASSES.items() if step is function), None)


def _class_of(objective: Objective) -> type[Objective]:
    # not its type: gin makes objects of a subclass
    return next(kind for kind in _STEPS if isinstance(objective, kind))


def _numbers(objective: Objective) -> dict[str, Any]:
    return {field.name: getattr(objective, field.name) for field in dataclasses.fields(objective)}


def _unwrap(step: Any) -> tuple[Any, dict[str, Any]]:
    """The function below `functools.partial`s, and the keyword arguments that they bind."""
    arguments: dict[str, Any] = {}
    while isinstance(step, functools.partial):
        arguments = {**step.keywords, **arguments}
        step = step.func
    return step, arguments
