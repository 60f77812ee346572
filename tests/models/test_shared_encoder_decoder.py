"""Encoder and decoder with one set of parameters: the same as two sets that are equal."""

from typing import Any

import jax
import numpy as np

from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.parts import EncoderSizes, Ngrams
from t5xpg.models.shared_encoder_decoder import SharedEncoderDecoderModel
from tests.refusals import refused
from tests.small_models import SIZES, seq2seq


def in_two_sets(shared: dict[str, Any]) -> dict[str, Any]:
    decoder = shared["decoder"]
    encoder = {"relpos_bias": decoder["relpos_bias"], "encoder_norm": decoder["decoder_norm"]}
    for name in ("layers_0", "layers_1"):
        layer = decoder[name]
        encoder[name] = {
            "pre_attention_layer_norm": layer["pre_self_attention_layer_norm"],
            "attention": layer["self_attention"],
            "pre_mlp_layer_norm": layer["pre_mlp_layer_norm"],
            "mlp": layer["mlp"],
        }
    return {**shared, "encoder": encoder}


def test_it_is_an_encoder_decoder_with_two_equal_sets():
    """With an output matrix of its own: exchange/test_to_t5x.py."""
    config = T5Config(**SIZES, logits_via_embedding=True, embeddings=Ngrams(lengths=(2,), buckets=16))
    shared, plain = SharedEncoderDecoderModel(config), EncoderDecoderModel(config)
    params = shared.init(jax.random.key(0))
    params["decoder"]["relpos_bias"]["rel_embedding"] *= 3.0
    params["token_embedder"]["ngram_embedding"] += np.random.default_rng(1).normal(size=(16, 1)).astype(np.float32)
    rng = np.random.default_rng(0)
    inputs = np.where(np.arange(9) < 7, rng.integers(1, 29, (2, 9), np.int32), 0)
    batch = seq2seq(inputs, rng.integers(1, 29, (2, 5), np.int32))
    found, expected = (
        jax.jit(lambda params, model=model: (model.logits(params, batch), model.init_cache(params, inputs, 3)))(own)
        for model, own in ((shared, params), (plain, in_two_sets(params)))
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)
    left_out = sum(leaf.size for leaf in jax.tree.leaves(in_two_sets(params)["encoder"]))
    assert plain.num_params - shared.num_params == left_out


def test_what_it_cannot_have_is_refused():
    for settings, named in (
        ({"num_encoder_layers": 3}, "3 layers"),
        ({"encoder_sizes": EncoderSizes(mlp_dim=48)}, "EncoderSizes.mlp_dim"),
    ):
        with refused(named):
            SharedEncoderDecoderModel(T5Config(**{**SIZES, **settings})).abstract_params()
