"""Small encoder-decoders of every kind that an engine computes, and rows for them to answer."""

from typing import Any

import jax
import numpy as np

from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Model
from t5xpg.models.shared_encoder_decoder import SharedEncoderDecoderModel
from tests.small_models import SIZES

BYTES = Vocabulary("bytes", extra_ids=125)
LENGTHS, S, T = (60, 33, 7, 2), 60, 24
USUAL: dict[str, Any] = {**SIZES, "vocab_size": 390}  # above the ids of the vocabulary
T5: dict[str, Any] = {"mlp_activations": ("relu",), "logits_via_embedding": True, "emb_dim": 15}
TABLES: dict[str, Any] = {"relpos_bias_in_every_layer": True}
# farther than which positions are
FEWER: dict[str, Any] = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
CASES: dict[str, tuple[type[Model], dict[str, Any]]] = {
    "t5": (EncoderDecoderModel, T5),
    "t5_1_1": (EncoderDecoderModel, {"num_decoder_layers": 3}),
    "t5_1_1_tied": (EncoderDecoderModel, {"logits_via_embedding": True, "mlp_activations": ("silu", "linear")}),
    "umt5": (EncoderDecoderModel, {**TABLES, **FEWER, "mlp_activations": ("gelu",)}),
    "shared": (SharedEncoderDecoderModel, TABLES),
}


def made(kind: type[Model], **settings: Any) -> tuple[Model, Any]:
    """A small model, each of whose parameters counts, and the epsilon of its norms: the embedding is small."""
    draw = np.random.default_rng(0)

    def drawn(path: Any, leaf: Any) -> np.ndarray:
        name, normal = str(path), draw.standard_normal(leaf.shape).astype(np.float32)
        if "scale" in name:
            return 1 + normal / 4
        if "rel_embedding" in name:
            return normal
        return normal / np.float32(20 if "embedding" in name else np.sqrt(leaf.shape[0]))

    model = kind(T5Config(**{**USUAL, **settings}))
    return model, jax.tree_util.tree_map_with_path(drawn, model.abstract_params())


def rows() -> np.ndarray:
    """[B, S] int32, of different lengths, each with an end."""
    tokens = np.random.default_rng(1).integers(3, BYTES.size, (len(LENGTHS), S)).astype(np.int32)
    ends = np.asarray(LENGTHS)[:, None] - 1
    return np.where(np.arange(S) < ends, tokens, np.where(np.arange(S) == ends, 1, 0)).astype(np.int32)
