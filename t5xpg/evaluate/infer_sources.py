"""The sources of the inputs to predict for: a file of JSON lines, or a split of the experiment's task."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import sha256_of_file
from t5xpg.base.paths import data_directory
from t5xpg.data.batch import inputs_and_targets
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService, Stream
from t5xpg.data.text.lines import bounded_lines, json_object, string_in, text_of_line
from t5xpg.data.text.manifest import find_manifests, split_path
from t5xpg.data.vocab.sentinels import blanks_of
from t5xpg.evaluate.predictor import Predictor
from t5xpg.evaluate.trained_model import check_same_vocabulary
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.identity import data_config
from t5xpg.experiment.known_tasks import known_task
from t5xpg.experiment.recipe import DataIdentity
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import to_json

# Characters that JSON does not escape and terminals act on.
_CONTROLS = re.compile("[\x7f-\x9f]")
_RECORD = '{"inputs": "a text with <extra_id_0>"}'


@dataclass(frozen=True)
class Input:
    """One input: its JSON object and its text. fills: whether the answer fills in blanks of the text. number: of the
    line in a file."""

    content: Mapping[str, Any]
    text: str
    fills: bool = True
    number: int = 0


def read_rows(source: Path) -> Iterator[Input]:
    """Yields the rows of a JSONL file. Raises UserError naming file and line for a line that is no record."""
    if not source.is_file():
        kind = "no regular file" if source.exists() else "not there"
        raise UserError(f"INPUT: {source} is {kind}. Expected a file of JSON lines: {_RECORD}.")
    with source.open("rb") as file:
        for number, line in enumerate(bounded_lines(file), start=1):
            where = f"{source}:{number}"
            text = text_of_line(line, where)
            if text.strip():
                content = json_object(text, where, _RECORD)
                if to_json(content) != content:
                    raise UserError(
                        f"{where} has a number without a value, such as 1e400 or NaN: write it as a string."
                    )
                field = "text" if "text" in content and "inputs" not in content else "inputs"
                yield Input(content, string_in(content, field, where), number=number)


def json_line(value: dict[str, Any]) -> bytes:
    """A line of JSON in UTF-8. Lone surrogates, which UTF-8 cannot hold, and control characters stay escaped; numbers
    that are not finite, which JSON cannot hold, become null."""
    text = _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(to_json(value), ensure_ascii=False))
    return (text + "\n").encode("utf-8", errors="backslashreplace")


@dataclass(frozen=True)
class InputBatch:
    """A batch. tokens: the model's inputs, int32 [B, S]; B may be larger than the number of rows."""

    rows: Sequence[Input]
    tokens: np.ndarray


@dataclass(frozen=True)
class Inputs:
    """Inputs in batches. identity: what determines the rows, as JSON. total: the number of rows; None if not known.

    batches: returns the batches from a row on, a multiple of the batch size. Batches are the same from every start.
    """

    identity: Mapping[str, Any]
    total: int | None
    batches: Callable[[int], Iterator[InputBatch]]


def file_source(source: Path, rows: Sequence[Input], predictor: Predictor, prompt: str = "") -> Inputs:
    """The rows of a JSONL file as a source. prompt: a text that is put in front of each."""
    size = predictor.batch_size

    def batches(first_row: int) -> Iterator[InputBatch]:
        for start in range(first_row, len(rows), size):
            batch = rows[start : start + size]
            # the last batch is filled up, so that its shape is one that is compiled already
            tokens = predictor.encode([prompt + row.text for row in batch], rows=size if start else None)
            yield InputBatch(batch, tokens)

    identity = {"sha256": sha256_of_file(source), **({"prompt": prompt} if prompt else {})}
    return Inputs(identity, len(rows), batches)


def _rows(batch: Mapping[str, np.ndarray], stream: Stream, predictor: Predictor, is_last: bool) -> InputBatch:
    inputs, targets = inputs_and_targets(batch, stream.spec)
    count = len(inputs)
    if is_last:  # it is filled up with rows of zeros
        count = int(np.max(np.flatnonzero((inputs != 0).any(axis=1) | (targets != 0).any(axis=1)), initial=-1)) + 1
    rows, decode = [], predictor.vocabulary.decode
    for row in range(count):
        text = decode(inputs[row])
        rows.append(Input({"inputs": text, "targets": decode(targets[row])}, text, bool(blanks_of(text))))
    return InputBatch(rows, inputs)


@contextlib.contextmanager
def open_split(
    config: DatasetConfig, directory: RunDirectory, data: DataIdentity, predictor: Predictor
) -> Iterator[Inputs]:
    """A split as a source, read by the data process. config: of `split_config`. data: the identity of its data.

    Raises UserError if there is no such split, or if the task has another vocabulary than the run.
    """
    with DataService(log=directory.inference_log) as service:
        check_same_vocabulary(service.describe(config).vocabulary, predictor.vocabulary, directory)
        stream = service.open(config)

        def batches(first_row: int) -> Iterator[InputBatch]:
            next_batch, row = next(stream, None), 0
            while (batch := next_batch) is not None:
                next_batch = next(stream, None)
                if row >= first_row:
                    yield _rows(batch, stream, predictor, is_last=next_batch is None)
                row += config.batch_size

        # preprocessing may make several rows of one document: their number is not known
        yield Inputs({"stream": dict(stream.identity), "data": data.data, "cache": data.cache}, None, batches)


def replace_fields(config: DatasetConfig, option: str, **changes: Any) -> DatasetConfig:
    """The dataset with these changes. Raises UserError that names the option, as it was typed, if a value is wrong."""
    try:
        return dataclasses.replace(config, **changes)
    except UserError as error:
        raise UserError(f"{option}: {error}") from None


def in_source_order(config: DatasetConfig) -> DatasetConfig:
    """The dataset without its cache, if it is a supervised task of an export that is here: its examples then come in
    the order of the rows of their file. A cache has an order of its own."""
    row = known_task(config.mixture_or_task_name)
    folder = find_manifests(data_directory()).get(row.dataset or "") if row and row.supervised else None
    if folder is None or not split_path(folder, config.split).is_file():
        return config
    return dataclasses.replace(config, use_cached=False, shuffle=False)


def split_config(loaded: LoadedConfig, split: str) -> DatasetConfig:
    """The experiment's evaluation dataset, but for the whole of another split, in the order of its file, unpacked."""
    experiment = loaded.experiment
    config = replace_fields(experiment.eval_dataset, f"SPLIT={split}", split=split, num_virtual_shards=1)
    config = data_config(config, experiment.random_seed)
    return in_source_order(dataclasses.replace(config, max_batches=None, num_epochs=1, shuffle=False, pack=False))
