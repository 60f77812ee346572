"""The items of a checkpoint that orbax writes and reads, and their conversion from and to the values of a run."""

import functools
import hashlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import absl.logging
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from t5xpg.distributed import path_names
from t5xpg.models.layer_stack import LAYERS, Tree, layer_name, layers_as_in
from t5xpg.models.model import Params
from t5xpg.optim.state import TrainState

ARRAYS = ("params", "optimizer", "data")


def handlers() -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    """The handlers with which orbax writes and reads each item."""
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for item in ARRAYS:
        registry.add(item, ocp.args.StandardSave, ocp.StandardCheckpointHandler())
        registry.add(item, ocp.args.StandardRestore, ocp.StandardCheckpointHandler())
    for item in ("meta", "metrics"):
        handler = ocp.JsonCheckpointHandler("metrics" if item == "metrics" else None)
        registry.add(item, ocp.args.JsonSave, handler)
        registry.add(item, ocp.args.JsonRestore, handler)
    return registry


@contextmanager
def without_late_write_logs() -> Iterator[None]:
    """Suppress the tracebacks after a failed write: orbax closes an event loop that other writes call when they
    end. The error itself reaches the caller.
    """

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"):
            earlier_hook(unraisable)

    earlier_hook, sys.unraisablehook = sys.unraisablehook, hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = earlier_hook


def numpy_arrays(folder: Path, item: str) -> Any:
    """The arrays of an item of a checkpoint, nested as they were saved, without using a device."""
    reader, path = ocp.PyTreeCheckpointHandler(), folder.absolute() / item
    restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), reader.metadata(path).tree)
    return reader.restore(path, args=ocp.args.PyTreeRestore(restore_args=restore_args))


def array_metadata(folder: Path, item: str) -> dict[str, Any]:
    """The shapes and dtypes of a checkpoint's "params" or "optimizer", as nested dicts; no array is read.

    Raises ValueError, or an error of orbax, where the checkpoint has no such item.
    """
    absl.logging.set_verbosity(absl.logging.FATAL)  # orbax logs every optional file that it does not find
    with ocp.PyTreeCheckpointer() as reader:
        metadata = reader.metadata(folder.absolute() / item).item_metadata
    if metadata is None:
        raise ValueError(f"it has no {item}")
    return metadata.tree


def sha256_of_arrays(tree: Any) -> str:
    """The SHA-256 of the names, types, shapes and bytes of all arrays, each layer by itself. Copies one at a time."""
    digest = hashlib.sha256()
    leaves: dict[str, tuple[Any, int | None]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        names = path_names(path)
        if LAYERS not in names:
            leaves["/".join(names)] = leaf, None
            continue
        for index in range(leaf.shape[0]):
            layer_names = (layer_name(index) if name == LAYERS else name for name in names)
            leaves["/".join(layer_names)] = leaf, index
    for name, (leaf, layer) in sorted(leaves.items()):
        array = np.asarray(_gathered(leaf if layer is None else leaf[layer]))
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _gathered(leaf: Any) -> Any:
    """The whole array, also if other processes hold parts of it that this one does not."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return leaf
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(leaf, tiled=True)


def array_differences(expected: Mapping[str, str], stored: Mapping[str, str]) -> list[str]:
    """A line for each array that only the model or only the checkpoint has, or whose shape or type differs.

    expected, stored: the `array_types` of the model and of the checkpoint.
    """
    lines = []
    for name in sorted(stored.keys() | expected.keys()):
        if name not in stored:
            lines.append(f"{name} is not in the checkpoint: {expected[name]}")
        elif name not in expected:
            lines.append(f"{name} is in the checkpoint alone: {stored[name]}")
        elif stored[name] != expected[name]:
            lines.append(f"{name} is {stored[name]} in the checkpoint, {expected[name]} now")
    return lines


def optimizer_tree(state: TrainState) -> dict[str, Any]:
    """The step and the optimiser's arrays as nested dicts: the tuples of optax have no names on disk. Also "params",
    the trained parameters, if the item "params" of the checkpoint holds their average."""
    leaves = {path_names(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)}
    averaged = {} if state.average is None else {"params": state.params}
    return {"step": state.step, "state": unflatten_dict(leaves), **averaged}


def state_from(params: Params, optimizer: Mapping[str, Any], abstract_state: TrainState) -> TrainState:
    """The state, from a checkpoint's `params` (`TrainState.eval_params`) and its `optimizer_tree`."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(abstract_state.opt_state)
    leaves = flatten_dict(optimizer["state"])
    opt_state = jax.tree.unflatten(treedef, [leaves[path_names(path)] for path, _ in paths])
    if abstract_state.average is None:
        return TrainState(optimizer["step"], params, opt_state)
    return TrainState(optimizer["step"], optimizer["params"], opt_state, average=params)


def array_types(tree: Any) -> dict[str, str]:
    """{"encoder/layers_0/...": "float32[64, 128]"} for arrays, ShapeDtypeStructs and orbax's metadata."""
    return {
        "/".join(path_names(path)): f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def pack(data_state: Mapping[str, np.ndarray]) -> np.ndarray:
    """The arrays as the bytes of one npz file: orbax takes neither empty arrays nor arbitrary names."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{name: np.asarray(array) for name, array in data_state.items()})
    return np.frombuffer(file.getvalue(), np.uint8)


def unpack(packed: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays that `pack` was called on."""
    with np.load(io.BytesIO(packed.tobytes()), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def stored_layout(requested: Tree, stored: Mapping[str, Any]) -> Tree:
    """The arrays to read from a checkpoint: layers stacked or single as in `stored`, with the requested shardings."""
    return layers_as_in(requested, stored, _stacked_struct, _layer_struct)


def requested_layout(stored: Tree, requested: Tree) -> Tree:
    """Arrays that were read in the `stored_layout`, in the layout of `requested`. Converted arrays are deleted."""
    return layers_as_in(stored, requested, _stack_layers, _take_layer)


def _stacked_struct(layers: Sequence[jax.ShapeDtypeStruct], _: Any) -> jax.ShapeDtypeStruct:
    first = layers[0]
    spec = None if first.sharding is None else PartitionSpec(None, *first.sharding.spec)
    return _struct((len(layers), *first.shape), first, spec)


def _layer_struct(layers: jax.ShapeDtypeStruct, _index: int, _: Any) -> jax.ShapeDtypeStruct:
    spec = None if layers.sharding is None else PartitionSpec(*layers.sharding.spec[1:])
    return _struct(layers.shape[1:], layers, spec)


def _struct(shape: tuple[int, ...], like: jax.ShapeDtypeStruct, spec: PartitionSpec | None) -> jax.ShapeDtypeStruct:
    sharding = None if spec is None else NamedSharding(like.sharding.mesh, spec)
    return jax.ShapeDtypeStruct(shape, like.dtype, sharding=sharding)


def _stack_layers(layers: Sequence[jax.Array], requested: jax.ShapeDtypeStruct) -> jax.Array:
    stacked = _stack_program(requested.sharding)(*layers)
    jax.block_until_ready(stacked)
    for layer in layers:
        layer.delete()
    return stacked


def _take_layer(layers: jax.Array, index: int, requested: jax.ShapeDtypeStruct) -> jax.Array:
    return _take_program(requested.sharding)(layers, index)


# one compiled program for each kind of array, for all layers and matrices
@functools.cache
def _stack_program(sharding: Any) -> Any:
    return jax.jit(lambda *layers: jnp.stack(layers), out_shardings=sharding)


@functools.cache
def _take_program(sharding: Any) -> Any:
    return jax.jit(lambda layers, index: layers[index], out_shardings=sharding)
