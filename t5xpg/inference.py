"""Predictions of a run's last checkpoint: for a prompt, for a file, for rows of token ids."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from t5xpg import assembly, decoding, training
from t5xpg.config import LoadedConfig
from t5xpg.errors import UserError
from t5xpg.experiment import Experiment
from t5xpg.files import write_atomically
from t5xpg.filling import blanks_of, fill
from t5xpg.progress import Progress
from t5xpg.rundir import RunDirectory
from t5xpg.vocabularies import Vocabulary

# Input lengths are padded up to a multiple of this, so that few lengths are compiled.
LENGTH_MULTIPLE = 64


class Predictor:
    """Greedy predictions for texts. Texts in and out name sentinels `<extra_id_N>`, whatever their ids are."""

    def __init__(self, experiment: Experiment, params: Any, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.batch_size = experiment.eval_dataset.batch_size
        self._params = params
        self._max_decode_length = experiment.lengths["targets"]
        self._greedy: Callable[[Any, Any], jax.Array] = jax.jit(
            functools.partial(
                decoding.greedy,
                experiment.model,
                max_decode_length=self._max_decode_length,
                eos_id=vocabulary.eos_id,
                pad_id=vocabulary.pad_id,
            )
        )

    @classmethod
    def from_run(cls, loaded: LoadedConfig, path: Path) -> tuple[Predictor, int]:
        """The predictor of a run's last checkpoint, and its step. Raises UserError where there is none."""
        built = assembly.assemble(loaded.experiment)
        params, vocabulary, step = training.parameters_and_vocabulary(RunDirectory(path), loaded.experiment, built)
        return cls(loaded.experiment, params, vocabulary), step

    def tokens(self, encoder_input_tokens: np.ndarray) -> np.ndarray:
        """int32 [B, S], padded with 0 -> int32 [B, T], each row up to its end token, then 0."""
        return np.asarray(self._greedy(self._params, encoder_input_tokens))

    def texts(self, inputs: Sequence[str]) -> list[str]:
        """A prediction for each text; an end token is added to each input, as the tasks do."""
        rows = [[*self.vocabulary.encode(text), self.vocabulary.eos_id] for text in inputs]
        longest = max(len(row) for row in rows)
        S = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        tokens = np.full((len(rows), S), self.vocabulary.pad_id, np.int32)
        for index, row in enumerate(rows):
            tokens[index, : len(row)] = row
        return [self.vocabulary.decode(row) for row in self.tokens(tokens)]


def fill_in(loaded: LoadedConfig, path: Path, prompt: str) -> None:
    """Print the prediction for one prompt, and the prompt with its blanks filled in."""
    _check_blanks(prompt)
    predictor, step = Predictor.from_run(loaded, path)
    prediction = predictor.texts([prompt])[0]
    print(f"{loaded.name} after step {step:,}")
    print_filled(prompt, prediction)


def print_filled(prompt: str, prediction: str) -> None:
    """Three lines: the prompt, the prediction, the prompt with its blanks filled in."""
    print(f"input       {_one_line(prompt)}")
    print(f"prediction  {_one_line(prediction)}")
    print(f"filled in   {_one_line(fill(prompt, prediction, *_marks()))}", flush=True)


def print_sample(text: str, prediction: str, target: str) -> None:
    """The text with its blanks as the model fills them in, and as they were."""
    print(f"\nfilled in  {_one_line(fill(text, prediction, *_marks()))}")
    print(f"was        {_one_line(fill(text, target, *_marks()))}", flush=True)


def _marks() -> tuple[str, str]:
    """What stands around a filled blank: bold on a terminal."""
    return ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("[", "]")


def predict_file(loaded: LoadedConfig, path: Path, source: Path, target: Path | None) -> None:
    """Predict for every line of a JSONL file; write each record with "prediction" and "filled" added.

    A line holds {"inputs": text} (or "text"). To the standard output where `target` is None; else the file appears
    when all of it is written. Raises UserError that names the line for what is no such record.
    """
    records = list(_read_records(source))
    predictor, _ = Predictor.from_run(loaded, path)
    if target is None:
        _predict_records(predictor, records, sys.stdout.buffer)
        return
    with write_atomically(target) as file:
        _predict_records(predictor, records, file)
    print(f"{len(records):,} predictions in {target}", file=sys.stderr)


def _predict_records(predictor: Predictor, records: Sequence[tuple[dict[str, Any], str]], file: BinaryIO) -> None:
    size = predictor.batch_size
    with Progress("predict", len(records), "records") as progress:
        for start in range(0, len(records), size):
            part = records[start : start + size]
            # The last part is filled up, so that its shape is one that is compiled already.
            texts = [text for _, text in part] + [""] * (size - len(part) if start else 0)
            for (record, text), prediction in zip(part, predictor.texts(texts), strict=False):
                completed = {**record, "prediction": prediction, "filled": fill(text, prediction)}
                file.write((json.dumps(completed, ensure_ascii=False) + "\n").encode("utf-8"))
            file.flush()
            progress.advance(len(part))


def _read_records(source: Path) -> Iterator[tuple[dict[str, Any], str]]:
    if not source.is_file():
        raise UserError(f"There is no file {source}.")
    with source.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8"))
            except ValueError as error:
                raise UserError(f"{source}, line {number}: not JSON ({error}).") from error
            text = record.get("inputs", record.get("text")) if isinstance(record, dict) else None
            if not isinstance(text, str):
                raise UserError(f'{source}, line {number}: expected {{"inputs": "a text with <extra_id_0>"}}.')
            yield record, text


def _check_blanks(prompt: str) -> None:
    blanks = blanks_of(prompt)
    if not blanks:
        raise UserError("The prompt has no blank: write <extra_id_0> where text is missing, <extra_id_1> for the next.")
    if blanks != list(range(len(blanks))):
        raise UserError(
            f"The blanks of the prompt are numbered {', '.join(map(str, blanks))}: the first is <extra_id_0>, "
            "and each next one counts one up, as in training."
        )


def _one_line(text: str) -> str:
    return text.replace("\n", "⏎").replace("\r", " ")
