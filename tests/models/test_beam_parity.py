"""Beam search against transformers' `generate`: sequences and scores, from golden answers.

tests/goldens/make_beam_goldens.py made them.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.exchange.huggingface.params import params_from_transformers
from t5xpg.models.decoding import Rule, beam_search
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from tests.small_models import GOLDENS, golden

MODELS = ["tied_relu", "untied_gated_gelu"]
SEARCHES = [
    "penalty_0", "penalty_0_never", "penalty_1", "penalty_1_early", "penalty_1_never", "penalty_2_of_3",
    "penalty_minus_1",
]  # fmt: skip
load = functools.cache(lambda name: golden(GOLDENS / "beams" / f"{name}.safetensors"))


def search(name: str, rule: Rule, beams: int) -> tuple[np.ndarray, np.ndarray]:
    config, weights, tensors, _ = load(name)
    params = jax.tree.map(jnp.asarray, params_from_transformers(weights, config))
    length = tensors["greedy/tokens"].shape[-1]
    model = EncoderDecoderModel(config)
    run = functools.partial(beam_search, model, max_decode_length=length, num_decodes=beams, rule=rule)
    found = jax.jit(run)(params, jnp.asarray(tensors["inputs"]))
    return np.asarray(found.tokens), np.asarray(found.scores)


@pytest.mark.parametrize(
    ("name", "asked"),
    [*((MODELS[1], each) for each in SEARCHES), (MODELS[0], "penalty_1"), (MODELS[0], "penalty_0_never")],
)
def test_transformers_rule(name: str, asked: str) -> None:
    _, _, tensors, metadata = load(name)
    options = metadata["searches"][asked]
    rule = Rule("transformers", options["length_penalty"], options.get("early_stopping", False))
    tokens, scores = search(name, rule, options["num_beams"])
    returned = options["num_return_sequences"]
    np.testing.assert_array_equal(tokens[:, :returned], tensors[f"{asked}/tokens"])
    np.testing.assert_allclose(scores[:, :returned], tensors[f"{asked}/scores"], rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_t5xs_rule_without_a_penalty(name: str) -> None:
    """It keeps whatever ends among the best eight, transformers what ends among the best four: its best is at least as
    probable, and the same where all of transformers' have ended."""
    _, _, tensors, _ = load(name)
    theirs, their_scores = tensors["penalty_0/tokens"], tensors["penalty_0/scores"][:, 0]
    tokens, scores = search(name, Rule("t5x", 0.0), 4)
    has_ended = (theirs == 1).any(axis=2)
    assert (scores[has_ended[:, 0], 0] >= their_scores[has_ended[:, 0]] - 1e-4).all()
    all_have = has_ended.all(axis=1)
    assert all_have.any()
    np.testing.assert_array_equal(tokens[all_have, 0], theirs[all_have, 0])
    np.testing.assert_allclose(scores[all_have, 0], their_scores[all_have], rtol=1e-4)
