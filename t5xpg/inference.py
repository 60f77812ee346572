"""Predictions of a run's last checkpoint: for a prompt, for a file, for rows of token ids."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from t5xpg import assembly, decoding, training
from t5xpg.config import LoadedConfig
from t5xpg.data.lines import bounded_lines, json_object, string_in, text_of_line
from t5xpg.errors import UserError
from t5xpg.experiment import Experiment
from t5xpg.files import write_atomically
from t5xpg.filling import blanks_of, fill, one_line
from t5xpg.progress import Progress
from t5xpg.rundir import RunDirectory
from t5xpg.vocabularies import Vocabulary

# Input lengths are padded up to a multiple of this, so that few lengths are compiled.
LENGTH_MULTIPLE = 64
# What may differ from training: how precisely is computed, and what happens only in training.
_FREE_MODEL_SETTINGS = (".dtype", ".float32_attention_logits", ".dropout_rate")
# Characters that JSON does not escape and terminals act on.
_CONTROLS = re.compile("[\x7f-\x9f]")
_RECORD = '{"inputs": "a text with <extra_id_0>"}'


class Predictor:
    """Greedy predictions for texts. Texts in and out name sentinels `<extra_id_N>`, whatever their ids are."""

    def __init__(self, experiment: Experiment, params: Any, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.batch_size = experiment.eval_dataset.batch_size
        self.lengths = dict(experiment.lengths)
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
        """The predictor of a run's last checkpoint, and its step.

        Raises UserError where there is none, or where it is of another model.
        """
        _check_model(RunDirectory(path), loaded.experiment)
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


def _check_model(directory: RunDirectory, experiment: Experiment) -> None:
    """Raise UserError if the run is of another model: parameters may fit one that computes something else with them."""
    record = directory.read()
    recorded = record["identity"].get("settings", {})
    now = {name: value for name, value in training.deciding_settings(experiment).items() if _decides_predictions(name)}
    others = {name: value for name, value in recorded.items() if not _decides_predictions(name)}
    directory.check(record["experiment"], {"settings": {**others, **now}})


def _decides_predictions(setting: str) -> bool:
    return setting.split(".")[0] == "model" and not setting.endswith(_FREE_MODEL_SETTINGS)


def fill_in(loaded: LoadedConfig, path: Path, prompt: str) -> None:
    """Print the prediction for one prompt, and the prompt with its blanks filled in."""
    _check_blanks(prompt)
    predictor, step = Predictor.from_run(loaded, path)
    _check_tokens(predictor, prompt, "The prompt")
    prediction = predictor.texts([prompt])[0]
    print(f"{loaded.name} after step {step:,}")
    print_filled(prompt, prediction)


def print_filled(prompt: str, prediction: str) -> None:
    """Three lines: the prompt, the prediction, the prompt with its blanks filled in."""
    print(f"input       {one_line(prompt)}")
    print(f"prediction  {one_line(prediction)}")
    print(f"filled in   {_filled(prompt, prediction)}", flush=True)


def print_sample(text: str, prediction: str, target: str) -> None:
    """The text with its blanks as the model fills them in, and as they were."""
    print(f"\nfilled in  {_filled(text, prediction)}")
    print(f"was        {_filled(text, target)}", flush=True)


def _filled(text: str, prediction: str) -> str:
    """On one line. What the texts hold is cleaned before the marks, which are control characters, stand between it."""
    return fill(one_line(text), one_line(prediction), *_marks())


def _marks() -> tuple[str, str]:
    """What stands around a filled blank: bold on a terminal."""
    return ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("[", "]")


@dataclass(frozen=True)
class Record:
    """A line of an input file: its number, all that it holds, and the text with blanks."""

    number: int
    content: dict[str, Any]
    text: str


def predict_file(loaded: LoadedConfig, path: Path, source: Path, target: Path | None) -> None:
    """Predict for every line of a JSONL file; write each record with "prediction" and "filled" added.

    A line holds {"inputs": text} (or "text"). To the standard output where `target` is None; else the file appears
    when all of it is written. Raises UserError that names the line, before the first prediction, for what is no such
    record, is longer than what the model was trained on, or has a blank that the vocabulary has no sentinel for.
    """
    if target is not None:
        target = _output_file(target)
    records = list(read_records(source))
    predictor, _ = Predictor.from_run(loaded, path)
    for record in records:
        _check_tokens(predictor, record.text, f"{source}:{record.number}:")
    if target is None:
        _predict_records(predictor, records, sys.stdout.buffer)
        return
    with write_atomically(target) as file:
        _predict_records(predictor, records, file)
    print(f"{len(records):,} predictions in {target}", file=sys.stderr)


def _output_file(given: Path) -> Path:
    """The file to write, links followed. Raises UserError for what cannot be replaced by a file."""
    if given.is_dir():
        raise UserError(f"OUTPUT={given} is a folder. Expected a file, for instance {given / 'out.jsonl'}")
    if given.exists() and not given.is_file():
        raise UserError(
            f"OUTPUT={given} is no regular file (a pipe or a device). Leave it out to write to the terminal."
        )
    return Path(os.path.realpath(given))


def _check_tokens(predictor: Predictor, text: str, what: str) -> None:
    """Raise UserError for a text with a blank that has no sentinel, or longer than what the model was trained on."""
    try:
        count = len(predictor.vocabulary.encode(text)) + 1
    except UserError as error:
        raise UserError(f"{what} {error}") from error
    if count > predictor.lengths["inputs"]:
        enough = {**predictor.lengths, "inputs": count}
        raise UserError(
            f"{what} has {count} tokens with its end, and the model was trained on at most "
            f'{predictor.lengths["inputs"]}. Shorten it, or allow more: GIN="--gin.TASK_FEATURE_LENGTHS={enough}"'
        )


def _predict_records(predictor: Predictor, records: Sequence[Record], file: BinaryIO) -> None:
    size = predictor.batch_size
    with Progress("predict", len(records), "records") as progress:
        for start in range(0, len(records), size):
            part = records[start : start + size]
            # The last part is filled up, so that its shape is one that is compiled already.
            texts = [record.text for record in part] + [""] * (size - len(part) if start else 0)
            for record, prediction in zip(part, predictor.texts(texts), strict=False):
                filled = fill(record.text, prediction)
                file.write(_json_line({**record.content, "prediction": prediction, "filled": filled}))
            file.flush()
            progress.advance(len(part))


def _json_line(value: dict[str, Any]) -> bytes:
    """JSON in UTF-8. Half characters, which JSON may hold and UTF-8 may not, stay escapes, as control characters do."""
    text = _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
    return (text + "\n").encode("utf-8", errors="backslashreplace")


def read_records(source: Path) -> Iterator[Record]:
    """The records of a JSONL file. Raises UserError naming file and line for what is no record."""
    if not source.is_file():
        kind = "no regular file" if source.exists() else "not there"
        raise UserError(f"INPUT: {source} is {kind}. Expected a file of JSON lines: {_RECORD}.")
    with source.open("rb") as file:
        for number, line in enumerate(bounded_lines(file), start=1):
            where = f"{source}:{number}"
            text = text_of_line(line, where)
            if text.strip():
                content = json_object(text, where, _RECORD)
                yield Record(number, content, string_in(content, _field(content), where))


def _field(content: dict[str, Any]) -> str:
    return "text" if "text" in content and "inputs" not in content else "inputs"


def _check_blanks(prompt: str) -> None:
    blanks = blanks_of(prompt)
    if not blanks:
        raise UserError("The prompt has no blank: write <extra_id_0> where text is missing, <extra_id_1> for the next.")
    if blanks != list(range(len(blanks))):
        raise UserError(
            f"The blanks of the prompt are numbered {', '.join(map(str, blanks))}: the first is <extra_id_0>, "
            "and each next one counts one up, as in training."
        )
