"""The config.json of transformers for the families of T5, in both directions.

Besides sizes they differ in two things. umT5 has a table of relative positions in every layer. And the decoder's output
may be divided by sqrt(D) before the output matrix: in transformers 4 if `tie_word_embeddings` is true; in 5, which
writes that as true for all, if `scale_decoder_outputs` is true, for mT5 never, and for umT5 always up to 5.23.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.models.config import T5Config
from t5xpg.models.parts import Windows
from t5xpg.models.positions import Buckets

# model_type -> what the names of its classes begin with
FAMILIES: Mapping[str, str] = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5", "longt5": "LongT5"}
# the buckets of relative positions: names in config.json and in Buckets, and the defaults of both
_BUCKETS = {"relative_attention_num_buckets": "num_buckets", "relative_attention_max_distance": "max_distance"}
# names in config.json and in T5Config
_SIZES = {
    "vocab_size": "vocab_size", "d_model": "emb_dim", "d_kv": "head_dim", "d_ff": "mlp_dim",
    "num_layers": "num_encoder_layers", "num_decoder_layers": "num_decoder_layers", "num_heads": "num_heads",
}  # fmt: skip
# second names of some, which transformers reads alike
_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
_ACTIVATIONS = {"relu": "relu", "gelu_new": "gelu", "silu": "silu", "gelu_pytorch_tanh": "gelu", "swish": "silu"}
# settings with which transformers computes something else, or reads other files: no model here has them
_OTHER_MODELS = (
    "attention_bias", "partial_rotary_factor", "per_layer_config", "pruned_heads", "quantization_config",
    "tie_encoder_decoder", "transformers_weights", "use_bidirectional_attention",
)  # fmt: skip
# model types that are named after T5 or resemble it, with other layers
_RELATIVES = ("switch_transformers", "pix2struct", "udop")


def feed_forward_proj(config: T5Config) -> str:
    """The name that transformers has for the MLP's activations. Raises UserError where it has none."""
    first, *gate = ("silu" if name == "swish" else name for name in config.mlp_activations)
    name = next((theirs for theirs, ours in _ACTIVATIONS.items() if ours == first), None)
    if name is None or gate not in ([], ["linear"]):
        known = ", ".join(dict.fromkeys(_ACTIVATIONS.values()))
        raise UserError(
            f"transformers' T5 has no MLP with the activations {config.mlp_activations}; it has {known}, alone or with "
            "'linear'."
        )
    return name if not gate else "gated-gelu" if name == "gelu_new" else f"gated-{name}"


def _mlp_activations(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The MLP's activations. As in transformers, dense_act_fn and is_gated_act count more than feed_forward_proj."""
    default = "relu" if config.get("model_type", "t5") in ("t5", "longt5") else "gated-gelu"
    proj = str(config.get("feed_forward_proj", default))
    gate, _, name = proj.rpartition("-")
    name = str(config.get("dense_act_fn", "gelu_new" if proj == "gated-gelu" else name))
    if gate not in ("", "gated") or name not in _ACTIVATIONS:
        known = [*_ACTIVATIONS, *(f"gated-{one}" for one in ("gelu", *_ACTIVATIONS))]
        said = {name: config[name] for name in ("feed_forward_proj", "dense_act_fn") if name in config}
        names = " and ".join(f"{name} is {value!r}" for name, value in said.items())
        raise UserError(f"The checkpoint's {names}.{nearest(str([*said.values()][-1]), known)}")
    return (_ACTIVATIONS[name], *(["linear"] if config.get("is_gated_act", bool(gate)) else []))


def require(config: Mapping[str, Any], name: str, is_good: bool, expected: str) -> None:
    """Raise UserError for the setting of this name, unless it is good."""
    if not is_good:
        raise UserError(f"The checkpoint's {name} is {config.get(name)!r} in its config.json, expected {expected}.")


def refuse_other_models(config: Mapping[str, Any]) -> None:
    """Raise UserError for a setting that transformers reads, and that no model here has."""
    for name in _OTHER_MODELS:
        require(config, name, not config.get(name), "none: no model here has it")
    require(config, "pad_token_id", config.get("pad_token_id") in (None, 0), "0, which is padding here")


def config_to_transformers(config: T5Config, eos_id: int = 1) -> dict[str, Any]:
    """The config.json of the same model (padding is 0 and starts decoding). Raises UserError where there is none."""
    is_local = config.windows.encoder is not None  # in all layers of the encoder, as far behind as ahead
    window_settings = ("encoder_window", "sliding_window_pattern", "encoder_global_block")
    config.require_t5("transformers' T5", window_settings if is_local else ())
    model_type = "umt5" if config.has_table_in_every_layer else "longt5" if is_local else "t5"
    settings = {
        "architectures": [f"{FAMILIES[model_type]}ForConditionalGeneration"],
        "model_type": model_type,
        **{theirs: getattr(config, ours) for theirs, ours in _SIZES.items()},
        **{theirs: getattr(config.buckets, ours) for theirs, ours in _BUCKETS.items()},
        "dropout_rate": config.dropout_rate,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": feed_forward_proj(config),
        # also says whether the decoder's output is scaled by 1/sqrt(d_model) before the logits
        "tie_word_embeddings": config.logits_via_embedding,
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "eos_token_id": eos_id,
        "decoder_start_token_id": 0,
        "dtype": "float32",
    }
    if config.windows.encoder is not None:
        behind, ahead = config.windows.encoder
        if behind != ahead or config.windows.pattern <= config.num_encoder_layers or model_type != "longt5":
            raise UserError(
                "transformers' LongT5 has windows as far behind as ahead in all layers of its encoder, and a table of "
                f"positions for each stack; this model has {config.windows.encoder} in all but every "
                f"{config.windows.pattern}th layer, relpos_bias_in_every_layer={model_type == 'umt5'}."
            )
        settings |= {"encoder_attention_type": "local", "local_radius": behind}
        if config.windows.global_block is not None:
            size = config.windows.global_block
            settings |= {"encoder_attention_type": "transient-global", "global_block_size": size}
    if head_factor_to_transformers(config) != 1.0:
        settings["scale_decoder_outputs"] = True
    return settings


def head_factor_to_transformers(config: T5Config) -> float:
    """The factor of an output matrix in exports: sqrt(D) for an untied umT5, since transformers 5 divides by it."""
    is_scaled_for_nothing = config.has_table_in_every_layer and not config.logits_via_embedding
    return math.sqrt(config.emb_dim) if is_scaled_for_nothing else 1.0


def head_factor_from_transformers(config: Mapping[str, Any], has_own_head: bool) -> float:
    """The factor of a checkpoint's output matrix on import: 1 / sqrt(D) for an untied umT5 that divides by it."""
    scaled_all_the_same = config.get("model_type") == "umt5" and has_own_head and scales_outputs(config)
    return 1.0 / math.sqrt(config.get("d_model") or config["hidden_size"]) if scaled_all_the_same else 1.0


def scales_outputs(config: Mapping[str, Any]) -> bool:
    """True if the decoder's output is divided by sqrt(D) before the output matrix, whoever wrote the config.json."""
    if config.get("model_type") != "mt5" and "scale_decoder_outputs" in config:
        return bool(config["scale_decoder_outputs"])
    version = re.match(r"[0-9]+", str(config.get("transformers_version", "")))
    if config.get("model_type") == "mt5" and version is not None and int(version[0]) >= 5:
        return False
    return config.get("tie_word_embeddings") is not False


def config_from_transformers(config: Mapping[str, Any], has_own_head: bool = False) -> T5Config:
    """T5Config from a transformers config.json (as a dict). Raises UserError for a model that T5Config cannot express.

    has_own_head: True if the checkpoint has an output matrix that differs from the embedding. For umT5 it is read with
    `head_factor_from_transformers`; for the others, such a matrix contradicts a scaled output.
    """
    model_type = config.get("model_type", "t5")
    if str(model_type) not in FAMILIES:
        near, known = nearest(str(model_type), FAMILIES), ", ".join(map(repr, FAMILIES))
        what = ", whose layers are not T5's" if str(model_type) in _RELATIVES else ""
        raise UserError(
            f"The checkpoint's model_type is {model_type!r}{what}; {known} can be read (T5, T5 1.1, FLAN, ByT5, mT5, "
            f"umT5, LongT5), 't5gemma' and 't5gemma2'.{near if 'Did you mean' in near else ''}"
        )
    refuse_other_models(config)
    epsilon = _number(config, "layer_norm_epsilon", 1e-6)
    require(config, "layer_norm_epsilon", abs(epsilon - 1e-6) <= 1e-12, "1e-6, as in all of T5")  # NaN is not either
    start = config.get("decoder_start_token_id")
    require(config, "decoder_start_token_id", start in (None, 0), "0, with which a T5 begins here")
    is_tied = scales_outputs(config) and not (model_type == "umt5" and has_own_head)
    values = {name: value for name, value in config.items() if value is not None}
    for alias, name in _ALIASES.items():
        if alias in values:
            is_one = values.setdefault(name, values[alias]) == values[alias]
            require(values, name, is_one, f"{values[alias]!r}, as {alias} says, which is another name for it")
    try:
        values = {"num_decoder_layers": values["num_layers"]} | values
        sizes = {ours: values[theirs] for theirs, ours in _SIZES.items()}
        buckets = {ours: values[theirs] for theirs, ours in _BUCKETS.items() if theirs in values}
    except KeyError as error:
        raise UserError(f"The checkpoint's config.json has no {error.args[0]!r}.") from error
    if model_type == "longt5":
        kind, block = config.get("encoder_attention_type", "local"), None
        require(
            config, "encoder_attention_type", kind in ("local", "transient-global"), "'local' or 'transient-global'"
        )
        if kind == "transient-global":
            block = _whole(config, "global_block_size", 16)
        radius = _whole(config, "local_radius", 127)
        sizes["windows"] = Windows((radius, radius), pattern=sizes["num_encoder_layers"] + 1, global_block=block)
    return T5Config(
        **sizes,
        mlp_activations=_mlp_activations(values),
        dropout_rate=_number(config, "dropout_rate", 0.1),
        logits_via_embedding=is_tied,
        positions=Buckets(**buckets, in_every_layer=model_type == "umt5"),
    )


def _number(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    require(config, name, isinstance(value, int | float) and not isinstance(value, bool), "a number")
    return float(value)


def _whole(config: Mapping[str, Any], name: str, default: int) -> int:
    value = _number(config, name, default)
    require(config, name, value.is_integer(), "a whole number")
    return int(value)
