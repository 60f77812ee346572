"""The model against transformers' T5: logits, loss and gradients; beam search against its `generate`.

The goldens of tests/goldens. Tolerances are relative L2 norms. Greedy answers: exchange/test_importing.py.
"""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.exchange.huggingface.params import params_from_transformers, params_to_transformers
from t5xpg.models.config import T5Config
from t5xpg.models.decoding import DecodingConfig, beam_search
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.losses import LossConfig, loss_and_metrics
from tests.small_models import GOLDENS, golden, relative_l2, seq2seq

PATHS = sorted(GOLDENS.glob("*.safetensors"))


def run(config: T5Config, weights, tensors):
    """Logits, loss (mean over real targets, no z-loss) and gradients."""
    model = EncoderDecoderModel(config)
    params = jax.tree.map(jnp.asarray, params_from_transformers(weights, config))
    token_bytes = np.ones(config.vocab_size, np.int32)
    weights_of_loss = {"decoder_loss_weights": (tensors["targets"] > 0).astype(np.int32)}
    batch = jax.tree.map(jnp.asarray, seq2seq(tensors["inputs"], tensors["targets"]) | weights_of_loss)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss_and_logits(params):
        logits = model.logits(params, batch)
        return loss_and_metrics(logits, batch, LossConfig(z_loss=0.0), token_bytes)[0], logits

    with jax.default_matmul_precision("highest"):
        (loss, logits), gradients = loss_and_logits(params)
    return logits, loss, params_to_transformers(gradients, config)


def gradients_of(tensors):
    return {name.removeprefix("gradient/"): value for name, value in tensors.items() if name.startswith("gradient/")}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_float32(path):
    config, weights, tensors, _ = golden(path)
    logits, loss, gradients = run(config, weights, tensors)
    real = tensors["targets"] > 0
    assert relative_l2(np.asarray(logits)[real], tensors["logits"][real]) < 1e-4
    assert relative_l2(loss, tensors["loss"][0]) < 1e-4
    assert sorted(gradients) == sorted(gradients_of(tensors))
    for name, expected in gradients_of(tensors).items():
        assert relative_l2(gradients[name], expected) < 1e-4, name


@pytest.mark.parametrize(
    ("path", "float32_attention_logits"),
    [(path, False) for path in PATHS] + [(path, True) for path in PATHS if path.stem == "untied_gated_gelu"],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_bfloat16(path, float32_attention_logits):
    config, weights, tensors, _ = golden(path)
    expected_gradients = gradients_of(tensors)
    config = dataclasses.replace(config, dtype="bfloat16", float32_attention_logits=float32_attention_logits)
    logits, loss, gradients = run(config, weights, tensors)
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


# beam search
BEAMS = golden(GOLDENS / "beams" / "tied_relu.safetensors")


@pytest.mark.parametrize("name", [name for name in BEAMS[3]["searches"] if name != "greedy"])
def test_transformers_rule(name: str) -> None:
    config, weights, tensors, metadata = BEAMS
    options = metadata["searches"][name]
    stopping = options.get("early_stopping", False)
    rule = DecodingConfig("beam", None, options["num_beams"], True, "transformers", options["length_penalty"], stopping)
    length, returned = tensors["greedy/tokens"].shape[-1], options["num_return_sequences"]
    search = functools.partial(beam_search, EncoderDecoderModel(config), max_decode_length=length, config=rule)
    params = jax.tree.map(jnp.asarray, params_from_transformers(weights, config))
    found = jax.jit(search)(params, jnp.asarray(tensors["inputs"]))
    np.testing.assert_array_equal(found.tokens[:, :returned], tensors[f"{name}/tokens"])
    np.testing.assert_allclose(found.scores[:, :returned], tensors[f"{name}/scores"], rtol=1e-4)
