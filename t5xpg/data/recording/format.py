"""Batches in files: compact, checksummed, and each readable in constant time. NumPy and zstandard only.

A stream is two files. All numbers in them are little-endian and unsigned.

`<name>.batches`: 8 bytes of mark, then a record per batch: one byte per array, in the order of `BatchSpec.features()`
(to how many bytes its numbers are narrowed), then one zstd frame with the arrays in that order. An array is stored as
the low bytes of all numbers, then the next bytes of all, and so on: packed, a tenth smaller than number by number.

`<name>.index`:

| bytes | hold |
|---|---|
| 8 | mark |
| 4, 4 | version of the format; length of the JSON below |
| … | JSON: the BatchSpec |
| 36 per batch | length of its record (4); its hash (32) |
| 32 | SHA-256 of all of the above |

Reading trusts no file: the index is compared with its SHA-256 and with the size of the batches, every size is bounded
before memory is taken for it, and a batch is returned only if its hash is the one in the index. Each fault is a
UserError that names file and batch.
"""

import contextlib
import hashlib
import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from t5xpg.base.errors import UserError
from t5xpg.base.files import Closing
from t5xpg.data.batch import ENC_DEC, Batch, BatchSpec, hash_batch, layout_of, validate
from t5xpg.data.spec import DatasetConfig

VERSION = 2
MAX_BATCH_BYTES = 1 << 30  # of the int32 arrays of one batch
_INDEX_MARK, _BATCHES_MARK = b"t5xpgIdx", b"t5xpgBat"
_PREFIX = struct.Struct("<8sII")
_ENTRY = np.dtype([("length", "<u4"), ("digest", "V32")])
_DIGEST_BYTES = 32
_WIDTH = 4  # bytes of an int32
_LEVEL = 9  # of zstd: higher ones save 2% more at many times the work


def index_path(folder: Path, name: str) -> Path:
    """The index of the stream `name` in a folder."""
    return folder / f"{name}.index"


def batches_path(folder: Path, name: str) -> Path:
    """The batches of the stream `name` in a folder."""
    return folder / f"{name}.batches"


def require_one_shape(config: DatasetConfig) -> None:
    """Raise UserError for a stream whose batches have several shapes."""
    if config.length_buckets is not None:
        raise UserError("A recording holds batches of one shape: it takes LENGTH_BUCKETS = None.")


class StreamWriter(contextlib.AbstractContextManager["StreamWriter"]):
    """Writes a stream, batch by batch: a context manager. At its end the files are complete, unless there was an error.
    Raises UserError for batches larger than MAX_BATCH_BYTES, FileExistsError if the stream exists."""

    def __init__(self, folder: Path, name: str, spec: BatchSpec) -> None:
        if _batch_bytes(spec) > MAX_BATCH_BYTES:
            raise UserError(
                f"A batch of {spec.batch_size} rows has {_batch_bytes(spec):,} bytes: at most {MAX_BATCH_BYTES:,} can "
                "be recorded. Lower BATCH_SIZE or TASK_FEATURE_LENGTHS."
            )
        self.spec = spec
        self.count = 0
        self.bytes_per_batch = 0.0  # in both files, on average
        self._size = len(_BATCHES_MARK)
        self._entries = bytearray()
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._files = contextlib.ExitStack()
        self._batches = self._files.enter_context(batches_path(folder, name).open("xb"))
        self._index = self._files.enter_context(index_path(folder, name).open("xb"))
        self._batches.write(_BATCHES_MARK)

    def write(self, batch: Batch) -> None:
        """Append a batch. Raises ValueError for a batch that does not fit the spec."""
        validate(batch, self.spec)
        widths, planes = [], []
        for name in self.spec.features():
            numbers = np.ascontiguousarray(batch[name], "<i4").reshape(-1)
            width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 8))
            widths.append(width)
            planes.append(numbers.view(np.uint8).reshape(-1, _WIDTH)[:, :width].T.tobytes())
        record = bytes(widths) + self._compressor.compress(b"".join(planes))
        self._batches.write(record)
        self._entries += len(record).to_bytes(4, "little") + bytes.fromhex(hash_batch(batch))
        self._size += len(record)
        self.count += 1
        self.bytes_per_batch = self._size / self.count + _ENTRY.itemsize

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the index, and both files to the disk, unless there was an error."""
        with self._files:
            if kind is not None:
                return
            spec = _spec_to_json(self.spec)
            index = _PREFIX.pack(_INDEX_MARK, VERSION, len(spec)) + spec + self._entries
            self._index.write(index + hashlib.sha256(index).digest())
            for file in (self._batches, self._index):
                file.flush()
                os.fsync(file.fileno())


class StreamReader(Closing):
    """Reads any batch of a stream by its number, from 0; thread-safe. remedy: ends the message of every UserError."""

    def __init__(self, folder: Path, name: str, remedy: str = "Record it again.") -> None:
        self._index, self._batches = index_path(folder, name), batches_path(folder, name)
        self._remedy = remedy
        for path in (self._index, self._batches):
            if not path.is_file():  # reading a pipe or a device could block
                raise self._error(str(path), "it is no regular file" if path.exists() else "it is not there")
        self._read_index()
        self._file = self._batches.open("rb", buffering=0)
        where, size = str(self._batches), os.fstat(self._file.fileno()).st_size
        expected = int(self._ends[-1]) if len(self) else len(_BATCHES_MARK)
        if size != expected:
            raise self._error(where, f"it has {size:,} bytes instead of {expected:,}")
        if self._read(0, len(_BATCHES_MARK), where) != _BATCHES_MARK:
            raise self._error(where, "it holds no batches (it starts otherwise)")

    def __len__(self) -> int:
        return len(self._entries)

    def digest(self, number: int) -> str:
        """`hash_batch` of a batch, from the index alone."""
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number}: there are {len(self)}")
        return self._entries["digest"][number].tobytes().hex()

    def read(self, number: int) -> Batch:
        """A batch, verified. Raises UserError for a batch that is not as it was written, IndexError beyond the last."""
        digest = self.digest(number)
        where = f"{self._batches}, batch {number + 1} of {len(self)}"
        length = int(self._entries["length"][number])
        record = self._read(int(self._ends[number]) - length, length, where)
        try:
            batch = _decode(record, self.spec)
            if hash_batch(batch) != digest:
                raise ValueError("it does not have the SHA-256 that the index gives")
            validate(batch, self.spec)
        except (ValueError, zstandard.ZstdError) as error:
            raise self._error(where, str(error)) from None
        return batch

    def close(self) -> None:
        """Close the files."""
        self._file.close()

    def _read_index(self) -> None:
        where, data = str(self._index), self._index.read_bytes()
        if len(data) < _PREFIX.size + _DIGEST_BYTES or not data.startswith(_INDEX_MARK):
            raise self._error(where, "it is not an index of batches (it starts otherwise)")
        _, version, json_length = _PREFIX.unpack_from(data)
        if version != VERSION:
            raise self._error(where, f"it has version {version} of the format, and this program reads {VERSION}")
        content = data[:-_DIGEST_BYTES]
        if hashlib.sha256(content).digest() != data[-_DIGEST_BYTES:]:
            raise self._error(where, "it does not have the SHA-256 that it gives")
        entries_at = _PREFIX.size + json_length
        try:
            self.spec = _spec_from_json(content[_PREFIX.size : entries_at])
            self._entries = np.frombuffer(content[entries_at:], _ENTRY)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._error(where, f"it describes no batches ({type(error).__name__}: {error})") from None
        self._ends = len(_BATCHES_MARK) + np.cumsum(self._entries["length"], dtype=np.int64)

    def _read(self, offset: int, length: int, where: str) -> bytes:
        try:
            read = os.pread(self._file.fileno(), length, offset)
        except OSError as error:
            raise self._error(where, f"it cannot be read ({error.strerror})") from error
        if len(read) != length:
            raise self._error(where, "the file ends before it: it was cut off while it was open")
        return read

    def _error(self, where: str, problem: str) -> UserError:
        return UserError(f"{where}: {problem}. {self._remedy}")


def _decode(record: bytes, spec: BatchSpec) -> Batch:
    """The batch of a record. Raises ValueError or ZstdError for other bytes."""
    features = spec.features()
    widths, frame = record[: len(features)], record[len(features) :]
    if len(widths) != len(features) or not all(1 <= width <= _WIDTH for width in widths):
        raise ValueError("it is not a record of its arrays")
    sizes = [math.prod(shape) for shape, _ in features.values()]
    expected = sum(size * width for size, width in zip(sizes, widths, strict=True))
    # the frame begins with the size of its contents: checked before the memory for them is taken
    if zstandard.frame_content_size(frame) != expected:
        raise ValueError("its zstd frame is not of the size of its arrays")
    content = zstandard.ZstdDecompressor().decompress(frame, max_output_size=expected, allow_extra_data=False)
    batch, end = {}, 0
    for (name, (shape, _)), size, width in zip(features.items(), sizes, widths, strict=True):
        start, end = end, end + size * width
        numbers = np.zeros((size, _WIDTH), np.uint8)
        numbers[:, :width] = np.frombuffer(content, np.uint8)[start:end].reshape(width, size).T
        batch[name] = numbers.view("<i4").reshape(shape).astype(np.int32, copy=False)
    return batch


def _batch_bytes(spec: BatchSpec) -> int:
    return sum(math.prod(shape) * _WIDTH for shape, _ in spec.features().values())


def _spec_to_json(spec: BatchSpec) -> bytes:
    value = {
        "batch_size": spec.batch_size,
        "task_feature_lengths": dict(spec.task_feature_lengths),
        "packed": spec.packed,
        "vocab_size": spec.vocab_size,
    }
    if spec.feature_converter != ENC_DEC:  # the only one of earlier versions
        value["feature_converter"] = spec.feature_converter
    return json.dumps(value, sort_keys=True).encode("utf-8")


def _spec_from_json(text: bytes) -> BatchSpec:
    """The inverse of `_spec_to_json`. Raises ValueError, KeyError or TypeError for other text, and for huge batches."""
    value: dict[str, Any] = json.loads(text.decode("utf-8"))
    lengths, rows, vocab_size = value["task_feature_lengths"], value["batch_size"], value["vocab_size"]
    converter = value.get("feature_converter", ENC_DEC)
    sizes = {feature: lengths[feature] for feature in layout_of(converter).task_features}
    for number in (rows, *sizes.values(), *(() if vocab_size is None else (vocab_size,))):
        if type(number) is not int or not 1 <= number <= MAX_BATCH_BYTES:
            raise ValueError(f"{number!r} is no size")
    if not isinstance(value["packed"], bool):
        raise TypeError("packed is neither true nor false")
    spec = BatchSpec(rows, sizes, value["packed"], vocab_size, converter)
    if _batch_bytes(spec) > MAX_BATCH_BYTES:
        raise ValueError(f"a batch would have {_batch_bytes(spec):,} bytes")
    return spec
