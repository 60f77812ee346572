"""Recordings of made-up batches, without a data process."""

import dataclasses
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.data.batch import Batch, BatchSpec, hash_batch
from t5xpg.data.objectives.span_corruption import SpanLengths
from t5xpg.data.recording.format import StreamWriter
from t5xpg.data.recording.manifest import Recording, StreamRecord, files_of, model_path, write_recording
from t5xpg.data.spec import DatasetConfig, SpanCorruption
from t5xpg.data.stream.client import TaskDescription
from t5xpg.data.vocab.vocabulary import Vocabulary

LENGTHS = {"inputs": 12, "targets": 8}
TRAIN = DatasetConfig("some_task", LENGTHS, batch_size=6, num_virtual_shards=3, seed=5, objective=SpanCorruption())
VALIDATION = DatasetConfig("some_task", LENGTHS, split="validation", batch_size=4, shuffle=False, num_epochs=1, seed=6)
DESCRIPTION = TaskDescription(
    name="some_task",
    tasks=("some_task",),
    splits=("train", "validation"),
    cached=True,
    examples={"train": 100, "validation": None},
    vocabulary=Vocabulary("bytes", 125),
    objective=SpanLengths(0.15, 3.0, 11, 4, 1),
    has_metrics=False,
)
SOURCE = {"data": {"task": "some_task", "sha256": {"train": "ab"}}, "cache": {"task": "some_task"}, "manifest": None}


def batches(config: DatasetConfig, count: int) -> list[Batch]:
    draw = np.random.default_rng(config.seed)
    spec = BatchSpec(config.batch_size, config.task_feature_lengths)
    return [
        {
            name: draw.integers(0, 2 if name.endswith("weights") else 384, shape).astype(dtype)
            for name, (shape, dtype) in spec.features().items()
        }
        for _ in range(count)
    ]


def identity(config: DatasetConfig, files: str = "1 files, abc") -> dict[str, Any]:
    """As `pipeline.stream_identity`."""
    settings = config.to_json() | {"feature_converter": config.converter, "files": files}
    for name in ("max_batches", "module_import", "metrics"):
        del settings[name]
    return settings


def make(
    folder: Path,
    train: int = 7,
    validation: int = 3,
    limit: int | None = None,
    description: TaskDescription = DESCRIPTION,
) -> Path:
    """A recording; `limit` is the max_batches that the validation was recorded with."""
    folder.mkdir(parents=True)
    streams = ("train", TRAIN, train, train), ("validation", VALIDATION, validation, limit)
    return write(folder, streams, SOURCE, description)


def write(
    folder: Path,
    streams: Iterable[tuple[str, DatasetConfig, int, int | None]],
    source: dict[str, Any],
    description: TaskDescription = DESCRIPTION,
) -> Path:
    """streams: of each the name, the dataset, how many batches it has, and how many were asked for."""
    records = {}
    for name, config, count, most in streams:
        with StreamWriter(folder, name, config.batch_spec(vocab_size=384)) as writer:
            for batch in batches(config, count):
                writer.write(batch)
        described = dataclasses.asdict(description) | {"vocabulary": description.vocabulary.to_json()}
        ended = most is None or count < most
        records[name] = StreamRecord(identity(config), most, count, ended, json.loads(json.dumps(described)))
        if description.vocabulary.model_file is not None:
            shutil.copy(description.vocabulary.model_file, model_path(folder, name))
    write_recording(folder, Recording("some experiment", records, source, {"seqio": "0.0.20"}, files_of(folder), ""))
    return folder


def hashes(config: DatasetConfig, count: int) -> list[str]:
    return [hash_batch(batch) for batch in batches(config, count)]
