"""What each of our architectures is in T5X: the network, and the parameters as that has them.

| here | in T5X |
|---|---|
| encoder-decoder | `t5x.examples.t5`, with the same names and shapes |
| with tables of relative positions in every layer | `t5x.examples.scalable_t5`, all layers of a stack in one array |
| encoder and decoder with one set of parameters | as an encoder-decoder, with the parameters twice |
| decoder alone | `t5x.examples.decoder_only`, whose embedding is the decoder's |
| encoder alone | none |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import numpy as np

from t5xpg.errors import UserError
from t5xpg.interop.architectures import unshared
from t5xpg.interop.t5x_params import SCAN_AXIS, STACKS, flat, put
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Model, Params
from t5xpg.models.shared_encoder_decoder import SharedEncoderDecoderModel

_BUCKETS, _DISTANCE = 32, 128  # which T5X's networks have


@dataclass(frozen=True)
class Network:
    """A network of T5X. module: of Python; transformer, config: its classes. layers: what the config calls them."""

    module: str
    transformer: str
    config: str
    model: str
    layers: tuple[str, ...]


MINIMAL = Network("t5x.examples.t5", "Transformer", "T5Config", "EncoderDecoderModel", ("encoder", "decoder"))
SCALABLE = dataclasses.replace(MINIMAL, module="t5x.examples.scalable_t5")
DECODER_ONLY = Network(
    "t5x.examples.decoder_only", "DecoderWrapper", "TransformerConfig", "DecoderOnlyModel", ("decoder",)
)


def network_of(model: Model) -> Network:
    """T5X's network for such a model. Raises UserError where T5X has none that computes the same."""
    config = model.config
    # gin configures a class through a subclass of the same name; one of another name computes something else
    kinds = [kind for kind in _TREES if isinstance(model, kind) and type(model).__name__ == kind.__name__]
    if not kinds:
        known = ", ".join(kind.__name__ for kind in _TREES)
        raise UserError(f"T5X has no network that is known to be equal to {type(model).__name__}: it has {known}.")
    buckets, distance = config.relative_attention_num_buckets, config.relative_attention_max_distance
    if (buckets, distance) != (_BUCKETS, _DISTANCE):
        raise UserError(
            f"T5X's networks have {_BUCKETS} buckets of relative positions up to a distance of {_DISTANCE}; this model "
            f"has {buckets} up to {distance}."
        )
    if not config.relpos_bias_in_every_layer:
        return DECODER_ONLY if kinds[0] is DecoderOnlyModel else MINIMAL
    if kinds[0] is DecoderOnlyModel:
        raise UserError("T5X has no decoder alone with tables of relative positions in every layer.")
    return SCALABLE


def in_t5x(model: Model, params: Params) -> Params:
    """The parameters of a model, or any trees of their structure, as `network_of(model)` has them."""
    network_of(model)
    (kind,) = [kind for kind in _TREES if isinstance(model, kind) and type(model).__name__ == kind.__name__]
    return _TREES[kind](model.config, jax.tree.map(np.asarray, params))


def _encoder_decoder(config: T5Config, params: Params) -> Params:
    if not config.relpos_bias_in_every_layer:
        return params
    made: Params = {"token_embedder": params["token_embedder"]}
    counts = (config.num_encoder_layers, config.num_decoder_layers)
    for stack, count in zip(STACKS, counts, strict=True):
        layers = [dict(flat(params[stack][f"layers_{layer}"])) for layer in range(count)]
        made[stack] = {name: part for name, part in params[stack].items() if not name.startswith("layers_")}
        made[stack][stack] = {}
        for name in layers[0]:
            arrays = [_with_heads(name, layer[name], config) for layer in layers]
            put(made[stack][stack], name, np.stack(arrays, axis=SCAN_AXIS))
    return made


def _with_heads(name: str, array: np.ndarray, config: T5Config) -> np.ndarray:
    if "attention/" not in name:
        return array
    heads = (config.num_heads, config.head_dim)
    return array.reshape(*heads, -1) if name.endswith("out/kernel") else array.reshape(-1, *heads)


def _shared(config: T5Config, params: Params) -> Params:
    return _encoder_decoder(config, unshared(config, params))


def _decoder_only(config: T5Config, params: Params) -> Params:
    return {"decoder": {**params["decoder"], "token_embedder": params["token_embedder"]}}


_TREES: Mapping[type[Model], Callable[[T5Config, Params], Params]] = {
    SharedEncoderDecoderModel: _shared,
    EncoderDecoderModel: _encoder_decoder,
    DecoderOnlyModel: _decoder_only,
}
