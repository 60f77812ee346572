"""A model in CTranslate2's format: its specification with our parameters, and the tokens by their ids."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange.huggingface.architectures import ENCODER_DECODERS, known_kind, token_names, unshared
from t5xpg.exchange.to_engine import Engine
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.model import Model, Params

QUANTIZATIONS = ("float32", "float16", "bfloat16", "int8")  # as CTranslate2 names them
# the first of an MLP's activations: CTranslate2's name of it
_ACTIVATIONS: Mapping[str, str] = {"relu": "RELU", "gelu": "GELUTanh", "silu": "SWISH", "swish": "SWISH"}


def check_model(model: Model) -> None:
    """Raise UserError, with the reason, where CTranslate2 has no model that computes the same."""
    config = model.config
    known_kind(model, ENCODER_DECODERS, "CTranslate2 has no model")
    config.require_t5("CTranslate2")
    first, *gate = config.mlp_activations
    if first not in _ACTIVATIONS or gate not in ([], ["linear"]):
        known = ", ".join(f"({name!r},) and ({name!r}, 'linear')" for name in _ACTIVATIONS)
        raise UserError(f"CTranslate2 has no MLP with the activations {config.mlp_activations}; it has {known}.")


def in_ctranslate2(model: Model, params: Params, vocabulary: Vocabulary, quantization: str = QUANTIZATIONS[0]) -> Any:
    """A model that `check_model` takes, as a `ctranslate2.specs.TransformerSpec` that can be saved.

    quantization: the dtype in which the parameters are stored.
    """
    from ctranslate2 import specs
    from ctranslate2.specs.common_spec import Activation

    config = model.config
    # CTranslate2 would ask torch for bfloat16
    dtype = jnp.bfloat16 if quantization == "bfloat16" else np.float32
    params = jax.tree.map(lambda leaf: np.array(leaf, dtype), params)  # copies: quantization overwrites them
    params = unshared(model, params)
    spec = specs.TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        activation=Activation[_ACTIVATIONS[config.mlp_activations[0]]],
        ffn_glu=len(config.mlp_activations) > 1,
        relative_attention_bias=True,
        rms_norm=True,
    )
    embedding = params["token_embedder"]["embedding"]
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = embedding
    if config.logits_via_embedding:
        spec.decoder.projection.weight = embedding
        spec.decoder.scale_outputs = 1 / math.sqrt(config.emb_dim)
    else:
        _set_linear(spec.decoder.projection, params["decoder"]["logits_dense"])
    for stack in ("encoder", "decoder"):
        _set_stack(getattr(spec, stack), params[stack], stack, np.int32(config.relative_attention_max_distance))
    tokens = token_names(config.vocab_size, vocabulary)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = spec.config.decoder_start_token = tokens[vocabulary.pad_id]
    spec.config.eos_token = tokens[vocabulary.eos_id]
    spec.config.unk_token = tokens[vocabulary.pad_id if vocabulary.unk_id is None else vocabulary.unk_id]
    spec.config.layer_norm_epsilon = 1e-6
    spec.validate()
    spec.optimize(quantization)
    return spec


def _set_stack(spec: Any, params: Params, stack: str, max_distance: np.int32) -> None:
    """Give the specification of an encoder or decoder its parameters."""
    spec.scale_embeddings = False
    spec.layer_norm.gamma = params[f"{stack}_norm"]["scale"]
    self_attention = "attention" if stack == "encoder" else "self_attention"
    for index, layer in enumerate(spec.layer):
        ours = params[f"layers_{index}"]
        _set_attention(layer.self_attention, ours[self_attention], ours[f"pre_{self_attention}_layer_norm"], fused=3)
        table = (ours if "relpos_bias" in ours else params)["relpos_bias"]["rel_embedding"]
        layer.self_attention.relative_attention_bias = table.T
        layer.self_attention.relative_attention_max_distance = max_distance
        if stack == "decoder":
            _set_attention(
                layer.attention, ours["encoder_decoder_attention"], ours["pre_cross_attention_layer_norm"], fused=1
            )
        mlp = ours["mlp"]
        layer.ffn.layer_norm.gamma = ours["pre_mlp_layer_norm"]["scale"]
        _set_linear(layer.ffn.linear_0, mlp["wi_0" if "wi_0" in mlp else "wi"])
        if "wi_1" in mlp:
            _set_linear(layer.ffn.linear_0_noact, mlp["wi_1"])
        _set_linear(layer.ffn.linear_1, mlp["wo"])


def _set_attention(spec: Any, params: Params, norm: Params, fused: int) -> None:
    """Give an attention its parameters. The first `fused` of query, key and value share a matrix; so do the others."""
    spec.queries_scale = 1.0
    spec.layer_norm.gamma = norm["scale"]
    projections = [params[name] for name in ("query", "key", "value")]
    parts = [part for part in (projections[:fused], projections[fused:], [params["out"]]) if part]
    for linear, part in zip(spec.linear, parts, strict=True):
        _set_linear(linear, *part)


def _set_linear(spec: Any, *parts: Params) -> None:
    """Give a layer its matrix. CTranslate2 keeps it as [outputs, inputs]; the outputs of the parts are concatenated."""
    spec.weight = np.concatenate([part["kernel"].T for part in parts])


def _write(folder: Path, experiment: Experiment, params: Params, vocabulary: Vocabulary, quantization: str) -> None:
    in_ctranslate2(experiment.model, params, vocabulary, quantization).save(str(folder))


def log_likelihood(folder: Path, inputs: np.ndarray, targets: np.ndarray) -> float:
    """See `Engine`. Targets end with the end token unless they were cut."""
    import ctranslate2

    names = read_json(folder / "shared_vocabulary.json")
    ids = [[row[row != 0] for row in rows] for rows in (inputs, targets)]
    end = names.index(read_json(folder / "config.json")["eos_token"])
    without_end = [row[:-1] if end in row[-1:] else row for row in ids[1]]  # CTranslate2 adds the end
    sources, answers = ([[names[token] for token in row] for row in rows] for rows in (ids[0], without_end))
    scored = ctranslate2.Translator(str(folder)).score_batch(sources, answers, max_input_length=0)
    return sum(sum(one.log_probs[: len(row)]) for one, row in zip(scored, ids[1], strict=True))


ENGINE = Engine(
    "CTranslate2", "ctranslate2", QUANTIZATIONS, "model.bin", check_model, _write, log_likelihood, "ctranslate2"
)
