"""Predictions of an experiment's model, by its method of decoding; and the predictor: a model with its vocabulary."""

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from t5xpg.base import environment
from t5xpg.base.errors import UserError
from t5xpg.data.batch import BUILT_IN_CONVERTERS, LM, MASKED_LM
from t5xpg.data.vocab.sentinels import CLS, MASK
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.allowed import constraint_of
from t5xpg.evaluate.consensus import rank_sequences
from t5xpg.evaluate.trained_model import Step, check_same_model, checkpoint_facts, parameters_and_vocabulary
from t5xpg.experiment import assembly
from t5xpg.experiment.config import LoadedConfig, settings
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.decoding import Constraint, Decoded, DecodingConfig, decode, fill_masks
from t5xpg.run.directory import RunDirectory

# Input lengths are padded up to a multiple of this, so that few lengths are compiled.
LENGTH_MULTIPLE = 64


def predicts(experiment: Experiment) -> bool:
    """True if the experiment's model can predict."""
    converter = experiment.eval_dataset.converter
    if converter not in BUILT_IN_CONVERTERS:
        return False
    return converter == MASKED_LM or experiment.model.for_decoding(converter) is not None


def check_predicts(experiment: Experiment) -> None:
    """Raise UserError if the experiment's model cannot predict."""
    if not predicts(experiment):
        raise UserError(
            f"A {type(experiment.model).__name__} of batches of {experiment.eval_dataset.converter} predicts no text: "
            "nobody has said what it is asked, or how it is decoded."
        )


def predict(
    experiment: Experiment,
    vocabulary: Vocabulary,
    params: Any,
    inputs: jax.Array,
    row_numbers: jax.Array,
    constraint: Constraint | jax.Array | None = None,
) -> Decoded:
    """The predictions for inputs [B, S] (`batch.inputs_and_targets`), by the experiment's method of decoding.

    Pure, to be jitted by its caller. A masked language model has a single method: it fills in the masks. row_numbers:
    int32 [B], see `decoding.sample`. constraint: that of `allowed.constraint_of`. Raises UserError for a model that
    predicts nothing.
    """
    check_predicts(experiment)
    converter = experiment.eval_dataset.converter
    decodable: Any = experiment.model.for_decoding(converter)
    if converter == MASKED_LM:
        return fill_masks(experiment.model, params, inputs, vocabulary.named_id(MASK))
    return decode(
        decodable,
        params,
        inputs,
        experiment.decoding,
        max_decode_length=experiment.eval_dataset.task_feature_lengths["targets"],
        row_numbers=row_numbers,
        eos_id=vocabulary.eos_id,
        constraint=constraint,
    )


def decoding_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings that determine predictions, as JSON: the method of decoding, the options that it reads, and the
    lengths that inputs and predictions are cut to."""
    lengths = experiment.eval_dataset.task_feature_lengths
    if experiment.eval_dataset.converter == MASKED_LM:
        return {"method": "fill_masks", "task_feature_lengths": dict(lengths)}
    settings = experiment.decoding.settings()
    settings["max_decode_length"] = experiment.decoding.max_decode_length or lengths.get("targets")
    return {**settings, "task_feature_lengths": dict(lengths)}


def decoding_words(experiment: Experiment) -> str:
    """The method of decoding and the options that are not its defaults: "greedy", "beam 4, alpha 1.0"."""
    if experiment.eval_dataset.converter == MASKED_LM:
        return "fill_masks"
    settings, usual = experiment.decoding.settings(), DecodingConfig(experiment.decoding.method).settings()
    words = [" ".join(str(settings.pop(name)) for name in ("method", "num_decodes") if name in settings)]
    return ", ".join(words + [f"{name} {value}" for name, value in settings.items() if value != usual.get(name)])


def pad_rows(ids: Sequence[Sequence[int]], pad_id: int, rows: int | None = None) -> np.ndarray:
    """Rows of ids as int32 [B, S]. rows: B, if rows of padding are to be added."""
    S = -(-max(map(len, ids), default=1) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    tokens = np.full((rows or len(ids), S), pad_id, np.int32)
    for row, row_ids in zip(tokens, ids, strict=False):
        row[: len(row_ids)] = row_ids
    return tokens


@dataclass(frozen=True)
class Answer:
    """The decoded sequences for one input as texts, the best first; and their scores, if the method has any."""

    texts: Sequence[str]
    scores: Sequence[float] | None = None


class Predictor:
    """Predicts by the experiment's method of decoding. Texts name sentinels `<extra_id_N>`, whatever their ids are.

    identity: what determines the predictions, as JSON: checkpoint, method, machine; {} if it is not known.
    parameters: can be replaced by others of the same shapes.
    """

    def __init__(self, experiment: Experiment, params: Any, vocabulary: Vocabulary) -> None:
        self.identity: Mapping[str, Any] = {}
        self.vocabulary = vocabulary
        self.batch_size = experiment.eval_dataset.batch_size
        self.lengths = dict(experiment.lengths)
        self.decoding = experiment.decoding
        self.parameters = params
        check_predicts(experiment)
        self.converter = experiment.eval_dataset.converter
        # ids that the tasks put around the inputs; after an end token, a language model would begin another text
        self._prefix_ids = [vocabulary.named_id(CLS)] if self.converter == MASKED_LM else []
        self._suffix_ids = [] if self.converter == LM else [vocabulary.eos_id]
        decode = jax.jit(functools.partial(predict, experiment, vocabulary))
        self._decode: Callable[..., Decoded] = functools.partial(
            decode, constraint=constraint_of(experiment, vocabulary)
        )

    @classmethod
    def from_run(cls, loaded: LoadedConfig, path: Path, step: Step = None) -> tuple[Self, int]:
        """The predictor of a checkpoint of a run, and its step.

        step: see `parameters_and_vocabulary`. Raises UserError where there is none, or where it is of another model.
        """
        directory, experiment = RunDirectory(path), loaded.experiment
        check_same_model(directory, experiment)
        built = assembly.assemble(experiment)
        params, vocabulary, checkpoint_step = parameters_and_vocabulary(directory, experiment, built, step)
        predictor = cls(experiment, params, vocabulary)
        versions = environment.versions()
        predictor.identity = {
            "experiment": loaded.name,
            **checkpoint_facts(directory, checkpoint_step, step),
            "model": settings(experiment.model),
            "feature_converter": predictor.converter,
            "decoding": experiment.decoding.settings(),
            "lengths": predictor.lengths,
            "batch_size": predictor.batch_size,
            "devices": built.devices,
            "versions": {name: versions[name] for name in ("t5xpg", "jax", "jaxlib")},
            "xla_flags": os.environ.get("XLA_FLAGS", ""),  # they decide the last bits
        }
        return predictor, checkpoint_step

    def decode(self, inputs: np.ndarray, first_row: int = 0) -> Decoded:
        """Decode inputs, int32 [B, S] padded with 0, into `decoding.Decoded` with NumPy arrays.

        first_row: the number of the first row; sampling draws by the numbers of rows.
        """
        row_numbers = np.arange(first_row, first_row + len(inputs), dtype=np.int32)
        decoded = jax.device_get(self._decode(self.parameters, inputs, row_numbers=row_numbers))
        return rank_sequences(decoded, self.decoding, self.vocabulary)

    def tokens(self, inputs: np.ndarray) -> np.ndarray:
        """As `decode`, but only the best sequence of each row: int32 [B, T], each row up to its end token, then 0."""
        return np.asarray(self.decode(inputs).tokens[:, 0])

    def answers(self, inputs: np.ndarray, first_row: int = 0) -> list[Answer]:
        """An answer for each row. first_row: see `decode`."""
        decoded = self.decode(inputs, first_row)
        if decoded.scores is None:
            return [Answer([self.vocabulary.decode(one) for one in row]) for row in decoded.tokens.tolist()]
        answers = []
        for row, row_scores in zip(decoded.tokens.tolist(), decoded.scores.tolist(), strict=True):
            scores = [score for score in row_scores if score != -math.inf]  # a set may have fewer answers than beams
            answers.append(Answer([self.vocabulary.decode(one) for one in row[: len(scores)]], scores))
        return answers

    def ids(self, text: str) -> list[int]:
        """The ids that the model reads for a text. Raises UserError for a blank that the vocabulary has no id for, and
        for a text without ids: a language model has nothing to continue."""
        ids = [*self._prefix_ids, *self.vocabulary.encode(text), *self._suffix_ids]
        if not ids:
            raise UserError("The text is empty, and a language model continues one: begin it.")
        return ids

    @property
    def longest_input(self) -> int:
        """The longest inputs, in tokens, that the model was trained on; for a language model, the longest texts."""
        return self.lengths["targets" if self.converter == LM else "inputs"]

    def check(self, text: str, subject: str) -> None:
        """Raise UserError for a text with a blank that has no sentinel, or one longer than the inputs in training."""
        try:
            count = len(self.ids(text))
        except UserError as error:
            raise UserError(f"{subject} {error}") from error
        if count > self.longest_input:
            feature = "inputs" if "inputs" in self.lengths else "targets"
            same_lengths = self.converter == MASKED_LM  # its lengths are equal
            lengths = dict.fromkeys(self.lengths, count) if same_lengths else {**self.lengths, feature: count}
            raise UserError(
                f"{subject} has {count} tokens with its end, and the model was trained on at most "
                f'{self.longest_input}. Shorten it, or allow more: GIN="--gin.TASK_FEATURE_LENGTHS={lengths}"'
            )

    def encode(self, texts: Sequence[str], rows: int | None = None) -> np.ndarray:
        """Texts as int32 [B, S], with the ids that tasks put around them. rows: B, if padding rows are to be added."""
        return pad_rows([self.ids(text) for text in texts], self.vocabulary.pad_id, rows)
