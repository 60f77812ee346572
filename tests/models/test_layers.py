"""Layers against small NumPy references, where whole models do not prove them (test_beyond_t5, test_parity)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5xpg.models.attention import Attention
from t5xpg.models.attention.relative_positions import RelativePositionBias, relative_position_bucket
from t5xpg.models.config import T5Config
from t5xpg.models.layers import Dropout, Embed, Mlp, RMSNorm, named_key

CONFIG = T5Config(vocab_size=13, emb_dim=6, num_heads=2, head_dim=5, mlp_dim=7)
KEY = jax.random.key(0)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def bucket_of(distance: int, bidirectional: bool, buckets: int, furthest: int) -> int:
    """The rule in words, one distance (key minus query) at a time."""
    base = 0
    if bidirectional:
        buckets //= 2
        base = buckets if distance > 0 else 0
        back = abs(distance)
    else:
        back = max(-distance, 0)
    exact = buckets // 2
    if back < exact:
        return base + back
    steps = math.log(back / exact) / math.log(furthest / exact) * (buckets - exact)
    # a distance that lies on a boundary in exact arithmetic belongs to the bucket above it
    return base + min(exact + math.floor(steps + 1e-6), buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20)])
def test_buckets(bidirectional, buckets, furthest):
    distances = np.arange(-400, 401)
    got = relative_position_bucket(distances, bidirectional, buckets, furthest)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, [bucket_of(int(d), bidirectional, buckets, furthest) for d in distances])


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 40), (40, 3)])
def test_position_bias_and_its_gradient(bidirectional, queries, keys):
    layer = RelativePositionBias(KEY, CONFIG)
    table = np.asarray(layer.rel_embedding[...])
    assert table.shape == (2, 32)
    pairs = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    buckets = relative_position_bucket(pairs, bidirectional, 32, 128)

    def bias(layer: RelativePositionBias) -> jax.Array:
        return layer.table(bidirectional=bidirectional)(queries, keys)

    np.testing.assert_allclose(bias(layer), table[:, buckets][None], rtol=1e-6)

    weights = normal(1, 2, queries, keys)
    gradient = nnx.grad(lambda layer: jnp.sum(bias(layer) * weights))(layer)
    expected = np.zeros((2, 32))
    for head in range(2):
        np.add.at(expected[head], buckets, weights[0, head])
    np.testing.assert_allclose(gradient["rel_embedding"][...], expected, atol=1e-5)


def test_rms_norm_keeps_statistics_in_float32():
    layer = RMSNorm(6)
    layer.scale[...] = jnp.asarray(normal(6, seed=1))
    # squares of these overflow in float16, and lose their digits in bfloat16
    half = layer(jnp.full((1, 6), 1000.0, jnp.float16))
    assert half.dtype == jnp.float16
    np.testing.assert_allclose(half, np.asarray(layer.scale[...])[None], rtol=2e-3)


def test_gradients_of_an_embedding_are_summed_in_float32():
    layer = Embed(KEY, 13, 6)
    many = jnp.full((1, 1000), 5, jnp.int32)
    gradient = nnx.grad(lambda layer: jnp.sum(layer(many, jnp.dtype("bfloat16")).astype(jnp.float32)))(layer)
    expected = np.where(np.arange(13) == 5, 1000.0, 0.0)[:, None] * np.ones(6)
    np.testing.assert_array_equal(gradient["embedding"][...], expected)


def test_initialisers_have_t5x_s_spread():
    wide = T5Config(vocab_size=512, emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512)
    attention, mlp, embed = Attention(KEY, wide), Mlp(KEY, wide), Embed(KEY, 512, 256)
    for parameter, deviation in [
        (attention.query.kernel, 1 / math.sqrt(256 * 64)),
        (attention.key.kernel, 1 / 16),
        (attention.out.kernel, 1 / 16),
        (mlp.wi_0.kernel, 1 / 16),
        (mlp.wo.kernel, 1 / math.sqrt(512)),
        (embed.embedding, 1.0),
    ]:
        np.testing.assert_allclose(np.std(parameter[...]), deviation, rtol=0.02)
    # truncated at two deviations of the normal before truncation
    assert np.abs(mlp.wi_0.kernel[...]).max() <= 2.0 / 16 / 0.8796 + 1e-6
    table = np.asarray(RelativePositionBias(KEY, wide).rel_embedding[...])
    limit = math.sqrt(3 / ((4 + 32) / 2))
    assert limit * 0.9 < np.abs(table).max() <= limit


def test_dropout_is_shared_along_the_length_and_keeps_the_mean():
    x = jnp.ones((8, 5, 400))
    dropped = np.asarray(Dropout(0.25, KEY)(x))
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    np.testing.assert_array_equal(dropped, np.broadcast_to(dropped[:, :1], dropped.shape))
    np.testing.assert_allclose(dropped.mean(), 1.0, atol=0.05)
    single = np.asarray(Dropout(0.25, KEY)(x, shared_axis=None))
    assert (single != single[:, :1]).any()


def test_dropout_depends_on_names_only():
    x = jnp.ones((4, 3, 50))
    root = Dropout(0.5, KEY)
    first, again, other = root.at("a")(x), root.at("a")(x), root.at("b")(x)
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).any()
    assert Dropout(0.0, KEY)(x) is x
    assert Dropout(0.5)(x) is x
    assert not Dropout(0.0, KEY).at("a").active


def test_named_keys_stay_what_they_are():
    # a change here changes every run
    assert jax.random.key_data(named_key(KEY, "encoder")).tolist() == [1172819615, 1118070788]
