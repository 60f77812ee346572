"""The user's own text: lines of text, JSON lines and parquet files, compressed or not, by split."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import json
import lzma
import re
import shlex
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import zstandard

from t5xpg.data.manifest import SPLITS
from t5xpg.errors import UserError, nearest

_EXAMPLE = 'FILES="train=texts/*.jsonl.gz validation=valid.txt test=test.txt"'
_PREFIX = re.compile(r"([A-Za-z_]+)=(.*)", re.DOTALL)
_JSON_LINES = (".jsonl", ".json", ".ndjson")
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


class _ZstandardFile(io.RawIOBase):
    """Reads all frames of a file (parallel compressors write many), and notices where the last one is cut off.

    The readers of `zstandard` stop behind the first frame, or end quietly in the middle of one.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._frame_began = False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            piece = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
                self._frame_began = False
            piece = piece or self._file.read(1 << 17)
            if not piece:
                if self._frame_began:
                    raise EOFError("the compressed text is cut off")
                return 0
            self._frame_began = True
            self._ready = self._frame.decompress(piece)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _open_zstandard(path: Path) -> IO[bytes]:
    return io.BufferedReader(_ZstandardFile(path), 1 << 17)


_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".lzma": lzma.LZMAFile,
    ".zst": _open_zstandard,
    ".zstd": _open_zstandard,
}


def parse_files(given: str | Sequence[str]) -> dict[str | None, list[Path]]:
    """The files of `FILES=`: split to paths, in the order given; the key None for files that name no split.

    `given` is words as a shell would write them, or the words themselves: `train=a.txt b.txt test=c.txt`. A word
    without a split belongs to the split before it. Paths may be patterns (`*`, `?`, `**`); their files are sorted.
    Raises UserError for a file that is not there, a split that is none, a file that is given twice.
    """
    try:
        words = shlex.split(given) if isinstance(given, str) else list(given)
    except ValueError as error:
        raise UserError(f"FILES={given}: {error}. Expected {_EXAMPLE}.") from None
    files: dict[str | None, list[Path]] = {}
    split: str | None = None
    for word in words:
        pattern = word
        match = _PREFIX.fullmatch(word)
        if match and not Path(word).exists():
            split, pattern = match.groups()
            if split not in SPLITS:
                raise UserError(f"FILES: {split!r} is not a split.{nearest(split, SPLITS)} Expected {_EXAMPLE}.")
            if None in files:
                raise UserError(f"FILES: {files[None][0]} comes before the first split. Expected {_EXAMPLE}.")
        if pattern:
            files.setdefault(split, []).extend(_matching(pattern))
    if not any(files.values()):
        raise UserError(f"FILES names no file. Expected {_EXAMPLE}.")
    seen: set[Path] = set()
    for path in (path for paths in files.values() for path in paths):
        if path.resolve() in seen:
            raise UserError(f"FILES: {path} is given twice.")
        seen.add(path.resolve())
    return files


def _matching(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        raise UserError(f"FILES: {pattern} is a folder. Expected files, for instance {pattern.rstrip('/')}/*.txt")
    found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
    found = [path for path in found if path.is_file()]
    if not found:
        raise UserError(f"FILES: there is no file {pattern}")
    return found


def texts(path: Path) -> Iterator[str]:
    """The texts of one file.

    The format comes from the name: `.jsonl`, `.json`, `.ndjson` (an object with a "text" a line), `.parquet` (a column
    "text"); anything else is text in UTF-8, a document a line. Behind it may stand `.gz`, `.bz2`, `.xz` or `.zst`.
    Raises UserError naming file and line (row for parquet) where something cannot be read.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    opener = _OPENERS.get(suffixes[-1]) if suffixes else None
    if opener:
        suffixes.pop()
    form = suffixes[-1] if suffixes else ""
    line_number = 0
    try:
        with opener(path) if opener else path.open("rb") as file:
            if form == ".parquet":
                # parquet is read from its end, which a compressed stream is slow or unable to reach
                yield from _parquet_texts(path, io.BytesIO(file.read()) if opener else file)
                return
            for line_number, line in enumerate(file, 1):
                text = _decoded(line, f"{path}:{line_number}")
                if form not in _JSON_LINES:
                    yield text
                elif text.strip():
                    yield _json_text(text, f"{path}:{line_number}")
    except _BROKEN as error:
        where = f"{path} after line {line_number}" if line_number else str(path)
        raise UserError(f"{where} cannot be read: {error or type(error).__name__}") from None


def _decoded(line: bytes, where: str) -> str:
    """A line as text, without its line end and a byte order mark."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where} is not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}). "
            "Expected text in UTF-8, or a name that says how it is packed (.gz, .bz2, .xz, .zst, .parquet)."
        ) from None
    if "\0" in text:
        raise UserError(f"{where} holds a zero byte: not a text file.")
    return text.rstrip("\r\n").removeprefix("\ufeff")


def _json_text(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise UserError(f'{where} is not JSON ({reason}). Expected one {{"text": "…"}} a line.') from None
    if not isinstance(value, dict):
        raise UserError(f'{where} holds a JSON {type(value).__name__}. Expected one {{"text": "…"}} a line.')
    if "text" not in value:
        raise UserError(f'{where} has no "text".{nearest("text", map(str, value))}')
    if not isinstance(value["text"], str):
        raise UserError(f'{where}: "text" is {type(value["text"]).__name__}, expected a string.')
    return value["text"]


def _parquet_texts(path: Path, file: IO[bytes]) -> Iterator[str]:
    # imported here: Arrow takes a while to load, and most exports do without
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
        if "text" not in table.schema_arrow.names:
            raise UserError(f'{path} has no column "text".{nearest("text", table.schema_arrow.names)}')
        row = 0
        for batch in table.iter_batches(batch_size=1024, columns=["text"]):
            for text in batch.column(0).to_pylist():
                row += 1
                if not isinstance(text, str):
                    raise UserError(f'{path} row {row}: "text" is {type(text).__name__}, expected a string.')
                yield text
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} cannot be read as parquet: {error}") from None
