"""A checkpoint as T5X writes it (t5x/checkpoints.py): MessagePack with what is small, zarr for the parameters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from flax import serialization

from t5xpg.interop.t5x_files import MESSAGE
from t5xpg.interop.t5x_params import flat, put
from t5xpg.models.model import Params

_VERSION = 3
_MOST_CHUNK_BYTES = 64 << 20
_LARGE = 1 << 16  # numbers; optimisers' arrays of more lie in zarr, too


def write_checkpoint(folder: Path, target: Params, step: int, param_states: Params) -> Path:
    """Write `folder/checkpoint_<step>`, which must not be there; returns it. target: float32 arrays."""
    path = folder / f"checkpoint_{step}"
    path.mkdir()
    written: dict[str, Any] = {"target": {}, "state": {"step": np.asarray(step, np.int32), "param_states": {}}}
    for name, array in flat(target):
        put(written["target"], name, _zarr(path, f"target.{name}", array))
    for name, array in flat(param_states):
        is_large = array.size > _LARGE
        kept = _zarr(path, f"state.param_states.{name}", array) if is_large else np.asarray(array)
        put(written["state"]["param_states"], name, kept)
    (path / MESSAGE).write_bytes(serialization.msgpack_serialize({"version": _VERSION, "optimizer": written}))
    return path


def _zarr(folder: Path, name: str, array: np.ndarray) -> dict[str, Any]:
    """Write an array; returns the specification by which T5X finds it, with a path that begins at the checkpoint."""
    place, array = f"{name.replace('/', '.')}/", np.ascontiguousarray(array)
    metadata = {
        "chunks": list(_chunks(array)),
        "compressor": {"id": "gzip", "level": 1},
        "dtype": array.dtype.str,
        "shape": list(array.shape),
    }
    spec = {"driver": "zarr", "metadata": metadata}
    store = {"driver": "file", "path": f"{folder}/{place}"}
    tensorstore.open({**spec, "kvstore": store}, create=True).result().write(array).result()
    kept = {key: metadata[key] for key in ("chunks", "compressor", "shape")}
    return {
        "driver": "zarr", "dtype": array.dtype.name, "kvstore": {"driver": "file", "path": place}, "metadata": kept,
    }  # fmt: skip


def _chunks(array: np.ndarray) -> tuple[int, ...]:
    """Whole rows, as many of them as 64 MiB hold."""
    if not array.ndim:
        return ()
    row = array.itemsize * math.prod(array.shape[1:])
    return (min(array.shape[0], max(1, _MOST_CHUNK_BYTES // max(row, 1))), *array.shape[1:])
