"""What a checkpoint is made of: the items that orbax writes, from and to the values of a run."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from t5xpg.checkpoint_digests import DIGESTS
from t5xpg.errors import UserError
from t5xpg.models.encoder_decoder import Params
from t5xpg.partitioning import path_names
from t5xpg.state import TrainState

MARK = {"digests": DIGESTS}  # in a checkpoint's metadata: digests were written for it
_ARRAYS = ("params", "optimizer", "data")


def handlers() -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    """How orbax writes and reads each item."""
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for item in _ARRAYS:
        registry.add(item, ocp.args.StandardSave, ocp.StandardCheckpointHandler())
        registry.add(item, ocp.args.StandardRestore, ocp.StandardCheckpointHandler())
    for item in ("meta", "metrics"):
        handler = ocp.JsonCheckpointHandler("metrics" if item == "metrics" else None)
        registry.add(item, ocp.args.JsonSave, handler)
        registry.add(item, ocp.args.JsonRestore, handler)
    return registry


@contextmanager
def late_writes_unsaid() -> Iterator[None]:
    """After a failed write orbax closes an event loop that the other writes still call when they end, each of which
    would print a traceback. The error itself reaches the caller.
    """

    def say(unraisable: sys.UnraisableHookArgs) -> None:
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
    with ocp.PyTreeCheckpointer() as reader:
        for item in _ARRAYS:
            tree = reader.metadata(folder / item).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            reader.restore(folder / item, restore_args=as_numpy)


def array_differences(expected: Any, found: Any) -> list[str]:
    """The arrays that are missing, superfluous, or of another shape or type: "name: expected …, found …"."""
    wanted, there = _descriptions(expected), _descriptions(found)
    return [
        f"{name}: expected {wanted.get(name, 'nothing')}, found {there.get(name, 'nothing')}"
        for name in sorted(wanted.keys() | there.keys())
        if wanted.get(name) != there.get(name)
    ]


def optimizer_tree(state: TrainState) -> dict[str, Any]:
    """The step and the optimiser's arrays as nested dicts: the tuples of optax have no names on disk."""
    tree: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state):
        *parents, name = path_names(path)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return {"step": state.step, "state": tree}


def state_from(params: Params, optimizer: Mapping[str, Any], abstract_state: TrainState) -> TrainState:
    """The state, from `params` and from what `optimizer_tree` made."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(abstract_state.opt_state)
    leaves = []
    for path, _ in paths:
        node = optimizer["state"]
        for name in path_names(path):
            node = node[name]
        leaves.append(node)
    return TrainState(step=optimizer["step"], params=params, opt_state=jax.tree.unflatten(treedef, leaves))


def _descriptions(tree: Any) -> dict[str, str]:
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
    """What was packed."""
    with np.load(io.BytesIO(packed.tobytes()), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
