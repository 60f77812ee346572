"""Batches in files: compact, checksummed, and any of them in constant time. NumPy and zstandard only.

A stream is two files. All numbers in them are little-endian and unsigned.

`<name>.batches`: 8 bytes of mark, then a record a batch: one byte an array, in the order of `BatchSpec.features()` (how
many bytes each of its numbers is narrowed to), then one zstd frame with the arrays in that order. Within an array stand
the low bytes of all numbers, then the next bytes of all, and so on: a tenth less than number by number, when packed.

`<name>.index`:

| bytes | hold |
|---|---|
| 8 | mark |
| 4, 4 | version of the format; length of the JSON below |
| 8, 8 | number of batches; size of `<name>.batches` |
| … | JSON: the BatchSpec |
| 32 | SHA-256 of all of the above |
| 48 a batch | offset (8), length (4) of its record; CRC-32 of the rest of the entry and its number (4); its hash (32) |

Reading trusts nothing: both sizes are compared with the files, every size is bounded before memory is taken for it, and
a batch is handed out only where its hash is the one in the index. What is wrong is a UserError with file and batch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any, Self

import numpy as np
import zstandard

from t5xpg.base.errors import UserError
from t5xpg.data.batch import ENC_DEC, Batch, BatchSpec, hash_batch, layout_of, validate

VERSION = 1
MAX_BATCH_BYTES = 1 << 30  # of the int32 arrays of one batch
_MAX_JSON_BYTES = 1 << 16
_INDEX_MARK, _BATCHES_MARK = b"t5xpgIdx", b"t5xpgBat"
_PREFIX = struct.Struct("<8sIIQQ")
_ENTRY = struct.Struct("<QII32s")
_DIGEST_BYTES = 32
_WIDTH = 4  # bytes of an int32
_LEVEL = 9  # of zstd: higher ones save 2% more at many times the work


def index_path(folder: Path, name: str) -> Path:
    """The index of the stream `name` in a folder."""
    return folder / f"{name}.index"


def batches_path(folder: Path, name: str) -> Path:
    """The batches of the stream `name` in a folder."""
    return folder / f"{name}.batches"


class StreamWriter:
    """Writes a stream, batch by batch. A context manager; the stream is one only after the block ended without error.

    Raises UserError for batches larger than MAX_BATCH_BYTES, FileExistsError where there is such a stream.
    """

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
        self._json = _spec_to_json(spec)
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._files = contextlib.ExitStack()
        self._batches = self._files.enter_context(batches_path(folder, name).open("xb"))
        self._index = self._files.enter_context(index_path(folder, name).open("xb"))
        self._batches.write(_BATCHES_MARK)
        self._index.write(bytes(_PREFIX.size + len(self._json) + _DIGEST_BYTES))  # filled in at the end

    def write(self, batch: Batch) -> str:
        """Append a batch; returns its hash. Raises ValueError for one that is not of the spec."""
        validate(batch, self.spec)
        widths, planes = [], []
        for name in self.spec.features():
            numbers = np.ascontiguousarray(batch[name], "<i4").reshape(-1)
            width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 8))
            widths.append(width)
            planes.append(numbers.view(np.uint8).reshape(-1, _WIDTH)[:, :width].T.tobytes())
        record = bytes(widths) + self._compressor.compress(b"".join(planes))
        digest = hash_batch(batch)
        self._batches.write(record)
        self._index.write(_entry(self.count, self._size, len(record), bytes.fromhex(digest)))
        self._size += len(record)
        self.count += 1
        self.bytes_per_batch = self._size / self.count + _ENTRY.size
        return digest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the header of the index, and both files to the disk, unless there was an error."""
        with self._files:
            if kind is not None:
                return
            header = _PREFIX.pack(_INDEX_MARK, VERSION, len(self._json), self.count, self._size) + self._json
            self._index.seek(0)
            self._index.write(header + hashlib.sha256(header).digest())
            for file in (self._batches, self._index):
                file.flush()
                os.fsync(file.fileno())


class StreamReader:
    """Any batch of a stream, by its number from 0. May be used by several threads.

    `remedy` ends the message of every UserError: what to do about a damaged file.
    """

    def __init__(self, folder: Path, name: str, remedy: str = "Record it again.") -> None:
        self._index, self._batches = index_path(folder, name), batches_path(folder, name)
        self._files = dict.fromkeys((self._index, self._batches), -1)  # descriptors of the open files
        self._remedy = remedy
        try:
            for path in self._files:
                self._files[path] = self._open(path)
            self._read_header()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._count

    def digest(self, number: int) -> str:
        """`hash_batch` of a batch, from the index alone."""
        return self._entry(number)[2].hex()

    def read(self, number: int) -> Batch:
        """A batch, verified. Raises UserError for one that is not as it was written, IndexError where there is none."""
        offset, length, digest = self._entry(number)
        where = f"{self._batches}, batch {number + 1} of {self._count}"
        record = self._read(self._batches, offset, length, where)
        try:
            batch = _decode(record, self.spec)
            if hash_batch(batch) != digest.hex():
                raise ValueError("it does not have the SHA-256 that the index gives")
            validate(batch, self.spec)
        except (ValueError, zstandard.ZstdError) as error:
            raise self._error(where, str(error)) from None
        return batch

    def close(self) -> None:
        """Close the files."""
        for path, handle in self._files.items():
            if handle >= 0:
                os.close(handle)
            self._files[path] = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, path: Path) -> int:
        if not path.is_file():  # a pipe or a device would be waited for
            raise self._error(str(path), "it is no regular file" if path.exists() else "it is not there")
        return os.open(path, os.O_RDONLY)

    def _read_header(self) -> None:
        where = str(self._index)
        index_size, self._batches_size = (os.fstat(handle).st_size for handle in self._files.values())
        if index_size < _PREFIX.size + _DIGEST_BYTES:
            raise self._error(where, "it is too short for an index of batches")
        prefix = self._read(self._index, 0, _PREFIX.size, where)
        mark, version, json_length, self._count, recorded_size = _PREFIX.unpack(prefix)
        if mark != _INDEX_MARK:
            raise self._error(where, "it is not an index of batches (it starts otherwise)")
        if version != VERSION:
            raise self._error(where, f"it has version {version} of the format, and this program reads {VERSION}")
        self._entries_at = _PREFIX.size + json_length + _DIGEST_BYTES
        if json_length > _MAX_JSON_BYTES or self._entries_at > index_size:
            raise self._error(where, f"its header claims a length of {json_length:,} bytes")
        described = self._read(self._index, _PREFIX.size, json_length + _DIGEST_BYTES, where)
        text, digest = described[:json_length], described[json_length:]
        if hashlib.sha256(prefix + text).digest() != digest:
            raise self._error(where, "its header does not have the SHA-256 that it gives")
        try:
            self.spec = _spec_from_json(text)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._error(where, f"its header describes no batch ({type(error).__name__}: {error})") from None
        expected_size = self._entries_at + self._count * _ENTRY.size
        sizes = [(self._index, index_size, expected_size), (self._batches, self._batches_size, recorded_size)]
        for path, size, expected in sizes:
            if size != expected:
                raise self._error(str(path), f"it has {size:,} bytes instead of {expected:,}")
        if self._read(self._batches, 0, len(_BATCHES_MARK), str(self._batches)) != _BATCHES_MARK:
            raise self._error(str(self._batches), "it holds no batches (it starts otherwise)")

    def _entry(self, number: int) -> tuple[int, int, bytes]:
        """Offset and length of the record of a batch, and the hash of the batch."""
        if not 0 <= number < self._count:
            raise IndexError(f"batch {number}: there are {self._count}")
        where = f"{self._index}, batch {number + 1} of {self._count}"
        found = self._read(self._index, self._entries_at + number * _ENTRY.size, _ENTRY.size, where)
        offset, length, _, digest = _ENTRY.unpack(found)
        if found != _entry(number, offset, length, digest):
            raise self._error(where, "its entry does not have the checksum that it gives")
        if offset + length > self._batches_size:
            raise self._error(where, f"its entry points behind the end of {self._batches.name}")
        return offset, length, digest

    def _read(self, path: Path, offset: int, length: int, where: str) -> bytes:
        if self._files[path] < 0:
            raise ValueError("the stream has been closed")
        try:
            read = os.pread(self._files[path], length, offset)
        except OSError as error:
            raise self._error(where, f"it cannot be read ({error.strerror})") from error
        if len(read) != length:
            raise self._error(where, "the file ends before it: it was cut off while it was open")
        return read

    def _error(self, where: str, problem: str) -> UserError:
        return UserError(f"{where}: {problem}. {self._remedy}")


def _entry(number: int, offset: int, length: int, digest: bytes) -> bytes:
    checksum = zlib.crc32(_ENTRY.pack(offset, length, 0, digest) + number.to_bytes(8, "little"))
    return _ENTRY.pack(offset, length, checksum, digest)


def _decode(record: bytes, spec: BatchSpec) -> Batch:
    """The batch of a record. Raises ValueError or ZstdError for anything that is not one."""
    features = spec.features()
    widths, frame = record[: len(features)], record[len(features) :]
    if len(widths) != len(features) or not all(1 <= width <= _WIDTH for width in widths):
        raise ValueError("it is not a record of its arrays")
    sizes = [math.prod(shape) for shape, _ in features.values()]
    expected = sum(size * width for size, width in zip(sizes, widths, strict=True))
    # the frame says first how much it holds: checked before the memory for it is taken
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
    """Inverse of `_spec_to_json`. Raises ValueError, KeyError or TypeError for anything else, and for huge batches."""
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
