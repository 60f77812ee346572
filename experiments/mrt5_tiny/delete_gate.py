"""A T5 with a gate that leaves positions out of the encoder: MrT5's (Kallini et al. 2024, arXiv 2410.20771), with a
fixed share.

MrT5 deletes the positions whose gate is low, more in some rows than in others, and a term of the loss controls their
share. Here every row of S positions keeps the same number, those with the highest gates: shapes are static, and the
loss has no such term (as when experts choose tokens: Raposo et al. 2024, arXiv 2404.02258). Padding is deleted first.
Kept positions stay in order; for the table of relative positions they are neighbours.
Shapes: B batch, S positions, K kept ones, D emb.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.nn import initializers

from t5xpg.base.errors import UserError
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel, Transformer
from t5xpg.models.layers import OFF, Dropout, Embed, RMSNorm, named_key, parameter
from t5xpg.models.model import LayerFlops, Params
from t5xpg.models.stacks import Encoder, Source


class KeptPositions(NamedTuple):
    """The positions [B, K] int32 that a gate keeps, in their order, and their gates [B, K] float32, between 0 and 2."""

    positions: jax.Array
    gates: jax.Array

    def gather(self, x: jax.Array) -> jax.Array:
        """[B, S, ...] -> [B, K, ...]."""
        return jnp.take_along_axis(x, self.positions.reshape(*self.positions.shape, *[1] * (x.ndim - 2)), axis=1)


class DeleteGate(nnx.Module):
    """A score for each position, the projection of its state on one vector. The positions with the highest are kept."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        self.norm = RMSNorm(config.emb_dim)
        init = initializers.normal(config.emb_dim**-0.5)
        self.kernel = parameter(named_key(key, "kernel"), init, (config.emb_dim,), ("embed",))

    def __call__(self, x: jax.Array, tokens: jax.Array, number: int) -> KeptPositions:
        """x [B, S, D], tokens [B, S] int32, padding where 0. number: K."""
        scores = jnp.dot(self.norm(x).astype(jnp.float32), self.kernel[...], precision=lax.Precision.HIGHEST)
        order = lax.stop_gradient(jnp.where(tokens > 0, scores, -jnp.inf))
        positions = jnp.sort(lax.top_k(order, number)[1], axis=1)
        return KeptPositions(positions, 2 * jax.nn.sigmoid(jnp.take_along_axis(scores, positions, axis=1)))


class DeletingEncoder(Encoder):
    """An encoder with a gate after `gate_layer` layers, which removes the share `deletion_rate` of the positions."""

    gate_layer: int
    deletion_rate: float

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        super().__init__(key, config)
        self.delete_gate = DeleteGate(named_key(key, "delete_gate"), config)

    def __call__(
        self, embed: Embed, tokens: jax.Array, segment_ids: jax.Array | None = None, dropout: Dropout = OFF
    ) -> Source:
        """tokens [B, S] int32 -> states of K positions. Raises UserError for packed rows."""
        if segment_ids is not None:
            raise UserError("The delete gate keeps a share of a row, which must be one text: set PACK=False.")
        x = dropout.at("embedding")(embed(tokens, self.dtype))
        geometry, gates = self.geometry(tokens), None
        for index, (name, layer) in enumerate(self.named_layers()):
            if index == self.gate_layer:
                kept = self.delete_gate(x, tokens, num_kept(tokens.shape[1], self.deletion_rate))
                x, tokens, gates = kept.gather(x), kept.gather(tokens), kept.gates
                geometry = self.geometry(tokens)
            x = layer(x, geometry(layer, index), dropout.at(name))
        assert gates is not None
        # the gate learns through the states of the positions that it keeps, which the decoder reads
        states = dropout.at("output")(self.encoder_norm(x), shared_axis=None) * gates[..., None].astype(self.dtype)
        return Source(states, tokens)


class DeleteGateTransformer(Transformer):
    """The modules of DeleteGateModel."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        super().__init__(key, config)
        self.encoder = DeletingEncoder(named_key(key, "encoder"), config.encoder)


@dataclass(frozen=True)
class DeleteGateModel(EncoderDecoderModel):
    """A T5 whose decoder reads what the gate keeps. A row's padding counts: predictions depend on the padded length.

    gate_layer: the number of the encoder's layers before the gate. deletion_rate: the share of positions removed.
    Raises UserError for values that the model cannot have.
    """

    gate_layer: int = 2
    deletion_rate: float = 0.5
    source_attention = None  # its weights would be of the kept positions, and not of the inputs

    def __post_init__(self) -> None:
        if not 1 <= self.gate_layer < self.config.num_encoder_layers:
            layers = self.config.num_encoder_layers
            raise UserError(f"DeleteGateModel.gate_layer is {self.gate_layer}: it must be from 1 to {layers - 1}.")
        if not 0.0 < self.deletion_rate < 1.0:
            raise UserError(f"DeleteGateModel.deletion_rate is {self.deletion_rate}: it must be above 0 and below 1.")

    @staticmethod
    def modules(key: jax.Array, config: T5Config) -> nnx.Module:
        return DeleteGateTransformer(key, config)

    def with_parameters(self, params: Params) -> Any:
        modules = super().with_parameters(params)
        modules.encoder.gate_layer, modules.encoder.deletion_rate = self.gate_layer, self.deletion_rate
        return modules

    def flops_per_example(self, lengths: Mapping[str, int]) -> float:
        """That of a T5 whose inputs have the kept length, and the first layers of the encoder on all positions."""
        kept = num_kept(lengths["inputs"], self.deletion_rate)
        first = LayerFlops(self.config.encoder)
        more = [first.self_attention_and_mlp(S, self.gate_layer) for S in (lengths["inputs"], kept)]
        return super().flops_per_example({**lengths, "inputs": kept}) + 3.0 * (more[0] - more[1])


def num_kept(length: int, rate: float) -> int:
    """K, the number of positions kept out of S (`length`)."""
    return length - int(rate * length)
