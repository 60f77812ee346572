"""Parameters of this project from T5X's layouts (`networks` is the way back).

This project has the names of T5X's minimal network (`t5x.examples.t5`), whose parameters are the same tree here. T5X's
scalable network (`t5x.examples.scalable_t5`) has a table of relative positions in every layer, matrices of attention
with an axis for the heads ([D, H, K], [H, K, D]), and by default all layers of a stack in one array, along its second
axis; arrays with layers along the first axis are read, too.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t5xpg.base.errors import UserError, nearest
from t5xpg.exchange.formats.t5x_files import TENSORFLOW, StoredArray, StoredCheckpoint, require_whole
from t5xpg.exchange.formats.weights import as_float32, first_names
from t5xpg.exchange.t5x.mesh_tensorflow import TARGET, share_positions, t5x_name
from t5xpg.models.config import MOST_LAYERS, T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Params
from t5xpg.models.positions import Buckets

SCAN_AXIS = 1  # of T5X's scalable network by default
STACKS = ("encoder", "decoder")
_EMBEDDING, _HEAD = "token_embedder/embedding", "decoder/logits_dense/kernel"
_DISTANCE = 128  # how far relative positions reach in all of T5


@dataclass(frozen=True)
class StoredState:
    """A checkpoint's arrays by T5X's names. scan_axis: the axis of the layers in arrays of all layers; None without."""

    arrays: Mapping[str, StoredArray]
    scan_axis: int | None

    def params(self) -> dict[str, StoredArray]:
        """The parameters, by their names without "target/"."""
        start = f"{TARGET}/"
        return {name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)}


def state_of(checkpoint: StoredCheckpoint) -> StoredState:
    """The arrays of a checkpoint, whichever program wrote it. Raises UserError if it is no T5."""
    arrays = dict(checkpoint.arrays)
    if checkpoint.kind == TENSORFLOW:
        names = {variable: t5x_name(variable) for variable in arrays}
        if unknown := sorted(variable for variable, name in names.items() if name is None):
            raise UserError(f"{checkpoint.path} has variables that T5 has not: {first_names(unknown)}.")
        shared = share_positions({variable: str(name) for variable, name in names.items()})
        arrays = {shared[variable]: array for variable, array in arrays.items()}
    params = StoredState(arrays, None).params()
    if f"decoder/{_EMBEDDING}" in params:
        raise UserError(f"{checkpoint.path} is a decoder alone: only encoder-decoders can be imported.")
    if _EMBEDDING not in params:
        present = first_names(sorted(params)) or "none at all"
        raise UserError(
            f"{checkpoint.path} has no {TARGET}/{_EMBEDDING}, which every T5 has. Its parameters: {present}."
        )
    return StoredState(arrays, _scan_axis(arrays))


def _scan_axis(arrays: Mapping[str, StoredArray]) -> int | None:
    """The axis of the layers, by the shape of the norms, whose other axis has the width of the model."""
    scale = arrays.get(f"{TARGET}/encoder/encoder/pre_mlp_layer_norm/scale")
    if scale is None:
        return None
    width = arrays[f"{TARGET}/{_EMBEDDING}"].shape[-1]
    if len(scale.shape) != 2 or width not in scale.shape:
        raise UserError(f"The norms of all layers are {scale.shape}: expected ({width}, layers) or (layers, {width}).")
    return SCAN_AXIS if scale.shape[0] == width else 0


def config_of(state: StoredState, mlp_activations: tuple[str, ...] | None = None) -> T5Config:
    """The sizes of a model, from the shapes of its parameters.

    mlp_activations: where they are known; by default those of T5 1.1 where the MLP is gated, else those of the first
    T5. Raises UserError where shapes do not go together.
    """
    shapes = _shapes(state)
    counts = []
    for stack in STACKS:
        layers = [int(match[1]) for name in shapes if (match := re.match(rf"{stack}/layers_(\d+)/", name))]
        if not layers:
            raise UserError(f"The checkpoint has no layers of an {stack}: only encoder-decoders can be imported.")
        counts.append(1 + max(layers))
    try:
        vocab_size, emb_dim = shapes[_EMBEDDING]
        per_layer_tables = "encoder/layers_0/relpos_bias/rel_embedding" in shapes
        heads, buckets = shapes[f"encoder/{'layers_0/' if per_layer_tables else ''}relpos_bias/rel_embedding"]
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
        logits_via_embedding=_HEAD not in shapes, positions=Buckets(buckets, _DISTANCE, per_layer_tables),
    )  # fmt: skip


def params_of(state: StoredState, config: T5Config) -> Params:
    """The parameters as numpy float32. Raises UserError where they are not those of the config, naming them."""
    abstract = EncoderDecoderModel(config).abstract_params()
    expected = {name: tuple(leaf.shape) for name, leaf in flatten_dict(abstract, sep="/").items()}
    shapes = _shapes(state)
    missing, unknown = sorted(expected.keys() - shapes.keys()), sorted(shapes.keys() - expected.keys())
    if missing:
        hint = nearest(missing[0], unknown) if unknown else ""
        raise UserError(
            f"The checkpoint lacks {len(missing)} of the arrays of such a model: {first_names(missing)}.{hint}"
        )
    if unknown:
        raise UserError(f"The checkpoint has {len(unknown)} arrays that such a model lacks: {first_names(unknown)}.")
    if wrong := [f"{name} is {shapes[name]}, not {shape}" for name, shape in expected.items() if shapes[name] != shape]:
        raise UserError(f"The arrays of the checkpoint do not go together: {'; '.join(wrong[:5])}.")
    require_whole(state.params().values())
    arrays = {name: np.ascontiguousarray(read().reshape(shape)) for name, shape, read in _parts(state)}
    return unflatten_dict(arrays, sep="/")


def _shapes(state: StoredState) -> dict[str, tuple[int, ...]]:
    """{name here: shape here} of each parameter; nothing is read."""
    return {name: shape for name, shape, _ in _parts(state)}


def _parts(state: StoredState) -> Iterator[tuple[str, tuple[int, ...], Callable[[], np.ndarray]]]:
    """Yields (name here, shape here, reader) of each parameter. Call a reader before taking the next item."""
    for name, stored in state.params().items():
        inner, axis = split_stacked(name), state.scan_axis
        whole = functools.cache(lambda: as_float32(name, stored.read()))  # noqa: B023
        if inner is None:
            yield name, _joined_shape(name, stored.shape), whole
            continue
        if axis is None or len(stored.shape) <= axis:
            raise UserError(f"{name} is {stored.shape}: expected an axis for the layers.")
        if stored.shape[axis] > MOST_LAYERS:
            raise UserError(f"{name} is {stored.shape}: {stored.shape[axis]:,} layers, of at most {MOST_LAYERS:,}.")
        shape = _joined_shape(inner[1], stored.shape[:axis] + stored.shape[axis + 1 :])
        for layer in range(stored.shape[axis]):
            yield f"{inner[0]}/layers_{layer}/{inner[1]}", shape, lambda: whole().take(layer, axis)  # noqa: B023


def split_stacked(name: str) -> tuple[str, str] | None:
    """("encoder", "attention/query/kernel") for "encoder/encoder/attention/query/kernel", which has all layers."""
    stack, _, rest = name.partition("/")
    return (stack, rest.removeprefix(f"{stack}/")) if stack in STACKS and rest.startswith(f"{stack}/") else None


def _joined_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an array here: in matrices, the axis of the heads is joined with that of the head size."""
    if len(shape) != 3:
        return shape
    if name.endswith("/out/kernel"):
        return (shape[0] * shape[1], shape[2])
    return (shape[0], shape[1] * shape[2])
