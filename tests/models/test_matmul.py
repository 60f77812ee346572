"""Products on their own, and programs in which oneDNN would compute an activation with a product."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.base.environment import version_of
from t5xpg.base.xla_flags import CPU_JAXLIBS, ONEDNN_OPTIONS
from t5xpg.models import matmul
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.parts import Heads, Windows
from tests.small_models import relative_l2, seq2seq

WITH_ONEDNN = ONEDNN_OPTIONS["with"]
SHAPES = {"b": 2, "q": 5, "s": 7, "h": 3, "k": 8}
needs_onednn = pytest.mark.skipif(version_of("jaxlib") not in CPU_JAXLIBS, reason="this jaxlib has no oneDNN products")


def numbers(letters: str, seed: int, dtype: Any) -> jax.Array:
    shape = [SHAPES[letter] for letter in letters]
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-6), (jnp.bfloat16, 3e-3)])
@pytest.mark.parametrize("subscripts", ["bqhk,bshk->bhqs", "bhqs,bshk->bqhk"])
def test_products_and_their_gradients_are_those_of_numpy(subscripts: str, dtype: Any, tolerance: float) -> None:
    factors, result = subscripts.split("->")
    of_a, of_b = factors.split(",")
    a, b, outer = numbers(of_a, 0, dtype), numbers(of_b, 1, dtype), numbers(result, 2, dtype)
    exact = [np.asarray(x, np.float64) for x in (a, b, outer)]
    made, back = jax.vjp(lambda a, b: matmul.einsum(subscripts, a, b), a, b)
    by_a, by_b = back(outer)
    assert {x.dtype for x in (made, by_a, by_b)} == {jnp.dtype(dtype)}
    assert relative_l2(made, np.einsum(subscripts, *exact[:2])) < tolerance
    assert relative_l2(by_a, np.einsum(f"{result},{of_b}->{of_a}", exact[2], exact[1])) < tolerance
    assert relative_l2(by_b, np.einsum(f"{of_a},{result}->{of_b}", exact[0], exact[2])) < tolerance


@needs_onednn
def test_a_program_whose_activation_onednn_would_compute_is_compiled_without_it() -> None:
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((4096, 128), (128, 512)))

    def gradients(x: jax.Array, w: jax.Array) -> Any:
        made, back = jax.vjp(lambda x, w: jax.checkpoint(jax.nn.gelu)(x @ w), x, w)
        return made, *back(made)

    lowered = jax.jit(gradients).lower(x, w)
    assert matmul.activations_by_onednn(lowered.compile(dict(WITH_ONEDNN))) == {"GELU_TANH"}
    compiled = matmul.compile_program(lowered, WITH_ONEDNN)
    assert not matmul.activations_by_onednn(compiled)
    with jax.disable_jit():
        expected = gradients(x, w)
    assert all(relative_l2(made, np.asarray(one)) < 1e-5 for made, one in zip(compiled(x, w), expected, strict=True))


# oneDNN takes products of 2^24 operations and more. Rows of 70 go by blocks.
ONE_LAYER: dict[str, Any] = {
    "vocab_size": 29, "emb_dim": 128, "num_heads": 4, "head_dim": 32, "num_encoder_layers": 1, "num_decoder_layers": 1,
    "mlp_dim": 512,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one head, by chunks": {"heads": Heads(num_kv_heads=1, qk_norm=True), "attention_chunk_size": 4},
    "windows, scanned": {"windows": Windows((2, 2)), "scan_layers": True, "remat_policy": "full"},
    "tied": {"logits_via_embedding": True, "vocab_size": 4096},
}


@needs_onednn
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_is_the_same_with_onednn_which_fuses_nothing_into_its_products(kind: str, dtype: str) -> None:
    model = EncoderDecoderModel(T5Config(**{**ONE_LAYER, "dtype": dtype, **MODELS[kind]}))
    rng = np.random.default_rng(1)
    batch = seq2seq(rng.integers(1, 29, (3, 70), np.int32), rng.integers(1, 29, (3, 9), np.int32))
    params = model.init(jax.random.key(0))

    def loss_and_gradients(params: Any) -> Any:
        return jax.value_and_grad(lambda p: jnp.mean(jnp.square(model.logits(p, batch))))(params)

    lowered = jax.jit(loss_and_gradients).lower(params)
    compiled = lowered.compile(dict(WITH_ONEDNN))
    assert "__onednn$matmul" in compiled.as_text()
    assert not matmul.activations_by_onednn(compiled)
    (loss, gradients), (plain_loss, plain) = compiled(params), lowered.compile(dict(ONEDNN_OPTIONS["without"]))(params)
    tolerance = 1e-5 if dtype == "float32" else 0.02
    assert abs(float(loss - plain_loss)) < tolerance * float(plain_loss)
    norm, plain_norm = (jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(g))) for g in (gradients, plain))
    assert abs(float(norm - plain_norm)) < tolerance * float(plain_norm)
