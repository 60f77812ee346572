"""Beam search against transformers' `generate`: sequences and scores, from golden answers.

tests/goldens/make_beam_goldens.py made them.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from t5xpg.exchange.huggingface.config import config_from_transformers
from t5xpg.exchange.huggingface.params import params_from_transformers
from t5xpg.models.decoding import DecodingConfig, beam_search
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from tests.workplace import REPOSITORY

# compiling takes most of the time of these tests; only LLVM's optimisations are left out
QUICK = {"xla_backend_optimization_level": 0}
FOLDER = REPOSITORY / "tests" / "goldens" / "beams"
MODELS = ["tied_relu", "untied_gated_gelu"]
SEARCHES = [
    "penalty_0", "penalty_0_never", "penalty_1", "penalty_1_early", "penalty_1_never", "penalty_2_of_3",
    "penalty_minus_1",
]  # fmt: skip


@functools.cache
def load(name: str) -> tuple[EncoderDecoderModel, Any, dict[str, np.ndarray], dict[str, Any]]:
    """The model, its parameters, the golden tensors, and what each search was asked."""
    path = FOLDER / f"{name}.safetensors"
    tensors = load_file(path)
    with safe_open(path, "numpy") as file:
        config = config_from_transformers(json.loads(file.metadata()["config"]))
        searches = json.loads(file.metadata()["searches"])
    weights = {name.removeprefix("weight/"): value for name, value in tensors.items() if name.startswith("weight/")}
    params = jax.tree.map(jnp.asarray, params_from_transformers(weights, config))
    return EncoderDecoderModel(config), params, tensors, searches


def search(name: str, rule: DecodingConfig) -> tuple[np.ndarray, np.ndarray]:
    model, params, tensors, _ = load(name)
    length = tensors["greedy/tokens"].shape[-1]
    run = functools.partial(beam_search, model, max_decode_length=length, config=rule)
    with jax.numpy_dtype_promotion("strict"):
        found = jax.jit(run, compiler_options=QUICK)(params, jnp.asarray(tensors["inputs"]))
    return np.asarray(found.tokens), np.asarray(found.scores)


@pytest.mark.parametrize(
    ("name", "asked"),
    [*((MODELS[1], each) for each in SEARCHES), (MODELS[0], "penalty_1"), (MODELS[0], "penalty_0_never")],
)
def test_transformers_rule(name: str, asked: str) -> None:
    _, _, tensors, searches = load(name)
    options = searches[asked]
    stopping = options.get("early_stopping", False)
    rule = DecodingConfig("beam", None, options["num_beams"], True, "transformers", options["length_penalty"], stopping)
    tokens, scores = search(name, rule)
    returned = options["num_return_sequences"]
    np.testing.assert_array_equal(tokens[:, :returned], tensors[f"{asked}/tokens"])
    np.testing.assert_allclose(scores[:, :returned], tensors[f"{asked}/scores"], rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_t5xs_rule_without_a_penalty(name: str) -> None:
    """It keeps whatever ends among the best eight, transformers what ends among the best four: its best is at least as
    probable, and the same where all of transformers' have ended."""
    _, _, tensors, _ = load(name)
    theirs, their_scores = tensors["penalty_0/tokens"], tensors["penalty_0/scores"][:, 0]
    tokens, scores = search(name, DecodingConfig("beam", alpha=0.0))
    has_ended = (theirs == 1).any(axis=2)
    assert (scores[has_ended[:, 0], 0] >= their_scores[has_ended[:, 0]] - 1e-4).all()
    all_have = has_ended.all(axis=1)
    assert all_have.any()
    np.testing.assert_array_equal(tokens[all_have, 0], theirs[all_have, 0])
    np.testing.assert_allclose(scores[all_have, 0], their_scores[all_have], rtol=1e-4)
