"""Products of bfloat16 numbers with float32 results, as updates on a CPU have them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.base.xla_flags import SINGLE_PRODUCTS, multiplies_bfloat16
from t5xpg.models import matmul
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from tests.small_models import SIZES, relative_l2, seq2seq

WIDE = multiplies_bfloat16()  # elsewhere an update has the plain products
SHAPES = {"b": 2, "q": 5, "s": 7, "h": 3, "k": 8}


def numbers(letters: str, seed: int) -> jax.Array:
    shape = [SHAPES[letter] for letter in letters]
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.bfloat16)


def compiled(function: Any, *arguments: Any) -> Any:
    """As an update is compiled."""
    with matmul.float32_results(WIDE):
        return jax.jit(function).trace(*arguments).lower().compile(dict(SINGLE_PRODUCTS))(*arguments)


@pytest.mark.parametrize("subscripts", ["bqhk,bshk->bhqs", "bhqs,bshk->bqhk"])
def test_results_are_sums_in_float32_and_gradients_are_rounded_once(subscripts: str) -> None:
    factors, result = subscripts.split("->")
    of_a, of_b = factors.split(",")
    a, b, outer = numbers(of_a, 0), numbers(of_b, 1), numbers(result, 2)
    exact = [np.asarray(x, np.float64) for x in (a, b, outer)]

    def both(a: jax.Array, b: jax.Array, outer: jax.Array) -> Any:
        made, back = jax.vjp(lambda a, b: matmul.einsum(subscripts, a, b), a, b)
        return made, *back(outer.astype(made.dtype))

    made, by_a, by_b = compiled(both, a, b, outer)
    assert (made.dtype == jnp.float32, by_a.dtype, by_b.dtype) == (WIDE, jnp.bfloat16, jnp.bfloat16)
    assert relative_l2(made, np.einsum(subscripts, *exact[:2])) < (1e-6 if WIDE else 3e-3)
    assert relative_l2(by_a, np.einsum(f"{result},{of_b}->{of_a}", exact[2], exact[1])) < 3e-3
    assert relative_l2(by_b, np.einsum(f"{of_a},{result}->{of_b}", exact[0], exact[2])) < 3e-3
    assert matmul.einsum(subscripts, a, b).dtype == jnp.bfloat16, "elsewhere the result is as the factors"


# the products of a second layer, and of a decoder alone, are among these
ONE_LAYER = {**SIZES, "num_encoder_layers": 1, "num_decoder_layers": 1}
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one head": {"num_kv_heads": 1, "qk_norm": True},
    "scanned": {"scan_layers": True, "remat_policy": "full"},
    "by chunks": {"attention_chunk_size": 4},
    "windows": {"encoder_window": (2, 2)},
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_product_of_a_model_can_be_computed_so(kind: str) -> None:
    """XLA refuses some with a float32 result when they are run: those are not to be wide. Rows of 70 go by blocks."""
    model = EncoderDecoderModel(T5Config(**ONE_LAYER, dtype="bfloat16", **MODELS[kind]))
    rng = np.random.default_rng(1)
    batch = seq2seq(rng.integers(1, 29, (3, 70), np.int32), rng.integers(1, 29, (3, 9), np.int32))
    params = model.init(jax.random.key(0))

    def loss_and_gradients(params: Any) -> Any:
        return jax.value_and_grad(lambda p: jnp.mean(jnp.square(model.logits(p, batch))))(params)

    loss, gradients = compiled(loss_and_gradients, params)
    plain_loss, plain = jax.jit(loss_and_gradients)(params)
    assert abs(float(loss - plain_loss)) < 0.01 * float(plain_loss)
    norm, plain_norm = (jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(g))) for g in (gradients, plain))
    assert abs(float(norm - plain_norm)) < 0.02 * float(plain_norm)
