"""Writes a checkpoint in T5X's own layout: `checkpoint` (MessagePack), and a folder of zarr for each large array."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from flax import serialization
from flax.traverse_util import flatten_dict, unflatten_dict

from t5xpg.exchange.formats.t5x_files import MESSAGE

_VERSION = 3
_MOST_CHUNK_BYTES = 64 << 20
_LARGE = 1 << 16  # numbers; an optimiser's array with more is stored in zarr, too


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
