"""An encoder-decoder that begins as a decoder alone."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from t5xpg.models.adaptation import adapt_decoder, check_adaptable, decoder_params, origin, origins
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.parts import Embeddings, EncoderSizes, Heads
from t5xpg.models.positions import Buckets, Rotary
from t5xpg.models.shared_encoder_decoder import SharedEncoderDecoderModel
from tests.models.test_beyond_t5 import SIZES
from tests.refusals import refused

CASES: dict[str, dict[str, Any]] = {
    "t5_1_1": {},
    "tables in every layer": {"positions": Buckets(in_every_layer=True)},
    "t5gemma": {
        "positions": Rotary(), "layer_norms": "both", "heads": Heads(num_kv_heads=1, logit_softcap=50.0),
        "logits_via_embedding": True, "embeddings": Embeddings(shared=False),
    },
    "scanned": {"scan_layers": True, "heads": Heads(qk_norm=True)},
    "merged": {"heads": Heads(merged=True)},
}  # fmt: skip


def both(case: str) -> tuple[DecoderOnlyModel, Any, EncoderDecoderModel, Any]:
    settings = {**SIZES, **CASES[case]}
    model = EncoderDecoderModel(T5Config(**settings))
    of_one_stack = replace(model.config, heads=replace(model.config.heads, merged=False), embeddings=Embeddings())
    alone = DecoderOnlyModel(of_one_stack)
    draw = np.random.default_rng(0)
    decoder = jax.tree.map(
        lambda leaf: jax.numpy.asarray(draw.normal(size=leaf.shape), leaf.dtype), alone.abstract_params()
    )
    return alone, decoder, model, adapt_decoder(decoder, model.abstract_params(), model.config)


@pytest.mark.parametrize("case", CASES)
def test_every_stack_is_the_decoder(case: str) -> None:
    alone, decoder, model, params = both(case)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, model.abstract_params())
    for name, leaf in flatten_dict(decoder, sep="/").items():
        np.testing.assert_array_equal(leaf, flatten_dict(params, sep="/")[name], name)
    assert jax.tree.structure(decoder_params(params, model.config)) == jax.tree.structure(decoder)
    # over one position there is nothing to see ahead: the encoder gives what the decoder makes its logits of
    tokens = np.arange(3, 9, dtype=np.int32)[:, None]
    batch = {"decoder_input_tokens": tokens, "decoder_target_tokens": tokens}
    head = params["decoder"].get("logits_dense", {}).get("kernel")
    head = params["token_embedder"]["embedding"].T / np.sqrt(12, dtype=np.float32) if head is None else head
    found = jax.jit(model.encode)(params, tokens) @ head
    np.testing.assert_allclose(found, jax.jit(alone.logits)(decoder, batch), rtol=1e-5, atol=1e-4)
    for at in range(2) if not model.config.scan_layers and not model.config.heads.merged else ():
        layer = params["decoder"][f"layers_{at}"]
        norms = [layer[f"pre_{kind}_attention_layer_norm"]["scale"] for kind in ("self", "cross")]
        np.testing.assert_array_equal(*norms)
        for part in ("query", "key", "value", "out"):
            kernels = [layer[kind][part]["kernel"] for kind in ("self_attention", "encoder_decoder_attention")]
            np.testing.assert_array_equal(*kernels)
            assert kernels[0] is not kernels[1]


@pytest.mark.parametrize(
    ("case", "weakened"),
    [("t5_1_1", "encoder_decoder_attention/out/kernel"), ("t5gemma", "post_cross_attention_layer_norm/scale")],
)
def test_a_shorter_encoder_gives_what_the_next_layer_of_the_decoder_reads(case: str, weakened: str) -> None:
    _, decoder, model, _ = both(case)
    shorter = EncoderDecoderModel(replace(model.config, num_encoder_layers=1))
    check_adaptable(shorter)
    params = flatten_dict(adapt_decoder(decoder, shorter.abstract_params(), shorter.config, 0.25), sep="/")
    assert params.keys() == flatten_dict(shorter.abstract_params(), sep="/").keys()
    reads = params["decoder/layers_1/pre_self_attention_layer_norm/scale"]
    np.testing.assert_array_equal(params["encoder/encoder_norm/scale"], reads)
    assert origins(shorter.abstract_params(), shorter.config)["encoder/encoder_norm"] == (
        "decoder/layers_1/pre_self_attention_layer_norm"
    )
    for name in ("encoder_decoder_attention/out/kernel", "post_cross_attention_layer_norm/scale"):
        for layer, factor in (("layers_0", 0.25 if name == weakened else 1.0), ("layers_1", 1.0)):
            if (ours := f"decoder/{layer}/{name}") in params:
                np.testing.assert_array_equal(params[ours], factor * params[origin(ours, shorter.config)], ours)


def test_an_encoder_sees_distances_as_the_decoder_sees_those_behind() -> None:
    _, decoder, model, params = both("t5_1_1")
    behind = decoder["decoder"]["relpos_bias"]["rel_embedding"]
    found = params["encoder"]["relpos_bias"]["rel_embedding"]
    for distance in range(8):  # the buckets of one distance each
        np.testing.assert_array_equal(found[:, distance], behind[:, distance])
        if distance:
            np.testing.assert_array_equal(found[:, 16 + distance], behind[:, distance])
    # the encoder's bucket 8 has the distances 8 to 11, which the decoder tells apart
    np.testing.assert_allclose(found[:, 8], behind[:, 8:12].mean(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(found[:, 9:16], found[:, 25:])
    assert not found[:, 16].any(), "ahead by nothing: no position is"
    assert model.config.positions == Buckets(32)


def test_what_is_listed() -> None:
    model = EncoderDecoderModel(T5Config(**SIZES))
    assert origins(model.abstract_params(), model.config) == {
        "decoder/layers_*/encoder_decoder_attention": "decoder/layers_*/self_attention",
        "decoder/layers_*/pre_cross_attention_layer_norm": "decoder/layers_*/pre_self_attention_layer_norm",
        "encoder/encoder_norm": "decoder/decoder_norm",
        "encoder/layers_*/attention": "decoder/layers_*/self_attention",
        "encoder/layers_*/mlp": "decoder/layers_*/mlp",
        "encoder/layers_*/pre_attention_layer_norm": "decoder/layers_*/pre_self_attention_layer_norm",
        "encoder/layers_*/pre_mlp_layer_norm": "decoder/layers_*/pre_mlp_layer_norm",
        "encoder/relpos_bias": "decoder/relpos_bias",
    }


def test_what_cannot_begin_so() -> None:
    for kind, setting, named in (
        (SharedEncoderDecoderModel, {}, "EncoderDecoderModel"),
        (EncoderDecoderModel, {"num_encoder_layers": 3}, "num_encoder_layers"),
        (EncoderDecoderModel, {"num_encoder_layers": 1, "scan_layers": True}, "SCAN_LAYERS"),
        (EncoderDecoderModel, {"num_encoder_layers": 1, "layer_norms": "post"}, "layer_norms"),
        (EncoderDecoderModel, {"encoder_sizes": EncoderSizes(mlp_dim=9)}, "EncoderSizes.mlp_dim"),
    ):
        with refused(named):
            check_adaptable(kind(T5Config(**{**SIZES, **setting})))
