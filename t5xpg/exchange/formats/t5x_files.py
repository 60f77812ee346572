"""Checkpoints of T5X and of Mesh-TensorFlow, read in any of their layouts, and written in T5X's own; neither program is
needed.

| layout | files of a checkpoint |
|---|---|
| T5X's own | `checkpoint` (MessagePack: small arrays, and where the others are), a folder of zarr for each of those |
| orbax in T5X | `state/` with `_METADATA`, and one store of arrays (OCDBT) or a folder of zarr for each |
| orbax of 2022 | `checkpoint` (MessagePack: names of folders as PLACEHOLDER://…), a folder of zarr for each array |
| Mesh-TensorFlow | `model.ckpt-1000000.index` and its `.data-…` |

Source: t5x/checkpoints.py, t5x/checkpoint_utils.py. Arrays have the names of T5X's train state ("target/…" the
parameters, "state/step", "state/param_states/…" the optimiser's), or those of Mesh-TensorFlow.
"""

import ast
import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jax.numpy as jnp
import numpy as np
import tensorstore
from flax import serialization
from flax.traverse_util import flatten_dict, unflatten_dict

from t5xpg.base.environment import memory_limit
from t5xpg.base.errors import UserError, first_line
from t5xpg.data.tensorflow_checkpoint import INDEX, TensorFlowCheckpoint

MESSAGE, METADATA, STATE = "checkpoint", "_METADATA", "state"
TENSORFLOW, T5X = "mesh_tensorflow", "t5x"
_OCDBT = "manifest.ocdbt"
_PLACEHOLDER = "PLACEHOLDER://"
_SPEC = {"driver", "kvstore", "metadata"}
_STEP = re.compile(r"checkpoint_(\d{1,18})")
_FILE = re.compile(rf"(^|\.){MESSAGE}(_\d{{1,18}})?$")
_SHOWN_FILES = 50
_SMALL_CHUNK = 1 << 20  # numbers
_VERSION = 3  # that is written
_MOST_CHUNK_BYTES = 64 << 20
_LARGE = 1 << 16  # numbers; an optimiser's array with more is stored in zarr, too
_OF_TENSORFLOW = b"model_checkpoint_path"


@dataclass(frozen=True)
class StoredArray:
    """An array that is read when `read` is called. missing: the names of its missing files, of many only the first."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    missing: Callable[[], Iterable[str]] = tuple


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint. path: its own. kind: TENSORFLOW or T5X. files: those that identify it, without the arrays'."""

    path: Path
    kind: str
    arrays: Mapping[str, StoredArray]
    files: tuple[Path, ...]


def require_whole(arrays: Iterable[StoredArray]) -> None:
    """Raise UserError, naming the files, where files of the arrays are missing."""
    _require_no_missing([name for array in arrays for name in array.missing()])


def _require_no_missing(missing: Sequence[str]) -> None:
    if missing:
        listed, more = ", ".join(missing[:_SHOWN_FILES]), len(missing) - _SHOWN_FILES
        listed += f", and at least {more:,} more" if more > 0 else ""
        raise UserError(f"The checkpoint is not whole: files are missing. Copy them, too: {listed}")


def holds_checkpoint(path: Path) -> bool:
    """True if a path is, or holds, a checkpoint of T5X or of TensorFlow by its files."""
    return _description_file(path) is not None


def open_checkpoint(path: Path) -> StoredCheckpoint:
    """The checkpoint at a path: its folder, its file, or a folder of several checkpoints, of which the last is opened.

    Raises UserError where there is none, or where it is not whole.
    """
    description = _description_file(path)
    if description is None:
        raise UserError(f"{path} holds no checkpoint of T5X or Mesh-TensorFlow.")
    if description.name.endswith(INDEX):
        variables = TensorFlowCheckpoint(prefix := description.with_name(description.name.removesuffix(INDEX)))
        arrays = {name: StoredArray(shape, partial(variables.read, name)) for name, shape in variables.shapes.items()}
        return StoredCheckpoint(prefix, TENSORFLOW, arrays, _files(description))
    try:
        if (description.parent / _OCDBT).is_file():
            _require_no_missing(_missing_of_store(description.parent))
        read = _arrays_of_metadata if description.name == METADATA else _arrays_of_message
        return StoredCheckpoint(description.parent, T5X, dict(read(description)), _files(description))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, SyntaxError, RecursionError) as error:
        raise UserError(
            f"{description} is not whole, or of no layout that is known ({type(error).__name__}: {first_line(error)})."
        ) from None


def _description_file(path: Path) -> Path | None:
    """The file that describes the checkpoint: `checkpoint`, `_METADATA` or `….index`."""
    if path.is_file():
        if path.name.endswith(INDEX) or path.name == METADATA:
            return path
        if _is_of_tensorflow(path):
            return _index_in(path.parent)
        return path if _FILE.search(path.name) else None
    if not path.is_dir():  # the name of TensorFlow's files without their endings
        index = path.with_name(f"{path.name}{INDEX}")
        return index if path.name and index.is_file() else None
    for folder in (path / STATE, path):
        if (folder / METADATA).is_file() and not (folder / "params").exists():
            return folder / METADATA
        if (folder / MESSAGE).is_file():
            file = folder / MESSAGE
            return _index_in(folder) if _is_of_tensorflow(file) else file
    steps = {int(match[1]): entry for entry in path.iterdir() if (match := _STEP.fullmatch(entry.name))}
    for _, entry in sorted(steps.items(), reverse=True):
        if (found := _description_file(entry)) is not None:
            return found
    return _index_in(path)


def _is_of_tensorflow(file: Path) -> bool:
    with file.open("rb") as start:
        return start.read(len(_OF_TENSORFLOW)) == _OF_TENSORFLOW


def _index_in(folder: Path) -> Path | None:
    """The index file of the TensorFlow checkpoint that the folder names as its last, or else of the highest step."""
    state_file = folder / MESSAGE
    if state_file.is_file() and _is_of_tensorflow(state_file):
        match = re.search(r'model_checkpoint_path: "([^"]+)"', state_file.read_text(encoding="utf-8", errors="replace"))
        index = folder / f"{Path(match[1]).name}{INDEX}" if match else None
        if index is not None and index.is_file():
            return index
    by_step = {
        int(match[1]): file for file in folder.glob(f"*{INDEX}") if (match := re.search(r"-(\d{1,18})\.", file.name))
    }
    return by_step[max(by_step)] if by_step else min(folder.glob(f"*{INDEX}"), default=None)


def _files(file: Path) -> tuple[Path, ...]:
    manifest = file.parent / _OCDBT
    return (file, manifest) if manifest.is_file() else (file,)


def _missing_of_store(folder: Path) -> list[str]:
    """The missing files of an OCDBT store, by its tree of keys; those below a missing part of the tree stay unknown."""
    base = tensorstore.KvStore.open({"driver": "file", "path": f"{folder}/"}).result()
    missing, nodes = set(), set()
    with contextlib.suppress(ValueError):  # damage is reported where the array is read
        entries = [version["root"] for version in tensorstore.ocdbt.dump(base).result()["versions"][-1:]]
        while entries:
            entry = entries.pop()
            location = entry.get("location", entry.get("indirect_value"))
            if location is None or location in nodes:  # the value is in the tree itself, or the node was read already
                continue
            kind, *place = location.split(":")
            file = "".join(map(unquote, place[:2]))
            if not (folder / file).exists():
                missing.add(file)
            elif kind == "btreenode":
                nodes.add(location)
                entries += tensorstore.ocdbt.dump(base, location).result()["entries"]
    return sorted(missing)


def _arrays_of_message(file: Path) -> Iterator[tuple[str, StoredArray]]:
    """The arrays of T5X's own layout, or of orbax's first one. Raises ValueError and others for any other file."""
    contents = serialization.msgpack_restore(file.read_bytes())
    if not isinstance(contents, dict):
        raise ValueError("it is no mapping")
    version = int(contents.get("version", 0))
    state = contents["optimizer"] if version else contents
    if version not in (0, 2, 3) or not isinstance(state, dict):
        raise ValueError(f"version {version}")
    for name, leaf in flatten_dict(state, is_leaf=lambda _, node: node.keys() >= _SPEC, sep="/").items():
        if isinstance(leaf, dict):  # a specification of tensorstore; the array is beside the file, wherever that was
            path = leaf["kvstore"].get("path", leaf.get("path"))
            yield name, _zarr(_inside(file.parent, str(path)), _shape(leaf["metadata"]["shape"]), None)
        elif isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
            yield name, _orbax_array(file.parent, leaf.removeprefix(_PLACEHOLDER), "zarr")
        elif isinstance(leaf, np.ndarray | np.generic | int | float):
            array = np.asarray(leaf)
            yield name, StoredArray(array.shape, lambda array=array: array)  # type: ignore[misc]


def _arrays_of_metadata(file: Path) -> Iterator[tuple[str, StoredArray]]:
    """The arrays of orbax's layout, by the description of the tree in `_METADATA`."""
    contents = json.loads(file.read_bytes())
    driver = "zarr3" if contents.get("use_zarr3") else "zarr"
    for path, entry in contents["tree_metadata"].items():
        names = [str(part["key"]) for part in entry["key_metadata"]] if "key_metadata" in entry else None
        names = [str(part) for part in ast.literal_eval(path)] if names is None else names
        if entry["value_metadata"].get("value_type") not in (None, "None", "Dict", "List", "string"):
            yield "/".join(names), _orbax_array(file.parent, ".".join(names), driver)


def _orbax_array(folder: Path, name: str, driver: str) -> StoredArray:
    """An array of orbax: in the folder's one store, or in its own folder. Raises ValueError for an impossible name."""
    if not name.isprintable():
        raise ValueError(f"an array is called {name!r}")
    if not (folder / _OCDBT).is_file():
        return _zarr(_inside(folder, name), None, None, driver)
    return _zarr(folder, None, name, driver)


def _inside(folder: Path, name: str) -> Path:
    """A folder beside the file that names it. Raises ValueError for a name that leads elsewhere."""
    last = name.rstrip("/")
    if not last.isprintable() or "/" in last or last in ("", ".", ".."):
        raise ValueError(f"an array should be in {name!r}")
    return folder / last


def _zarr(folder: Path, shape: tuple[int, ...] | None, name: str | None, driver: str = "zarr") -> StoredArray:
    """A zarr array in a folder, or by its name in the folder's OCDBT store. shape: if it is known before opening."""
    store: dict[str, Any] = {"driver": "file", "path": f"{folder}/"}
    if name is not None:
        store = {"driver": "ocdbt", "base": store, "path": f"{name}/"}

    def open_array() -> Any:
        place = folder if name is None else f"{name} in {folder}"
        spec = {"driver": driver, "kvstore": store, "fill_missing_data_reads": False}
        try:
            array = tensorstore.open(spec, open=True, read=True).result()
        except ValueError as error:
            raise UserError(f"{place} cannot be read: {first_line(error)}") from None
        chunk = _chunk(array)
        if shape not in (None, array.shape) or math.prod(chunk) > max(math.prod(array.shape), _SMALL_CHUNK):
            raise UserError(f"{place} is {array.shape} in parts of {chunk}: no such array was written with the others.")
        if (needed := math.prod(array.shape) * array.dtype.numpy_dtype.itemsize) > (memory_limit() or needed):
            raise UserError(f"{place} is {array.shape}: {needed / 2**30:,.0f} GiB, more than this machine has.")
        return array

    def missing() -> Iterator[str]:
        if name is not None or driver != "zarr":  # a store was checked as a whole; zarr3 finds them in reading
            return iter(())
        array = open_array()
        counts = map(math.ceil, np.divide(array.shape, _chunk(array)))
        separator = array.spec().to_json()["metadata"].get("dimension_separator", ".")
        files = (separator.join(map(str, index)) or "0" for index in np.ndindex(*counts))
        return islice((f"{folder.name}/{file}" for file in files if not (folder / file).exists()), _SHOWN_FILES + 1)

    def read() -> np.ndarray:
        try:
            array = open_array().read().result()
        except ValueError as error:
            raise UserError(f"{folder} is not whole: {first_line(error)}") from None
        # before June 2021 T5X wrote bfloat16 as 16-bit integers of the same bits
        return array.view(jnp.bfloat16) if array.dtype == np.uint16 else array

    return StoredArray(_shape(open_array().shape) if shape is None else shape, read, missing)


def _chunk(array: Any) -> tuple[int, ...]:
    return array.chunk_layout.write_chunk.shape or ()  # None for a single number


def _shape(sizes: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes)


def write_checkpoint(folder: Path, target: dict[str, Any], step: int, param_states: dict[str, Any]) -> Path:
    """Write `folder/checkpoint_<step>`, which must not be there; returns it. target: float32 arrays."""
    path = folder / f"checkpoint_{step}"
    path.mkdir()
    params = {name: _write_zarr(path, f"target/{name}", array) for name, array in flatten_dict(target, sep="/").items()}
    states = {
        name: _write_zarr(path, f"state/param_states/{name}", array) if array.size > _LARGE else np.asarray(array)
        for name, array in flatten_dict(param_states, sep="/").items()
    }
    state = {"step": np.asarray(step, np.int32), "param_states": unflatten_dict(states, sep="/")}
    contents = {"version": _VERSION, "optimizer": {"target": unflatten_dict(params, sep="/"), "state": state}}
    (path / MESSAGE).write_bytes(serialization.msgpack_serialize(contents))
    return path


def _write_zarr(folder: Path, name: str, array: np.ndarray) -> dict[str, Any]:
    """Write an array; returns the specification by which T5X finds it, with a path relative to the checkpoint."""
    place, array = f"{name.replace('/', '.')}/", np.ascontiguousarray(array)
    row = array.itemsize * math.prod(array.shape[1:])  # whole rows, as many of them as 64 MiB hold
    rows = [min(size, max(1, _MOST_CHUNK_BYTES // max(row, 1))) for size in array.shape[:1]]
    chunks, compressor = [*rows, *array.shape[1:]], {"id": "gzip", "level": 1}
    described = {"chunks": chunks, "compressor": compressor, "shape": list(array.shape)}
    store = {"driver": "file", "path": f"{folder}/{place}"}
    spec = {"driver": "zarr", "metadata": {**described, "dtype": array.dtype.str}, "kvstore": store}
    tensorstore.open(spec, create=True).result().write(array).result()
    store = {"driver": "file", "path": place}
    return {"driver": "zarr", "dtype": array.dtype.name, "kvstore": store, "metadata": described}
