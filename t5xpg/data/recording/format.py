"""Recorded batches in a file of NumPy, `<name>.npz`, each readable in constant time. NumPy only.

The array `<number>` of the file (from 0) is a batch: its rows, with a field for each of its arrays, in the smallest
unsigned integers that hold the numbers.

Reading trusts no file: a batch has to have the checksum that the file gives and the arrays of its `BatchSpec`, which
bounds the memory. Each fault is a UserError that names file and batch.
"""

import contextlib
import io
import math
import os
import zipfile
from pathlib import Path

import numpy as np

from t5xpg.base.errors import UserError, first_line
from t5xpg.base.files import Closing
from t5xpg.data.batch import Batch, BatchSpec, validate
from t5xpg.data.spec import DatasetConfig

MAX_BATCH_BYTES = 1 << 30  # of the int32 arrays of one batch
_HEADER_BYTES = 1 << 14  # at most, of an array in the file
_ENTRY_BYTES = 120  # of a batch in the file, beside its array


def stream_path(folder: Path, name: str) -> Path:
    """The file of the stream `name` in a folder."""
    return folder / f"{name}.npz"


def require_one_shape(config: DatasetConfig) -> None:
    """Raise UserError for a stream whose batches have several shapes."""
    if config.length_buckets is not None:
        raise UserError("A recording holds batches of one shape: it takes LENGTH_BUCKETS = None.")


class StreamWriter(contextlib.AbstractContextManager["StreamWriter"]):
    """Writes a stream, batch by batch: a context manager. At its end the file is complete, or removed if there was an
    error. Raises UserError for batches larger than MAX_BATCH_BYTES, FileExistsError if the stream exists."""

    def __init__(self, folder: Path, name: str, spec: BatchSpec) -> None:
        if _batch_bytes(spec) > MAX_BATCH_BYTES:
            raise UserError(
                f"A batch of {spec.batch_size} rows has {_batch_bytes(spec):,} bytes: at most {MAX_BATCH_BYTES:,} can "
                "be recorded. Lower BATCH_SIZE or TASK_FEATURE_LENGTHS."
            )
        self.spec = spec
        self.count = 0
        self.size = 0  # of the file, about
        self._path = stream_path(folder, name)
        self._file = self._path.open("xb")
        self._archive = zipfile.ZipFile(self._file, "w")

    def write(self, batch: Batch) -> None:
        """Append a batch. Raises ValueError for a batch that does not fit the spec."""
        validate(batch, self.spec)
        fields = [(name, np.min_scalar_type(array.max(initial=0)), array.shape[1:]) for name, array in batch.items()]
        rows = np.empty(self.spec.batch_size, fields)
        for name, array in batch.items():
            rows[name] = array
        file = io.BytesIO()
        np.save(file, rows)
        entry = zipfile.ZipInfo(f"{self.count}.npy")  # without the time: the same batches are the same bytes
        self._archive.writestr(entry, file.getvalue(), zipfile.ZIP_DEFLATED)
        self.count += 1
        self.size += entry.compress_size + _ENTRY_BYTES

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the file to the disk, unless there was an error."""
        with self._file:
            if kind is None:
                self._archive.close()
                self._file.flush()
                os.fsync(self._file.fileno())
                return
            self._path.unlink()
            with contextlib.suppress(OSError):
                self._archive.close()


class StreamReader(Closing):
    """Reads any batch of a stream by its number, from 0; thread-safe. count: how many it has. remedy: ends the message
    of every UserError."""

    def __init__(self, folder: Path, name: str, count: int, remedy: str = "Record it again.") -> None:
        self._path, self._remedy = stream_path(folder, name), remedy
        if not self._path.is_file():  # reading a pipe or a device could block
            raise self._error(str(self._path), "it is no regular file" if self._path.exists() else "it is not there")
        try:
            self._archive = zipfile.ZipFile(self._path)
        except Exception as error:  # of many types
            raise self._error(str(self._path), f"it holds no batches ({first_line(error)})") from None
        if len(self) != count:
            self.close()
            raise self._error(str(self._path), f"it has {len(self)} batches instead of {count}")

    def __len__(self) -> int:
        return len(self._archive.filelist)

    def read(self, number: int, spec: BatchSpec) -> Batch:
        """A batch, verified. Raises UserError for one that is damaged or not of `spec`, IndexError beyond the last."""
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number}: there are {len(self)}")
        try:
            entry = self._archive.getinfo(f"{number}.npy")
            if entry.file_size > _batch_bytes(spec) + _HEADER_BYTES:
                raise ValueError(f"it has {entry.file_size:,} bytes, more than a batch of this stream")
            with self._archive.open(entry) as file:
                rows = np.load(io.BytesIO(file.read(entry.file_size)))
            batch = {name: rows[name].astype(np.int32) for name in spec.features()}
            validate(batch, spec)
        except Exception as error:  # of many types: the damage may be anywhere
            raise self._error(f"{self._path}, batch {number + 1} of {len(self)}", first_line(error)) from None
        return batch

    def close(self) -> None:
        """Close the file."""
        self._archive.close()

    def _error(self, where: str, problem: str) -> UserError:
        return UserError(f"{where}: {problem}. {self._remedy}")


def _batch_bytes(spec: BatchSpec) -> int:
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in spec.features().values())
