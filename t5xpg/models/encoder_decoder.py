"""T5's encoder-decoder as pure functions of a parameter tree and a batch."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from t5xpg.models import incremental
from t5xpg.models.config import T5Config
from t5xpg.models.dropout import OFF, Dropout
from t5xpg.models.keys import named_key
from t5xpg.models.layers import Embed
from t5xpg.models.stacks import Decoder, Encoder

__all__ = ["EncoderDecoderModel", "Params", "T5Config"]

# nested dicts with string keys and float32 arrays at the leaves, under T5X's names:
# params["encoder"]["layers_0"]["attention"]["query"]["kernel"]
Params = dict[str, Any]
Batch = Mapping[str, jax.Array]


class Transformer(nnx.Module):
    """The modules; EncoderDecoderModel puts parameters into them and takes them out."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.token_embedder = Embed(named_key(key, "token_embedder"), config.vocab_size, config.emb_dim)
        self.encoder = Encoder(named_key(key, "encoder"), config)
        self.decoder = Decoder(named_key(key, "decoder"), config)


@functools.lru_cache(maxsize=16)
def _abstract(config: T5Config) -> tuple[nnx.GraphDef, nnx.State]:
    return nnx.split(nnx.eval_shape(lambda: Transformer(jax.random.key(0), config)))


@dataclass(frozen=True)
class EncoderDecoderModel:
    """A T5 without state: every method is a pure function, to be jitted and differentiated by its caller."""

    config: T5Config

    def init(self, key: jax.Array) -> Params:
        """New parameters (T5X's initialisers), float32. Every parameter's key depends on its own name only."""
        return nnx.to_pure_dict(nnx.state(Transformer(key, self.config)))

    def abstract_params(self) -> Params:
        """The tree of `init` with jax.ShapeDtypeStruct at its leaves; allocates nothing."""
        return nnx.to_pure_dict(_abstract(self.config)[1])

    def logical_axes(self) -> Params:
        """The tree of `init` with a tuple of axis names at its leaves.

        T5X's names: "vocab", "embed", "heads", "joined_kv", "mlp", "relpos_buckets".
        """
        state = _abstract(self.config)[1]
        axes = jax.tree.map(
            lambda variable: variable.replace(variable.get_metadata()["axes"]),
            state,
            is_leaf=lambda node: isinstance(node, nnx.Variable),
        )
        return nnx.to_pure_dict(axes)

    def _modules(self, params: Params) -> Transformer:
        return nnx.merge(_abstract(self.config)[0], nnx.State(params))

    def logits(self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
        """Logits [B, T, V] float32 of every target position, given the targets before it (teacher forcing).

        batch: encoder_input_tokens [B, S], decoder_input_tokens and decoder_target_tokens [B, T]; where packed also
        encoder_segment_ids [B, S] and decoder_segment_ids [B, T]. Positions of packed rows are not needed: T5 looks
        at distances only. Other keys are ignored.
        dropout_key: a jax key; None drops nothing.
        """
        modules = self._modules(params)
        dropout = OFF if dropout_key is None else Dropout(self.config.dropout_rate, dropout_key)
        encoder_tokens = batch["encoder_input_tokens"]
        encoder_segment_ids = batch.get("encoder_segment_ids")
        encoded = modules.encoder(modules.token_embedder, encoder_tokens, encoder_segment_ids, dropout.at("encoder"))
        return modules.decoder(
            modules.token_embedder,
            encoded,
            encoder_tokens,
            batch["decoder_input_tokens"],
            batch["decoder_target_tokens"],
            encoder_segment_ids,
            batch.get("decoder_segment_ids"),
            dropout.at("decoder"),
        )

    def encode(self, params: Params, encoder_input_tokens: jax.Array) -> jax.Array:
        """[B, S] int32 -> the encoder's output [B, S, D] in the compute dtype, without dropout."""
        modules = self._modules(params)
        return modules.encoder(modules.token_embedder, encoder_input_tokens)

    def init_cache(
        self, params: Params, encoder_input_tokens: jax.Array, max_decode_length: int, rows: int | None = None
    ) -> dict[str, Any]:
        """What `decode_step` needs: each layer's cross attention keys and values, computed once, and room for its own.

        encoder_input_tokens: [B, S] int32. rows: how many rows are encoded at a time, None for all at once.
        The cache is a pytree of arrays of fixed shapes, fit for a lax loop.
        """
        modules = self._modules(params)

        def encode(tokens: jax.Array) -> jax.Array:
            return modules.encoder(modules.token_embedder, tokens)

        return incremental.init_cache(modules.decoder, encode, encoder_input_tokens, max_decode_length, rows)

    def decode_step(
        self, params: Params, cache: dict[str, Any], tokens: jax.Array, step: jax.Array
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Logits [B, V] float32 at position `step`, and the cache with that position in it.

        tokens: [B] int32, the decoder's input at that position: 0 at the first, then the token chosen before.
        step: int32 scalar, counting from 0 to max_decode_length - 1.
        """
        modules = self._modules(params)
        return incremental.decode_step(modules.decoder, modules.token_embedder, cache, tokens, step)

    @property
    def num_params(self) -> int:
        """How many numbers the parameters are."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.abstract_params()))

    def flops_per_example(self, lengths: Mapping[str, int]) -> float:
        """Floating point operations of the matrix products, forward and backward, of one row of a batch.

        lengths: {"inputs": S, "targets": T}, padded. A product [a, b] x [b, c] is 2abc; the backward pass is twice
        the forward pass. Attention is counted as it is computed, in full, causal or not. Norms, softmax and
        embedding look-ups are left out, as is usual for a share of the hardware's peak.
        """
        c = self.config
        S, T = lengths["inputs"], lengths["targets"]
        projection = 2 * c.emb_dim * c.num_heads * c.head_dim  # of one position by one of query, key, value, out
        pair = 2 * 2 * c.num_heads * c.head_dim  # one query with one key: its logit, and its part of the mixture
        mlp = 2 * c.emb_dim * c.mlp_dim * (len(c.mlp_activations) + 1)
        encoder = S * (4 * projection + mlp) + S * S * pair
        decoder = T * (4 * projection + mlp) + T * T * pair + (2 * T + 2 * S) * projection + T * S * pair
        logits = T * 2 * c.emb_dim * c.vocab_size
        return 3.0 * (c.num_encoder_layers * encoder + c.num_decoder_layers * decoder + logits)
