"""A recording's streams of batches in the training process, without TensorFlow or a data process. `RecordedData` stands
in for `client.DataService`, and `RecordedStream` for `client.Stream`, with the same batches."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import Closing
from t5xpg.base.paths import shown
from t5xpg.data.batch import Batch, hash_batch
from t5xpg.data.recording.format import StreamReader, require_one_shape
from t5xpg.data.recording.manifest import model_path, read_recording
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import BatchStream, TaskDescription, check_shards, stream_differences
from t5xpg.data.vocab.files import vocabulary_of_record

_ANOTHER = "record with the settings of this run into another folder: make record EXP=… STEPS=n GIN=… OUTPUT=…"


class RecordedData(Closing):
    """The streams of a recording: a context manager, with the methods of `client.DataService` for training.
    UserError for a folder that is no recording, or files of other sizes (T5XPG_VERIFY=1: SHA-256). Batches are verified
    when read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recording = read_recording(folder)
        self.recording.check_files(folder)
        # what `experiment.recipe` knew of the data that was recorded: "data", "cache" and "manifest"
        self.source = dict(self.recording.source)
        self._streams: list[RecordedStream] = []
        self._readers: dict[str, StreamReader] = {}
        for name, record in self.recording.streams.items():
            self._readers[name] = StreamReader(folder, name, record.batches, self.recording.remedy(folder))

    def require(self, steps: int) -> None:
        """Raise UserError if there are fewer training batches than `steps`."""
        count = self.recording.streams["train"].batches
        if count < steps:
            raise UserError(f"This run has {steps:,} steps. {self._too_few_batches('train')}")

    def describe(self, config: DatasetConfig) -> TaskDescription:
        """The description of the task when it was recorded. Raises UserError for a config that was not recorded."""
        name = self._stream_of(config)
        value = self.recording.streams[name].description
        try:
            vocabulary = vocabulary_of_record(value["vocabulary"], model_path(self.folder, name))
            return TaskDescription.from_json(value, vocabulary)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"The manifest of {shown(self.folder)} describes no task ({type(error).__name__}: {error})"
            raise self.recording.damaged(self.folder, what) from None

    def open(self, config: DatasetConfig, shards: Sequence[int] | None = None, prefetch: int = 2) -> "RecordedStream":
        """The stream of `config`, as `DataService.open`. UserError if it was not recorded, or has fewer batches."""
        name = self._stream_of(config)
        record, reader = self.recording.streams[name], self._readers[name]
        limit = config.max_batches
        if not record.ended and (config.num_epochs is not None if limit is None else limit > record.batches):
            raise UserError(
                f"{shown(self.folder)} holds {record.batches} batches of the split {config.split!r} of "
                f"{config.mixture_or_task_name}, and this run reads {'all' if limit is None else limit} (EVAL_STEPS). "
                f"Read fewer, or {_ANOTHER}"
            )
        owned, size = check_shards(config, shards, prefetch), self.describe(config).vocabulary.size
        stream = RecordedStream(reader, config, owned, prefetch, record.identity, size, self._too_few_batches(name))
        self._streams.append(stream)
        return stream

    def close(self) -> None:
        """Close the streams and the files."""
        for stream in self._streams:
            stream.close()
        for reader in self._readers.values():
            reader.close()

    def _stream_of(self, config: DatasetConfig) -> str:
        """The name of the stream that was recorded with the settings of `config`; UserError if none was."""
        require_one_shape(config)
        settings = config.to_json() | {"feature_converter": config.converter}
        streams = self.recording.streams
        differing = {
            name: sorted(key for key, value in stream.settings.items() if settings.get(key) != value)
            for name, stream in streams.items()
        }
        nearest = min(streams, key=lambda name: (len(differing[name]), -streams[name].batches))
        if differing[nearest]:
            recorded = streams[nearest].settings
            differences = "; ".join(f"{key} was {recorded[key]}, is {settings.get(key)}" for key in differing[nearest])
            raise UserError(
                f"{shown(self.folder)} was recorded with other settings: {differences}. Train with those, or {_ANOTHER}"
            )
        return nearest

    def _too_few_batches(self, name: str) -> str:
        """The message for a run that asks for more batches of a stream than there are."""
        count = self.recording.streams[name].batches
        command = self.recording.command(self.folder, "n")
        return (
            f"{shown(self.folder)} holds {count:,} batches of {name}. Record more ({command}), or read fewer "
            f'(GIN="--gin.{"TRAIN_STEPS" if name == "train" else "EVAL_STEPS"}={count}").'
        )


class RecordedStream(BatchStream):
    """Recorded batches, verified. UserError for a batch that has changed, and after the end of an endless stream."""

    def __init__(
        self,
        reader: StreamReader,
        config: DatasetConfig,
        shards: Sequence[int],
        prefetch: int,
        identity: Mapping[str, Any],
        vocab_size: int,
        remedy: str,
    ) -> None:
        """remedy: sentences for a run that asks for more batches than there are."""
        self._reader, self._whole = reader, config.batch_spec(vocab_size=vocab_size)
        self._remedy = remedy
        self._endless = config.num_epochs is None and config.max_batches is None
        self._end = len(reader) if config.max_batches is None else min(len(reader), config.max_batches)
        super().__init__(config, shards, prefetch, identity, vocab_size)

    def _read(self, number: int) -> Batch | None:
        if number >= self._end:
            if self._endless:
                raise UserError(f"There is no batch for step {number + 1:,}. {self._remedy}")
            return None
        batch = self._reader.read(number, self._whole)
        if len(self.shards) == self.config.num_virtual_shards:
            return batch
        rows = self.config.rows_per_shard
        indices = np.concatenate([np.arange(shard * rows, (shard + 1) * rows) for shard in self.shards])
        return {name: array[indices] for name, array in batch.items()}

    def state(self) -> dict[str, np.ndarray]:
        """The position of the batch that `__next__` would return: its number, and the hash of the one before it."""
        return {
            "batches_read": np.array(self.batches_read, np.int64),
            "stream": np.frombuffer(json.dumps(self.identity).encode("utf-8"), np.uint8),
            "last_batch": np.frombuffer(self._hash_before(self.batches_read), np.uint8),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue where `state` of this or the live stream was taken. UserError for a state of another stream."""
        saved = json.loads(np.asarray(state["stream"]).tobytes().decode("utf-8"))
        if differences := stream_differences(saved, self.identity):
            raise UserError(
                f"The saved position belongs to other batches than were recorded: {differences}. Continue with the "
                "data and the settings that the run began with, or start a new run."
            )
        count = int(np.asarray(state["batches_read"]))
        if not 0 <= count <= len(self._reader):
            raise UserError(f"The run has read {count:,} batches. {self._remedy}")
        last = np.asarray(state.get("last_batch", np.empty(0, np.uint8))).tobytes()  # live positions have none
        if last and last != self._hash_before(count):
            raise UserError(
                f"Batch {count:,} of the recording is not the one that the run has read. Continue with the recording "
                "that the run began with, or start a new run."
            )
        self._seek(count)

    def rewind(self) -> None:
        self._seek(0)

    def _hash_before(self, number: int) -> bytes:
        """The hash of the batch before batch `number`; of none before the first."""
        return bytes.fromhex(hash_batch(self._reader.read(number - 1, self._whole))) if number else b""
