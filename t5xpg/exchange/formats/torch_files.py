"""PyTorch's files of parameters (pytorch_model.bin), read without PyTorch and without running any code of them.

Such a file describes its tensors by a pickle, which is a program. This is no unpickler. It follows only the few
instructions that PyTorch writes for a dict of tensors (`pickletools` decodes them), makes texts, numbers, dicts and
descriptions of tensors from them, and refuses the file at any other instruction. Both layouts are read: the zip archive
that `torch.save` has written since 1.6, and the one before it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np

from t5xpg.base.errors import UserError, kind_of

_MAGIC = 0x1950A86A20F9469CFC6C  # what the layout without an archive begins with
_MOST_DESCRIPTION_BYTES = 64 << 20
_MOST_INSTRUCTIONS = 1 << 20  # some forty describe a tensor
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
_NAMES = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {name}" for name in _DTYPES),
}


@dataclass(frozen=True)
class _Name:
    """The name of a function or class that a pickle would import; it is never imported here."""

    text: str


@dataclass(frozen=True)
class _Storage:
    """A sequence of numbers in the file. key: its name there. count: the number of its numbers."""

    key: str
    dtype: np.dtype
    count: int


@dataclass(frozen=True)
class _Tensor:
    """A view of a storage. offset and strides are in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def view(self, numbers: np.ndarray) -> np.ndarray:
        """The array. numbers: all of its storage. Raises ValueError for an impossible shape or one beyond them."""
        values = (self.offset, *self.shape, *self.strides)
        if not all(isinstance(value, int) and value >= 0 for value in values) or len(self.shape) != len(self.strides):
            raise ValueError("a tensor with an impossible shape")
        if 0 in self.shape:
            return np.zeros(self.shape, numbers.dtype)
        last = self.offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        if last >= numbers.size or math.prod(self.shape) > numbers.size:
            raise ValueError("a tensor that reaches beyond its numbers")
        strides = tuple(stride * numbers.itemsize for stride in self.strides)
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(numbers[self.offset :], self.shape, strides))


class LazyTensors(Mapping[str, np.ndarray]):
    """Tensors by name; each is read when it is asked for."""

    def __init__(self, readers: Mapping[str, Callable[[], np.ndarray]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(self._readers[name]())

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


class TorchFile(LazyTensors):
    """The tensors of a file. Raises UserError for a file that is no dict of tensors, and for one that is not whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _refusing(self._path):
            with path.open("rb") as file:
                is_archive = file.read(4) == b"PK\x03\x04"
            self._read: Callable[[_Storage], np.ndarray]
            contents, self._read = self._archive() if is_archive else self._stream()
            if not isinstance(contents, dict):
                raise ValueError(f"{kind_of(contents)} instead of a dict of tensors")
            tensors = {name: value for name, value in contents.items() if isinstance(value, _Tensor)}
            if not tensors or not all(isinstance(name, str) for name in tensors):
                raise ValueError("no named tensors in it")
        super().__init__({name: partial(self._array, tensor) for name, tensor in tensors.items()})

    def _array(self, tensor: _Tensor) -> np.ndarray:
        with _refusing(self._path):
            return tensor.view(self._read(tensor.storage))

    def _archive(self) -> tuple[Any, Callable[[_Storage], np.ndarray]]:
        archive = zipfile.ZipFile(self._path)
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
            if info.file_size != storage.count * storage.dtype.itemsize or info.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{info.file_size} bytes for {storage.count} numbers of {storage.dtype}")
            return np.frombuffer(archive.read(info), storage.dtype)

        return _value(io.BytesIO(archive.read(description))), read

    def _stream(self) -> tuple[Any, Callable[[_Storage], np.ndarray]]:
        with self._path.open("rb") as file:
            if _value(file) != _MAGIC:
                raise ValueError("it begins as no such file does")
            _, system = _value(file), _value(file)
            if system.get("little_endian") is not True:
                raise ValueError("numbers in big-endian order")
            storages: dict[str, _Storage] = {}
            tensors = _value(file, storages)
            offsets: dict[str, int] = {}
            for key in _value(file):
                storage = storages[_text(key)]
                (count,) = struct.unpack("<q", file.read(8))
                if count != storage.count:
                    raise ValueError(f"{count} numbers where {storage.count} are described")
                offsets[key] = file.tell()
                file.seek(count * storage.dtype.itemsize, io.SEEK_CUR)

        def read(storage: _Storage) -> np.ndarray:
            numbers = np.fromfile(self._path, storage.dtype, storage.count, offset=offsets[storage.key])
            if numbers.size != storage.count:
                raise ValueError("it ends too early")
            return numbers

        return tensors, read


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn any error in a file's contents into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: an impossible place in it
            raise
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path} is not a whole file of tensors that PyTorch wrote: {why[:200]}.") from None


def _value(file: BinaryIO, storages: dict[str, _Storage] | None = None) -> Any:
    """The value that the next pickle of a file describes. storages: filled with the storages that it names, by key."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    argument: Any  # pickletools gives one of every kind
    for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if count == _MOST_INSTRUCTIONS:
            raise ValueError(f"a description of more than {_MOST_INSTRUCTIONS:,} instructions")
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                marks.append(len(stack))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "BINPERSID":
                storage = _storage(stack.pop())
                if storages is not None:
                    storages[storage.key] = storage
                stack.append(storage)
            case "BUILD":
                stack.pop()  # the metadata of a dict of tensors
            case "APPEND" | "APPENDS" as name:  # the last values of the stack go into the list before them
                items = _take(stack, -1 if name == "APPEND" else marks.pop())
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS" as name:  # or into the dict
                items = _take(stack, -2 if name == "SETITEM" else marks.pop())
                stack[-1].update(zip(map(_key, items[::2]), items[1::2], strict=True))
            case "NONE" | "NEWTRUE" | "NEWFALSE" as name:
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE" as name:
                stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "TUPLE":
                stack.append(tuple(_take(stack, marks.pop())))
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                stack.append(tuple(_take(stack, -int(name[-1]))))
            case "GLOBAL":
                stack.append(_Name(argument))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_Name(f"{_text(module)} {_text(name)}"))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_call_result(function, arguments))
            case "STOP":
                return stack.pop()
            case name:
                raise ValueError(f"an instruction that no dict of tensors needs ({name})")
    raise ValueError("it ends too early")


def _take(stack: list[Any], start: int) -> list[Any]:
    """Remove the values from `start` on; returns them."""
    items = stack[start:]
    del stack[start:]
    return items


def _text(value: Any) -> str:
    """The value, which must be a text. Others can be short in the file, by references, but endless to hash or print."""
    if not isinstance(value, str):
        raise ValueError(f"{kind_of(value)} where a name is expected")
    return value


def _key(value: Any) -> str | int:
    """A key of a dict."""
    return value if isinstance(value, int) else _text(value)


def _storage(described: Any) -> _Storage:
    if not isinstance(described, tuple) or len(described) < 5 or described[0] != "storage":
        raise ValueError("a reference to something that is no numbers")
    _, kind, key, _, count, *more = described
    dtype = _DTYPES.get(kind.text.removeprefix("torch ")) if isinstance(kind, _Name) else None
    if dtype is None or not isinstance(key, str) or not isinstance(count, int) or count < 0 or any(more):
        raise ValueError("numbers of an unknown kind")
    return _Storage(key, dtype, count)


def _call_result(function: Any, arguments: Any) -> Any:
    """The result of a call in the pickle. Raises ValueError for all but a few functions of PyTorch."""
    if not isinstance(function, _Name) or function.text not in _NAMES or not isinstance(arguments, tuple):
        raise ValueError(f"it asks for {function.text if isinstance(function, _Name) else 'a call'}, which is not run")
    match function.text.split()[1]:
        case "OrderedDict" if not arguments:
            return {}
        case "_rebuild_tensor_v2" if isinstance(arguments[0], _Storage):
            return _Tensor(*arguments[:4])
        case "_rebuild_parameter" if isinstance(arguments[0], _Tensor):
            return arguments[0]
    raise ValueError(f"it calls {function.text} with something else than tensors")
