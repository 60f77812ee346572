"""Scanned and rematerialised layers beside plain ones: the same numbers, for every architecture.

Their caches: decoding/test_kv_cache.py.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.encoder_only import EncoderOnlyModel
from t5xpg.models.layers import RMSNorm
from t5xpg.models.positions import Buckets
from t5xpg.models.shared_encoder_decoder import SharedEncoderDecoderModel
from tests.refusals import refused
from tests.small_models import SIZES as PLAIN
from tests.small_models import with_layers_of

B, S, T = 3, 7, 5
SIZES = {**PLAIN, "dropout_rate": 0.3}


def packed_batch() -> dict[str, np.ndarray]:
    """Two texts in each row, and padding behind them."""
    generator = np.random.default_rng(0)
    found = {}
    for part, length, names in (("encoder", S, ["input"]), ("decoder", T, ["input", "target"])):
        segments = np.repeat([1, 2, 0], [length // 2, length - length // 2 - 1, 1])[None].repeat(B, 0)
        found |= {f"{part}_{name}_tokens": generator.integers(1, 29, (B, length)) * (segments > 0) for name in names}
        found[f"{part}_segment_ids"] = segments
    found["decoder_causal_attention"] = (np.arange(T) < 1).astype(int)[None].repeat(B, 0)
    return {name: array.astype(np.int32) for name, array in found.items()}


def unpacked(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in batch.items() if "segment" not in name and "causal" not in name}


def settings(kind: type, **more: Any) -> Any:
    return kind(T5Config(**{**SIZES, **more}))


def results_of(model: Any, batch: dict[str, np.ndarray]) -> Callable[[Any], tuple[tuple[Any, Any], Any]]:
    """The function that gives the sum of the squares of the logits, with dropout; the logits; and its gradients."""

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        logits = model.logits(params, batch, dropout_key=jax.random.key(7))
        return jnp.sum(jnp.square(logits)), logits

    return jax.value_and_grad(loss, has_aux=True)


@functools.cache
def plain(kind: type, packed: bool, own_tables: bool) -> tuple[Any, Any, Any]:
    model = settings(kind, positions=Buckets(in_every_layer=own_tables))
    params = model.init(jax.random.key(0))
    batch = packed_batch() if packed else unpacked(packed_batch())
    (_, logits), gradients = results_of(model, batch)(params)  # not compiled: the models share operations
    return params, batch, (logits, gradients)


SCAN = {"scan_layers": True}


@pytest.mark.parametrize(
    ("kind", "packed", "own_tables", "more"),
    [
        (DecoderOnlyModel, True, True, SCAN | {"remat_policy": "dots"}),
        (DecoderOnlyModel, True, True, {"remat_policy": "full"}),
        (EncoderOnlyModel, False, False, SCAN),
        (SharedEncoderDecoderModel, True, True, SCAN | {"remat_policy": "dots"}),
        (EncoderDecoderModel, True, False, SCAN | {"remat_policy": "full", "attention_chunk_size": 2}),
    ],
    ids=str,
)
def test_the_numbers_are_those_of_plain_layers(kind, packed, own_tables, more) -> None:
    """Of logits and of every gradient; dropout has the same keys."""
    params, batch, (expected, expected_gradients) = plain(kind, packed, own_tables)
    model = settings(kind, positions=Buckets(in_every_layer=own_tables), **more)
    (_, logits), gradients = jax.jit(results_of(model, batch))(with_layers_of(params, model.abstract_params()))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(logits, expected, atol=1e-5 * scale)

    def check(ours: Any, theirs: Any) -> None:
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * max(np.abs(theirs).max(), 1e-3))

    jax.tree.map(check, with_layers_of(gradients, params), expected_gradients)


def test_a_policy_keeps_what_it_says() -> None:
    """Bytes that differentiation keeps of a deep stack: "dots" less than all, "full" less than "dots"."""
    batch = unpacked(packed_batch())

    def kept(policy: str) -> int:
        model = settings(EncoderOnlyModel, num_encoder_layers=8, remat_policy=policy, scan_layers=True)
        pullback = jax.eval_shape(
            lambda params: jax.vjp(lambda params: model.logits(params, batch), params)[1], model.abstract_params()
        )
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pullback)) - 4 * model.num_params

    full, dots, everything = (kept(policy) for policy in ("full", "dots", "none"))
    inputs = 8 * B * S * 12 * 4
    # of each layer query, key, value (15 each), two branches of the MLP (14), what attention and MLP give (12)
    products = 8 * B * S * (3 * 15 + 2 * 14 + 2 * 12) * 4
    assert full < 3 * inputs
    assert dots - full == pytest.approx(products, rel=0.3)
    assert everything > 1.3 * dots


def test_new_parameters_are_those_of_plain_layers_bit_for_bit() -> None:
    apart = settings(EncoderDecoderModel, positions=Buckets(in_every_layer=True))
    scanned = settings(EncoderDecoderModel, positions=Buckets(in_every_layer=True), scan_layers=True)
    params = scanned.init(jax.random.key(3))
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params)
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), scanned.abstract_params())
    found = with_layers_of(params, apart.abstract_params())
    jax.tree.map(np.testing.assert_array_equal, found, apart.init(jax.random.key(3)))
    assert scanned.num_params == apart.num_params


def test_axes_of_stacked_parameters() -> None:
    axes = settings(EncoderDecoderModel, scan_layers=True, positions=Buckets(in_every_layer=True)).logical_axes()
    layers = axes["decoder"]["layers"]
    assert layers["self_attention"]["query"]["kernel"] == ("layers", "embed", "joined_kv")
    assert layers["pre_mlp_layer_norm"]["scale"] == ("layers", "embed")
    assert layers["relpos_bias"]["rel_embedding"] == ("layers", "heads", "relpos_buckets")
    assert axes["decoder"]["logits_dense"]["kernel"] == ("embed", "vocab")


class WithoutStack(DecoderOnlyModel):
    @staticmethod
    def modules(key: jax.Array, config: T5Config) -> nnx.Module:
        return RMSNorm(config.emb_dim)


def test_an_architecture_whose_layers_are_in_no_stack_says_so() -> None:
    assert settings(WithoutStack).num_params == 12
    for more in (SCAN, {"remat_policy": "dots"}):
        with refused("WithoutStack", "LayerStack"):
            settings(WithoutStack, **more).abstract_params()
