"""A model that answers: it takes texts or token ids, and returns the sequences that decoding finds."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from t5xpg.base import environment
from t5xpg.base.errors import UserError
from t5xpg.base.files import sha256_of_file
from t5xpg.data.batch import LM, MASKED_LM
from t5xpg.data.vocab.sentinels import CLS
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.consensus import ranked
from t5xpg.evaluate.prediction import check_predicts, predict
from t5xpg.evaluate.trained_model import (
    Step,
    check_same_model,
    checkpoints_in_mean,
    parameters_and_vocabulary,
)
from t5xpg.experiment import assembly
from t5xpg.experiment.config import LoadedConfig, settings
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.decoding import Decoded
from t5xpg.run.checkpoint.folders import DIGESTS
from t5xpg.run.directory import RunDirectory

# Input lengths are padded up to a multiple of this, so that few lengths are compiled.
LENGTH_MULTIPLE = 64


def padded(experiment: Experiment, ids: Sequence[Sequence[int]], pad_id: int, rows: int | None = None) -> np.ndarray:
    """Rows of ids as int32 [B, S]. rows: B, if rows of padding are to be added. A delete gate keeps a share of a row's
    positions, padding among them: its rows are as long as in training."""
    longest, inputs = max(map(len, ids), default=1), experiment.lengths.get("inputs", 0)
    as_in_training = experiment.model.config.delete_gate_layer is not None and longest <= inputs
    S = inputs if as_in_training else -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    tokens = np.full((rows or len(ids), S), pad_id, np.int32)
    for row, one in zip(tokens, ids, strict=False):
        row[: len(one)] = one
    return tokens


@dataclass(frozen=True)
class Answer:
    """What decoding found for one input, as texts, the best first; and their scores, where the method has any."""

    texts: Sequence[str]
    scores: Sequence[float] | None = None


class Predictor:
    """Predictions by the experiment's method of decoding. Texts name sentinels `<extra_id_N>`, whatever their ids are.

    identity: what determines the predictions, as JSON: checkpoint, method, machine; {} where it is not known.
    parameters: can be replaced by others of the same shapes.
    """

    def __init__(self, experiment: Experiment, params: Any, vocabulary: Vocabulary) -> None:
        self.identity: Mapping[str, Any] = {}
        self.vocabulary = vocabulary
        self.batch_size = experiment.eval_dataset.batch_size
        self.lengths = dict(experiment.lengths)
        self._padded = functools.partial(padded, experiment)
        self.decoding = experiment.decoding
        self.parameters = params
        check_predicts(experiment)
        self.converter = experiment.eval_dataset.converter
        # what the tasks put around the inputs; after an end token, a language model would begin another text
        self._before = [vocabulary.named_id(CLS)] if self.converter == MASKED_LM else []
        self._behind = [] if self.converter == LM else [vocabulary.eos_id]
        self._decode: Callable[..., Decoded] = jax.jit(functools.partial(predict, experiment, vocabulary))

    @classmethod
    def from_run(cls, loaded: LoadedConfig, path: Path, step: Step = None) -> tuple[Self, int]:
        """The predictor of a checkpoint of a run, and its step.

        step: see `parameters_and_vocabulary`. Raises UserError where there is none, or where it is of another model.
        """
        directory, experiment = RunDirectory(path), loaded.experiment
        check_same_model(directory, experiment)
        built = assembly.assemble(experiment)
        params, vocabulary, at = parameters_and_vocabulary(directory, experiment, built, step)
        predictor = cls(experiment, params, vocabulary)
        digests = directory.checkpoints / str(at) / DIGESTS
        versions = environment.versions()
        predictor.identity = {
            "experiment": loaded.name,
            "step": at,
            **({"mean_of_checkpoints": count} if (count := checkpoints_in_mean(step)) else {}),
            "checkpoint": sha256_of_file(digests) if digests.is_file() else None,
            "model": settings(experiment.model),
            "feature_converter": predictor.converter,
            "decoding": experiment.decoding.settings(),
            "lengths": predictor.lengths,
            "batch_size": predictor.batch_size,
            "devices": built.devices,
            "versions": {name: versions[name] for name in ("t5xpg", "jax", "jaxlib")},
            "xla_flags": os.environ.get("XLA_FLAGS", ""),  # they decide the last bits
        }
        return predictor, at

    def decode(self, inputs: np.ndarray, first_row: int = 0) -> Decoded:
        """Decode inputs, int32 [B, S] padded with 0, into `decoding.Decoded` with NumPy arrays.

        first_row: the number of the first row; sampling draws by the numbers of rows.
        """
        row_numbers = np.arange(first_row, first_row + len(inputs), dtype=np.int32)
        found = jax.device_get(self._decode(self.parameters, inputs, row_numbers=row_numbers))
        return ranked(found, self.decoding, self.vocabulary)

    def tokens(self, inputs: np.ndarray) -> np.ndarray:
        """As `decode`, but only the best sequence of each row: int32 [B, T], each row up to its end token, then 0."""
        return np.asarray(self.decode(inputs).tokens[:, 0])

    def answers(self, inputs: np.ndarray, first_row: int = 0) -> list[Answer]:
        """An answer for each row. first_row: see `decode`."""
        found = self.decode(inputs, first_row)
        return [
            Answer(
                [self.vocabulary.decode(sequence) for sequence in sequences],
                None if found.scores is None else [float(score) for score in found.scores[row]],
            )
            for row, sequences in enumerate(found.tokens)
        ]

    def ids(self, text: str) -> list[int]:
        """The ids that the model reads for a text. Raises UserError for a blank that the vocabulary has no id for, and
        for a text without any: a language model has nothing to continue."""
        ids = [*self._before, *self.vocabulary.encode(text), *self._behind]
        if not ids:
            raise UserError("The text is empty, and a language model continues one: begin it.")
        return ids

    @property
    def longest_input(self) -> int:
        """The longest inputs, in tokens, that the model was trained on; for a language model, the longest texts."""
        return self.lengths["targets" if self.converter == LM else "inputs"]

    def encode(self, texts: Sequence[str], rows: int | None = None) -> np.ndarray:
        """Texts as int32 [B, S], with what the tasks put around them. rows: B, if rows of padding are to be added."""
        return self._padded([self.ids(text) for text in texts], self.vocabulary.pad_id, rows)
