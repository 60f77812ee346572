"""Checkpoints in transformers' layout: there and back, and what is said about those that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from t5xpg.base.errors import UserError
from t5xpg.exchange.huggingface.config import config_from_transformers
from t5xpg.exchange.huggingface.params import params_from_transformers, params_to_transformers
from t5xpg.models.encoder_decoder import EncoderDecoderModel, T5Config
from tests.workplace import REPOSITORY

GOLDENS = sorted((REPOSITORY / "tests" / "goldens").glob("*.safetensors"))


def load(path: Path) -> tuple[T5Config, dict[str, np.ndarray]]:
    with safe_open(path, "numpy") as file:
        config = config_from_transformers(json.loads(file.metadata()["config"]))
    tensors = load_file(path)
    return config, {name.removeprefix("weight/"): v for name, v in tensors.items() if name.startswith("weight/")}


def by_stem(stem: str) -> tuple[T5Config, dict[str, np.ndarray]]:
    return load(next(path for path in GOLDENS if path.stem == stem))


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_there_and_back(path):
    config, weights = load(path)
    params = params_from_transformers(weights, config)
    abstract = EncoderDecoderModel(config).abstract_params()
    assert jax.tree.map(lambda leaf: leaf.shape, params) == jax.tree.map(lambda leaf: leaf.shape, abstract)
    back = params_to_transformers(params, config)
    assert sorted(back) == sorted(weights)
    for name, value in weights.items():
        np.testing.assert_array_equal(back[name], value)
        assert back[name].flags["C_CONTIGUOUS"]


def test_copies_and_a_missing_head():
    config, weights = by_stem("untied_gated_gelu")
    extra = weights["shared.weight"]
    copies = {"encoder.embed_tokens.weight": extra, "decoder.embed_tokens.weight": extra}
    old = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": np.zeros((32, 3), np.float32)}
    params_from_transformers(weights | copies | old, config)
    headless = {name: value for name, value in weights.items() if name != "lm_head.weight"}
    params = params_from_transformers(headless, config)
    np.testing.assert_array_equal(params["decoder"]["logits_dense"]["kernel"], extra.T)

    config, weights = by_stem("tied_relu")
    params_from_transformers(weights | {"lm_head.weight": weights["shared.weight"]}, config)
    with pytest.raises(UserError, match=r"differs from shared\.weight"):
        params_from_transformers(weights | {"lm_head.weight": weights["shared.weight"] + 1}, config)


def test_half_precision_checkpoints_become_float32():
    config, weights = by_stem("tied_relu")
    params = params_from_transformers({name: value.astype(np.float16) for name, value in weights.items()}, config)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


def test_checkpoints_that_do_not_fit():
    config, weights = by_stem("untied_gated_gelu")
    name = "encoder.block.1.layer.0.SelfAttention.q.weight"
    with pytest.raises(UserError, match=r"lacks 1 of the tensors.*" + name):
        params_from_transformers({key: value for key, value in weights.items() if key != name}, config)
    with pytest.raises(UserError, match=r"has 1 tensors that this configuration lacks: other\.weight"):
        params_from_transformers(weights | {"other.weight": np.zeros(1)}, config)
    with pytest.raises(UserError, match=rf"{name} is \(15, 15\), the configuration says \(15, 16\)"):
        params_from_transformers(weights | {name: np.zeros((15, 15), np.float32)}, config)
    with pytest.raises(UserError, match=f"{name} of the checkpoint is of int64: weights are floating-point numbers"):
        params_from_transformers(weights | {name: np.zeros((15, 16), np.int64)}, config)
    with pytest.raises(UserError, match=f"{name} of the checkpoint has 1 of 240 numbers that are NaN or infinite"):
        params_from_transformers(weights | {name: np.diag([np.inf] + 15 * [1.0])[:15]}, config)
    deeper = T5Config(**{**vars(config), "num_encoder_layers": 3})
    with pytest.raises(UserError, match=r"lacks 9 of the tensors.* and 4 more"):
        params_from_transformers(weights, deeper)
