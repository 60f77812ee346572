"""Parameters in transformers' T5 layout, in both directions; numpy only, torch is not needed.

transformers keeps matrices as [outputs, inputs], this project (as T5X) as [inputs, outputs]; the names differ; the
numbers are the same. For transformers' T5ForConditionalGeneration (T5, T5 1.1, ByT5, FLAN-T5 ...) and the same classes
of mT5, umT5 and LongT5.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t5xpg.base.errors import UserError, nearest
from t5xpg.exchange.formats.weights import as_float32, first_names
from t5xpg.exchange.huggingface.config import config_to_transformers, head_factor_to_transformers
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Params

_EMBEDDING, _HEAD = "shared.weight", "lm_head.weight"
_EMBEDDINGS = (_EMBEDDING, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # one tensor
# a table that checkpoints of 2020 carry though no model reads it
_UNREAD = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
_POSITIONS = "SelfAttention.relative_attention_bias.weight"
_MATRICES = {"query": "q", "key": "k", "value": "v", "out": "o"}
_ATTENTIONS = {  # ours, transformers', and the norm before it
    "encoder": [("attention", "SelfAttention", "pre_attention_layer_norm")],
    "decoder": [
        ("self_attention", "SelfAttention", "pre_self_attention_layer_norm"),
        ("encoder_decoder_attention", "EncDecAttention", "pre_cross_attention_layer_norm"),
    ],
}


class Tensor(NamedTuple):
    """A parameter's name here and in the checkpoint. transposed: in the latter. Ours is factor * (theirs + shift)."""

    ours: str
    theirs: str
    transposed: bool = False
    factor: float = 1.0
    shift: float = 0.0

    def to_ours(self, array: np.ndarray) -> np.ndarray:
        """Our array, contiguous, from the checkpoint's in float32."""
        if self.shift:
            array = array + np.float32(self.shift)
        array = array * np.float32(self.factor) if self.factor != 1.0 else array
        return np.ascontiguousarray(array.T if self.transposed else array)

    def to_theirs(self, array: np.ndarray) -> np.ndarray:
        """The checkpoint's array from ours: the inverse of `to_ours`."""
        array = np.asarray(array, np.float32)
        array = array / np.float32(self.factor) if self.factor != 1.0 else array
        if self.shift:
            array = array - np.float32(self.shift)
        return np.ascontiguousarray(array.T if self.transposed else array)


def _attention_prefix(stack: str, config: T5Config) -> str:
    """The first part of the name of a stack's attention in LongT5; "" in other families."""
    if stack == "decoder" or config.windows.encoder is None:
        return ""
    return "Local" if config.windows.global_block is None else "TransientGlobal"


def _layer_tensors(stack: str, index: int, config: T5Config) -> Iterator[Tensor]:
    """The tensors of one layer."""
    ours, theirs = f"{stack}/layers_{index}", f"{stack}.block.{index}.layer"
    attentions = _ATTENTIONS[stack]
    if config.has_table_in_every_layer:
        yield Tensor(f"{ours}/relpos_bias/rel_embedding", f"{theirs}.0.{_POSITIONS}", True)
    for number, (attention, their_attention, norm) in enumerate(attentions):
        their_attention = _attention_prefix(stack, config) + their_attention
        if stack == "encoder" and config.windows.global_block is not None:
            name = "global_input_layer_norm"
            yield Tensor(f"{ours}/{name}/scale", f"{theirs}.{number}.{their_attention}.{name}.weight")
        yield Tensor(f"{ours}/{norm}/scale", f"{theirs}.{number}.layer_norm.weight")
        for matrix, their_matrix in _MATRICES.items():
            their_name = f"{theirs}.{number}.{their_attention}.{their_matrix}.weight"
            yield Tensor(f"{ours}/{attention}/{matrix}/kernel", their_name, True)
    mlp = f"{theirs}.{len(attentions)}"
    yield Tensor(f"{ours}/pre_mlp_layer_norm/scale", f"{mlp}.layer_norm.weight")
    for matrix in (*(["wi"] if len(config.mlp_activations) == 1 else ["wi_0", "wi_1"]), "wo"):
        yield Tensor(f"{ours}/mlp/{matrix}/kernel", f"{mlp}.DenseReluDense.{matrix}.weight", True)


def tensors_of(config: T5Config, head_factor: float) -> Iterator[Tensor]:
    """The tensors of a T5. head_factor: the factor of the checkpoint's output matrix."""
    yield Tensor("token_embedder/embedding", _EMBEDDING)
    for stack, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        if not config.has_table_in_every_layer:
            table = f"{stack}.block.0.layer.0.{_attention_prefix(stack, config)}{_POSITIONS}"
            yield Tensor(f"{stack}/relpos_bias/rel_embedding", table, True)
            if stack == "encoder" and config.windows.global_block is not None:
                table = table.replace(".relative", ".global_relative")
                yield Tensor(f"{stack}/global_relpos_bias/rel_embedding", table, True)
        for index in range(layers):
            yield from _layer_tensors(stack, index, config)
        yield Tensor(f"{stack}/{stack}_norm/scale", f"{stack}.final_layer_norm.weight")
    if not config.logits_via_embedding:
        yield Tensor("decoder/logits_dense/kernel", _HEAD, True, head_factor)


def _embedding_of(state_dict: Mapping[str, np.ndarray]) -> str:
    """The name under which a checkpoint has its embedding: MADLAD's have no shared.weight."""
    return next((name for name in _EMBEDDINGS if name in state_dict), _EMBEDDING)


def has_own_head(state_dict: Mapping[str, np.ndarray]) -> bool:
    """True if a checkpoint has an output matrix that is no copy of its embedding."""
    embedding = _embedding_of(state_dict)
    if _HEAD not in state_dict or embedding not in state_dict:
        return False
    return not np.array_equal(state_dict[_HEAD], state_dict[embedding])


def params_from_transformers(
    state_dict: Mapping[str, np.ndarray], config: T5Config, head_factor: float = 1.0
) -> Params:
    """Our parameters (numpy float32) from the tensors of a transformers T5 checkpoint.

    Without config.logits_via_embedding, a missing lm_head is the embedding's copy, as in transformers. head_factor: the
    factor of the output matrix. Raises UserError where tensors are missing, unknown, of other shapes than config says,
    or differ though they are one in transformers, naming them.
    """
    tied = dict.fromkeys((*_EMBEDDINGS, _HEAD), _embedding_of(state_dict))
    return from_tensors(state_dict, config, list(tensors_of(config, head_factor)), tied, _UNREAD)


def from_tensors(
    state_dict: Mapping[str, np.ndarray],
    config: T5Config,
    tensors: Sequence[Tensor],
    tied: Mapping[str, str],
    unread: Collection[str] = (),
) -> Params:
    """Our parameters (numpy float32) from the tensors of a checkpoint.

    tied: {name: the tensor that transformers takes where it is absent}; one that is none of `tensors` has to be its
    copy. unread: further names, which transformers does not read. Raises UserError where tensors are missing, unknown,
    no copies, or of other shapes than config says, naming them.
    """
    abstract = flatten_dict(EncoderDecoderModel(config).abstract_params(), sep="/")  # a decoder alone is a part of it
    params: dict[str, np.ndarray] = {}
    missing, differing, read = [], [], {tensor.theirs for tensor in tensors}
    for tensor in tensors:
        source = tensor.theirs if tensor.theirs in state_dict else tied.get(tensor.theirs, tensor.theirs)
        if source not in state_dict:
            missing.append(source)
            continue
        array, expected = np.asarray(state_dict[source]), tuple(abstract[tensor.ours].shape)
        expected = expected[::-1] if tensor.transposed else expected
        if array.shape != expected:
            differing.append(f"{source} is {array.shape}, the configuration says {expected}")
            continue
        params[tensor.ours] = tensor.to_ours(as_float32(source, array))
    if missing:
        raise UserError(
            f"The checkpoint lacks {len(missing)} of the tensors of this configuration: {first_names(missing)}."
            f"{nearest(missing[0], state_dict)}"
        )
    if unknown := sorted(set(state_dict) - {*read, *tied, *tied.values(), *unread}):
        listed = first_names(unknown)
        raise UserError(f"The checkpoint has {len(unknown)} tensors that this configuration lacks: {listed}.")
    for name, source in tied.items():
        if name in state_dict and name not in read and not np.array_equal(state_dict[name], state_dict[source]):
            differing.append(f"{name} differs from {source}, the configuration says that they are tied")
    if differing:
        raise UserError(f"The checkpoint and the configuration differ: {'; '.join(differing[:5])}.")
    return unflatten_dict(params, sep="/")


def module_names(config: T5Config) -> dict[str, str]:
    """{"encoder/layers_0/attention/query/kernel": "encoder.block.0.layer.0.SelfAttention.q"}: the linear modules of
    transformers whose matrices are ours, transposed. Raises UserError where transformers' T5 is another model."""
    config_to_transformers(config)
    return {
        tensor.ours: tensor.theirs.removesuffix(".weight")
        for tensor in tensors_of(config, 1.0 / head_factor_to_transformers(config))
        if tensor.ours.endswith("/kernel") and tensor.factor == 1.0
    }


def params_to_transformers(params: Params, config: T5Config) -> dict[str, np.ndarray]:
    """Inverse of `params_from_transformers`: float32 arrays by name. Tied models have no lm_head, as transformers'."""
    return to_tensors(params, tensors_of(config, 1.0 / head_factor_to_transformers(config)))


def to_tensors(params: Params, tensors: Iterable[Tensor]) -> dict[str, np.ndarray]:
    """The inverse of `from_tensors`. Raises UserError for parameters that none of the tensors is made of."""
    flat, tensors = flatten_dict(params, sep="/"), list(tensors)
    if unknown := sorted(flat.keys() - {tensor.ours for tensor in tensors}):
        raise UserError(f"transformers has no model with these parameters: {first_names(unknown)}.")
    return {tensor.theirs: tensor.to_theirs(flat[tensor.ours]) for tensor in tensors}
