"""T5Gemma and the text part of T5Gemma 2 in transformers: config.json and tensors, in both directions.

The decoders that they were made of, Gemma 2 and the text part of Gemma 3, are read too, as models of a decoder alone.
transformers multiplies embeddings E by sqrt(D) on lookup, but not for the logits: our embedding is E sqrt(D). Its norms
have the scale 1 + w. It multiplies products of queries and keys by query_pre_attn_scalar^-0.5: here this factor is in
the queries' matrix, or in the scale of the queries' norm, times sqrt(K), as these queries are divided by sqrt(K) here.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.exchange.formats.weights import LazyTensors
from t5xpg.exchange.huggingface.config import refuse_other_models, require
from t5xpg.exchange.huggingface.params import Tensor, from_tensors, to_tensors
from t5xpg.models.config import T5Config, setting_name
from t5xpg.models.model import Params
from t5xpg.models.parts import Embeddings, EncoderSizes, Heads, Windows
from t5xpg.models.positions import Rotary

FAMILIES: Mapping[str, str] = {"t5gemma": "T5Gemma", "t5gemma2": "T5Gemma2"}
DECODERS = ("gemma2", "gemma3_text")
# the sizes of a stack: names in transformers and in T5Config
_SIZES = {
    "vocab_size": "vocab_size", "hidden_size": "emb_dim", "num_attention_heads": "num_heads", "head_dim": "head_dim",
    "intermediate_size": "mlp_dim",
}  # fmt: skip
_KV_HEADS = "num_key_value_heads"
_CAP, _LAST_CAP = "attn_logit_softcapping", "final_logit_softcapping"
# the sizes in which T5Gemma's encoder can differ from its decoder
_OF_A_STACK = ("hidden_size", "num_attention_heads", _KV_HEADS, "intermediate_size")
_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu", "silu": "silu"}
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
_MATRICES = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
_MLP = {"wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}
_EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
_HEAD, _DECODERS_HEAD = "lm_head.out_proj.weight", "lm_head.weight"
# parts of T5Gemma's names, and what a decoder alone has in their place
_DECODERS_NAMES = {
    "model.decoder.": "model.",
    ".pre_self_attn_layernorm.": ".input_layernorm.",
    ".post_self_attn_layernorm.": ".post_attention_layernorm.",
    _EMBEDDINGS[0]: "model.embed_tokens.weight",
    _HEAD: _DECODERS_HEAD,
}
_SHARED = ("token_embedder/embedding", "decoder_token_embedder/embedding")
# T5Gemma 2's tensors for images, which are not read; and the smallest image model that it can have, for exports
_IMAGES = ("model.encoder.vision_tower.", "model.encoder.multi_modal_projector.")
_END_OF_IMAGE = ("model.encoder.embed_tokens.eoi_embedding", "model.decoder.embed_tokens.eoi_embedding")
_VISION = {"hidden_size": 2, "intermediate_size": 2, "num_attention_heads": 1, "num_hidden_layers": 0, "patch_size": 2}
Json = Mapping[str, Any]


def is_decoder(config: Json) -> bool:
    """True if a config.json is of a decoder alone."""
    return str(config.get("model_type")) in DECODERS


def fits(config: T5Config) -> bool:
    """True if a model is meant to be one of this family rather than a T5."""
    return config.rotary is not None and config.layer_norms == "both"


def _layer_types(layers: int, pattern: int) -> list[str]:
    """transformers' `layer_types` where every `pattern`-th layer sees all, and the others have a window."""
    return [_LOCAL if (index + 1) % pattern else _GLOBAL for index in range(layers)]


def _encoder_window(size: int, is_second: bool) -> tuple[int, int]:
    """The positions that the encoder sees behind and ahead with a `sliding_window` of `size`; T5Gemma 2 divides it."""
    return ((size + 1) // 2 - 1, size // 2) if is_second else (size, size)


def from_transformers(config: Json, tensors: Mapping[str, np.ndarray]) -> tuple[T5Config, Params]:
    """T5Config and our parameters (numpy float32) of a checkpoint. Raises UserError where no model here is the same."""
    names = {name.replace("model.encoder.text_model.", "model.encoder."): name for name in tensors}
    names = dict(zip(tensors, tensors, strict=True)) if len(names) < len(tensors) else names  # both: one is unknown
    kept = [name for name in names if not name.startswith(_IMAGES)]
    tensors = LazyTensors({name: partial(tensors.__getitem__, names[name]) for name in kept})
    try:
        read = _Config(config)
        ours, query_scale = read.config(tensors), float(read.decoder["query_pre_attn_scalar"]) ** -0.5
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"The checkpoint's config.json lacks a setting of {config['model_type']}, or has another kind of value for "
            f"it ({type(error).__name__}: {error}). Copy or download it again."
        ) from None
    tied = {_EMBEDDINGS[1]: _EMBEDDINGS[0]} if ours.embeddings.shared else {}
    tied |= {_HEAD: _EMBEDDINGS[0 if ours.embeddings.shared else 1]} if ours.logits_via_embedding else {}
    expected = list(_tensors(ours, query_scale))
    if is_decoder(config):  # a T5Gemma's without its encoder and cross attention, by other names
        own = (one for one in expected if not one.ours.startswith("encoder/") and "cross" not in one.theirs)
        expected = [tensor._replace(theirs=_decoders_name(tensor.theirs)) for tensor in own]
        tied = {_decoders_name(name): _decoders_name(source) for name, source in tied.items()}
    return ours, from_tensors(tensors, ours, expected, tied, _END_OF_IMAGE)


class _Config:
    """The settings of a config.json. Those that all files have are asked for; others have transformers' defaults."""

    def __init__(self, config: Json) -> None:
        self.is_second = config.get("model_type") in ("t5gemma2", "gemma3_text")
        self.whole, self.is_alone = config, is_decoder(config)
        caps = {} if self.is_second else {_CAP: 50.0, _LAST_CAP: 30.0}
        encoder, decoder = (config, config) if self.is_alone else (config["encoder"], config["decoder"])
        images: Json = {"eoi_token_index": 256_000, **encoder} if self.is_second and not self.is_alone else {}
        encoder = images["text_config"] if images else encoder
        self.encoder, self.decoder = ({**caps, **part} for part in (encoder, decoder))
        for part in (config, images, self.encoder, self.decoder):
            refuse_other_models(part)
        alike = [name for name in (*_SIZES, _KV_HEADS) if name not in _OF_A_STACK or self.is_second]
        alike += ["query_pre_attn_scalar", "hidden_activation", "rms_norm_eps", "sliding_window", "rope_parameters"]
        for name in (*alike, *([] if self.is_second else [_CAP]), "rope_theta", "rope_scaling", "rope_local_base_freq"):
            theirs = self.decoder.get(name)
            require(self.encoder, name, self.encoder.get(name) == theirs, f"{theirs!r}, as in the decoder")
        epsilon, activation = float(self.decoder.get("rms_norm_eps", 1e-6)), self.decoder["hidden_activation"]
        require(self.decoder, "rms_norm_eps", abs(epsilon - 1e-6) <= 1e-12, "1e-6")
        require(self.decoder, "hidden_activation", activation in _ACTIVATIONS, " or ".join(_ACTIVATIONS))
        start, begun = self.decoder["bos_token_id"], config.get("decoder_start_token_id")
        require(config, "decoder_start_token_id", begun in (None, start), f"{start!r}, the decoder's bos_token_id")
        for name in ("eoi_token_index", "eoi_token_id"):
            in_text = images.get(name) is not None and 0 <= images[name] < self.decoder["vocab_size"]
            expected = (
                "no id of the vocabulary: it would have an embedding for inputs and one for outputs. For texts alone"
            )
            require(images, name, not in_text, f"{expected}, write -1 in its place into `encoder`")

    def config(self, tensors: Mapping[str, np.ndarray]) -> T5Config:
        """T5Config. tensors: they show whether encoder and decoder have the same embedding."""
        sizes = {ours: self.decoder[name] for name, ours in _SIZES.items()}
        own = [name for name in _OF_A_STACK if self.encoder.get(name) != self.decoder[name]]
        of_encoder = {{**_SIZES, _KV_HEADS: "num_kv_heads"}[name]: self.encoder.get(name) for name in own}
        is_tied = self.whole.get("tie_word_embeddings") is not False
        is_shared = self.is_alone or (self.is_second and is_tied)
        if not is_shared and all(name in tensors for name in _EMBEDDINGS):
            is_shared = np.array_equal(tensors[_EMBEDDINGS[0]], tensors[_EMBEDDINGS[1]])
        return T5Config(
            **sizes,
            num_encoder_layers=self.encoder["num_hidden_layers"],
            num_decoder_layers=self.decoder["num_hidden_layers"],
            mlp_activations=(_ACTIVATIONS[self.decoder["hidden_activation"]], "linear"),
            dropout_rate=float(self.whole.get("dropout_rate") or 0.0),
            logits_via_embedding=is_tied,
            positions=self._rotary(),
            heads=Heads(
                self.decoder[_KV_HEADS],
                qk_norm=self.is_second,
                logit_softcap=None if self.is_second else self.decoder[_CAP],  # which has it, and uses it nowhere
                merged=self.is_second and not self.is_alone,
            ),
            embeddings=Embeddings(shared=is_shared),
            windows=self._windows(),
            encoder_sizes=EncoderSizes(**of_encoder),
            layer_norms="both",
            logit_softcap=self.decoder.get(_LAST_CAP),
            decoder_start_token_id=self.decoder["bos_token_id"],
        )

    def _rotary(self) -> Rotary:
        """Bases, and the scale in layers without a window; of a setting with several names, what transformers takes."""
        rope, scaling = (self.decoder.get(name) or {} for name in ("rope_parameters", "rope_scaling"))
        base = {"rope_theta": self.decoder.get("rope_theta")}
        local = whole = base | (scaling or rope)
        kinds: tuple[str, ...] = ("default",)
        if self.is_second:
            local = {"rope_theta": self.decoder.get("rope_local_base_freq", 10_000.0)} | (rope.get(_LOCAL) or {})
            whole, kinds = base | (rope.get(_GLOBAL) or {}) | scaling, ("default", "linear")
        for layers, one, known in ((_LOCAL, local, kinds[:1]), (_GLOBAL, whole, kinds)):
            kind = one.get("rope_type") or one.get("type") or "default"
            is_known = kind in known and not one.keys() - {"rope_type", "type", "rope_theta", "factor"}
            expected = (
                f"in {layers} of {self.whole['model_type']} a rope_theta, {' or '.join(known)}, and there is {one}"
            )
            require(self.decoder, "rope_parameters", is_known and one["rope_theta"] is not None, expected)
        return Rotary(
            base=float(whole["rope_theta"]),
            local_base=float(local["rope_theta"]) if local["rope_theta"] != whole["rope_theta"] else None,
            scale=float(whole["factor"]) if kind == "linear" else 1.0,
        )

    def _windows(self) -> Windows:
        size = int(self.decoder["sliding_window"])
        stacks = []
        for part in (self.encoder, self.decoder):  # transformers 4 did not write `layer_types` for Gemma 2 and 3
            pattern = int(part.get("sliding_window_pattern", 6)) if self.is_second else 2
            stacks.append(list(part.get("layer_types") or _layer_types(int(part["num_hidden_layers"]), pattern)))
        pattern = 1 + [*max(stacks, key=len), _GLOBAL].index(_GLOBAL)
        are_regular = all(stack == _layer_types(len(stack), pattern) for stack in stacks)
        expected = f"{_LOCAL!r} in all but every so many-th layer, which has {_GLOBAL!r}, in both stacks alike"
        require(self.decoder, "layer_types", are_regular, expected)
        of_encoder = None if self.is_alone else _encoder_window(size, self.is_second)
        return Windows(of_encoder, decoder=size - 1, pattern=pattern)


def _decoders_name(name: str) -> str:
    """The name that a decoder alone has for a tensor of T5Gemma's decoder."""
    for old, new in _DECODERS_NAMES.items():
        name = name.replace(old, new)
    return name


def _tensors(config: T5Config, query_scale: float) -> Iterator[Tensor]:
    """The tensors of a T5Gemma. query_scale: the factor of products of queries and keys there."""
    stacks = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    for ours, theirs, width in zip(_SHARED, _EMBEDDINGS, (config.encoder.emb_dim, config.emb_dim), strict=True):
        if ours == _SHARED[0] or not config.embeddings.shared:
            yield Tensor(ours, theirs, factor=math.sqrt(width))
    for stack, layers in stacks.items():
        for index in range(layers):
            yield from _layer_tensors(stack, index, config, query_scale)
        yield Tensor(f"{stack}/{stack}_norm/scale", f"model.{stack}.norm.weight", shift=1)
    if not config.logits_via_embedding:
        yield Tensor("decoder/logits_dense/kernel", _HEAD, True)


def _layer_tensors(stack: str, index: int, config: T5Config, query_scale: float) -> Iterator[Tensor]:
    """The tensors of one layer."""
    ours, theirs = f"{stack}/layers_{index}", f"model.{stack}.layers.{index}"
    attentions = [("attention" if stack == "encoder" else "self_attention", "self_attn")]
    if stack == "decoder" and not config.heads.merged:
        attentions.append(("encoder_decoder_attention", "cross_attn"))
    parts = [("mlp", "feedforward")]
    for name, their_name in attentions:
        parts.append(("cross_attention" if their_name == "cross_attn" else name, their_name))
        for matrix, their_matrix in _MATRICES.items():
            scale = query_scale if matrix == "query" and not config.heads.qk_norm else 1.0
            yield Tensor(f"{ours}/{name}/{matrix}/kernel", f"{theirs}.{their_name}.{their_matrix}.weight", True, scale)
        if config.heads.qk_norm:
            scale = query_scale * math.sqrt(config.head_dim)
            yield Tensor(f"{ours}/{name}/query_norm/scale", f"{theirs}.{their_name}.q_norm.weight", False, scale, 1)
            yield Tensor(f"{ours}/{name}/key_norm/scale", f"{theirs}.{their_name}.k_norm.weight", shift=1)
    for name, their_name in parts:
        for place in ("pre", "post"):
            norm = f"{theirs}.{place}_{their_name}_layernorm.weight"
            yield Tensor(f"{ours}/{place}_{name}_layer_norm/scale", norm, shift=1)
    for matrix, their_matrix in _MLP.items():
        yield Tensor(f"{ours}/mlp/{matrix}/kernel", f"{theirs}.mlp.{their_matrix}.weight", True)


def to_transformers(config: T5Config, params: Params, eos_id: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """config.json and tensors of a model. Raises UserError where the family computes something else."""
    config_json = config_to_transformers(config, eos_id)
    is_second = config_json["model_type"] == "t5gemma2"
    tensors = to_tensors(params, _tensors(config, config.head_dim**-0.5 if config.heads.qk_norm else 1.0))
    if config.decoder_start_token_id == 0 and not is_second:
        raise UserError(
            "transformers' T5Gemma hides padding from its decoder, and this model begins with it: "
            "decoder_start_token_id is 0 (T5Config). Train one that begins with another id."
        )
    if config.embeddings.shared and not is_second:
        tensors[_EMBEDDINGS[1]] = tensors[_EMBEDDINGS[0]].copy()
    if is_second:
        D, (wide, patch) = config.emb_dim, (_VISION["hidden_size"], _VISION["patch_size"])
        tower, projector = (f"model.encoder.{part}" for part in ("vision_tower", "multi_modal_projector"))
        shapes = {
            f"{tower}.embeddings.patch_embedding.weight": (wide, 3, patch, patch),
            f"{tower}.embeddings.patch_embedding.bias": (wide,),
            f"{tower}.embeddings.position_embedding.weight": (1, wide),
            f"{tower}.post_layernorm.weight": (wide,),
            f"{tower}.post_layernorm.bias": (wide,),
            f"{projector}.mm_input_projection_weight": (wide, D),
            f"{projector}.mm_soft_emb_norm.weight": (wide,),
            "model.encoder.embed_tokens.eoi_embedding": (D,),
        }
        tensors |= {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return config_json, tensors


def config_to_transformers(config: T5Config, eos_id: int) -> dict[str, Any]:
    """The config.json of the same model. Raises UserError, which says why, where the family has no such model."""
    is_second = config.heads.merged
    model_type = "t5gemma2" if is_second else "t5gemma"
    rotary, size = config.rotary, None if config.windows.decoder is None else config.windows.decoder + 1
    assert rotary is not None
    _require_settings(config, FAMILIES[model_type], None if size is None else _encoder_window(size, is_second))
    first, *gate = config.mlp_activations
    activations = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    if gate != ["linear"] or first not in activations:
        known = ", ".join(f"({name!r}, 'linear')" for name in activations)
        raise UserError(f"transformers' {FAMILIES[model_type]} has an MLP with {known}.")
    window = 4096 if size is None else size
    default = {"rope_type": "default", "rope_theta": rotary.base}
    rope: dict[str, Any] = default
    if is_second:
        scaled = {"rope_type": "linear", "factor": rotary.scale} if rotary.scale != 1.0 else {}
        local = {**default, "rope_theta": rotary.local_base or rotary.base}
        rope = {_GLOBAL: default | scaled, _LOCAL: local}
    tokens = {"pad_token_id": 0, "eos_token_id": eos_id, "bos_token_id": config.decoder_start_token_id}

    def stack(config: T5Config, layers: int) -> dict[str, Any]:
        return {
            **{theirs: getattr(config, ours) for theirs, ours in _SIZES.items()},
            _KV_HEADS: config.heads.num_kv_heads or config.num_heads,
            "num_hidden_layers": layers,
            "hidden_activation": activations[first],
            _CAP: config.heads.logit_softcap,
            _LAST_CAP: config.logit_softcap,
            # products of queries and keys are right as they are; normalised ones are divided by sqrt(K)
            "query_pre_attn_scalar": config.head_dim if is_second else 1,
            "layer_types": _layer_types(layers, 1 if size is None else config.windows.pattern),
            "sliding_window": window,
            "rope_parameters": rope,
            "rms_norm_eps": 1e-6,
            "dropout_rate": config.dropout_rate,
            **tokens,
        }

    encoder: dict[str, Any] = stack(config.encoder, config.num_encoder_layers)
    if is_second:
        vision: dict[str, Any] = {**_VISION, "image_size": _VISION["patch_size"], "vision_use_head": False}
        vision["model_type"] = "siglip_vision_model"
        encoder = {"text_config": encoder, "vision_config": vision, "mm_tokens_per_image": 1, "eoi_token_index": -1}
    return {
        "architectures": [f"{FAMILIES[model_type]}ForConditionalGeneration"],
        "model_type": model_type,
        "encoder": encoder,
        "decoder": {**stack(config, config.num_decoder_layers), "is_decoder": True},
        "vocab_size": config.vocab_size,
        "dropout_rate": config.dropout_rate,
        "tie_word_embeddings": config.logits_via_embedding,
        "is_encoder_decoder": True,
        "decoder_start_token_id": config.decoder_start_token_id,
        **tokens,
        "dtype": "float32",
    }


def _require_settings(config: T5Config, family: str, encoder_window: tuple[int, int] | None) -> None:
    """Raise UserError for a setting that differs from the one that all models of a family have."""
    is_second = config.heads.merged
    needed: dict[str, Any] = {"rotary_cross_attention": False, "qk_norm": is_second, "encoder_window": encoder_window}
    if is_second:
        needed |= {"share_embeddings": True, "logits_via_embedding": True, "attention_logit_softcap": None}
    else:
        needed |= {"rotary_local_base": None, "rotary_scale": 1.0}
    ours = config.recorded()
    for name, value in needed.items():
        if ours[name] != value:
            raise UserError(
                f"transformers' {family} has {setting_name(name)} {value!r}, and this model {ours[name]!r}: "
                "it has no architecture that computes the same."
            )
