"""Parameters and configurations in transformers' T5 layout, there and back; numpy only, torch is not needed.

transformers keeps matrices as [outputs, inputs], this project (as T5X) as [inputs, outputs]; the names differ; the
numbers are the same. Goes with transformers.T5ForConditionalGeneration (T5, T5 1.1, ByT5, FLAN-T5 ...).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t5xpg.errors import UserError, nearest
from t5xpg.models.encoder_decoder import EncoderDecoderModel, Params, T5Config

# copies of shared.weight, and a table that checkpoints of 2020 carry though no model reads it
_IGNORED = (
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
)


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
        position = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield (stack, "relpos_bias", "rel_embedding"), position, True
        for index in range(layers):
            yield from _layer_names(stack, index, config)
        yield (stack, f"{stack}_norm", "scale"), f"{stack}.final_layer_norm.weight", False
    if not config.logits_via_embedding:
        yield ("decoder", "logits_dense", "kernel"), "lm_head.weight", True


def _feed_forward_proj(config: T5Config) -> str:
    names = {("gelu", "linear"): "gated-gelu", ("silu", "linear"): "gated-silu", ("relu",): "relu"}
    activations = tuple("silu" if name == "swish" else name for name in config.mlp_activations)
    if activations not in names:
        raise UserError(
            f"transformers' T5 has no MLP with the activations {config.mlp_activations}; it has "
            + ", ".join(str(known) for known in names)
            + "."
        )
    return names[activations]


def _get(params: Params, path: tuple[str, ...]) -> Any:
    node: Any = params
    for name in path:
        node = node[name]
    return node


def params_from_transformers(state_dict: Mapping[str, np.ndarray], config: T5Config) -> Params:
    """Our parameters (numpy float32) from the tensors of a transformers T5 checkpoint.

    state_dict: name -> array, as safetensors.numpy.load_file returns it. With config.logits_via_embedding an lm_head
    is ignored where it equals the embedding; without it, a missing lm_head is the embedding's copy.
    Raises UserError where tensors are missing, unknown, or of other shapes than config says, naming them.
    """
    _feed_forward_proj(config)
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
        expected = tuple(_get(abstract, path).shape)
        if array.shape != expected:
            theirs = expected[::-1] if transposed else expected
            wrong.append(f"{name} is {tuple(np.shape(state_dict[name]))}, the configuration says {theirs}")
            continue
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = array
    if config.logits_via_embedding and "lm_head.weight" in state_dict:
        used.add("lm_head.weight")
        if not np.array_equal(state_dict["lm_head.weight"], state_dict.get("shared.weight", np.zeros(0))):
            wrong.append("lm_head.weight differs from shared.weight, the configuration says that they are tied")
    unknown = sorted(set(state_dict) - used)
    if missing:
        hint = nearest(missing[0], state_dict)
        raise UserError(
            f"The checkpoint lacks {len(missing)} of the tensors of this configuration: {_some(missing)}.{hint}"
        )
    if unknown:
        raise UserError(f"The checkpoint has {len(unknown)} tensors that this configuration lacks: {_some(unknown)}.")
    if wrong:
        raise UserError(f"The checkpoint and the configuration differ: {'; '.join(wrong[:5])}.")
    return params


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def params_to_transformers(params: Params, config: T5Config) -> dict[str, np.ndarray]:
    """The inverse: name -> float32 array, for safetensors.numpy.save_file (metadata {"format": "pt"}).

    Tied models have no lm_head.weight, as transformers saves them.
    """
    _feed_forward_proj(config)
    tensors = {}
    for path, name, transposed in _names(config):
        array = np.asarray(_get(params, path), dtype=np.float32)
        tensors[name] = np.ascontiguousarray(array.T if transposed else array)
    return tensors


def config_to_transformers(config: T5Config) -> dict[str, Any]:
    """The config.json of the same model for transformers (vocabulary: padding 0, end 1, decoding starts with 0)."""
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": config.vocab_size,
        "d_model": config.emb_dim,
        "d_kv": config.head_dim,
        "d_ff": config.mlp_dim,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "num_heads": config.num_heads,
        "relative_attention_num_buckets": config.relative_attention_num_buckets,
        "relative_attention_max_distance": config.relative_attention_max_distance,
        "dropout_rate": config.dropout_rate,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": _feed_forward_proj(config),
        # also says whether the decoder's output is scaled by 1/sqrt(d_model) before the logits
        "tie_word_embeddings": config.logits_via_embedding,
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "dtype": "float32",
    }


def config_from_transformers(config: Mapping[str, Any]) -> T5Config:
    """T5Config from a transformers config.json (as a dict). Raises UserError for what is no T5 that we can be."""
    model_type = config.get("model_type", "t5")
    if model_type != "t5":
        raise UserError(f"The checkpoint's model_type is {model_type!r}; only 't5' (T5, T5 1.1, ByT5) can be read.")
    known = {"gated-gelu": ("gelu", "linear"), "gated-silu": ("silu", "linear"), "relu": ("relu",)}
    proj = config.get("feed_forward_proj", "relu")
    if proj not in known:
        raise UserError(f"The checkpoint's feed_forward_proj is {proj!r}.{nearest(str(proj), known)}")
    if abs(config.get("layer_norm_epsilon", 1e-6) - 1e-6) > 1e-12:
        raise UserError(f"The checkpoint's layer_norm_epsilon is {config['layer_norm_epsilon']!r}; T5's is 1e-6.")
    # transformers 5 saves tie_word_embeddings as true always, and this beside it; before, the one meant the other
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False)
    try:
        layers = config["num_layers"]
        return T5Config(
            vocab_size=config["vocab_size"],
            emb_dim=config["d_model"],
            num_heads=config["num_heads"],
            head_dim=config["d_kv"],
            num_encoder_layers=layers,
            num_decoder_layers=layers if config.get("num_decoder_layers") is None else config["num_decoder_layers"],
            mlp_dim=config["d_ff"],
            mlp_activations=known[proj],
            dropout_rate=config.get("dropout_rate", 0.1),
            logits_via_embedding=bool(scaled),
            relative_attention_num_buckets=config.get("relative_attention_num_buckets", 32),
            relative_attention_max_distance=config.get("relative_attention_max_distance", 128),
        )
    except KeyError as error:
        raise UserError(f"The checkpoint's config.json has no {error.args[0]!r}.") from error
