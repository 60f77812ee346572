"""Continuing prompts of different lengths position by position, against full forward passes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.data.batch import LM, PREFIX_LM
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.decoding import DecodingConfig, decode
from tests.small_models import SIZES

B, N, S, T = 4, 3, 9, 6
LENGTHS = (9, 4, 1, 0)  # of the prompts


@functools.cache
def params():
    """Parameters whose position biases matter."""
    made = DecoderOnlyModel(T5Config(**SIZES)).init(jax.random.key(2))
    made["decoder"]["relpos_bias"]["rel_embedding"] *= 3.0
    return made


def prompts() -> np.ndarray:
    inputs = np.random.default_rng(0).integers(2, 29, size=(B, S)).astype(np.int32)
    for row, length in enumerate(LENGTHS):
        inputs[row, length:] = 0
    return inputs


def full_batch(inputs: np.ndarray, continuations: np.ndarray, is_prefix: bool) -> dict[str, jax.Array]:
    """Prompts and what follows them as a feature converter lays them out: inputs [B, S], continuations [B, t]."""
    tokens = np.zeros((len(inputs), S + T + 1), np.int32)
    prefix = np.zeros_like(tokens)
    for row, (prompt, continuation) in enumerate(zip(inputs, continuations, strict=True)):
        text = [*prompt[prompt != 0], *continuation]
        tokens[row, : len(text)] = text
        prefix[row, : np.count_nonzero(prompt) + 1] = 1
    batch = {
        "decoder_input_tokens": np.pad(tokens[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": np.ones_like(tokens),  # what comes is no padding
    }
    if is_prefix:
        batch["decoder_causal_attention"] = prefix
    return {name: jnp.asarray(array) for name, array in batch.items()}


@pytest.mark.parametrize(
    ("dtype", "tolerance", "converter", "beams", "reordered"),
    [
        ("float32", 2e-5, LM, None, False),
        ("float32", 2e-5, PREFIX_LM, N, False),
        ("float32", 2e-5, PREFIX_LM, N, True),
        ("bfloat16", 0.1, LM, N, True),
    ],
)
def test_each_step_has_the_logits_of_the_full_pass(dtype, tolerance, converter, beams, reordered) -> None:
    model = DecoderOnlyModel(T5Config(**SIZES, dtype=dtype))
    prompted = model.for_decoding(converter)
    rng = np.random.default_rng(1)
    inputs = prompts()
    count = beams or 1
    chosen = np.zeros((B, count, T), np.int32)
    full, decode_step = jax.jit(model.logits), jax.jit(prompted.decode_step)
    init = functools.partial(prompted.init_cache, max_decode_length=T, rows=2, beams=beams, reordered=reordered)
    cache = jax.jit(init)(params(), jnp.asarray(inputs))
    tokens = np.repeat(np.asarray(prompted.first_tokens(jnp.asarray(inputs)))[:, None], count, axis=1)
    assert [int(first) for first in tokens[:, 0]] == [inputs[0, 8], inputs[1, 3], inputs[2, 0], 0]
    for step in range(T):
        given = jnp.asarray(tokens if beams else tokens[:, 0])
        logits, cache = decode_step(params(), cache, given, jnp.int32(step))
        batch = full_batch(np.repeat(inputs, count, 0), chosen.reshape(-1, T)[:, :step], converter == PREFIX_LM)
        expected = np.asarray(full(params(), batch)).reshape(B, count, S + T + 1, -1)
        for row, length in enumerate(LENGTHS):
            found = np.asarray(logits)[row].reshape(count, -1)
            np.testing.assert_allclose(found, expected[row, :, length + step], atol=tolerance)
        tokens = rng.integers(2, 29, size=(B, count)).astype(np.int32)
        chosen[:, :, step] = tokens
        if reordered:
            parents = rng.integers(0, count, size=(B, count)).astype(np.int32)
            chosen = np.take_along_axis(chosen, parents[..., None], axis=1)
            tokens = chosen[:, :, step]
            cache = prompted.reorder_beams(cache, jnp.asarray(parents))


@pytest.mark.parametrize("config", [DecodingConfig(), DecodingConfig(method="beam", num_decodes=N)])
def test_what_others_in_the_batch_ask_changes_nothing(config: DecodingConfig) -> None:
    prompted = DecoderOnlyModel(T5Config(**SIZES)).for_decoding(PREFIX_LM)
    inputs = prompts()
    run = jax.jit(functools.partial(decode, prompted, config=config, max_decode_length=T))
    together = run(params(), jnp.asarray(inputs)).tokens
    for row, length in enumerate(LENGTHS[:3]):
        alone = run(params(), jnp.asarray(inputs[row : row + 1, :length])).tokens
        np.testing.assert_array_equal(together[row], alone[0])
    assert not np.asarray(together[3]).any()  # nothing was asked
