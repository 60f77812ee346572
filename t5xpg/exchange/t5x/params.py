"""Parameters in T5X's layouts, as this project has them (`t5x_networks` is the way back).

This project's names are those of T5X's minimal network (`t5x.examples.t5`): there a tree is the same tree. Its scalable
one (`t5x.examples.scalable_t5`) has a table of relative positions in every layer, matrices of attention with an axis
for the heads ([D, H, K], [H, K, D]), and by default all layers of a stack in one array, along its second axis or
another one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from flax import serialization

from t5xpg.base.errors import UserError, nearest
from t5xpg.exchange.formats.t5x_files import MESSAGE, TENSORFLOW, StoredArray, StoredCheckpoint
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Params

TARGET, PARAM_STATES, STEP = "target", "state/param_states", "state/step"
_SLOTS = {"_slot_vc": "v_col", "_slot_vr": "v_row", "_slot_v": "v", "_slot_m": "m"}
_MATRICES = {"q": "query", "k": "key", "v": "value", "o": "out"}
_ATTENTIONS = {
    ("encoder", "SelfAttention"): "attention",
    ("decoder", "SelfAttention"): "self_attention",
    ("decoder", "EncDecAttention"): "encoder_decoder_attention",
}
_NORMS = {
    "encoder": ("pre_attention_layer_norm", "pre_mlp_layer_norm"),
    "decoder": ("pre_self_attention_layer_norm", "pre_cross_attention_layer_norm", "pre_mlp_layer_norm"),
}
_BLOCK = r"(?P<stack>encoder|decoder)/block_(?P<block>\d{1,6})/layer_(?P<layer>\d{1,6})"
_SLOT = r"(?P<slot>_slot_\w+)?"


def _of_attention(found: Mapping[str, str]) -> str | None:
    attention = _ATTENTIONS.get((found["stack"], found["attention"]))
    return attention and f"{_of_layer(found)}/{attention}/{_MATRICES[found['matrix']]}/kernel"


def _of_norm(found: Mapping[str, str]) -> str | None:
    names, layer = _NORMS[found["stack"]], int(found["layer"])
    return f"{_of_layer(found)}/{names[layer]}/scale" if layer < len(names) else None


def _of_layer(found: Mapping[str, str]) -> str:
    return f"{found['stack']}/layers_{int(found['block'])}"


_RULES: tuple[tuple[re.Pattern[str], Callable[[Mapping[str, str]], str | None]], ...] = (
    (re.compile(rf"shared/embedding{_SLOT}"), lambda found: "token_embedder/embedding"),
    (re.compile(rf"decoder/logits/kernel{_SLOT}"), lambda found: "decoder/logits_dense/kernel"),
    (
        re.compile(rf"(?P<stack>encoder|decoder)/(final_layer|rms)_norm/scale{_SLOT}"),
        lambda found: f"{found['stack']}/{found['stack']}_norm/scale",
    ),
    (re.compile(rf"{_BLOCK}/(layer|rms)_norm/scale{_SLOT}"), _of_norm),
    (re.compile(rf"{_BLOCK}/(?P<attention>SelfAttention|EncDecAttention)/(?P<matrix>[qkvo]){_SLOT}"), _of_attention),
    (
        re.compile(rf"{_BLOCK}/SelfAttention/relative_attention_bias{_SLOT}"),
        lambda found: f"{_of_layer(found)}/relpos_bias/rel_embedding",
    ),
    (
        re.compile(rf"{_BLOCK}/DenseReluDense/(?P<matrix>wi|wi_\d|wo)/kernel{_SLOT}"),
        lambda found: f"{_of_layer(found)}/mlp/{found['matrix']}/kernel",
    ),
)


def of_mesh_tensorflow(name: str) -> str | None:
    """T5X's name of a variable; None for one that T5X has not.

    Tables of relative positions are said to be their layer's; `shared_positions` mends that where the first layer's
    is the only one, as in all of T5's.
    """
    if name == "global_step":
        return STEP
    for pattern, rule in _RULES:
        if found := pattern.fullmatch(name):
            parts = {key: value or "" for key, value in found.groupdict().items()}
            slot = parts["slot"]
            ours = rule(parts)
            if ours is None or (slot and slot not in _SLOTS):
                return None
            return f"{PARAM_STATES}/{ours}/{_SLOTS[slot]}" if slot else f"{TARGET}/{ours}"
    return None


def shared_positions(names: Mapping[str, str]) -> dict[str, str]:
    """The same names, with one table of relative positions for each stack where only the first layers have one.

    names: {Mesh-TensorFlow's: T5X's}.
    """
    layers = {int(found[1]) for name in names.values() if (found := re.search(r"/layers_(\d+)/relpos_bias/", name))}
    if layers != {0}:
        return dict(names)
    return {theirs: re.sub(r"/layers_0/relpos_bias/", "/relpos_bias/", ours) for theirs, ours in names.items()}


SCAN_AXIS = 1  # of T5X's scalable network by default
STACKS = ("encoder", "decoder")
_EMBEDDING, _HEAD = "token_embedder/embedding", "decoder/logits_dense/kernel"
_DISTANCE = 128  # how far relative positions reach in all of T5


@dataclass(frozen=True)
class StoredState:
    """A checkpoint by T5X's names of the train state. scan_axis: of arrays that hold all layers, None without them."""

    arrays: Mapping[str, StoredArray]
    scan_axis: int | None

    def params(self) -> dict[str, StoredArray]:
        """The parameters, by their names without "target/"."""
        return {name.removeprefix(f"{TARGET}/"): array for name, array in self.arrays.items() if _is_param(name)}


def state_of(checkpoint: StoredCheckpoint) -> StoredState:
    """What a checkpoint holds, whichever program wrote it. Raises UserError where it is no T5."""
    arrays = dict(checkpoint.arrays)
    if checkpoint.kind == TENSORFLOW:
        named = {name: of_mesh_tensorflow(name) for name in arrays}
        if unknown := sorted(name for name, ours in named.items() if ours is None):
            raise UserError(f"{checkpoint.path} has variables that T5 has not: {_some(unknown)}.")
        ours = shared_positions({name: str(value) for name, value in named.items()})
        arrays = {ours[name]: array for name, array in arrays.items()}
    if f"{TARGET}/{_EMBEDDING}" not in arrays:
        _say_what_it_is(checkpoint, arrays)
    return StoredState(arrays, _scan_axis(arrays))


def _say_what_it_is(checkpoint: StoredCheckpoint, arrays: Mapping[str, StoredArray]) -> None:
    """Raise UserError for a checkpoint without the embedding that encoder-decoders have."""
    if f"{TARGET}/decoder/{_EMBEDDING}" in arrays:
        raise UserError(f"{checkpoint.path} is a decoder alone: only encoder-decoders can be imported.")
    names = sorted(name for name in arrays if _is_param(name))
    said = _some(names) if names else "none at all"
    raise UserError(f"{checkpoint.path} has no {TARGET}/{_EMBEDDING}, which every T5 has. Its parameters: {said}.")


def _is_param(name: str) -> bool:
    return name.startswith(f"{TARGET}/")


def _scan_axis(arrays: Mapping[str, StoredArray]) -> int | None:
    """By the norms, whose other axis has the width of the model."""
    scale = arrays.get(f"{TARGET}/encoder/encoder/pre_mlp_layer_norm/scale")
    if scale is None:
        return None
    width = arrays[f"{TARGET}/{_EMBEDDING}"].shape[-1]
    if len(scale.shape) != 2 or width not in scale.shape:
        raise UserError(f"The norms of all layers are {scale.shape}: expected ({width}, layers) or (layers, {width}).")
    return SCAN_AXIS if scale.shape[0] == width else 0


def config_of(state: StoredState, mlp_activations: tuple[str, ...] | None = None) -> T5Config:
    """The sizes of a model, from the shapes of its parameters.

    mlp_activations: what is known of them; None takes those of T5 1.1 where the MLP is gated, else those of the first
    T5. Raises UserError where shapes do not go together.
    """
    shapes = dict(_shapes(state))
    counts = [1 + max((int(m[1]) for name in shapes if (m := re.match(rf"{stack}/layers_(\d+)/", name))), default=-1)
              for stack in STACKS]  # fmt: skip
    for stack, count in zip(STACKS, counts, strict=True):
        if not count:
            raise UserError(f"The checkpoint has no layers of an {stack}: only encoder-decoders can be imported.")
    try:
        vocab_size, emb_dim = shapes[_EMBEDDING]
        own = "encoder/layers_0/relpos_bias/rel_embedding" in shapes
        heads, buckets = shapes[f"encoder/{'layers_0/' if own else ''}relpos_bias/rel_embedding"]
        joined = shapes["encoder/layers_0/attention/query/kernel"][1]
        gated = "encoder/layers_0/mlp/wi_0/kernel" in shapes
        mlp_dim = shapes["encoder/layers_0/mlp/wo/kernel"][0]
    except (KeyError, ValueError) as error:
        raise UserError(f"The checkpoint is of no T5 that is known here: {error} is missing or misshapen.") from None
    if joined % heads:
        raise UserError(f"Queries of {joined} numbers do not divide over {heads} heads: the checkpoint is of no T5.")
    activations = mlp_activations or (("gelu", "linear") if gated else ("relu",))
    if (len(activations) > 1) != gated:
        raise UserError(f"The MLP of the checkpoint is {'' if gated else 'not '}gated, and {activations} is not so.")
    return T5Config(
        vocab_size=vocab_size, emb_dim=emb_dim, num_heads=heads, head_dim=joined // heads, mlp_dim=mlp_dim,
        num_encoder_layers=counts[0], num_decoder_layers=counts[1], mlp_activations=activations,
        logits_via_embedding=_HEAD not in shapes, relative_attention_num_buckets=buckets,
        relative_attention_max_distance=_DISTANCE, relpos_bias_in_every_layer=own,
    )  # fmt: skip


def params_of(state: StoredState, config: T5Config) -> Params:
    """The parameters as numpy float32. Raises UserError where they are not those of the config, naming them."""
    abstract = EncoderDecoderModel(config).abstract_params()
    expected = {name: tuple(leaf.shape) for name, leaf in flat(abstract)}
    found = dict(_shapes(state))
    missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing:
        hint = nearest(missing[0], unknown) if unknown else ""
        raise UserError(f"The checkpoint lacks {len(missing)} of the arrays of such a model: {_some(missing)}.{hint}")
    if unknown:
        raise UserError(f"The checkpoint has {len(unknown)} arrays that such a model lacks: {_some(unknown)}.")
    if wrong := [f"{name} is {found[name]}, not {shape}" for name, shape in expected.items() if found[name] != shape]:
        raise UserError(f"The arrays of the checkpoint do not go together: {'; '.join(wrong[:5])}.")
    params: Params = {}
    for name, array in _unscanned(state):
        put(params, name, np.ascontiguousarray(array.astype(np.float32)))
    return params


def _shapes(state: StoredState) -> Iterator[tuple[str, tuple[int, ...]]]:
    """This project's names of the parameters, with their shapes; nothing is read."""
    for name, array in state.params().items():
        inner, axis = _inner(name), state.scan_axis
        if inner is None:
            yield name, _joined_shape(name, array.shape)
            continue
        if axis is None or len(array.shape) <= axis:
            raise UserError(f"{name} is {array.shape}: expected an axis for the layers.")
        shape = tuple(size for at, size in enumerate(array.shape) if at != axis)
        for layer in range(array.shape[axis]):
            yield f"{inner[0]}/layers_{layer}/{inner[1]}", _joined_shape(inner[1], shape)


def _unscanned(state: StoredState) -> Iterator[tuple[str, np.ndarray]]:
    """This project's names of the parameters, with the arrays, read one after another."""
    for name, stored in state.params().items():
        inner, array = _inner(name), stored.read()
        if inner is None:
            yield name, array.reshape(_joined_shape(name, array.shape))
            continue
        for layer, one in enumerate(np.moveaxis(array, state.scan_axis or 0, 0)):
            yield f"{inner[0]}/layers_{layer}/{inner[1]}", one.reshape(_joined_shape(inner[1], one.shape))


def _inner(name: str) -> tuple[str, str] | None:
    """("encoder", "attention/query/kernel") of an array of all layers, "encoder/encoder/attention/query/kernel"."""
    stack, _, rest = name.partition("/")
    return (stack, rest.removeprefix(f"{stack}/")) if stack in STACKS and rest.startswith(f"{stack}/") else None


def is_of_all_layers(name: str) -> bool:
    """Whether a parameter of T5X's scalable network is that of all layers of a stack."""
    return _inner(name) is not None


def _joined_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a matrix with heads in an axis of their own as this project has it."""
    if len(shape) != 3:
        return shape
    if name.endswith("/out/kernel"):
        return (shape[0] * shape[1], shape[2])
    return (shape[0], shape[1] * shape[2])


def flat(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The leaves of a tree with their paths, "a/b/c"."""
    for name, node in tree.items():
        if isinstance(node, Mapping):
            yield from flat(node, (*path, name))
        else:
            yield "/".join((*path, name)), node


def put(tree: dict[str, Any], name: str, leaf: Any) -> None:
    """Put a leaf at its path."""
    *parents, last = name.split("/")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[last] = leaf


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


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
