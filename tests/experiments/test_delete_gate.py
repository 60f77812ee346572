"""The delete gate of mrt5_tiny: against a plain program in float64."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from experiments.mrt5_tiny.delete_gate import DeleteGateModel
from t5xpg.models.config import T5Config
from t5xpg.models.decoding import greedy
from tests.models import plain_transformer
from tests.models.test_beyond_t5 import PAIRS, SIZES, batch, loss_and_gradients, model_of, packed, parameters
from tests.refusals import refused
from tests.small_models import relative_l2, seq2seq

CONFIG = T5Config(**{**SIZES, "num_encoder_layers": 3})


def test_the_decoder_reads_the_kept_positions() -> None:
    """Rows of 11 keep 5: padding goes first. What is decoded position by position is what a full pass decodes."""
    model = DeleteGateModel(CONFIG, gate_layer=1, deletion_rate=0.6)
    params, rows = parameters(model), batch()
    with jax.default_matmul_precision("highest"):
        logits = jax.jit(model.logits)
        found = logits(params, rows)
        answers = jax.jit(functools.partial(greedy, model, max_decode_length=9))(params, rows["encoder_input_tokens"])
        again = logits(params, seq2seq(rows["encoder_input_tokens"], np.asarray(answers))).argmax(axis=-1)
    for row, pair in zip(found, PAIRS, strict=True):
        expected = plain_transformer.logits(params, model.config, *pair, gate=(1, 5))
        assert relative_l2(row[: len(expected)], expected) < 1e-5
    np.testing.assert_array_equal(again[answers > 0], answers[answers > 0])
    _, gradients = loss_and_gradients(model, params, rows)
    assert np.abs(gradients["encoder"]["delete_gate"]["kernel"]).min() > 0


def test_operations() -> None:
    """One layer of the encoder on 10 positions, and a model without that layer on 5."""
    lengths, halves = ({"inputs": inputs, "targets": 6} for inputs in (10, 5))
    one, two = (model_of("t5", num_encoder_layers=layers) for layers in (1, 2))
    first_layer = two.flops_per_example(lengths) - one.flops_per_example(lengths)
    gated = DeleteGateModel(two.config, gate_layer=1)
    assert gated.flops_per_example(lengths) == first_layer + one.flops_per_example(halves)


@pytest.mark.parametrize("settings", [{"gate_layer": 3}, {"gate_layer": 0}, {"deletion_rate": 1.0}], ids=str)
def test_what_it_cannot_be(settings: dict[str, Any]) -> None:
    with refused(*settings):
        DeleteGateModel(CONFIG, **settings)


def test_packed_rows_are_refused() -> None:
    model = DeleteGateModel(CONFIG)
    with refused("PACK=False"):
        model.logits(model.init(jax.random.key(0)), packed())
