"""Decoding position by position, with beams and without, and prompts of different lengths: against full passes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.data.batch import ENC_DEC, LM, PREFIX_LM
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.parts import Embeddings, Windows
from t5xpg.models.positions import Buckets
from t5xpg.models.shared_encoder_decoder import SharedEncoderDecoderModel
from tests.models.test_beyond_t5 import NGRAMS, REDLLM, SIZES, T5GEMMA, T5GEMMA2
from tests.small_models import ONE_LAYER, seq2seq

B, N, S, T = 4, 3, 9, 6
LENGTHS = (9, 4, 1, 0)  # of the inputs
KINDS: dict[str, type] = {ENC_DEC: EncoderDecoderModel, LM: DecoderOnlyModel, PREFIX_LM: DecoderOnlyModel}
SCANNED = {"scan_layers": True, "remat_policy": "full"}
GEMMA = {**T5GEMMA, "embeddings": Embeddings(), "windows": Windows(decoder=2)}


@functools.cache
def params(kind: type, **more: Any) -> Any:
    """Parameters whose position biases matter."""
    made = kind(T5Config(**{**SIZES, **more})).init(jax.random.key(2))
    if "relpos_bias" in made["decoder"]:
        made["decoder"]["relpos_bias"]["rel_embedding"] *= 3.0
    if "ngram_embedding" in (tables := made["token_embedder"]):
        tables["ngram_embedding"] = jax.random.normal(jax.random.key(3), tables["ngram_embedding"].shape)
    return made


def prompts() -> np.ndarray:
    inputs = np.random.default_rng(0).integers(2, 29, size=(B, S)).astype(np.int32)
    return np.where(np.arange(S) < np.reshape(LENGTHS, (B, 1)), inputs, 0)


def full_batch(inputs: np.ndarray, continuations: np.ndarray, converter: str) -> dict[str, Any]:
    """Inputs [B, S] and what follows them [B, t], as the feature converter lays them out; what comes is no padding."""
    if converter == ENC_DEC:
        tokens = np.pad(continuations, ((0, 0), (1, T - continuations.shape[1])))
        return seq2seq(inputs, np.ones_like(tokens)) | {"decoder_input_tokens": tokens}
    tokens = np.zeros((len(inputs), S + T + 1), np.int32)
    prefix = np.zeros_like(tokens)
    for row, (prompt, continuation) in enumerate(zip(inputs, continuations, strict=True)):
        text = [*prompt[prompt != 0], *continuation]
        tokens[row, : len(text)] = text
        prefix[row, : np.count_nonzero(prompt) + 1] = 1
    batch = {
        "decoder_input_tokens": np.pad(tokens[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": np.ones_like(tokens),
    }
    return batch | ({"decoder_causal_attention": prefix} if converter == PREFIX_LM else {})


@pytest.mark.parametrize(
    ("dtype", "tolerance", "of", "beams", "reordered", "more"),
    [
        ("float32", 2e-5, ENC_DEC, None, False, {}),
        ("float32", 2e-5, ENC_DEC, N, False, ONE_LAYER),
        ("float32", 2e-5, ENC_DEC, N, True, {"positions": Buckets(in_every_layer=True)}),
        ("bfloat16", 0.1, ENC_DEC, N, True, {}),
        ("float32", 2e-5, LM, None, False, ONE_LAYER),
        ("float32", 2e-5, PREFIX_LM, N, False, ONE_LAYER),
        ("float32", 2e-5, PREFIX_LM, N, True, {}),
        ("bfloat16", 0.1, LM, N, True, {}),
        ("float32", 2e-5, ENC_DEC, None, False, REDLLM),
        ("float32", 2e-5, ENC_DEC, N, False, T5GEMMA),
        ("float32", 2e-5, ENC_DEC, N, True, T5GEMMA),
        ("float32", 2e-5, ENC_DEC, None, False, T5GEMMA2),
        ("float32", 2e-5, ENC_DEC, N, True, T5GEMMA2),
        ("float32", 2e-5, LM, N, True, GEMMA),
        ("float32", 2e-5, PREFIX_LM, None, False, {**GEMMA, "windows": Windows(decoder=20)}),
        ("float32", 2e-5, ENC_DEC, N, True, {**REDLLM, "prompt_tokens": 3, **ONE_LAYER}),
        ("float32", 2e-5, PREFIX_LM, None, False, {"prompt_tokens": 3, **ONE_LAYER}),
        ("float32", 2e-5, ENC_DEC, N, True, {**NGRAMS, **ONE_LAYER}),
        ("float32", 2e-5, LM, N, True, {**NGRAMS, "prompt_tokens": 3, **ONE_LAYER}),
        ("float32", 2e-5, PREFIX_LM, None, False, {**NGRAMS, **ONE_LAYER}),
        ("float32", 2e-5, ENC_DEC, N, True, {**SCANNED, "positions": Buckets(in_every_layer=True)}),
        ("float32", 2e-5, SharedEncoderDecoderModel, None, False, SCANNED),
        ("float32", 2e-5, LM, N, True, {**SCANNED, "positions": Buckets(in_every_layer=True)}),
    ],
)
def test_each_step_has_the_logits_of_the_full_pass(dtype, tolerance, of, beams, reordered, more) -> None:
    """`of`: a converter, or a model of encoder and decoder. Where beams are reordered, each continues another one at
    random, several the same."""
    kind, converter = (of, ENC_DEC) if isinstance(of, type) else (KINDS[of], of)
    model, parameters = kind(T5Config(**{**SIZES, "dtype": dtype, **more})), params(kind, **more)
    decodable = model.for_decoding(converter)
    rng = np.random.default_rng(1)
    inputs = prompts()
    count = beams or 1
    chosen = np.zeros((B, count, T), np.int32)
    full, decode_step = jax.jit(model.logits), jax.jit(decodable.decode_step)
    # rows: three at a time do not divide four, and the largest part that does is taken
    init = functools.partial(decodable.init_cache, max_decode_length=T, rows=3, beams=beams, reordered=reordered)
    cache = jax.jit(init)(parameters, jnp.asarray(inputs))
    tokens = np.repeat(np.asarray(decodable.first_tokens(jnp.asarray(inputs)))[:, None], count, axis=1)
    for step in range(T):
        given = jnp.asarray(tokens if beams else tokens[:, 0])
        logits, cache = decode_step(parameters, cache, given, jnp.int32(step))
        batch = full_batch(np.repeat(inputs, count, 0), chosen.reshape(-1, T)[:, :step], converter)
        expected = np.asarray(full(parameters, batch))
        expected = expected.reshape(B, count, *expected.shape[1:])
        for row, length in enumerate(LENGTHS):
            found = np.asarray(logits)[row].reshape(count, -1)
            place = step if converter == ENC_DEC else length + step
            np.testing.assert_allclose(found, expected[row, :, place], atol=tolerance)
        tokens = rng.integers(2, 29, size=(B, count)).astype(np.int32)
        chosen[:, :, step] = tokens
        if reordered:
            parents = rng.integers(0, count, size=(B, count)).astype(np.int32)
            chosen = np.take_along_axis(chosen, parents[..., None], axis=1)
            tokens = chosen[:, :, step]
            cache = decodable.reorder_beams(cache, jnp.asarray(parents))


def test_what_beams_share_is_there_once() -> None:
    model = EncoderDecoderModel(T5Config(**SIZES))
    tokens = jax.ShapeDtypeStruct((B, S), np.int32)
    init = functools.partial(model.init_cache, max_decode_length=T, beams=N, reordered=True)
    layer = jax.eval_shape(init, model.abstract_params(), tokens)["layers"]["layers_0"]
    assert layer["source_keys"].shape == (B, 4, 6, S)
    assert layer["self_keys"].shape == (B, 4, 6, T * N)
