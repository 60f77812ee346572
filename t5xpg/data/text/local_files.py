"""The user's files: found by FILES=, unpacked, and read by lines or by rows of parquet."""

import bz2
import difflib
import glob
import gzip
import io
import itertools
import lzma
import os
import re
import shlex
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.data.text.lines import LONGEST_LINE, bounded_lines
from t5xpg.data.text.manifest import SPLITS

_EXAMPLE = 'FILES="train=texts/*.jsonl.gz validation=valid.txt test=test.txt"'
_PREFIX = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL | re.ASCII)
_NUMBERED = re.compile(rf"({'|'.join(SPLITS)})[_0-9]")
JSON_LINES = (".jsonl", ".json", ".ndjson")
PARQUET = ".parquet"
_BATCH = 2**30  # most bytes of parquet texts that are held at once, unless a single one is larger
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)


def _open_zstandard(path: Path) -> IO[bytes]:
    """All frames of a file: parallel compressors write many. OSError if the last one is cut off."""
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"), 1 << 17)


_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".lzma": lzma.LZMAFile,
    ".zst": _open_zstandard,
    ".zstd": _open_zstandard,
}


def parse_files(option: str | Sequence[str]) -> dict[str | None, list[Path]]:
    """The files of `FILES=`: split to paths, in their order; the key None for files without a split.

    option: words, or a shell's line of them: `train=a.txt b.txt test=c.txt`. A file without a split belongs to the
    split before it; any name can be that of a split. Patterns (`*`, `?`, `**`) give sorted files. Raises UserError for
    a file that is missing or named twice, and for a split whose name is almost that of another.
    """
    try:
        words = shlex.split(option) if isinstance(option, str) else list(option)
    except ValueError as error:
        raise UserError(f"FILES={option}: {error}. Expected {_EXAMPLE}.") from None
    files: dict[str | None, list[Path]] = {}
    split: str | None = None
    for index, word in enumerate(words):
        pattern = word
        match = _PREFIX.fullmatch(word)
        if match and not os.path.exists(word) and (match[1] in SPLITS or not glob.glob(word)):
            split, pattern = match.groups()
            if split not in SPLITS and difflib.get_close_matches(split, SPLITS) and not _NUMBERED.match(split):
                raise UserError(
                    f"FILES: the split {split!r} is named almost as another one.{nearest(split, SPLITS)} Names of "
                    f"other splits are free, as test_2016. Expected {_EXAMPLE}."
                )
            if None in files:
                raise UserError(f"FILES: {files[None][0]} comes before the first split. Expected {_EXAMPLE}.")
        if pattern:
            try:
                files.setdefault(split, []).extend(_matching(pattern))
            except UserError as error:
                longer = itertools.accumulate([pattern, *words[index + 1 :]], "{} {}".format)
                spaced = next(filter(glob.glob, itertools.islice(longer, 1, None)), None)
                if spaced is None:
                    raise
                quoted = (f"{split}=" if pattern != word else "") + shlex.quote(spaced)
                raise UserError(f'{error}. A name with spaces needs quotes: FILES="{quoted}"') from None
    if not any(files.values()):
        raise UserError(f"FILES names no file. Expected {_EXAMPLE}.")
    seen: set[Path] = set()
    for path in (path for paths in files.values() for path in paths):
        if path.resolve() in seen:
            raise UserError(f"FILES: {path} is given twice.")
        seen.add(path.resolve())
    return files


def _matching(pattern: str) -> list[Path]:
    try:
        path = Path(pattern).expanduser()
        if path.is_file():
            return [path]
        if path.is_dir():
            raise UserError(f"FILES: {pattern} is a folder. Expected files, for instance {pattern.rstrip('/')}/*.txt")
        if path.is_symlink():
            raise UserError(f"FILES: {pattern} is a link to {path.readlink()}, which is not there.")
        if path.exists():
            raise UserError(f"FILES: {pattern} is no regular file (a pipe or a device). Write it to a file first.")
        paths = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
    except (ValueError, OSError, RuntimeError) as error:  # a zero byte, too long a name, ~ of an unknown user
        raise UserError(f"FILES: {pattern} cannot be looked up: {getattr(error, 'strerror', None) or error}.") from None
    matches = [path for path in paths if path.is_file()]
    if not matches:
        raise UserError(f"FILES: there is no file {pattern}")
    return matches


def form_of(path: Path) -> str:
    """The ending for a file's format, such as ".jsonl", without that of its compression; "" without an ending."""
    suffixes = ["", *(suffix.lower() for suffix in path.suffixes)]
    return suffixes[-2] if suffixes[-1] in _OPENERS else suffixes[-1]


def numbered_lines(path: Path) -> Iterator[tuple[bytes | None, str]]:
    """Yields the lines of a file, unpacked, and their places: "a.txt.gz:3". UserError if it cannot be read on."""
    line_number = 0
    try:
        with _open(path) as file:
            for line_number, line in enumerate(bounded_lines(file), 1):
                yield line, f"{path}:{line_number}"
    except _BROKEN as error:
        raise _cannot_be_read(path, error, line_number) from None


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[tuple[Any, ...] | None, str]]:
    """Yields columns of a parquet file by rows, and the rows' places. UserError for missing columns and damage.

    None for a row that is alone in its row group and too long by the metadata: it is not read. Other rows are at most
    as long as their whole row group, which bounds the number read at once. Arrow also holds whole pages (each up to 2
    GiB, by the format); their sizes, and errors in the metadata, are not known before they are read.
    """
    # imported here: Arrow takes a while to load, and most exports do without
    import pyarrow
    import pyarrow.parquet

    try:
        with _open(path) as file:
            # parquet is read from its end, which a compressed stream is slow or unable to reach
            is_packed = path.suffix.lower() in _OPENERS
            source = io.BytesIO(file.read()) if is_packed else file
            table = pyarrow.parquet.ParquetFile(source, buffer_size=2**20, pre_buffer=False)
            names = table.schema_arrow.names
            for column in columns:
                if names.count(column) > 1:
                    raise UserError(f'{path} has {names.count(column)} columns "{column}": expected one.')
                if column not in names:
                    raise UserError(f'{path} has no column "{column}".{nearest(column, names)}')
            for number, row in enumerate(_rows(table, columns), 1):
                yield row, f"{path} row {number}"
    except (pyarrow.ArrowException, UnicodeDecodeError, OverflowError) as error:  # the last two: of a value
        raise UserError(f"{path} cannot be read as parquet: {error}") from None
    except _BROKEN as error:
        raise _cannot_be_read(path, error) from None


def _rows(table: Any, columns: Sequence[str]) -> Iterator[tuple[Any, ...] | None]:
    paths = tuple(f"{column}." for column in columns)  # the path of a list in a column is longer
    for number in range(table.num_row_groups):
        group = table.metadata.row_group(number)
        chunks = [group.column(index) for index in range(group.num_columns)]
        size = sum(chunk.total_uncompressed_size for chunk in chunks if f"{chunk.path_in_schema}.".startswith(paths))
        if group.num_rows == 1 and size > 4 * LONGEST_LINE * len(columns):  # characters have up to four bytes
            yield None
            continue
        for batch in table.iter_batches(max(1, min(1024, _BATCH // max(1, size))), [number], list(columns)):
            yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


def _open(path: Path) -> Any:
    opener = _OPENERS.get(path.suffix.lower())
    return opener(path) if opener else path.open("rb")


def _cannot_be_read(path: Path, error: BaseException, line_number: int = 0) -> UserError:
    where = f"{path} after line {line_number}" if line_number else str(path)
    return UserError(f"{where} cannot be read: {error or type(error).__name__}")
