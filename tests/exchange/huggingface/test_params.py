"""Checkpoints in transformers' layout: copies, other types, and what is said about those that do not fit.

There and back: tests/exchange/test_to_transformers.py.
"""

import dataclasses

import jax
import numpy as np

from t5xpg.exchange.huggingface.params import params_from_transformers
from tests.refusals import refused
from tests.small_models import GOLDENS, golden

UNTIED, WEIGHTS, _, _ = golden(GOLDENS / "untied_gated_gelu.safetensors")
TIED, TIED_WEIGHTS, _, _ = golden(GOLDENS / "tied_relu.safetensors")
QUERY = "encoder.block.1.layer.0.SelfAttention.q.weight"


def test_copies_and_a_missing_head():
    extra = WEIGHTS["shared.weight"]
    copies = {"encoder.embed_tokens.weight": extra, "decoder.embed_tokens.weight": extra}
    old = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": np.zeros((32, 3), np.float32)}
    params_from_transformers(WEIGHTS | copies | old, UNTIED)
    headless = {name: value for name, value in WEIGHTS.items() if name != "lm_head.weight"}
    params = params_from_transformers(headless, UNTIED)
    np.testing.assert_array_equal(params["decoder"]["logits_dense"]["kernel"], extra.T)
    shared = TIED_WEIGHTS["shared.weight"]
    params_from_transformers(TIED_WEIGHTS | {"lm_head.weight": shared}, TIED)
    with refused("shared.weight"):
        params_from_transformers(TIED_WEIGHTS | {"lm_head.weight": shared + 1}, TIED)


def test_half_precision_checkpoints_become_float32():
    params = params_from_transformers({name: value.astype(np.float16) for name, value in WEIGHTS.items()}, UNTIED)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


def test_checkpoints_that_do_not_fit():
    for changes, settings, *named in (
        ({QUERY: None}, {}, "lacks", QUERY),
        ({"other.weight": np.zeros(1)}, {}, "other.weight"),
        ({QUERY: np.zeros((15, 15))}, {}, QUERY, "(15, 15)", "(15, 16)"),
        ({QUERY: np.zeros((15, 16), np.int64)}, {}, QUERY, "int64"),
        ({QUERY: np.diag([np.inf] + 15 * [1.0])[:15]}, {}, QUERY, "1 of 240"),
        ({}, {"num_encoder_layers": 3}, "lacks 9", "4 more"),
    ):
        given = {name: value for name, value in {**WEIGHTS, **changes}.items() if value is not None}
        with refused(*named):
            params_from_transformers(given, dataclasses.replace(UNTIED, **settings))
