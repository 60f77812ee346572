"""A T5 with keys of relative positions: those of Shaw et al. 2018 (arXiv 1803.02155, equation 4), beside T5's biases.

Each bucket of relative positions has, for each head, a key that queries are multiplied with: how far a head looks can
depend on what it looks for. T5 has no such keys.
Shapes: B batch, N beams or samples, S source length, T target length, Q queries, H heads, K head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.nn import initializers

from t5xpg.models.attention import Attention, SideInputs
from t5xpg.models.attention.biases import Bias, DenseBias, LocalOrGlobalBias
from t5xpg.models.attention.relative_positions import relative_position_bucket
from t5xpg.models.attention.rotary import Rotation
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel, Transformer
from t5xpg.models.layers import Dropout, named_key, parameter
from t5xpg.models.model import LayerFlops, Params
from t5xpg.models.stacks import Decoder, DecoderLayer, Encoder, EncoderLayer, Source


class RelativeKeysAttention(Attention):
    """Self attention whose logits have one more part: the product of the query with the key of the distance."""

    def __init__(self, key: jax.Array, config: T5Config, bidirectional: bool) -> None:
        """bidirectional: as in `relative_position_bucket`."""
        super().__init__(key, config)
        assert config.buckets is not None
        self.buckets = config.buckets.num_buckets, config.buckets.max_distance
        self.bidirectional = bidirectional
        shape = (config.num_heads, config.head_dim, config.buckets.num_buckets)
        axes = ("heads", "kv", "relpos_buckets")
        self.rel_keys = parameter(named_key(key, "rel_keys"), initializers.normal(1.0), shape, axes)

    def __call__(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        bias: Bias | LocalOrGlobalBias,
        dropout: Dropout,
        rotation: Rotation | None = None,
        side: SideInputs | None = None,
    ) -> jax.Array:
        """x [B, Q, D], keys and values [B, Q, H, K] -> [B, Q, D]."""
        assert isinstance(bias, DenseBias)
        positions = np.arange(x.shape[1], dtype=np.int32)
        buckets = relative_position_bucket(positions[None] - positions[:, None], self.bidirectional, *self.buckets)
        queries, rel_keys = self.project_queries(x).astype(jnp.float32), self.rel_keys[...][..., buckets]
        products = jnp.einsum("bqhk,hkqs->bhqs", queries, rel_keys, precision=lax.Precision.HIGHEST)
        return super().__call__(x, keys, values, replace(bias, mask=bias.mask + products), dropout)


class RelativeKeysEncoderLayer(EncoderLayer):
    def __init__(self, key: jax.Array, config: T5Config) -> None:
        super().__init__(key, config)
        self.attention = RelativeKeysAttention(named_key(key, "attention"), config, bidirectional=True)


class RelativeKeysDecoderLayer(DecoderLayer):
    def __init__(self, key: jax.Array, config: T5Config) -> None:
        super().__init__(key, config)
        self.self_attention = RelativeKeysAttention(named_key(key, "self_attention"), config, bidirectional=False)


class RelativeKeysEncoder(Encoder):
    layer = RelativeKeysEncoderLayer


class RelativeKeysDecoder(Decoder):
    layer = RelativeKeysDecoderLayer


class RelativeKeysTransformer(Transformer):
    """The modules of RelativeKeysModel."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        super().__init__(key, config)
        self.encoder = RelativeKeysEncoder(named_key(key, "encoder"), config)
        self.decoder = RelativeKeysDecoder(named_key(key, "decoder"), config)


@dataclass(frozen=True)
class RelativeKeysModel(EncoderDecoderModel):
    """A T5 with keys of relative positions in the self attention of both stacks.

    It decodes without a cache of keys and values: every step reads all tokens so far again. Answers are short here.
    Raises UserError for settings beyond T5's.
    """

    def __post_init__(self) -> None:
        self.config.require_t5("A RelativeKeysModel")

    @staticmethod
    def modules(key: jax.Array, config: T5Config) -> nnx.Module:
        return RelativeKeysTransformer(key, config)

    def init_cache(
        self,
        params: Params,
        encoder_input_tokens: jax.Array,
        max_decode_length: int,
        rows: int | None = None,
        beams: int | None = None,
        reordered: bool = False,
    ) -> Any:
        """The source, and room for the tokens of each continuation. All rows are read at once."""
        source = self.source(params, encoder_input_tokens)
        tokens = jnp.zeros((len(encoder_input_tokens), beams or 1, max_decode_length), jnp.int32)
        return {"states": source.states, "source_tokens": source.tokens, "tokens": tokens}

    def decode_step(self, params: Params, cache: Any, tokens: jax.Array, step: jax.Array) -> tuple[jax.Array, Any]:
        """The logits of the token after `tokens`, and the cache with `tokens` added."""
        modules = self.with_parameters(params)
        B, N, T = cache["tokens"].shape
        all_tokens = lax.dynamic_update_slice_in_dim(cache["tokens"], tokens.reshape(B, N, 1), step, axis=2)
        source = Source(*(jnp.repeat(cache[name], N, axis=0) for name in ("states", "source_tokens")))
        written = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32) <= step, (B * N, T)).astype(jnp.int32)
        states = modules.decoder(modules.token_embedder, source, all_tokens.reshape(B * N, T), written)
        last = lax.dynamic_index_in_dim(states, step, axis=1, keepdims=False)
        logits = modules.decoder.to_logits(modules.token_embedder, last)
        return logits.reshape(*tokens.shape, -1), {**cache, "tokens": all_tokens}

    @staticmethod
    def reorder_beams(cache: Any, parents: jax.Array) -> Any:
        return {**cache, "tokens": jnp.take_along_axis(cache["tokens"], parents[..., None], axis=1)}

    def flops_per_example(self, lengths: Mapping[str, int]) -> float:
        """That of a T5, and a product with the key of the distance for each pair of positions."""
        S, T = lengths["inputs"], lengths["targets"]
        pairs = self.config.num_encoder_layers * S * S + self.config.num_decoder_layers * T * T
        return super().flops_per_example(lengths) + 3.0 * pairs * LayerFlops(self.config).pair // 2
