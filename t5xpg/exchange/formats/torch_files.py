"""PyTorch's files of parameters (pytorch_model.bin), read without PyTorch and without running anything they say.

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
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np

from t5xpg.base.errors import UserError

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
    """Something that a pickle would import; here it is only a text."""

    text: str


@dataclass(frozen=True)
class _Storage:
    """A sequence of numbers in the file. key: its name there. count: how many numbers."""

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

    def of(self, numbers: np.ndarray) -> np.ndarray:
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
        view = np.lib.stride_tricks.as_strided(numbers[self.offset :], self.shape, strides)
        return np.ascontiguousarray(view)


class TorchFile(Mapping[str, np.ndarray]):
    """The tensors of a file by name; each is read when it is asked for.

    Raises UserError for a file that is no dict of tensors, and for one that is not whole.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _refusing(self._path):
            with path.open("rb") as file:
                is_archive = file.read(4) == b"PK\x03\x04"
            self._read: Callable[[_Storage], np.ndarray]
            described, self._read = self._archive() if is_archive else self._stream()
            if not isinstance(described, dict):
                raise ValueError(f"a {type(described).__name__} instead of a dict of tensors")
            self._tensors = {name: value for name, value in described.items() if isinstance(value, _Tensor)}
            if not self._tensors or not all(isinstance(name, str) for name in self._tensors):
                raise ValueError("no named tensors in it")

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        with _refusing(self._path):
            return tensor.of(self._read(tensor.storage))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

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
            found: dict[str, _Storage] = {}
            described = _value(file, found)
            offsets: dict[str, int] = {}
            for key in _value(file):
                storage = found[_text(key)]
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

        return described, read


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn whatever is wrong with a file's contents into one UserError."""
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
    """What the next pickle of a file describes. storages: filled with the storages that it names, by key."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    argument: Any  # pickletools gives one of every kind
    for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if count == _MOST_INSTRUCTIONS:
            raise ValueError(f"a description of more than {_MOST_INSTRUCTIONS:,} instructions")
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                marks.append(len(stack))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[opcode.name]())
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                size = int(opcode.name[-1])
                items = stack[-size:]
                del stack[-size:]
                stack.append(tuple(items))
            case "APPEND":
                last = stack.pop()
                stack[-1].append(last)
            case "APPENDS":
                more = since_mark()
                stack[-1].extend(more)
            case "SETITEM":
                item, key = stack.pop(), stack.pop()
                stack[-1][_key(key)] = item
            case "SETITEMS":
                pairs = since_mark()
                stack[-1].update(zip(map(_key, pairs[::2]), pairs[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(_Name(argument))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_Name(f"{_text(module)} {_text(name)}"))
            case "BINPERSID":
                storage = _storage(stack.pop())
                if storages is not None:
                    storages[storage.key] = storage
                stack.append(storage)
            case "REDUCE":
                arguments, called = stack.pop(), stack.pop()
                stack.append(_made(called, arguments))
            case "BUILD":
                stack.pop()  # the metadata of a dict of tensors
            case "STOP":
                return stack.pop()
            case other:
                raise ValueError(f"an instruction that no dict of tensors needs ({other})")
    raise ValueError("it ends too early")


def _text(value: Any) -> str:
    """A value that has to be a text. Others can be short in the file, by references, but endless to hash or print."""
    if not isinstance(value, str):
        raise ValueError(f"a {type(value).__name__} where a name is expected")
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


def _made(called: Any, arguments: Any) -> Any:
    """What a call in the pickle would have made; only a few functions of PyTorch are known."""
    if not isinstance(called, _Name) or called.text not in _NAMES or not isinstance(arguments, tuple):
        raise ValueError(f"it asks for {called.text if isinstance(called, _Name) else 'a call'}, which is not run")
    match called.text.split()[1]:
        case "OrderedDict" if not arguments:
            return {}
        case "_rebuild_tensor_v2" if isinstance(arguments[0], _Storage):
            return _Tensor(*arguments[:4])
        case "_rebuild_parameter" if isinstance(arguments[0], _Tensor):
            return arguments[0]
    raise ValueError(f"it calls {called.text} with something else than tensors")
