"""Language models without an encoder: what they compute, what a position sees, packed rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.data.batch import LM, PREFIX_LM, layout_of
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.encoder_only import EncoderOnlyModel
from t5xpg.models.positions import relative_position_bucket
from tests.small_models import SIZES, relative_l2

MODEL = DecoderOnlyModel(T5Config(**SIZES))
T = 15


@functools.cache
def params() -> Any:
    """Parameters whose position biases matter."""
    made = MODEL.init(jax.random.key(0))
    made["decoder"]["relpos_bias"]["rel_embedding"] *= 3.0
    return made


def rows(*examples: tuple[int, int]) -> dict[str, np.ndarray]:
    """One row, packed of examples with (tokens, of them prefix); the arrays of `PrefixLMFeatureConverter`."""
    rng = np.random.default_rng(0)
    batch = {name: np.zeros((1, T), np.int32) for name in layout_of(PREFIX_LM).arrays}
    start = 0
    for number, (length, prefix) in enumerate(examples, start=1):
        tokens = rng.integers(1, 29, length, np.int32)
        part = slice(start, start + length)
        batch["decoder_target_tokens"][0, part] = tokens
        batch["decoder_input_tokens"][0, part] = [0, *tokens[:-1]]
        batch["decoder_causal_attention"][0, part] = np.arange(length) < prefix
        batch["decoder_segment_ids"][0, part] = number
        start += length
    return batch


def logits(batch: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(jax.jit(MODEL.logits)(params(), batch))


def in_numpy(batch: dict[str, np.ndarray]) -> np.ndarray:
    """The forward pass as T5's papers and T5X's decoder_only/network.py describe it, pair by pair, in float64."""
    p = jax.tree.map(lambda array: np.asarray(array, np.float64), params())
    decoder, table = p["decoder"], p["decoder"]["relpos_bias"]["rel_embedding"]
    inputs, targets = batch["decoder_input_tokens"][0], batch["decoder_target_tokens"][0]
    segments, prefix = batch["decoder_segment_ids"][0], batch["decoder_causal_attention"][0]

    def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * scale

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    x = p["token_embedder"]["embedding"][inputs]
    H, K = 3, 5
    for number in range(2):
        layer = decoder[f"layers_{number}"]
        y = norm(x, layer["pre_self_attention_layer_norm"]["scale"])
        q, k, v = ((y @ layer["self_attention"][name]["kernel"]).reshape(T, H, K) for name in ("query", "key", "value"))
        mixed = np.zeros((T, H, K))
        for head in range(H):
            for at in range(T):
                if not targets[at]:
                    continue  # padding
                seen = [key for key in range(T) if segments[key] == segments[at]]
                seen = [key for key in seen if key <= at or (prefix[key] and prefix[at])]
                buckets = relative_position_bucket(np.array(seen) - at, False, 32, 128)
                weights = np.exp([q[at, head] @ k[key, head] for key in seen] + table[head, buckets])
                mixed[at, head] = weights / weights.sum() @ v[seen, head]
        x = x + mixed.reshape(T, H * K) @ layer["self_attention"]["out"]["kernel"]
        y = norm(x, layer["pre_mlp_layer_norm"]["scale"])
        wi_0, wi_1, wo = (layer["mlp"][name]["kernel"] for name in ("wi_0", "wi_1", "wo"))
        x = x + (gelu(y @ wi_0) * (y @ wi_1)) @ wo
    return norm(x, decoder["decoder_norm"]["scale"]) @ decoder["logits_dense"]["kernel"]


@pytest.mark.parametrize("examples", [((13, 0),), ((12, 5),), ((6, 3), (5, 2)), ((4, 0), (7, 6), (4, 1))])
def test_it_computes_what_the_reference_computes(examples):
    batch = rows(*examples)
    filled = batch["decoder_target_tokens"][0] > 0
    assert relative_l2(logits(batch)[0][filled], in_numpy(batch)[filled]) < 1e-5


def test_without_a_prefix_it_is_a_language_model():
    assert DecoderOnlyModel.feature_converters == (LM, PREFIX_LM)
    batch = rows((6, 0), (5, 0))
    as_lm = {name: batch[name] for name in layout_of(LM).arrays}
    assert set(as_lm) == set(batch) - {"decoder_causal_attention"}
    np.testing.assert_array_equal(logits(batch), logits(as_lm))
    causal = DecoderOnlyModel(MODEL.config, inputs_bidirectional_attention=False)
    with_prefix = rows((6, 3), (5, 2))
    np.testing.assert_array_equal(jax.jit(causal.logits)(params(), with_prefix), logits(as_lm))
    assert MODEL.for_decoding(PREFIX_LM).sees_itself
    assert not causal.for_decoding(PREFIX_LM).sees_itself


def test_by_chunks():
    batch = rows((6, 3), (7, 4))
    chunked = DecoderOnlyModel(T5Config(**SIZES, attention_chunk_size=4))
    weights = np.random.default_rng(3).normal(size=(1, T, 29)).astype(np.float32)
    weights *= batch["decoder_target_tokens"][..., None] > 0

    def gradients(model: DecoderOnlyModel) -> Any:
        return jax.jit(jax.grad(lambda p: jnp.sum(model.logits(p, batch) * weights)))(params())

    different = jax.tree.map(relative_l2, gradients(chunked), gradients(MODEL))
    assert max(jax.tree.leaves(different)) < 2e-6


def test_an_encoder_alone_is_the_encoder_with_an_output_matrix():
    """Its rows may be packed: a segment is what it is in a row of its own."""
    config = T5Config(**SIZES)
    alone, whole = EncoderOnlyModel(config), EncoderDecoderModel(config)
    own = alone.init(jax.random.key(1))
    theirs = whole.init(jax.random.key(2)) | {"token_embedder": own["token_embedder"], "encoder": own["encoder"]}
    tokens = np.random.default_rng(0).integers(1, 29, (1, 9), np.int32)
    tokens[0, 7:] = 0
    batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": np.array([[1, 1, 1, 1, 2, 2, 2, 0, 0]], np.int32)}
    got = jax.jit(alone.logits)(own, batch)
    for part in (slice(0, 4), slice(4, 7)):
        expected = whole.encode(theirs, tokens[:, part]) @ own["logits_dense"]["kernel"]
        assert relative_l2(got[:, part], expected) < 1e-6


def test_operations_are_those_that_are_compiled():
    batch = rows((12, 5))
    compiled = jax.jit(MODEL.logits).lower(params(), batch).compile()
    counted = MODEL.flops_per_example({"targets": T}) / 3
    assert counted < compiled.cost_analysis()["flops"] < 2.5 * counted
