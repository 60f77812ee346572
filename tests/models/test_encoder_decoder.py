"""The whole model: its parameters, packing, padding, dropout, dtypes, and the count of its operations."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.base.errors import UserError
from t5xpg.models.encoder_decoder import EncoderDecoderModel, T5Config

SIZES: dict[str, Any] = {
    "vocab_size": 29, "emb_dim": 12, "num_heads": 3, "head_dim": 5, "num_encoder_layers": 2,
    "num_decoder_layers": 1, "mlp_dim": 14,
}  # fmt: skip
# compiling takes most of the time of these tests; only LLVM's optimisations are left out
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(autouse=True)
def strict_dtypes():
    with jax.numpy_dtype_promotion("strict"):
        yield


@functools.cache
def model_and_params(**settings: Any) -> tuple[EncoderDecoderModel, Any]:
    model = EncoderDecoderModel(T5Config(**{**SIZES, **settings}))
    return model, jit(model.init)(jax.random.key(0))


def rows(lengths: list[tuple[int, int]], S: int, T: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A padded batch: one row for each pair of input length and target length."""
    rng = np.random.default_rng(seed)
    inputs, targets = np.zeros((len(lengths), S), np.int32), np.zeros((len(lengths), T), np.int32)
    for row, (source, target) in enumerate(lengths):
        inputs[row, :source] = rng.integers(1, 29, source)
        targets[row, :target] = rng.integers(1, 29, target)
    return {
        "encoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
    }


def pack(batch: dict[str, np.ndarray], S: int, T: int) -> dict[str, np.ndarray]:
    """All rows of a padded batch behind one another in one row, as EncDecFeatureConverter packs them."""
    packed: dict[str, list[int]] = {
        name: []
        for name in ("encoder_input_tokens", "decoder_target_tokens", "decoder_input_tokens",
                     "encoder_segment_ids", "decoder_segment_ids")
    }  # fmt: skip
    for row in range(len(batch["encoder_input_tokens"])):
        source = int((batch["encoder_input_tokens"][row] > 0).sum())
        target = int((batch["decoder_target_tokens"][row] > 0).sum())
        packed["encoder_input_tokens"] += batch["encoder_input_tokens"][row, :source].tolist()
        packed["encoder_segment_ids"] += [row + 1] * source
        for name in ("decoder_target_tokens", "decoder_input_tokens"):
            packed[name] += batch[name][row, :target].tolist()
        packed["decoder_segment_ids"] += [row + 1] * target
    length = {name: S if name.startswith("encoder") else T for name in packed}
    return {
        name: np.pad(np.asarray(values, np.int32), (0, length[name] - len(values)))[None]
        for name, values in packed.items()
    }


def expected_shapes(config: T5Config) -> dict[str, tuple[int, ...]]:
    """T5X's table of names and shapes."""
    V, D, F = config.vocab_size, config.emb_dim, config.mlp_dim
    H, HK = config.num_heads, config.num_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"token_embedder/embedding": (V, D)}
    if not config.logits_via_embedding:
        shapes["decoder/logits_dense/kernel"] = (D, V)
    wi = ["wi"] if len(config.mlp_activations) == 1 else ["wi_0", "wi_1"]
    stacks = {
        "encoder": (config.num_encoder_layers, {"attention": "pre_attention_layer_norm"}),
        "decoder": (
            config.num_decoder_layers,
            {
                "self_attention": "pre_self_attention_layer_norm",
                "encoder_decoder_attention": "pre_cross_attention_layer_norm",
            },
        ),
    }
    for stack, (layers, attentions) in stacks.items():
        shapes[f"{stack}/{stack}_norm/scale"] = (D,)
        shapes[f"{stack}/relpos_bias/rel_embedding"] = (H, 32)
        for layer in (f"{stack}/layers_{index}" for index in range(layers)):
            for attention, norm in attentions.items():
                shapes[f"{layer}/{norm}/scale"] = (D,)
                shapes |= {f"{layer}/{attention}/{name}/kernel": (D, HK) for name in ("query", "key", "value")}
                shapes[f"{layer}/{attention}/out/kernel"] = (HK, D)
            shapes[f"{layer}/pre_mlp_layer_norm/scale"] = (D,)
            shapes |= {f"{layer}/mlp/{name}/kernel": (D, F) for name in wi}
            shapes[f"{layer}/mlp/wo/kernel"] = (F, D)
    return shapes


def flat(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: isinstance(node, tuple))[0]
    return {"/".join(entry.key for entry in path): leaf for path, leaf in leaves}


@pytest.mark.parametrize(
    "settings", [{}, {"logits_via_embedding": True}, {"mlp_activations": ("relu",)}], ids=["1.1", "tied", "first"]
)
def test_names_shapes_and_axes_are_t5x_s(settings):
    model = EncoderDecoderModel(T5Config(**{**SIZES, **settings}))
    expected = expected_shapes(model.config)
    abstract = model.abstract_params()
    assert {name: leaf.shape for name, leaf in flat(abstract).items()} == expected
    assert {leaf.dtype for leaf in jax.tree.leaves(abstract)} == {np.dtype(np.float32)}
    assert model.num_params == sum(int(np.prod(shape)) for shape in expected.values())
    assert jax.eval_shape(model.init, jax.random.key(0)) == abstract
    axes = flat(model.logical_axes())
    assert {name: len(names) for name, names in axes.items()} == {name: len(s) for name, s in expected.items()}
    assert set(sum(axes.values(), ())) == {"vocab", "embed", "heads", "joined_kv", "mlp", "relpos_buckets"}
    assert axes["token_embedder/embedding"] == ("vocab", "embed")
    assert axes["encoder/layers_0/attention/query/kernel"] == ("embed", "joined_kv")
    assert axes["encoder/layers_1/attention/out/kernel"] == ("joined_kv", "embed")
    assert axes["decoder/layers_0/mlp/wo/kernel"] == ("mlp", "embed")
    assert axes["decoder/relpos_bias/rel_embedding"] == ("heads", "relpos_buckets")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # google/t5-v1_1-small, -base, -xxl; google/byt5-small; google-t5/t5-small (tied, relu)
        ((32128, 512, 8, 64, 6, 6, 2048, ("relu",), True), 60_506_624),
        ((32128, 512, 6, 64, 8, 8, 1024), 76_961_152),
        ((32128, 768, 12, 64, 12, 12, 2048), 247_577_856),
        ((32128, 4096, 64, 64, 24, 24, 10240), 11_135_332_352),
        ((384, 1472, 6, 64, 12, 4, 3584), 299_637_760),
    ],
)
def test_published_sizes(sizes, expected):
    *numbers, activations, tied = sizes if len(sizes) == 9 else (*sizes, ("gelu", "linear"), False)
    assert EncoderDecoderModel(T5Config(*numbers, activations, logits_via_embedding=tied)).num_params == expected


def test_a_parameter_starts_the_same_whatever_else_there_is():
    one, two = model_and_params()[1], model_and_params(num_decoder_layers=2)[1]
    names = flat(one).keys() & flat(two).keys()
    assert names == flat(one).keys()
    for name in names:
        np.testing.assert_array_equal(flat(one)[name], flat(two)[name])
    kernels = [leaf for leaf in jax.tree.leaves(two) if leaf.shape == (12, 15)]
    assert all((a != b).any() for i, a in enumerate(kernels) for b in kernels[:i]), "two parameters start equal"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_rows_are_the_same_rows_unpacked(dtype):
    params = model_and_params()[1]
    model = EncoderDecoderModel(T5Config(**SIZES, dtype=dtype))
    batch = rows([(5, 3), (9, 6), (1, 1), (4, 4)], S=9, T=6)
    packed = pack(batch, S=24, T=17)
    alone, together = jit(model.logits)(params, batch), jit(model.logits)(params, packed)
    assert together.shape == (1, 17, 29)
    assert together.dtype == jnp.float32
    start = 0
    for row, target in enumerate([3, 6, 1, 4]):
        expected = alone[row, :target]
        tolerance = 1e-5 if dtype == "float32" else 0.05
        np.testing.assert_allclose(together[0, start : start + target], expected, atol=tolerance)
        start += target


def test_padding_changes_nothing():
    model, params = model_and_params()
    short, long = rows([(5, 3), (7, 6)], S=7, T=6), rows([(5, 3), (7, 6)], S=15, T=11)
    got = jit(model.logits)(params, long)
    expected = jit(model.logits)(params, short)
    np.testing.assert_allclose(got[0, :3], expected[0, :3], atol=1e-5)
    np.testing.assert_allclose(got[1, :6], expected[1, :6], atol=1e-5)
    empty = rows([(0, 0), (5, 3)], S=7, T=6)
    assert np.isfinite(jit(model.logits)(params, empty)).all()


def test_a_target_sees_only_what_lies_before_it():
    model, params = model_and_params()
    batch = rows([(7, 6)], S=7, T=6)
    before = np.asarray(jit(model.logits)(params, batch))
    changed = dict(batch)
    changed["decoder_input_tokens"] = batch["decoder_input_tokens"].copy()
    changed["decoder_input_tokens"][0, 3] = batch["decoder_input_tokens"][0, 3] % 28 + 1
    after = np.asarray(jit(model.logits)(params, changed))
    np.testing.assert_array_equal(after[0, :3], before[0, :3])
    assert (after[0, 3:] != before[0, 3:]).any(axis=-1).all()


def test_dropout_needs_a_key_and_depends_on_nothing_else():
    without, params = model_and_params()
    model = EncoderDecoderModel(T5Config(**SIZES, dropout_rate=0.3))
    batch = rows([(7, 6), (5, 4)], S=7, T=6)
    logits = jit(lambda params, key: model.logits(params, batch, dropout_key=key))
    off = jit(lambda params: model.logits(params, batch))(params)
    first, again, other = (logits(params, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).any()
    assert (np.asarray(first) != np.asarray(off)).any()
    # a rate of 0 with a key is the same program as no key
    key = jax.random.key(1)
    rate_0 = jax.make_jaxpr(lambda p: without.logits(p, batch, dropout_key=key))(params)
    assert str(rate_0) == str(jax.make_jaxpr(lambda p: model.logits(p, batch))(params))


def test_shapes_of_the_encoder_s_output_and_of_the_cache():
    params = model_and_params()[1]
    model = EncoderDecoderModel(T5Config(**SIZES, dtype="bfloat16"))
    tokens = rows([(7, 1), (5, 1)], S=7, T=1)["encoder_input_tokens"]
    encoded = jax.eval_shape(model.encode, params, tokens)
    assert encoded.shape == (2, 7, 12)
    assert encoded.dtype == jnp.bfloat16
    for rows_at_once in (None, 1):
        cache = jax.eval_shape(lambda p, t, rows=rows_at_once: model.init_cache(p, t, 4, rows), params, tokens)
        layer = {name: array.shape for name, array in cache["layers"]["layers_0"].items()}
        assert layer == {
            "self_keys": (2, 1, 3, 5, 4), "self_values": (2, 1, 3, 4, 5), "source_keys": (2, 3, 5, 7),
            "source_values": (2, 3, 7, 5),
        }  # fmt: skip


def products(jaxpr: Any) -> int:
    """2 * (elements of the result) * (contracted length) of every matrix product in a program."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            contracted = equation.params["dimension_numbers"][0][0]
            shape = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * int(np.prod([shape[axis] for axis in contracted]))
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += products(inner)
    return total


@pytest.mark.parametrize("settings", [{}, {"logits_via_embedding": True}, {"mlp_activations": ("relu",)}])
def test_the_count_of_operations_is_that_of_the_program(settings):
    model = EncoderDecoderModel(T5Config(**{**SIZES, **settings}))
    params = model.abstract_params()
    S, T = 33, 21
    batch = rows([(S, T)], S=S, T=T)
    forward = products(jax.make_jaxpr(lambda p: model.logits(p, batch))(params).jaxpr)
    both = products(jax.make_jaxpr(jax.grad(lambda p: model.logits(p, batch).sum()))(params).jaxpr)
    # the product with the table of position buckets is the one that is left out
    buckets = 2 * 3 * 32 * ((2 * S - 1) + (2 * T - 1))
    # as is the sum over the batch that is written as a product: the gradient of the position biases, in each layer
    sums = 2 * 3 * (2 * S * S + 1 * T * T)
    counted = model.flops_per_example({"inputs": S, "targets": T})
    assert forward - buckets == counted / 3
    assert both - 2 * buckets - sums == counted


def test_mistakes_in_the_configuration_are_named():
    for settings, message in [
        ({"emb_dim": 0}, "emb_dim is 0"),
        ({"dtype": "bfloat"}, "bfloat16"),
        ({"mlp_activations": ("gellu", "linear")}, "gelu"),
        ({"mlp_activations": ()}, "mlp_activations"),
        ({"dropout_rate": 1.0}, "dropout_rate"),
        ({"relative_attention_num_buckets": 6}, "multiple of 4"),
        ({"relative_attention_max_distance": 16}, "above 16"),
    ]:
        with pytest.raises(UserError, match=message):
            T5Config(**{**SIZES, **settings})
    assert T5Config(**{**SIZES, "mlp_activations": ["gelu", "linear"]}).mlp_activations == ("gelu", "linear")
