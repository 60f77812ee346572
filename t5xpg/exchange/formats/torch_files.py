"""PyTorch's files of parameters (pytorch_model.bin), read without PyTorch and without running anything they say.

Such a file describes its tensors by a pickle, which is a program. This unpickler has stand-ins for the few functions
that a dict of tensors calls, and refuses the file at any other name. Both layouts are read: the zip archive that
`torch.save` has written since 1.6, and the one before it.
"""

import contextlib
import errno
import io
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

from t5xpg.base.errors import UserError

_MAGIC = 0x1950A86A20F9469CFC6C  # what the layout without an archive begins with
_MOST_DESCRIPTION_BYTES = 64 << 20
_DTYPES: Mapping[str, np.dtype] = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(jnp.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}


class _Storage(NamedTuple):
    """Numbers in a row: what they are called in the file, their kind, how many."""

    key: str
    dtype: np.dtype
    length: int


class _Tensor(NamedTuple):
    """A view of a storage, in elements. A tuple: there is nothing in it that a pickle could change."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """The array, of all numbers of its storage. Raises ValueError where it reaches beyond them."""
        values = (self.offset, *self.shape, *self.strides)
        if not all(isinstance(value, int) and value >= 0 for value in values) or len(self.shape) != len(self.strides):
            raise ValueError("a tensor with an impossible shape")
        if 0 in self.shape:
            return np.zeros(self.shape, numbers.dtype)
        last = self.offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        if last >= numbers.size or math.prod(self.shape) > numbers.size:
            raise ValueError("a tensor that reaches beyond its numbers")
        strides = tuple(stride * numbers.itemsize for stride in self.strides)
        view = np.lib.stride_tricks.as_strided(numbers[self.offset :], self.shape, strides)
        return np.ascontiguousarray(view)


class _Description(pickle._Unpickler):
    """Reads one pickle of a file. The one in Python: that in C reserves as much memory as a broken file tells it to."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in, made anew each time; of a kind of numbers its name."""
        match module, name:
            case "collections", "OrderedDict":
                return OrderedDict
            case "torch._utils", "_rebuild_tensor_v2":
                return lambda storage, offset, shape, strides, *_: _Tensor(storage, offset, shape, strides)
            case "torch._utils", "_rebuild_parameter":
                return lambda tensor, *_: tensor
            case "torch", _ if name in _DTYPES:
                return name
        raise ValueError(f"it asks for {module} {name}, which is not run")

    def persistent_load(self, described: Any) -> _Storage:
        what, kind, key, _, count, *more = described
        dtype = _DTYPES.get(kind) if what == "storage" else None
        if dtype is None or not isinstance(key, str) or not isinstance(count, int) or count < 0 or any(more):
            raise ValueError("numbers of an unknown kind")
        storage = self.storages[key] = _Storage(key, dtype, count)
        return storage


def torch_readers(path: Path) -> dict[str, Callable[[], np.ndarray]]:
    """For each tensor of a file by name, what reads it.

    Raises UserError, as the readers do, for a file that is no dict of tensors, and for one that is not whole.
    """
    with _refusing(path):
        with path.open("rb") as file:
            is_archive = file.read(4) == b"PK\x03\x04"
        described, numbers = _archive(path) if is_archive else _stream(path)
        if not isinstance(described, dict):
            raise ValueError(f"a {type(described).__name__} instead of a dict of tensors")
        tensors = {name: value for name, value in described.items() if isinstance(value, _Tensor)}
        if not tensors or not all(isinstance(name, str) for name in tensors):
            raise ValueError("no named tensors in it")

    def read(tensor: _Tensor) -> np.ndarray:
        with _refusing(path):
            return tensor.of(numbers(tensor.storage))

    return {name: partial(read, tensor) for name, tensor in tensors.items()}


def _archive(path: Path) -> tuple[Any, Callable[[_Storage], np.ndarray]]:
    archive = zipfile.ZipFile(path)
    (description,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    folder = description.removesuffix("data.pkl")
    if f"{folder}byteorder" in archive.namelist():
        with archive.open(f"{folder}byteorder") as file:
            if file.read(16) != b"little":
                raise ValueError("numbers in big-endian order")
    if archive.getinfo(description).file_size > _MOST_DESCRIPTION_BYTES:
        raise ValueError("a description of more than 64 MiB")

    def read(storage: _Storage) -> np.ndarray:
        info = archive.getinfo(f"{folder}data/{storage.key}")
        if info.file_size != storage.length * storage.dtype.itemsize or info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{info.file_size} bytes for {storage.length} numbers of {storage.dtype}")
        return np.frombuffer(archive.read(info), storage.dtype)

    return _Description(io.BytesIO(archive.read(description))).load(), read


def _stream(path: Path) -> tuple[Any, Callable[[_Storage], np.ndarray]]:
    with path.open("rb") as file:
        if _Description(file).load() != _MAGIC:
            raise ValueError("it begins as no such file does")
        _, system = _Description(file).load(), _Description(file).load()
        if system.get("little_endian") is not True:
            raise ValueError("numbers in big-endian order")
        description = _Description(file)
        described = description.load()
        offsets: dict[str, int] = {}
        for key in _Description(file).load():
            storage = description.storages[key]
            (count,) = struct.unpack("<q", file.read(8))
            if count != storage.length:
                raise ValueError(f"{count} numbers where {storage.length} are described")
            offsets[key] = file.tell()
            file.seek(count * storage.dtype.itemsize, io.SEEK_CUR)

    def read(storage: _Storage) -> np.ndarray:
        numbers = np.fromfile(path, storage.dtype, storage.length, offset=offsets[storage.key])
        if numbers.size != storage.length:
            raise ValueError("it ends too early")
        return numbers

    return described, read


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a file becomes one message."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # that: an impossible place in it
            raise
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path} is not a whole file of tensors that PyTorch wrote: {why[:200]}.") from None
