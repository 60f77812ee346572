"""The model against transformers' T5: logits, loss, gradients and greedy answers, from golden tensors.

tests/goldens/make_goldens.py made them. Tolerances are relative L2 norms.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from t5xpg.exchange.huggingface.config import config_from_transformers
from t5xpg.exchange.huggingface.params import params_from_transformers, params_to_transformers
from t5xpg.models.decoding import greedy
from t5xpg.models.encoder_decoder import EncoderDecoderModel, T5Config
from t5xpg.models.losses import LossConfig, loss_and_metrics
from tests.workplace import REPOSITORY

# compiling takes most of the time of these tests; only LLVM's optimisations are left out
QUICK = {"xla_backend_optimization_level": 0}
GOLDENS = sorted((REPOSITORY / "tests" / "goldens").glob("*.safetensors"))


def relative_l2(got, expected) -> float:
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def load(path: Path):
    tensors = load_file(path)
    with safe_open(path, "numpy") as file:
        config = config_from_transformers(json.loads(file.metadata()["config"]))
    weights = {name.removeprefix("weight/"): value for name, value in tensors.items() if name.startswith("weight/")}
    gradients = {
        name.removeprefix("gradient/"): value for name, value in tensors.items() if name.startswith("gradient/")
    }
    targets = tensors["targets"]
    batch = {
        "encoder_input_tokens": tensors["inputs"],
        "decoder_target_tokens": targets,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_loss_weights": (targets > 0).astype(np.int32),
    }
    return tensors, config, weights, gradients, {name: jnp.asarray(value) for name, value in batch.items()}


def run(config: T5Config, weights, batch):
    """Logits, loss (mean over real targets, no z-loss) and gradients."""
    model = EncoderDecoderModel(config)
    params = jax.tree.map(jnp.asarray, params_from_transformers(weights, config))
    loss_config = LossConfig(z_loss=0.0)
    token_bytes = np.ones(config.vocab_size, np.int32)

    @functools.partial(jax.jit, compiler_options=QUICK)
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss_and_logits(params):
        logits = model.logits(params, batch)
        return loss_and_metrics(logits, batch, loss_config, token_bytes)[0], logits

    with jax.numpy_dtype_promotion("strict"), jax.default_matmul_precision("highest"):
        (loss, logits), gradients = loss_and_logits(params)
    return logits, loss, params_to_transformers(gradients, config)


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_float32(path):
    tensors, config, weights, expected_gradients, batch = load(path)
    logits, loss, gradients = run(config, weights, batch)
    real = tensors["targets"] > 0
    assert relative_l2(np.asarray(logits)[real], tensors["logits"][real]) < 1e-4
    assert relative_l2(loss, tensors["loss"][0]) < 1e-4
    assert sorted(gradients) == sorted(expected_gradients)
    for name, expected in expected_gradients.items():
        assert relative_l2(gradients[name], expected) < 1e-4, name


@pytest.mark.parametrize(
    ("path", "float32_attention_logits"),
    [(path, False) for path in GOLDENS] + [(path, True) for path in GOLDENS if path.stem == "untied_gated_gelu"],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_bfloat16(path, float32_attention_logits):
    tensors, config, weights, expected_gradients, batch = load(path)
    settings = {"dtype": "bfloat16", "float32_attention_logits": float32_attention_logits}
    config = T5Config(**{**vars(config), **settings})
    logits, loss, gradients = run(config, weights, batch)
    assert logits.dtype == jnp.float32
    real = tensors["targets"] > 0
    assert relative_l2(np.asarray(logits)[real], tensors["logits"][real]) < 2e-2
    assert relative_l2(loss, tensors["loss"][0]) < 1e-3
    assert {gradient.dtype for gradient in gradients.values()} == {np.dtype(np.float32)}
    names = sorted(gradients)
    together = (np.concatenate([tree[name].ravel() for name in names]) for tree in (gradients, expected_gradients))
    assert relative_l2(*together) < 6e-2
    # a ReLU that rounding switches on or off changes single columns of a matrix this small
    if config.mlp_activations != ("relu",):
        for name in names:
            assert relative_l2(gradients[name], expected_gradients[name]) < 6e-2, name


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_greedy_answers(path):
    tensors, config, weights, _, batch = load(path)
    expected = tensors["generated"]
    params = jax.tree.map(jnp.asarray, params_from_transformers(weights, config))
    decode = jax.jit(
        functools.partial(greedy, EncoderDecoderModel(config), max_decode_length=expected.shape[1]),
        compiler_options=QUICK,
    )
    np.testing.assert_array_equal(decode(params, batch["encoder_input_tokens"]), expected)
