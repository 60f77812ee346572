"""Records sorted by their SHA-256, and the TFRecord files that they are dealt out to, in limited memory."""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import google_crc32c

MEMORY_LIMIT = 64 << 20  # bytes that `DigestSorter` keeps in memory before it writes them to its files
BUFFER_LIMIT = 32 << 20  # bytes that `deal` collects before it appends them to the TFRecord files
_OVERHEAD = 200  # bytes that Python needs for a record besides its own
_DIGEST = 32
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")


class DigestSorter:
    """Takes records in any order and yields them in the order of their SHA-256: an external sort, with a file in
    `folder` for each first byte of a digest. `folder` is empty or missing. memory_limit: bytes."""

    def __init__(self, folder: Path, memory_limit: int = MEMORY_LIMIT) -> None:
        self._folder, self._limit = folder, memory_limit
        self._buffer: list[tuple[bytes, bytes]] = []
        self._size = 0
        self._files: set[int] = set()

    def add(self, records: Sequence[bytes]) -> None:
        """Take records."""
        self._buffer += [(hashlib.sha256(record).digest(), record) for record in records]
        self._size += sum(map(len, records)) + _OVERHEAD * len(records)
        if self._size > self._limit:
            self._write()

    def __iter__(self) -> Iterator[bytes]:
        """Yields the records in their order, once: their files are removed on the way."""
        if not self._files:
            yield from self._sorted(self._buffer)
            return
        self._write()
        for number in sorted(self._files):
            path = self._path(number)
            records = list(_records(path))
            path.unlink()
            yield from self._sorted(records)
        self._folder.rmdir()

    def _sorted(self, records: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
        records.sort(key=lambda pair: pair[0], reverse=True)
        while records:
            yield records.pop()[1]

    def _write(self) -> None:
        self._folder.mkdir(exist_ok=True)
        parts: dict[int, list[bytes]] = {}
        for digest, record in self._buffer:
            parts.setdefault(digest[0], []).extend((_LENGTH.pack(len(record)), digest, record))
        for number, part in parts.items():
            with self._path(number).open("ab") as file:
                file.writelines(part)
        self._files |= parts.keys()
        self._buffer, self._size = [], 0

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:03}"


def _records(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yields the digests and records of a file of the sorter."""
    with path.open("rb") as file:
        while header := file.read(_LENGTH.size + _DIGEST):
            yield header[_LENGTH.size :], file.read(_LENGTH.unpack_from(header)[0])


def deal(records: Iterator[bytes], paths: Sequence[Path], buffer_limit: int = BUFFER_LIMIT) -> None:
    """Deal records to new TFRecord files in turn. One is open at a time, as there may be thousands."""
    for path in paths:
        path.open("xb").close()
    buffers: list[list[bytes]] = [[] for _ in paths]
    size = 0
    for number, record in enumerate(records):
        buffers[number % len(paths)].append(framed(record))
        size += len(record) + _OVERHEAD
        if size > buffer_limit:
            _append(buffers, paths)
            size = 0
    _append(buffers, paths)


def _append(buffers: list[list[bytes]], paths: Sequence[Path]) -> None:
    for path, records in zip(paths, buffers, strict=True):
        if records:
            with path.open("ab") as file:
                file.writelines(records)
            records.clear()


def framed(record: bytes) -> bytes:
    """A record in the format of TFRecord files: its length and its bytes, each followed by a checksum."""
    length = _LENGTH.pack(len(record))
    return b"".join((length, _masked_crc(length), record, _masked_crc(record)))


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return _CHECKSUM.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
