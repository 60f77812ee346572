"""Fused attention, interpreted, against attention of all pairs at once; what it holds; and that it lowers for CUDA."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.base.errors import UserError
from t5xpg.models import activation_sharding
from t5xpg.models.attention import attend, biases, fused
from t5xpg.models.attention.biases import AttentionPattern, DenseBias, FusedBias
from t5xpg.models.attention.relative_positions import PositionTable, relative_position_bucket
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.layers import OFF, Dropout
from tests.small_models import SIZES as LARGER
from tests.small_models import largest_array, relative_l2

SIZES = {**LARGER, "num_encoder_layers": 1, "num_decoder_layers": 1}
B, Q, S, H, K = 4, 37, 21, 3, 5  # three blocks of queries, and two of keys where those are others


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused attention on this machine, in blocks of 16, its biases two rows at a time."""
    monkeypatch.setattr(biases, "has_fused_kernels", lambda: True)
    monkeypatch.setattr(fused, "BLOCK", 64)
    monkeypatch.setattr(fused, "ROWS", 2)


def a_row(length: int) -> np.ndarray:
    """Tokens [B, length]: all rows are full but one, which ends early."""
    tokens = np.ones((B, length), np.int32)
    tokens[1, length - length // 3 :] = 0
    return tokens


def segments(tokens: np.ndarray, first: int) -> np.ndarray:
    """Two texts in each row, of which the first one has `first` tokens."""
    return np.where(tokens > 0, 1 + (np.arange(tokens.shape[1]) >= first), 0).astype(np.int32)


def pairs_of(case: str, table: jax.Array) -> AttentionPattern:
    """Positions beyond 20 share a bias; 8 buckets."""
    queries, keys = a_row(Q), a_row(S)
    if case == "cross, packed":
        return AttentionPattern(Q, jnp.asarray(keys), segments(queries, 20), segments(keys, 9))
    packed = segments(queries, 20) if "packed" in case else None
    is_causal = case != "padded"
    prefix = None
    if "prefix" in case:
        prefix = jnp.asarray(np.broadcast_to(np.arange(Q) % 20 < 6, (B, Q)), jnp.int32)
    positions = PositionTable(table, not is_causal, 8, 20)
    return AttentionPattern(Q, jnp.asarray(queries), packed, packed, is_causal, positions, prefix)


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize(
    ("case", "dtype", "tolerance"),
    [
        ("padded", "float32", 1e-5),
        ("causal, packed", "float32", 1e-5),
        ("causal, packed", "bfloat16", 1e-2),
        ("causal, packed, prefix", "float32", 1e-5),
        ("cross, packed", "float32", 1e-5),
    ],
)
def test_it_computes_what_all_pairs_compute(case, dtype, tolerance):
    """The result and the gradients of queries, keys, values and biases; 16-bit ones by float32 of the same numbers."""
    rng, length = np.random.default_rng(0), S if "cross" in case else Q
    shapes = [(B, Q, H, K), (B, length, H, K), (B, length, H, K)]
    rows = [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]
    table = jnp.asarray(rng.normal(size=(H, 8)), jnp.float32)
    weights = rng.normal(size=(B, Q, H, K)).astype(np.float32) * (a_row(Q) > 0)[..., None, None]
    dropout = Dropout(0.2, jax.random.key(0))

    def computed(kernel: str, rows: list[jax.Array]) -> Any:
        def loss(rows: list[jax.Array], table: jax.Array) -> tuple[jax.Array, jax.Array]:
            bias = pairs_of(case, table).make_bias(None, kernel=kernel)
            assert isinstance(bias, FusedBias if kernel == "fused" else DenseBias)
            mixed = attend(*rows, bias, dropout).astype(jnp.float32) * weights
            return jnp.sum(mixed), mixed

        (_, mixed), (of_rows, of_table) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(rows, table)
        return [mixed, *of_rows] if "cross" in case else [mixed, *of_rows, of_table]

    got = computed("fused", rows)
    expected = computed("dot_product", [row.astype(jnp.float32) for row in rows])
    for one, other in zip(got, expected, strict=True):
        assert relative_l2(one, other) < tolerance


@pytest.mark.usefixtures("_interpreted")
def test_a_query_that_sees_nothing_gets_zeros():
    rows = jnp.ones((1, 20, 1, 4))
    bias = AttentionPattern(20, jnp.zeros((1, 20), jnp.int32), None, None).make_bias(None, kernel="fused")
    mixed, transpose = jax.vjp(lambda rows: attend(rows, rows, rows, bias, OFF), rows)
    assert not np.any(mixed)
    assert not np.any(transpose(mixed + 1)[0])


@pytest.mark.parametrize("bidirectional", [True, False])
def test_runs_of_distances(bidirectional):
    table = jnp.arange(32.0)[None]
    begins, by_run = PositionTable(table, bidirectional, 32, 128).runs()
    distances = np.arange(-300, 301)
    got = by_run[0, np.searchsorted(begins, distances, side="right")]
    np.testing.assert_array_equal(got, relative_position_bucket(distances, bidirectional, 32, 128))


def a_batch(length: int, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: jax.ShapeDtypeStruct((1, length), np.int32) for name in names}


SEQ2SEQ = (
    "encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens", "encoder_segment_ids",
    "decoder_segment_ids",
)  # fmt: skip


@pytest.mark.usefixtures("_interpreted")
def test_a_model_with_it():
    """The sum of the logits' squares, and its gradients."""
    rng, settings = np.random.default_rng(0), {"scan_layers": True, "relpos_bias_in_every_layer": True}
    batch = {name: rng.integers(1, 29, (2, 21), np.int32) for name in SEQ2SEQ[:3]}
    batch |= dict.fromkeys(SEQ2SEQ[3:], segments(np.ones((2, 21)), 12))

    def computed(kernel: str) -> Any:
        model = EncoderDecoderModel(T5Config(**SIZES, **settings, attention_kernel=kernel))

        def loss(params: Any) -> jax.Array:
            return jnp.sum(model.logits(params, batch) ** 2)

        return jax.jit(jax.value_and_grad(loss))(model.init(jax.random.key(0)))

    for got, expected in zip(*(jax.tree.leaves(computed(kernel)) for kernel in ("fused", "dot_product")), strict=True):
        assert relative_l2(got, expected) < 1e-5


@pytest.mark.usefixtures("_interpreted")
def test_no_array_holds_all_pairs():
    def largest(length: int, kernel: str) -> int:
        model = EncoderDecoderModel(T5Config(**SIZES, attention_kernel=kernel))
        return largest_array(model, a_batch(length, SEQ2SEQ))

    assert largest(1024, "dot_product") >= SIZES["num_heads"] * 1024**2
    assert largest(1024, "fused") < 64 * 1024  # 29 logits, or 3 heads of width 16, for each position
    assert largest(2048, "fused") < 64 * 2048


@pytest.mark.parametrize(("dtype", "is_causal"), [("float32", False), ("bfloat16", True)])
def test_it_lowers_for_cuda(monkeypatch, dtype, is_causal):
    """To Triton's programs, forward and backward, without a device."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    rows = jax.ShapeDtypeStruct((2, 100, 3, 64), dtype)

    def loss(queries: jax.Array, keys: jax.Array, values: jax.Array, table: jax.Array) -> jax.Array:
        positions, tokens = PositionTable(table, not is_causal, 32, 128), jnp.ones((2, 100), jnp.int32)
        pairs = AttentionPattern(100, tokens, tokens, tokens, is_causal, positions, tokens if is_causal else None)
        return attend(queries, keys, values, pairs.make_bias(None, kernel="fused"), OFF).astype(jnp.float32).sum()

    # jax does not promise that its calls of Triton stay as they are
    checks = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    table = jax.ShapeDtypeStruct((3, 32), "float32")
    exported = jax.export.export(gradients, platforms=["cuda"], disabled_checks=checks)(rows, rows, rows, table)
    assert exported.mlir_module().count("custom_call @") == 4


def test_without_a_gpu_it_is_the_plain_program():
    params = EncoderDecoderModel(T5Config(**SIZES)).abstract_params()

    def program(kernel: str) -> str:
        model = EncoderDecoderModel(T5Config(**SIZES, attention_kernel=kernel))
        return str(jax.make_jaxpr(model.logits)(params, a_batch(20, SEQ2SEQ)))

    assert program("fused") == program("dot_product")


@pytest.mark.usefixtures("_interpreted")
def test_several_devices_are_refused():
    rows = jnp.ones((1, 4, 1, 4))
    bias = AttentionPattern(4, jnp.ones((1, 4), jnp.int32), None, None).make_bias(None, kernel="fused")
    sharding: Any = object()
    with (
        activation_sharding.on_mesh(sharding),
        pytest.raises(UserError, match=r"--gin\.ATTENTION_KERNEL='dot_product'"),
    ):
        attend(rows, rows, rows, bias, OFF)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_kernel": "flash"}, "attention_kernel is 'flash'"),
        (
            {"encoder_window": (4, 4), "attention_logit_softcap": 50.0},
            "with attention_logit_softcap and encoder_window",
        ),
        ({"head_dim": 256}, "'dot_product' with a head_dim above 128"),
    ],
)
def test_what_it_does_not_compute_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        T5Config(**{**SIZES, "attention_kernel": "fused", **settings})
