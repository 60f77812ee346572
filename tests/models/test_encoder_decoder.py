"""The whole model: its parameters, padding, dropout, dtypes, and the count of its operations.

That names and shapes are T5X's: tests/exchange/t5x/test_params.py. That it computes what T5 computes: test_parity.py.
"""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.parts import Embeddings, EncoderSizes
from t5xpg.models.positions import Buckets
from tests.refusals import refused
from tests.small_models import ONE_LAYER, SIZES, equations, seq2seq


@functools.cache
def model_and_params(**settings: Any) -> tuple[EncoderDecoderModel, Any]:
    model = EncoderDecoderModel(T5Config(**{**SIZES, **settings}))
    return model, model.init(jax.random.key(0))


def rows(lengths: list[tuple[int, int]], S: int, T: int) -> dict[str, np.ndarray]:
    """A padded batch: one row for each pair of input length and target length."""
    rng = np.random.default_rng(0)
    inputs, targets = np.zeros((len(lengths), S), np.int32), np.zeros((len(lengths), T), np.int32)
    for row, (source, target) in enumerate(lengths):
        inputs[row, :source] = rng.integers(1, 29, source)
        targets[row, :target] = rng.integers(1, 29, target)
    return seq2seq(inputs, targets)


def test_every_parameter_is_float32_and_its_axes_have_names():
    model = EncoderDecoderModel(T5Config(**SIZES))
    abstract = model.abstract_params()
    assert {leaf.dtype for leaf in jax.tree.leaves(abstract)} == {np.dtype(np.float32)}
    assert model.num_params == sum(leaf.size for leaf in jax.tree.leaves(abstract))
    assert jax.eval_shape(model.init, jax.random.key(0)) == abstract
    axes = flatten_dict(model.logical_axes(), sep="/")
    ranks = {name: leaf.ndim for name, leaf in flatten_dict(abstract, sep="/").items()}
    assert {name: len(names) for name, names in axes.items()} == ranks
    assert axes["token_embedder/embedding"] == ("vocab", "embed")
    assert axes["encoder/layers_0/attention/query/kernel"] == ("embed", "joined_kv")
    assert axes["encoder/layers_1/attention/out/kernel"] == ("joined_kv", "embed")
    assert axes["decoder/layers_0/mlp/wo/kernel"] == ("mlp", "embed")
    assert axes["decoder/relpos_bias/rel_embedding"] == ("heads", "relpos_buckets")


def test_a_parameter_starts_the_same_whatever_else_there_is():
    one, two = (flatten_dict(model_and_params(num_decoder_layers=count)[1]) for count in (1, 2))
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name])
    kernels = [leaf for leaf in two.values() if leaf.shape == (12, 15)]
    assert all((a != b).any() for i, a in enumerate(kernels) for b in kernels[:i]), "two parameters start equal"


def test_a_row_of_padding_is_finite():
    """That padding changes nothing else: test_beyond_t5.py."""
    model, params = model_and_params(**ONE_LAYER)
    batch = rows([(5, 3), (0, 0)], S=7, T=6)
    found = jax.jit(jax.value_and_grad(lambda params: model.logits(params, batch).sum()))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_dropout_needs_a_key_and_depends_on_nothing_else():
    without, params = model_and_params(**ONE_LAYER)
    model = EncoderDecoderModel(T5Config(**{**SIZES, **ONE_LAYER}, dropout_rate=0.3))
    batch = rows([(7, 6), (5, 4)], S=7, T=6)
    logits = jax.jit(lambda params, key: model.logits(params, batch, dropout_key=key))
    off = jax.jit(lambda params: model.logits(params, batch))(params)
    first, again, other = (np.asarray(logits(params, jax.random.key(seed))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first != off).any()
    # a rate of 0 with a key is the same program as no key
    key = jax.random.key(1)
    rate_0 = jax.make_jaxpr(lambda p: without.logits(p, batch, dropout_key=key))(params)
    assert str(rate_0) == str(jax.make_jaxpr(lambda p: model.logits(p, batch))(params))


def products(jaxpr: Any) -> int:
    """2 * (elements of the result) * (contracted length) of every matrix product in a program."""
    total = 0
    for equation in equations(jaxpr):
        if equation.primitive.name == "dot_general":
            contracted = equation.params["dimension_numbers"][0][0]
            shape = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * int(np.prod([shape[axis] for axis in contracted]))
    return total


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (EncoderDecoderModel, {}),
        (EncoderDecoderModel, {"logits_via_embedding": True, "mlp_activations": ("relu",)}),
        (EncoderDecoderModel,
         {"embeddings": Embeddings(shared=False), "encoder_sizes": EncoderSizes(emb_dim=20, mlp_dim=13)}),
        (DecoderOnlyModel, {}),
    ],
)  # fmt: skip
def test_the_count_of_operations_is_that_of_the_program(kind, settings):
    model = kind(T5Config(**{**SIZES, "num_decoder_layers": 1, **settings}))
    params = model.abstract_params()
    batch = rows([(33, 21)], S=33, T=21)
    lengths = {"inputs": 33, "targets": 21} if kind is EncoderDecoderModel else {"targets": 21}
    layers = {"inputs": 2, "targets": 1}
    forward = products(jax.make_jaxpr(lambda p: model.logits(p, batch))(params).jaxpr)
    both = products(jax.make_jaxpr(jax.grad(lambda p: model.logits(p, batch).sum()))(params).jaxpr)
    # the product with the table of position buckets is the one that is left out
    buckets = sum(2 * 3 * 32 * (2 * length - 1) for length in lengths.values())
    # as is the sum over the batch that is written as a product: the gradient of the position biases, in each layer
    sums = sum(2 * 3 * layers[name] * length**2 for name, length in lengths.items())
    counted = model.flops_per_example(lengths)
    assert forward - buckets == counted / 3
    assert both - 2 * buckets - sums == counted


def test_mistakes_in_the_configuration_are_named():
    for settings, named in (
        ({"emb_dim": 0}, "emb_dim is 0"),
        ({"dtype": "bfloat"}, "bfloat16"),
        ({"mlp_activations": ("gellu", "linear")}, "gelu"),
        ({"mlp_activations": ()}, "mlp_activations"),
        ({"dropout_rate": 1.0}, "dropout_rate"),
        ({"attention_chunk_size": 0}, "attention_chunk_size"),
        ({"attention_chunk_size": "64"}, "attention_chunk_size"),
        ({"remat_policy": "minimal"}, "Did you mean dots"),
        ({"remat_policy": "fulll"}, "Did you mean full"),
    ):
        with refused(named):
            T5Config(**{**SIZES, **settings})
    for buckets, named in (
        ({"num_buckets": 6}, "multiple of 4"),
        ({"num_buckets": "32"}, "Buckets.num_buckets is '32'"),
        ({"max_distance": 16}, "above 16"),
        ({"max_distance": 128.0}, "is 128.0"),
    ):
        with refused(named):
            Buckets(**buckets)
    for given, expected in ((["gelu", "linear"], ("gelu", "linear")), ("relu", ("relu",))):  # no mistakes
        assert T5Config(**{**SIZES, "mlp_activations": given}).mlp_activations == expected
