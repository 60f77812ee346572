"""Greedy decoding against the argmax of full forward passes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.decoding import greedy
from t5xpg.models.encoder_decoder import EncoderDecoderModel, T5Config

CONFIG = {
    "vocab_size": 23, "emb_dim": 16, "num_heads": 2, "head_dim": 6, "num_encoder_layers": 1,
    "num_decoder_layers": 2, "mlp_dim": 24,
}  # fmt: skip
LENGTH = 9
# compiling takes most of the time of these tests; only LLVM's optimisations are left out
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def untied() -> tuple[EncoderDecoderModel, Any]:
    model = EncoderDecoderModel(T5Config(**CONFIG))
    return model, jit(model.init)(jax.random.key(2))


def inputs() -> np.ndarray:
    tokens = np.random.default_rng(0).integers(2, 23, size=(6, 11)).astype(np.int32)
    tokens[1, 4:] = 0
    tokens[4, 9:] = 0
    return tokens


def by_full_passes(model, params, encoder_tokens: np.ndarray) -> np.ndarray:
    """The same without a cache: a forward pass over everything for each new token."""
    forward = jit(model.logits)
    rows = len(encoder_tokens)
    chosen = np.zeros((rows, LENGTH), np.int32)
    ended = np.zeros(rows, bool)
    for step in range(LENGTH):
        shifted = np.concatenate([np.zeros((rows, 1), np.int32), chosen[:, :-1]], axis=1)
        logits = forward(
            params,
            {
                "encoder_input_tokens": encoder_tokens,
                "decoder_input_tokens": shifted,
                "decoder_target_tokens": np.ones_like(shifted),
            },
        )
        chosen[:, step] = np.where(ended, 0, np.asarray(logits)[:, step].argmax(-1))
        ended |= chosen[:, step] == 1
    return chosen


@pytest.mark.parametrize("tied", [False, True])
def test_greedy_is_the_argmax_of_full_passes(tied):
    with jax.numpy_dtype_promotion("strict"):
        model = EncoderDecoderModel(T5Config(**CONFIG, logits_via_embedding=tied))
        params = jit(model.init)(jax.random.key(5 if tied else 2))
        # the untrained model hardly ever says "end"; make that id likely enough for rows of different lengths
        table = params["token_embedder"]["embedding"] if tied else params["decoder"]["logits_dense"]["kernel"].T
        boosted = table.at[1].set(table[1] * 3.0)
        if tied:
            params["token_embedder"]["embedding"] = boosted
        else:
            params["decoder"]["logits_dense"]["kernel"] = boosted.T
        tokens = inputs()
        decode = jit(functools.partial(greedy, model, max_decode_length=LENGTH))
        got = np.asarray(decode(params, jnp.asarray(tokens)))
        expected = by_full_passes(model, params, tokens)
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == np.int32
    lengths = {int((row != 0).sum()) for row in got}
    assert len(lengths) > 1, "the rows should end at different positions"
    for row in got:
        ends = np.flatnonzero(row == 1)
        if len(ends):
            assert len(ends) == 1
            assert not row[ends[0] + 1 :].any()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 0.1)])
def test_each_step_has_the_logits_of_the_full_pass(dtype, tolerance):
    params = untied()[1]
    model = EncoderDecoderModel(T5Config(**CONFIG, dtype=dtype))
    encoder_tokens = jnp.asarray(inputs())
    decoder_tokens = jnp.asarray(np.random.default_rng(1).integers(2, 23, size=(6, LENGTH)), jnp.int32)
    full = jit(model.logits)(
        params,
        {
            "encoder_input_tokens": encoder_tokens,
            "decoder_input_tokens": decoder_tokens,
            "decoder_target_tokens": decoder_tokens,
        },
    )
    # of the six rows three are encoded at a time: the largest part up to four that divides them
    cache = jit(model.init_cache, static_argnums=(2, 3))(params, encoder_tokens, LENGTH, 4)
    step_function = jit(model.decode_step)
    for step in range(LENGTH):
        logits, cache = step_function(params, cache, decoder_tokens[:, step], jnp.int32(step))
        np.testing.assert_allclose(logits, full[:, step], atol=tolerance)


def test_rows_do_not_depend_on_each_other_and_padding_rows_are_empty():
    model, params = untied()
    tokens = inputs()
    decode = jit(functools.partial(greedy, model, max_decode_length=LENGTH))
    together = np.asarray(decode(params, jnp.asarray(tokens)))
    padded = tokens.copy()
    padded[2:] = 0
    alone = np.asarray(decode(params, jnp.asarray(padded)))
    np.testing.assert_array_equal(alone[:2], together[:2])
    assert not alone[2:].any()


def test_it_stops_when_all_rows_have_ended():
    model, params = untied()
    # all logits equal: argmax takes the smallest id, so that an end of sequence with id 0 comes at once
    params = jax.tree.map(jnp.zeros_like, params)
    decode = jit(functools.partial(greedy, model, max_decode_length=LENGTH, eos_id=0, pad_id=7))
    got = decode(params, jnp.asarray(inputs()))
    np.testing.assert_array_equal(got, np.where(np.arange(LENGTH) == 0, 0, 7) * np.ones((6, 1), np.int32))
