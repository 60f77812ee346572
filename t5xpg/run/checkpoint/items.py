"""What a checkpoint is made of: the items that orbax writes, from and to the values of a run."""

import functools
import hashlib
import io
import json
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

from t5xpg.base.errors import UserError
from t5xpg.distributed import path_names
from t5xpg.models.layer_stack import LAYERS, Tree, layer_name, layers_as_in
from t5xpg.models.model import Params
from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint.folders import DIGESTS

MARK = {"digests": DIGESTS}  # in a checkpoint's metadata: digests were written for it
ARRAYS = ("params", "optimizer", "data")


def handlers() -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    """How orbax writes and reads each item."""
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
    """Suppress the tracebacks after a failed write: orbax closes an event loop that the other writes still call when
    they end. The error itself reaches the caller.
    """

    def say(unraisable: "sys.UnraisableHookArgs") -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"):
            before(unraisable)

    before, sys.unraisablehook = sys.unraisablehook, say
    try:
        yield
    finally:
        if sys.unraisablehook is say:
            sys.unraisablehook = before


def read_through(folder: Path) -> None:
    """Read all of a checkpoint that has no digests, as other programs and earlier versions write them."""
    metadata = json.loads((folder / "_CHECKPOINT_METADATA").read_bytes())
    if metadata.get("custom_metadata") == MARK:
        raise UserError(f"{DIGESTS} is missing")
    json.loads((folder / "meta" / "metadata").read_bytes())
    for item in ARRAYS:
        numpy_arrays(folder, item)


def numpy_arrays(folder: Path, item: str) -> Any:
    """The arrays of an item of a checkpoint, nested as they were saved, without using a device."""
    reader, path = ocp.PyTreeCheckpointHandler(), folder.absolute() / item
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), reader.metadata(path).tree)
    return reader.restore(path, args=ocp.args.PyTreeRestore(restore_args=as_numpy))


def arrays_of(folder: Path, item: str) -> dict[str, Any]:
    """What a checkpoint holds as "params" or "optimizer": nested dicts with shapes and dtypes; no array is read.

    Raises ValueError, or what orbax raises, where it holds none.
    """
    absl.logging.set_verbosity(absl.logging.FATAL)  # orbax logs what it looks for and does without
    with ocp.PyTreeCheckpointer() as reader:
        metadata = reader.metadata(folder.absolute() / item).item_metadata
    if metadata is None:
        raise ValueError(f"it has no {item}")
    return metadata.tree


def sha256_of_arrays(tree: Any) -> str:
    """One digest of the names, types, shapes and bytes of all arrays, each layer by itself. Copies one at a time."""
    digest = hashlib.sha256()
    parts: dict[str, tuple[Any, int | None]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        names = path_names(path)
        if LAYERS not in names:
            parts["/".join(names)] = leaf, None
            continue
        for index in range(leaf.shape[0]):
            single = (layer_name(index) if name == LAYERS else name for name in names)
            parts["/".join(single)] = leaf, index
    for name, (leaf, at) in sorted(parts.items()):
        array = np.asarray(_whole(leaf if at is None else leaf[at]))
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _whole(leaf: Any) -> Any:
    """The whole array, also if other processes hold parts of it that this one does not."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return leaf
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(leaf, tiled=True)


def array_differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """A line for each array, as `described`, that a checkpoint lacks, has alone, or has of another shape or type."""
    lines = []
    for name in sorted(found.keys() | expected.keys()):
        if name not in found:
            lines.append(f"{name} is not in the checkpoint: {expected[name]}")
        elif name not in expected:
            lines.append(f"{name} is in the checkpoint alone: {found[name]}")
        elif found[name] != expected[name]:
            lines.append(f"{name} is {found[name]} in the checkpoint, {expected[name]} now")
    return lines


def optimizer_tree(state: TrainState) -> dict[str, Any]:
    """The step and the optimiser's arrays as nested dicts: the tuples of optax have no names on disk. Also "params",
    what is trained, if the item "params" of the checkpoint holds the average."""
    leaves = {path_names(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)}
    averaged = {} if state.average is None else {"params": state.params}
    return {"step": state.step, "state": unflatten_dict(leaves), **averaged}


def state_from(params: Params, optimizer: Mapping[str, Any], abstract_state: TrainState) -> TrainState:
    """The state, from a checkpoint's `params` (`TrainState.eval_params`) and from what `optimizer_tree` made."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(abstract_state.opt_state)
    leaves = flatten_dict(optimizer["state"])
    opt_state = jax.tree.unflatten(treedef, [leaves[path_names(path)] for path, _ in paths])
    if abstract_state.average is None:
        return TrainState(optimizer["step"], params, opt_state)
    return TrainState(optimizer["step"], optimizer["params"], opt_state, average=params)


def described(tree: Any) -> dict[str, str]:
    """{"encoder/layers_0/...": "float32[64, 128]"} for arrays, ShapeDtypeStructs and orbax's metadata."""
    return {
        "/".join(path_names(path)): f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def pack(data_state: Mapping[str, np.ndarray]) -> np.ndarray:
    """Any arrays as one: orbax keeps neither empty arrays nor arbitrary names."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{name: np.asarray(array) for name, array in data_state.items()})
    return np.frombuffer(file.getvalue(), np.uint8)


def unpack(packed: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays that `pack` was called on."""
    with np.load(io.BytesIO(packed.tobytes()), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def as_stored(wanted: Tree, found: Mapping[str, Any]) -> Tree:
    """The arrays to ask a checkpoint for: the layers as in `found`, each array with the sharding of the wanted one."""
    return layers_as_in(wanted, found, _together, _single)


def as_wanted(stored: Tree, wanted: Tree) -> Tree:
    """Arrays that were read as `as_stored` says, in the layout that is wanted. What is converted is used up."""
    return layers_as_in(stored, wanted, _stack, _cut)


def _together(layers: Sequence[jax.ShapeDtypeStruct], _: Any) -> jax.ShapeDtypeStruct:
    first = layers[0]
    spec = None if first.sharding is None else PartitionSpec(None, *first.sharding.spec)
    return _described((len(layers), *first.shape), first, spec)


def _single(layers: jax.ShapeDtypeStruct, _index: int, _: Any) -> jax.ShapeDtypeStruct:
    spec = None if layers.sharding is None else PartitionSpec(*layers.sharding.spec[1:])
    return _described(layers.shape[1:], layers, spec)


def _described(shape: tuple[int, ...], like: jax.ShapeDtypeStruct, spec: PartitionSpec | None) -> jax.ShapeDtypeStruct:
    sharding = None if spec is None else NamedSharding(like.sharding.mesh, spec)
    return jax.ShapeDtypeStruct(shape, like.dtype, sharding=sharding)


def _stack(layers: Sequence[jax.Array], wanted: jax.ShapeDtypeStruct) -> jax.Array:
    stacked = _stacking(wanted.sharding)(*layers)
    jax.block_until_ready(stacked)
    for layer in layers:
        layer.delete()
    return stacked


def _cut(layers: jax.Array, index: int, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    return _cutting(wanted.sharding)(layers, index)


# of one kind of array each is one program, for all layers and matrices
@functools.cache
def _stacking(sharding: Any) -> Any:
    return jax.jit(lambda *layers: jnp.stack(layers), out_shardings=sharding)


@functools.cache
def _cutting(sharding: Any) -> Any:
    return jax.jit(lambda layers, index: layers[index], out_shardings=sharding)
