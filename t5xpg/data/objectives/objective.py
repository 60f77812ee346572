"""The interface of an objective: a name, settings, lengths, needed ids and a step of SeqIO. Without TensorFlow."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.vocabulary import Vocabulary

Step = Callable[..., Any]  # a preprocessor of SeqIO
Lengths = Mapping[str, int]  # of features, in tokens

# The feature that says of each position of a masked language model whether its token was chosen.
CHOSEN = "chosen"
_LONGEST_DOCUMENT = 65536  # tokens that t5's objectives take of one document
_DOCUMENTS = 128  # the number of documents that t5 joins before it cuts them into examples


@dataclass(frozen=True)
class ObjectiveLengths:
    """For lengths of features: most tokens of text in an example, tokens of the longest targets, most sentinels."""

    text: int
    targets: int
    sentinels: int = 0


class Objective(abc.ABC):
    """A pretraining objective. A subclass is a frozen dataclass whose fields are the arguments of its step.

    name: in names of tasks. features: those of a task. needs_ids: whether it takes ids besides those of the text.
    reserved_argument: the argument of the step for the number of tokens that it leaves room for before the inputs.
    """

    name: ClassVar[str]
    features: ClassVar[tuple[str, ...]] = ("inputs", "targets")
    needs_ids: ClassVar[bool] = True
    reserved_argument: ClassVar[str | None] = None

    @classmethod
    @abc.abstractmethod
    def known_steps(cls) -> tuple[Step, ...]:
        """The steps by which a task is known to have this objective: t5's if it has one, then ours. Import TensorFlow.
        The last one takes the fields as its arguments."""

    @abc.abstractmethod
    def lengths(self, lengths: Lengths, vocabulary: Vocabulary | None = None, reserved: int = 0) -> ObjectiveLengths:
        """The lengths of text and targets for `lengths` of the features, so that no run trains on targets that were
        cut, or on sentinels that are tokens of text. Numbers of tokens that are masked at random are those that one
        example in a thousand million exceeds.

        vocabulary: None where it is not known; more sentinels can be needed then. reserved: tokens before the text,
        such as UL2's mode.
        """

    def vocabulary_problem(self, task: str, vocabulary: Vocabulary) -> str | None:
        """The reason why a task with this objective cannot have this vocabulary, at any lengths; None without one."""
        return None

    @property
    def numbers(self) -> dict[str, Any]:
        """The settings by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @property
    def summary(self) -> str:
        """The settings that decide the lengths, for messages: " with noise density 0.15"; may be ""."""
        density = self.numbers.get("noise_density")
        return "" if density is None else f" with noise density {density:g}"

    def steps(self, mode: str | None = None) -> list[Step]:
        """From tokens ("targets") to examples, with the token of a mode in front if there is one. Imports SeqIO."""
        import seqio

        reserved = {} if mode is None else {str(self.reserved_argument): 1}
        step = functools.partial(self.known_steps()[-1], **self.numbers, **reserved)
        prepend = [] if mode is None else [functools.partial(prepend_mode, mode=mode)]
        return [step, *prepend, seqio.preprocessors.append_eos_after_trim]

    def problems(self, task: str, lengths: Lengths, vocabulary: Vocabulary | None, reserved: int = 0) -> list[str]:
        """The reasons why a task cannot be read with these lengths and this vocabulary, which training refuses and
        `make check` reports. vocabulary: None if the objective takes no ids besides those of the text."""
        expected = set(self.features) - {CHOSEN}
        if set(lengths) != expected:
            names = " and ".join(f"'{name}'" for name in sorted(expected))
            return [f"TASK_FEATURE_LENGTHS has {sorted(lengths)}: {task} ({self.name}) has {names}."]
        is_made = vocabulary is not None and (vocabulary.model_file is None or Path(vocabulary.model_file).is_file())
        if vocabulary is not None and is_made and (problem := self.vocabulary_problem(task, vocabulary)):
            return [problem]
        needed = self.lengths(lengths, vocabulary, reserved)
        if needed.text < 2:
            given = " and ".join(f"{name} of {length} tokens" for name, length in lengths.items())
            return [f"{task} has no room for text in {given}. Set longer TASK_FEATURE_LENGTHS."]
        found = list(filter(None, [self.targets_problem(task, lengths, needed)]))
        sentinels = 0 if vocabulary is None else vocabulary.num_sentinels
        if needed.sentinels > sentinels:
            found.append(
                f"{task} would need {needed.sentinels} sentinels for {needed.sentinels} spans in inputs of "
                f"{lengths['inputs']} tokens, and its vocabulary has {sentinels}: further ones would be ordinary "
                "tokens. Use longer spans (if it has any), a lower noise density or shorter inputs."
            )
        return found

    def targets_problem(self, task: str, lengths: Lengths, needed: ObjectiveLengths) -> str | None:
        """The reason why the targets' length does not fit; None without one."""
        if lengths["targets"] >= needed.targets:
            return None
        return (
            f"Targets of {lengths['targets']} tokens are too short for {task}: inputs of {lengths['inputs']} tokens"
            f"{self.summary} give targets of {needed.targets}. Set TASK_FEATURE_LENGTHS = {{'inputs': "
            f"{lengths['inputs']}, 'targets': {needed.targets}}}, or more."
        )

    def _check_density(self) -> None:
        density = self.numbers["noise_density"]
        if not is_number(density) or not 0.0 < density < 1.0:
            raise UserError(f"{type(self).__name__}.noise_density is {density!r}: it must lie between 0 and 1.")

    def _check_count(self, field: str) -> None:
        if not isinstance(value := self.numbers[field], int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{type(self).__name__}.{field} is {value!r}: it must be a whole number of at least 1.")


def is_number(value: Any) -> bool:
    """True for a float or an integer."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def sentinels_problem(task: str, vocabulary: Vocabulary) -> str | None:
    """The reason why an objective with t5's sentinels cannot have this vocabulary; None without one."""
    if vocabulary.counts_down_from_last:
        return None
    return (
        f"{task} has a vocabulary whose sentinels are not its last ids, counting down, and its objective takes "
        "those for sentinels. Have some appended, by make vocab EXTRA_IDS=100 (extra_ids= in Python); a checkpoint "
        "with the ids as they are can be trained on tasks without sentinels alone."
    )


def prepend_mode(dataset: Any, output_features: Mapping[str, Any], mode: str) -> Any:
    """A named token in front of the inputs."""
    import seqio
    import tensorflow as tf

    from t5xpg.data.vocab.seqio_vocabularies import from_seqio

    token = from_seqio(output_features["inputs"].vocabulary).named_id(mode)

    @seqio.map_over_dataset
    def prepend(example: Mapping[str, Any]) -> dict[str, Any]:
        inputs = example["inputs"]
        return {**example, "inputs": tf.concat([tf.constant([token], inputs.dtype), inputs], 0)}

    return prepend(dataset)


def documents_of(dataset: Any, output_features: Mapping[str, Any]) -> Any:
    """Documents, of very long ones a part, as all of t5's denoising objectives begin."""
    from t5.data import preprocessors as t5

    return t5.select_random_chunk(
        dataset, output_features=output_features, feature_key="targets", max_length=_LONGEST_DOCUMENT
    )


def text_of(dataset: Any, output_features: Mapping[str, Any]) -> Any:
    """Documents joined to a text."""
    from t5.data import preprocessors as t5

    documents = documents_of(dataset, output_features)
    return t5.reduce_concat_tokens(documents, feature_key="targets", batch_size=_DOCUMENTS)
