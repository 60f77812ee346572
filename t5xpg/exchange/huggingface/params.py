"""Parameters in transformers' T5 layout, there and back; numpy only, torch is not needed.

transformers keeps matrices as [outputs, inputs], this project (as T5X) as [inputs, outputs]; the names differ; the
numbers are the same. Goes with transformers.T5ForConditionalGeneration (T5, T5 1.1, ByT5, FLAN-T5 ...) and those of mT5
and umT5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError, nearest
from t5xpg.exchange.formats.weights import first_names
from t5xpg.exchange.huggingface.config import (
    config_from_transformers,
    config_to_transformers,
    feed_forward_proj,
    head_factor_to_transformers,
)
from t5xpg.models.encoder_decoder import EncoderDecoderModel, Params, T5Config

__all__ = ["config_from_transformers", "config_to_transformers", "params_from_transformers", "params_to_transformers"]

# copies of shared.weight, and a table that checkpoints of 2020 carry though no model reads it
_IGNORED = (
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
)
_HEAD = ("decoder", "logits_dense", "kernel")


def _layer_names(stack: str, index: int, config: T5Config) -> Iterator[tuple[tuple[str, ...], str, bool]]:
    """Of one layer: the path in our tree, the name in transformers, and whether it is transposed there."""
    ours, theirs = (stack, f"layers_{index}"), f"{stack}.block.{index}.layer"
    attentions = [("attention", "SelfAttention", "pre_attention_layer_norm")]
    if stack == "decoder":
        attentions = [
            ("self_attention", "SelfAttention", "pre_self_attention_layer_norm"),
            ("encoder_decoder_attention", "EncDecAttention", "pre_cross_attention_layer_norm"),
        ]
    for number, (our_name, their_name, norm) in enumerate(attentions):
        yield (*ours, norm, "scale"), f"{theirs}.{number}.layer_norm.weight", False
        if number == 0 and config.relpos_bias_in_every_layer:
            position = f"{theirs}.0.SelfAttention.relative_attention_bias.weight"
            yield (*ours, "relpos_bias", "rel_embedding"), position, True
        for our_matrix, their_matrix in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
            yield (*ours, our_name, our_matrix, "kernel"), f"{theirs}.{number}.{their_name}.{their_matrix}.weight", True
    mlp = len(attentions)
    yield (*ours, "pre_mlp_layer_norm", "scale"), f"{theirs}.{mlp}.layer_norm.weight", False
    matrices = ["wi"] if len(config.mlp_activations) == 1 else ["wi_0", "wi_1"]
    for matrix in (*matrices, "wo"):
        yield (*ours, "mlp", matrix, "kernel"), f"{theirs}.{mlp}.DenseReluDense.{matrix}.weight", True


def _names(config: T5Config) -> Iterator[tuple[tuple[str, ...], str, bool]]:
    yield ("token_embedder", "embedding"), "shared.weight", False
    for stack, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        if not config.relpos_bias_in_every_layer:
            position = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            yield (stack, "relpos_bias", "rel_embedding"), position, True
        for index in range(layers):
            yield from _layer_names(stack, index, config)
        yield (stack, f"{stack}_norm", "scale"), f"{stack}.final_layer_norm.weight", False
    if not config.logits_via_embedding:
        yield _HEAD, "lm_head.weight", True


def _get(params: Params, path: tuple[str, ...]) -> Any:
    node: Any = params
    for name in path:
        node = node[name]
    return node


def has_own_head(state_dict: Mapping[str, np.ndarray]) -> bool:
    """Whether a checkpoint has an output matrix that is no copy of its embedding."""
    if "lm_head.weight" not in state_dict or "shared.weight" not in state_dict:
        return False
    return not np.array_equal(state_dict["lm_head.weight"], state_dict["shared.weight"])


def params_from_transformers(
    state_dict: Mapping[str, np.ndarray], config: T5Config, head_factor: float = 1.0
) -> Params:
    """Our parameters (numpy float32) from the tensors of a transformers T5 checkpoint.

    state_dict: name -> array, as safetensors.numpy.load_file returns it. With config.logits_via_embedding an lm_head
    is ignored where it equals the embedding; without it, a missing lm_head is the embedding's copy. head_factor: what
    the output matrix is multiplied by (`huggingface_config.head_factor_from_transformers`).
    Raises UserError where tensors are missing, unknown, or of other shapes than config says, naming them.
    """
    feed_forward_proj(config)
    abstract = EncoderDecoderModel(config).abstract_params()
    params: Params = {}
    used = set(_IGNORED)
    missing, wrong = [], []
    for path, name, transposed in _names(config):
        used.add(name)
        if name == "lm_head.weight" and name not in state_dict:
            # transformers ties what a checkpoint lacks, also where the output is not scaled as tied ones are
            name = "shared.weight"
        if name not in state_dict:
            missing.append(name)
            continue
        array = np.asarray(state_dict[name]).astype(np.float32)
        array = np.ascontiguousarray(array.T) if transposed else array
        if path == _HEAD and head_factor != 1.0:
            array *= np.float32(head_factor)
        expected = tuple(_get(abstract, path).shape)
        if array.shape != expected:
            theirs = expected[::-1] if transposed else expected
            there = array.shape[::-1] if transposed else array.shape
            wrong.append(f"{name} is {there}, the configuration says {theirs}")
            continue
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = array
    if config.logits_via_embedding and "lm_head.weight" in state_dict:
        used.add("lm_head.weight")
        if has_own_head(state_dict):
            wrong.append("lm_head.weight differs from shared.weight, the configuration says that they are tied")
    unknown = sorted(set(state_dict) - used)
    if missing:
        hint = nearest(missing[0], state_dict)
        raise UserError(
            f"The checkpoint lacks {len(missing)} of the tensors of this configuration: {first_names(missing)}.{hint}"
        )
    if unknown:
        raise UserError(
            f"The checkpoint has {len(unknown)} tensors that this configuration lacks: {first_names(unknown)}."
        )
    if wrong:
        raise UserError(f"The checkpoint and the configuration differ: {'; '.join(wrong[:5])}.")
    return params


def params_to_transformers(params: Params, config: T5Config) -> dict[str, np.ndarray]:
    """The inverse: name -> float32 array, for safetensors.numpy.save_file (metadata {"format": "pt"}).

    Tied models have no lm_head.weight, as transformers saves them.
    """
    feed_forward_proj(config)
    tensors = {}
    for path, name, transposed in _names(config):
        array = np.asarray(_get(params, path), dtype=np.float32)
        tensors[name] = np.ascontiguousarray(array.T if transposed else array)
    if not config.logits_via_embedding and (factor := head_factor_to_transformers(config)) != 1.0:
        tensors["lm_head.weight"] = tensors["lm_head.weight"] * np.float32(factor)
    return tensors
