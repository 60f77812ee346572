"""A file of llama.cpp (GGUF) with a Gemma or a T5: its settings, tensors and tokenizer in the forms of transformers.

llama.cpp stores the norms of Gemma as 1 + w, transformers as w. What it computes without a setting (activations, local
rotary base, scale of the queries, buckets) is what its program fixes for each architecture.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from t5xpg.base.errors import UserError, first_line, nearest
from t5xpg.data.vocab.files import DEFAULT_EXTRA_IDS
from t5xpg.data.vocab.tokenizers import SPACE
from t5xpg.exchange.formats.torch_files import LazyTensors

_T5 = "t5"
_GEMMA = {"gemma2": "gemma2", "gemma3": "gemma3_text"}  # llama.cpp's name and transformers' model_type
_TENSOR = re.compile(r"(?:(?P<stack>enc|dec)\.)?(?:blk\.(?P<index>\d+)\.)?(?P<part>\w+)\.weight")
_STACKS = {"enc": "encoder", "dec": "decoder"}
_GEMMA_PARTS = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_T5_ATTENTION = {"q": "q", "k": "k", "v": "v", "o": "o", "rel_b": "relative_attention_bias"}
_T5_PARTS = {
    "token_embd": "shared", "output": "lm_head", "output_norm": "final_layer_norm",
    "attn_norm": "layer.0.layer_norm", "cross_attn_norm": "layer.1.layer_norm",
    **{f"attn_{theirs}": f"layer.0.SelfAttention.{name}" for theirs, name in _T5_ATTENTION.items()},
    **{f"cross_attn_{theirs}": f"layer.1.EncDecAttention.{name}" for theirs, name in _T5_ATTENTION.items()},
    "ffn_norm": "layer.{mlp}.layer_norm", "ffn_gate": "layer.{mlp}.DenseReluDense.wi_0",
    "ffn_up": "layer.{mlp}.DenseReluDense.{up}", "ffn_down": "layer.{mlp}.DenseReluDense.wo",
}  # fmt: skip
_TOKENIZERS = {"llama": "BPE", "t5": "UNIGRAM"}  # those of SentencePiece, and its names for them
_GEMMAS_SPARE = re.compile(r"<unused\d+>")
_UNKNOWN, _CONTROL, _UNUSED, _BYTE = 2, 3, 5, 6  # types of tokens, as in SentencePiece


class GgufFile:
    """An open file. Raises UserError for one that is damaged, or holds another architecture."""

    def __init__(self, path: Path) -> None:
        import gguf  # late: it takes a tenth of a second, and few imports need it

        self.path, self._dequantize = path, gguf.dequantize
        with self._whole():
            self._reader = gguf.GGUFReader(path)
        self._architecture = str(self._value("general.architecture"))
        known = (*_GEMMA, _T5)
        if self._architecture not in known:
            raise UserError(
                f"{path} holds a model of the architecture {self._architecture!r}; {', '.join(known)} can be imported."
            )
        self.is_t5 = self._architecture == _T5
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Raise UserError for what the reader raises where a file is damaged."""
        try:
            yield
        except (ValueError, LookupError, TypeError, OverflowError, OSError) as error:
            raise UserError(
                f"{self.path} is not a whole GGUF file ({first_line(error)}): {self.path.stat().st_size:,} bytes are "
                "there. Copy or download it again."
            ) from None

    def tensors(self) -> Mapping[str, np.ndarray]:
        """The tensors by transformers' names (unknown ones by their own), each made float32 when it is asked for."""
        return LazyTensors({self._name(name): partial(self._array, name) for name in self._tensors})

    def settings(self) -> dict[str, Any]:
        """The config.json that transformers has for the model."""
        special = {f"{role}_token_id": self._token(role) for role in ("pad", "eos", "bos")}
        rows = int(self._tensors["token_embd.weight"].shape[-1]) if "token_embd.weight" in self._tensors else 0
        common = {"vocab_size": rows, "tie_word_embeddings": "output.weight" not in self._tensors, **special}
        heads, layers = self._setting("attention.head_count"), self._setting("block_count")
        width, wide = self._setting("embedding_length"), self._setting("feed_forward_length")
        if self.is_t5:
            return common | {
                "model_type": "umt5" if "enc.blk.1.attn_rel_b.weight" in self._tensors else "t5",
                "d_model": width,
                "d_ff": wide,
                "d_kv": self._setting("attention.key_length"),
                "num_heads": heads,
                "num_layers": layers,
                "num_decoder_layers": self._setting("decoder_block_count", layers),
                "relative_attention_num_buckets": self._setting("attention.relative_buckets_count"),
                "layer_norm_epsilon": self._setting("attention.layer_norm_epsilon", 1e-6),
                "decoder_start_token_id": self._setting("decoder_start_token_id", 0),
                "feed_forward_proj": "gated-gelu" if self._is_gated() else "relu",
            }
        head_dim, is_second = self._setting("attention.key_length"), self._architecture == "gemma3"
        scaling = self._setting("rope.scaling.type", "none")
        # of the largest models (27B), whose queries are not scaled by the size of a head
        is_largest = layers == (62 if is_second else 46)
        settings = {
            "model_type": _GEMMA[self._architecture],
            "hidden_size": width,
            "intermediate_size": wide,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": self._setting("attention.head_count_kv"),
            "head_dim": head_dim,
            "query_pre_attn_scalar": width // heads if is_largest else head_dim,
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": self._setting("attention.layer_norm_rms_epsilon"),
            "sliding_window": self._setting("attention.sliding_window"),
            "rope_theta": self._setting("rope.freq_base", 1e6 if is_second else 1e4),
        }
        if scaling != "none":
            settings["rope_scaling"] = {"rope_type": scaling, "factor": self._setting("rope.scaling.factor")}
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if (value := self._setting(name, None)) is not None:
                settings[name] = value
        return common | settings

    def sentencepiece_model(self) -> sentencepiece_model_pb2.ModelProto:
        """The tokenizer as a SentencePiece model. Raises UserError for a tokenizer of another kind.

        Gemma has no sentinels, and thousands of tokens <unusedN>, which no text becomes: the last hundred ids are named
        as T5's sentinels here.
        """
        kind = self._value("tokenizer.ggml.model")
        if kind not in _TOKENIZERS:
            raise UserError(
                f"The tokenizer of {self.path} is of the kind {kind!r}; {' and '.join(_TOKENIZERS)} can be read. Name "
                "a file of another one: TOKENIZER=path"
            )
        model = sentencepiece_model_pb2.ModelProto()
        trainer, normalizer = model.trainer_spec, model.normalizer_spec
        trainer.model_type = trainer.ModelType.Value(_TOKENIZERS[kind])
        pieces, types, scores = (self._value(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type", "scores"))
        unknown, controls = self._token("unknown"), {self._token(role) for role in ("pad", "eos", "bos")}
        used = next((size for size in range(len(pieces), 0, -1) if types[size - 1] != _UNUSED), 0)
        last = slice(max(0, used - DEFAULT_EXTRA_IDS), used)
        if sum(map(bool, map(_GEMMAS_SPARE.fullmatch, pieces[last]))) == DEFAULT_EXTRA_IDS:
            pieces[last] = map("<extra_id_{}>".format, reversed(range(DEFAULT_EXTRA_IDS)))
        for token, (piece, type_, score) in enumerate(zip(pieces[:used], types, scores, strict=False)):
            type_ = _UNKNOWN if token == unknown else _CONTROL if token in controls else type_
            with self._whole():
                # of user-defined pieces llama.cpp stores the text that they stand for
                model.pieces.add(piece=piece.replace(" ", SPACE), score=score, type=type_)
        for role, name in (("unk", "unknown"), ("pad", "pad"), ("eos", "eos"), ("bos", "bos")):
            special = self._token(name)
            setattr(trainer, f"{role}_id", -1 if special is None else special)
            if special is not None:
                setattr(trainer, f"{role}_piece", pieces[special])
        trainer.vocab_size, trainer.byte_fallback = used, _BYTE in types
        normalizer.add_dummy_prefix = bool(self._value("tokenizer.ggml.add_space_prefix", True))
        normalizer.remove_extra_whitespaces = bool(self._value("tokenizer.ggml.remove_extra_whitespaces", False))
        normalizer.precompiled_charsmap = bytes(self._value("tokenizer.ggml.precompiled_charsmap", b""))
        return model

    def _is_gated(self) -> bool:
        return any("ffn_gate" in name for name in self._tensors)

    def _name(self, name: str) -> str:
        """transformers' name of a tensor; its own where transformers has none."""
        match = _TENSOR.fullmatch(name)
        part = match and (_T5_PARTS if self.is_t5 else _GEMMA_PARTS).get(match["part"])
        if match is None or part is None:
            return name
        layers = "block" if self.is_t5 else "model.layers"
        stack, index = _STACKS.get(match["stack"]), match["index"]
        part = part.format(mlp=1 if stack == "encoder" else 2, up="wi_1" if self._is_gated() else "wi")
        return ".".join([*filter(None, (stack, index and f"{layers}.{index}")), part, "weight"])

    def _array(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        try:
            array = self._dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        except (NotImplementedError, ValueError) as error:  # what gguf raises for a type that it cannot undo
            raise UserError(
                f"{name} of {self.path} is of {tensor.tensor_type.name}, which the package gguf cannot read "
                f"({first_line(error)}). Convert the file to another type, such as F16 or Q8_0."
            ) from None
        return array - np.float32(1) if name.endswith("norm.weight") and not self.is_t5 else array

    def _token(self, role: str) -> int | None:
        return self._value(f"tokenizer.ggml.{'padding' if role == 'pad' else role}_token_id", None)

    def _setting(self, name: str, *default: Any) -> Any:
        return self._value(f"{self._architecture}.{name}", *default)

    def _value(self, key: str, *default: Any) -> Any:
        """A value of the file's head. Raises UserError where there is none, and no default."""
        field = self._reader.get_field(key)
        if field is not None:
            with self._whole():
                return field.contents()
        if default:
            return default[0]
        raise UserError(f"{self.path} has no {key}.{nearest(key, self._reader.fields)}")
