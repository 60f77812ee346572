"""The coordinate check of muP (Yang et al. 2021, appendix D.1): at one rate, wide models change as narrow ones do."""

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest

from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.optim.optimizers import AdamW, Muon, Optimizer
from tests.small_models import ONE_LAYER, SIZES, seq2seq

NARROW, WIDE, UPDATES = 32, 128, 3


@functools.cache
def of_width(width: int) -> tuple[EncoderDecoderModel, Any, Any]:
    """A model, its parameters, and what gives their gradients on one batch, and logits."""
    sizes = {**SIZES, **ONE_LAYER, "emb_dim": width, "head_dim": 8, "num_heads": width // 8, "mlp_dim": 2 * width}
    model, rng = EncoderDecoderModel(T5Config(**sizes)), np.random.default_rng(0)
    batch = seq2seq(*rng.integers(2, model.config.vocab_size, (2, 8, 12), dtype=np.int32))

    def loss(params):
        logits = model.logits(params, batch)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["decoder_target_tokens"]).mean(), logits

    return model, model.init(jax.random.key(0)), jax.jit(jax.grad(loss, has_aux=True))


def change_of_logits(optimizer: Optimizer, width: int) -> float:
    """Root mean square of what updates on one batch change in the logits of a model of `width`."""
    model, params, gradients_of = of_width(width)
    transformation = optimizer.transformation(model.logical_axes())

    @jax.jit
    def update(params, state, gradients):
        updates, state = transformation.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state, logits = transformation.init(params), []
    for _ in range(UPDATES + 1):
        gradients, before = gradients_of(params)
        params, state = update(params, state, gradients)
        logits.append(before)
    return float(np.sqrt(np.mean(np.square(logits[-1] - logits[0]))))


@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_updates_of_wide_models_change_as_much(kind):
    narrow, plain = (change_of_logits(kind(0.01), width) for width in (NARROW, WIDE))
    scaled = change_of_logits(kind(0.01, width_factor=WIDE / NARROW), WIDE)
    assert max(scaled / narrow, narrow / scaled) <= 1.6
    assert plain > 1.6 * narrow, "and it is not so without"
