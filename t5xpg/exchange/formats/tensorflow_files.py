"""TensorFlow's checkpoints of variables (`model.ckpt-1000.index`, `.data-00000-of-00001`), read without TensorFlow.

The index is a sorted table in the format of LevelDB, whose blocks hold names and protocol buffers: the header under the
empty name, then for every variable its type, its shape, and where its bytes are in which data file. Source:
tensorflow/core/util/tensor_bundle and tensorflow/core/lib/io/table. Partitioned variables are refused: Mesh-TensorFlow
writes none.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import jax.numpy as jnp
import numpy as np

from t5xpg.base.errors import UserError

INDEX = ".index"
_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_MOST_INDEX_BYTES = 64 << 20
# tensorflow.DataType
_DTYPES: Mapping[int, np.dtype] = {
    1: np.dtype("<f4"), 2: np.dtype("<f8"), 3: np.dtype("<i4"), 9: np.dtype("<i8"), 14: np.dtype(jnp.bfloat16),
    19: np.dtype("<f2"),
}  # fmt: skip
_PLAIN, _SNAPPY = 0, 1  # how a block is compressed
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protocol buffers


@dataclass(frozen=True)
class Variable:
    """Where one is. dtype: TensorFlow's number of it; crc: of the bytes, as TensorFlow masks it."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


class TensorFlowCheckpoint(Mapping[str, np.ndarray]):
    """The variables of a checkpoint by name, each read when it is asked for, and compared with its checksum.

    prefix: the path without `.index`. Raises UserError where the files are not there, not whole, or of no such format.
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        index = prefix.with_name(f"{prefix.name}{INDEX}")
        try:
            self.variables, self._shards = _read_index(index.read_bytes()[: _MOST_INDEX_BYTES + 1])
        except FileNotFoundError:
            raise UserError(f"There is no {index}: expected the files of a TensorFlow checkpoint.") from None
        except (ValueError, IndexError, struct.error) as error:
            raise UserError(f"{index} is no index of a TensorFlow checkpoint, or not whole ({error}).") from None

    def __getitem__(self, name: str) -> np.ndarray:
        found = self.variables[name]
        dtype = _DTYPES.get(found.dtype)
        if dtype is None:
            raise UserError(f"{name} in {self._prefix} has TensorFlow's type number {found.dtype}, which is no number.")
        file = self.data_file(found.shard)
        if found.size != math.prod(found.shape) * dtype.itemsize:
            raise UserError(f"{self._prefix}{INDEX} says that {name} is {found.shape} in {found.size} bytes.")
        try:
            with file.open("rb") as data:
                data.seek(found.offset)
                given = data.read(found.size)
        except FileNotFoundError:
            raise UserError(f"There is no {file}, which holds {name}. Copy or download it, too.") from None
        except (OSError, OverflowError) as error:
            raise UserError(f"{name} cannot be read from {file}: {error}.") from None
        if len(given) != found.size or _masked(google_crc32c.value(given)) != found.crc:
            raise UserError(f"{name} in {file} is not what was written: the file is damaged or not whole.")
        return np.frombuffer(given, dtype).reshape(found.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def data_file(self, shard: int) -> Path:
        """The file of one part of the data."""
        return self._prefix.with_name(f"{self._prefix.name}.data-{shard:05}-of-{self._shards:05}")

    def data_files(self) -> list[Path]:
        """All of them."""
        return [self.data_file(shard) for shard in range(self._shards)]


def _masked(crc: int) -> int:
    """A CRC-32C as TensorFlow stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _read_index(data: bytes) -> tuple[dict[str, Variable], int]:
    """Variables by name, and the number of data files. Raises ValueError, IndexError or struct.error."""
    if len(data) > _MOST_INDEX_BYTES:
        raise ValueError(f"it has more than {_MOST_INDEX_BYTES:,} bytes")
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("its end is not that of a table")
    _, at = _handle(data, len(data) - _FOOTER)  # of the block of other blocks, which TensorFlow leaves empty
    (start, size), _ = _handle(data, at)
    variables: dict[str, Variable] = {}
    shards = 0
    for _, handle in _block(data, start, size):
        for key, value in _block(data, *_handle(handle, 0)[0]):
            if key:
                variables[key.decode("utf-8")] = _variable(key, value)
            else:
                header = _fields(value)
                shards = _number(header, 1)
                if _number(header, 2):
                    raise ValueError("its numbers are big-endian")
    if not 1 <= shards <= 99_999:
        raise ValueError(f"it names {shards} data files")
    return variables, shards


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    start, at = _varint(data, at)
    size, at = _varint(data, at)
    return (start, size), at


def _block(data: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; each key says how much of the one before it it begins with."""
    block = data[start : start + size]
    if len(block) != size or len(data) < start + size + 5:
        raise ValueError("a block is beyond its end")
    kind, (crc,) = data[start + size], struct.unpack_from("<I", data, start + size + 1)
    if _masked(google_crc32c.value(data[start : start + size + 1])) != crc:
        raise ValueError("a block is damaged")
    if kind not in (_PLAIN, _SNAPPY):
        raise ValueError("a block is compressed in an unknown way")
    if kind == _SNAPPY:
        block = unpacked(block)
    (restarts,) = struct.unpack("<I", block[-4:])
    end, at, key = len(block) - 4 - 4 * restarts, 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        if shared > len(key) or at + own + length > end:
            raise ValueError("an entry is beyond its block")
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + length]
        at += own + length


def unpacked(data: bytes) -> bytes:
    """What Snappy has compressed. Raises ValueError or IndexError for what it has not.

    A length, then elements: bytes as they are, or a copy of what came before (google/snappy, format_description.txt).
    """
    length, at = _varint(data, 0)
    if length > _MOST_INDEX_BYTES:
        raise ValueError("a block is too large")
    made = bytearray()
    while at < len(data):
        tag, at = data[at], at + 1
        if tag & 3 == 0:
            count = tag >> 2
            if count >= 60:  # the length itself follows, in one to four bytes
                wide = count - 59
                count, at = int.from_bytes(data[at : at + wide], "little"), at + wide
            made += data[at : at + count + 1]
            at += count + 1
        else:
            wide = (1, 2, 4)[(tag & 3) - 1]
            back, at = int.from_bytes(data[at : at + wide], "little"), at + wide
            count = (tag >> 2) + 1
            if wide == 1:
                back, count = back | tag >> 5 << 8, (tag >> 2 & 7) + 4
            if not 1 <= back <= len(made):
                raise ValueError("a block copies what is not there")
            piece = bytes(made[-back:])
            made += (piece * (count // back + 1))[:count]  # it may reach into what it is writing
        if len(made) > length:
            raise ValueError("a block is larger than it says")
    if len(made) != length or at > len(data):
        raise ValueError("a block ends too early")
    return bytes(made)


def _variable(key: bytes, value: bytes) -> Variable:
    fields = _fields(value)
    if 7 in fields:
        raise ValueError(f"{key!r} is a partitioned variable")
    sizes = []
    for shape in fields.get(2, []):
        for dimension in _fields(_as_bytes(shape)).get(2, []):
            sizes.append(_number(_fields(_as_bytes(dimension)), 1))
    if any(size >= 1 << 48 for size in sizes):
        raise ValueError(f"{key!r} has an impossible shape")
    return Variable(_number(fields, 1), tuple(sizes), *(_number(fields, number) for number in (3, 4, 5, 6)))


def _fields(message: bytes) -> dict[int, list[int | bytes]]:
    """The fields of a protocol buffer by number."""
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value: int | bytes
        if tag & 7 == _VARINT:
            value, at = _varint(message, at)
        elif tag & 7 == _BYTES:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        elif tag & 7 in (_FIXED32, _FIXED64):
            size = 4 if tag & 7 == _FIXED32 else 8
            value, at = int.from_bytes(message[at : at + size], "little"), at + size
        else:
            raise ValueError("a protocol buffer has a field of an unknown kind")
        if at > len(message):
            raise ValueError("a protocol buffer ends too early")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _number(fields: Mapping[int, list[int | bytes]], number: int) -> int:
    """A field that is left out is 0."""
    value = fields[number][-1] if number in fields else 0
    if not isinstance(value, int):
        raise ValueError("a protocol buffer has bytes where a number belongs")
    return value


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a protocol buffer has a number where a message belongs")
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
