"""The biases, masks, windows and rotations of positions in the layers of a stack, by the kind of a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from t5xpg.models.attention.biases import AttentionPattern, Bias, BlockedBias, DenseBias, LocalOrGlobalBias
from t5xpg.models.attention.global_tokens import GlobalTokens
from t5xpg.models.attention.relative_positions import RelativePositionBias
from t5xpg.models.attention.rotary import Rotation, rotation
from t5xpg.models.config import T5Config

_UNLIMITED = (2**30, 2**30)


class Geometry(NamedTuple):
    """For one attention: the bias of its logits, the rotations of its queries and keys, and its global tokens."""

    bias: Bias | LocalOrGlobalBias
    queries: Rotation | None = None
    keys: Rotation | None = None
    global_tokens: GlobalTokens | None = None

    @property
    def dense(self) -> DenseBias:
        """The bias of attention that is neither by chunks nor by blocks."""
        assert isinstance(self.bias, DenseBias)
        return self.bias

    def merge(self, source: Geometry) -> Geometry:
        """The geometry of one softmax over a decoder's own positions [.., T, T] and then a source [.., T, S]."""
        first, second = self.dense.mask, source.dense.mask
        B, queries, keys = max(first.shape[0], second.shape[0]), first.shape[2], second.shape[3]
        masks = [jnp.broadcast_to(mask, (B, 1, queries, mask.shape[3])) for mask in (first, second)]
        position = self.dense.position
        if position is not None:
            position = jnp.pad(position, ((0, 0), (0, 0), (0, 0), (0, keys)))
        return self._replace(bias=DenseBias(jnp.concatenate(masks, axis=3), position))


def has_window(config: T5Config, index: int | jax.Array) -> Any:
    """True if the layer at `index`, counted from 0, has a window in a stack with windows; bool, or boolean []."""
    return (index + 1) % config.windows.pattern != 0


# one item for layers with a window and one for the others; a single item where both have the same
Kinds = tuple[Any, ...]


def select_kind(config: T5Config, kinds: Kinds, index: int | jax.Array) -> Any:
    """The item of `kinds` for the layer at `index`; the index is traced where layers are scanned."""
    if len(kinds) == 1:
        return kinds[0]
    is_local = has_window(config, index)
    if isinstance(is_local, bool):
        return kinds[0 if is_local else 1]
    if isinstance(kinds[0], BlockedBias):
        return LocalOrGlobalBias(is_local, *kinds)
    return jax.tree.map(lambda local, whole: jnp.where(is_local, local, whole), *kinds)


def rotations(config: T5Config, positions: jax.Array) -> Kinds:
    """The `Rotation` (or None) of positions [...] int32, for each kind of layer."""
    rotary = config.rotary
    differ = rotary is not None and (rotary.local_base is not None or rotary.scale != 1.0)
    return tuple(rotation(config, positions, is_local) for is_local in ((True, False) if differ else (False,)))


def self_geometries(
    config: T5Config,
    pattern: AttentionPattern,
    window: tuple[int, int] | None,
    relpos_bias: RelativePositionBias | None,
    positions: jax.Array | None = None,
    global_tokens: GlobalTokens | None = None,
) -> Callable[[Any, int | jax.Array], Geometry]:
    """The geometry of a layer's self attention, by the layer and its index.

    pattern: without window and table of relative positions, which are added here; the table is read in both directions
    unless `is_causal`. window: for the layers that have one. relpos_bias: the stack's table, for all layers; None where
    every layer has its own, or none has. positions: of the rows, [T] or [B, T]; None: 0, 1, 2 and so on. global_tokens:
    those of the stack.
    """
    layer_rotations = rotations(
        config, jnp.arange(pattern.queries, dtype=jnp.int32) if positions is None else positions
    )
    unlimited = _UNLIMITED if config.scan_layers else None  # in a scan, both kinds need arrays of the same shape
    layers = config.num_decoder_layers if pattern.is_causal else config.num_encoder_layers
    have_windows = window is not None and config.windows.pattern > layers  # all of them
    # merged attention adds the source to the decoder's positions: no blocks
    by_blocks = False if config.heads.merged and pattern.is_causal else True if global_tokens is not None else None

    def biases(relpos_bias: RelativePositionBias | None) -> Kinds:
        table = None if relpos_bias is None else relpos_bias.table(bidirectional=not pattern.is_causal)

        def layer_bias(is_local: bool) -> Bias:
            layer_window = window and (window if is_local or have_windows else unlimited)
            layer_pattern = replace(pattern, positions=table, window=layer_window)
            return layer_pattern.make_bias(config.attention_chunk_size, by_blocks)

        return (layer_bias(True), layer_bias(False)) if window and not have_windows else (layer_bias(False),)

    shared = biases(relpos_bias)

    def geometry(layer: Any, index: int | jax.Array) -> Geometry:
        layer_biases = shared if layer.relpos_bias is None else biases(layer.relpos_bias)
        own_rotation = select_kind(config, layer_rotations, index)
        return Geometry(select_kind(config, layer_biases, index), own_rotation, own_rotation, global_tokens)

    return geometry
