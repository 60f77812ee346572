"""An encoder-decoder initialised from a decoder alone, whose parameters also go to encoder and cross attention.

As T5Gemma was made of Gemma 2 (Zhang et al. 2025, arXiv 2504.06225, section 3): the encoder is the decoder's layers,
which then see both sides, and the cross attention of a layer begins as its self attention.

An encoder may have fewer layers, k, than the decoder: the first ones. Its output is then what the decoder's layer k
reads (counted from 0), normalised as there, so that the cross attention of this layer is its self attention over
another text. The cross attention of all other layers reads a space that it does not know; it can begin weaker.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t5xpg.base.errors import UserError
from t5xpg.models.attention.relative_positions import relative_position_bucket
from t5xpg.models.config import ENCODER_SIZES, T5Config, setting_name
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Model, Params
from t5xpg.models.positions import Buckets

# settings that give an encoder parameters or sizes that a decoder does not have
_ENCODERS_OWN = {*ENCODER_SIZES, "encoder_global_block"}
_TABLE = "relpos_bias/rel_embedding"


def check_adaptable(model: Model) -> None:
    """Raise UserError for a model that cannot begin as a decoder alone."""
    if type(model) is not EncoderDecoderModel:
        raise UserError(f"ADAPT_DECODER is for an EncoderDecoderModel, and the model is a {type(model).__name__}.")
    if others := _ENCODERS_OWN & set(model.config.beyond_t5):
        names = " and no ".join(map(setting_name, sorted(others)))
        raise UserError(f"ADAPT_DECODER: the encoder begins as the decoder's layers, which have no {names}.")
    config = model.config
    layers = config.num_encoder_layers, config.num_decoder_layers
    needs_all = config.scan_layers or config.layer_norms == "post"
    if layers[0] > layers[1] or (layers[0] < layers[1] and needs_all):
        raise UserError(
            f"ADAPT_DECODER: each layer of the encoder begins as one of the decoder, and there are {layers[0]} and "
            f"{layers[1]}: set num_decoder_layers to that of the checkpoint, and num_encoder_layers to no more (with "
            "SCAN_LAYERS, or layer_norms = 'post', to as many)."
        )


def origin(name: str, config: T5Config) -> str:
    """The decoder's parameter from which this one is initialised; both names as "decoder/layers_0/mlp/wo/kernel"."""
    if name == "encoder/encoder_norm/scale" and (reader := _reader(config)):
        return f"decoder/{reader}/pre_self_attention_layer_norm/scale"
    name = name.removeprefix("decoder_") if name.startswith("decoder_token_embedder/") else name
    if name.startswith("encoder/"):
        name = name.replace("encoder/", "decoder/", 1).replace("/encoder_norm/", "/decoder_norm/")
        return re.sub(r"/((?:pre_|post_)?)attention(?=/|_layer_norm/)", r"/\1self_attention", name)
    name = name.replace("/encoder_decoder_attention/", "/self_attention/")
    return re.sub(r"/(pre|post)_cross_attention_layer_norm/", r"/\1_self_attention_layer_norm/", name)


def _reader(config: T5Config) -> str | None:
    """The layer of the decoder whose input is the output of a shorter encoder; None if there are as many layers."""
    layers = config.num_encoder_layers
    return None if layers == config.num_decoder_layers else f"layers_{layers}"


def decoder_params(params: Params, config: T5Config) -> Params:
    """The part of an encoder-decoder's tree that a decoder alone has, under the decoder's names."""
    flat: Mapping[str, Any] = flatten_dict(params, sep="/")
    return unflatten_dict({name: leaf for name, leaf in flat.items() if origin(name, config) == name}, sep="/")


def adapt_decoder(decoder: Params, like: Params, config: T5Config, cross_attention_factor: float = 1.0) -> Params:
    """The parameters of an encoder-decoder, made from a decoder's; each has the sharding of its counterpart in `like`.

    cross_attention_factor: what cross attention adds to the decoder's states is multiplied by it, but for the layer
    that reads a shorter encoder as its own input. In T5's tables of relative positions, an encoder's bucket gets the
    mean of the decoder's values for its distances, the same behind and ahead.
    """
    flat, to_both_directions = flatten_dict(decoder, sep="/"), _bucket_means(config)
    has_norm_behind = config.layer_norms != "pre"
    last = "post_cross_attention_layer_norm/scale" if has_norm_behind else "encoder_decoder_attention/out/kernel"
    own_input = f"decoder/{_reader(config)}/"

    def leaf(name: str, counterpart: Any) -> jax.Array:
        array = flat[origin(name, config)]
        if name.startswith("encoder/") and name.endswith(_TABLE):
            array = jnp.dot(array, to_both_directions, precision=jax.lax.Precision.HIGHEST)
        if name.endswith(last) and not name.startswith(own_input):
            array = array * jnp.asarray(cross_attention_factor, array.dtype)
        # a copy, because an update donates the arrays of parameters
        return jax.device_put(jnp.array(array, copy=True), counterpart.sharding)

    leaves = {name: leaf(name, counterpart) for name, counterpart in flatten_dict(like, sep="/").items()}
    return unflatten_dict(leaves, sep="/")


def origins(params: Params, config: T5Config) -> dict[str, str]:
    """For `make check`: parts of an encoder-decoder -> the parts of the decoder, of another name, that begin them."""
    parts = {}
    for name in flatten_dict(params, sep="/"):
        if (begins_as := origin(name, config)) != name:
            is_in_layer = "layers_" in name  # or begins as a part of one layer
            pair = (re.sub(r"layers_\d+", "layers_*", each) if is_in_layer else each for each in (name, begins_as))
            ours, theirs = ("/".join(each.split("/")[: 3 if "layers" in each else 2]) for each in pair)
            parts[ours] = theirs
    return parts


def _bucket_means(config: T5Config) -> jax.Array:
    """[decoder buckets, encoder buckets] float32: columns add up to 1, or to 0 for buckets without distances."""
    positions = config.buckets or Buckets()
    buckets, farthest = positions.num_buckets, positions.max_distance
    steps = np.arange(-farthest, farthest + 1)
    encoder = relative_position_bucket(steps, True, buckets, farthest)
    decoder = relative_position_bucket(-np.abs(steps), False, buckets, farthest)
    counts = np.zeros((buckets, buckets), np.float32)
    np.add.at(counts, (decoder, encoder), 1)
    return jnp.asarray(counts / np.maximum(counts.sum(axis=0), 1))
