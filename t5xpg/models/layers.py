"""The layers of T5: dense, RMS norm, embedding, gated MLP; attention has a file of its own.

They compute what T5X's minimal T5 computes (t5x/examples/t5/layers.py): without biases, with float32 parameters, in the
dtype of the inputs.
Shapes: B batch, T length, D emb, F mlp, V vocab.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.nn import initializers

from t5xpg.models import activation_sharding, matmul
from t5xpg.models.config import T5Config
from t5xpg.models.ngrams import ngram_rows


def named_key(key: jax.Array, name: str) -> jax.Array:
    """The key derived from `key` for `name`, independent of other names. CRC-32 is the same on every machine."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


@dataclass(frozen=True)
class Dropout:
    """The dropout of one place in the network.

    rate: share of the values that are set to zero, in [0, 1).
    key: a jax key, or None where nothing is dropped (evaluation, decoding).
    """

    rate: float
    key: jax.Array | None = None

    def at(self, name: str) -> Dropout:
        """The dropout of the part called `name`: same rate, a key of its own."""
        if not self.active:
            return OFF
        assert self.key is not None
        return Dropout(self.rate, named_key(self.key, name))

    @property
    def active(self) -> bool:
        return self.key is not None and self.rate > 0.0

    def __call__(self, x: jax.Array, shared_axis: int | None = -2) -> jax.Array:
        """Zeroes values of `x` and scales the others by 1 / (1 - rate).

        shared_axis: the axis along which all values share one decision (T5X: -2, of lengths or queries); None: no axis.
        """
        if not self.active:
            return x
        assert self.key is not None
        shape = list(x.shape)
        if shared_axis is not None:
            shape[shared_axis] = 1
        keep_rate = 1.0 - self.rate
        return jnp.where(jax.random.bernoulli(self.key, keep_rate, tuple(shape)), x / keep_rate, jnp.zeros((), x.dtype))


OFF = Dropout(0.0, None)


PRODUCT = "product"  # the name by which a remat policy knows the result of a product with a weight
Initializer = Callable[[jax.Array, tuple[int, ...], jnp.dtype], jax.Array]

_dense_init: Initializer = initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
embedding_init: Initializer = initializers.normal(1.0)

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
    "linear": lambda x: x,
}


@jax.custom_vjp
def gated_gelu(x: jax.Array, gate: jax.Array) -> jax.Array:
    """gelu(x) * gate, with gelu by tanh; the backward pass keeps only the inputs and is one pass over them."""
    return _ACTIVATIONS["gelu"](x) * gate


def _gated_gelu_backward(residuals: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, gate, outer = (value.astype(jnp.float32) for value in (*residuals, gradient))
    slope = np.float32(math.sqrt(2 / math.pi))
    cubic = np.float32(0.044715)
    tanh = jnp.tanh(slope * x * (1 + cubic * x * x))
    half = 0.5 * (1 + tanh)  # gelu(x) is x times this
    by_x = half + 0.5 * x * (1 - tanh * tanh) * slope * (1 + 3 * cubic * x * x)
    return (outer * gate * by_x).astype(gradient.dtype), (outer * x * half).astype(gradient.dtype)


gated_gelu.defvjp(lambda x, gate: (gated_gelu(x, gate), (x, gate)), _gated_gelu_backward)


def parameter(key: jax.Array, init: Initializer, shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param:
    """A float32 parameter and the logical names of its axes."""
    assert len(shape) == len(axes)
    return nnx.Param(_compiled_init(init, shape)(key), axes=axes)


@functools.lru_cache(maxsize=256)
def _compiled_init(init: Initializer, shape: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    """An initialiser as a small compiled program, for all parameters of one kind and shape. One program for all kinds
    would give the same bits, and would take much longer to compile."""
    return jax.jit(lambda key: init(key, shape, jnp.dtype("float32")))


class Dense(nnx.Module):
    """y = x W with W [inputs, outputs]; computed in the dtype of x."""

    def __init__(
        self, key: jax.Array, shape: tuple[int, int], axes: tuple[str, str], init: Initializer = _dense_init
    ) -> None:
        self.axes = axes
        self.kernel = parameter(named_key(key, "kernel"), init, shape, axes)

    def __call__(self, x: jax.Array) -> jax.Array:
        outputs = activation_sharding.rows(product(x, self.kernel[...].astype(x.dtype), self.axes), self.axes[1])
        return checkpoint_name(outputs, PRODUCT)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: jax.Array, kernel: jax.Array, axes: tuple[str, str]) -> jax.Array:
    """x [..., D] times kernel [D, F], whose logical axes are `axes`.

    The kernel's gradient is written as x^T dy. For the form that differentiation gives, XLA makes a transposed copy of
    dy, which is mostly the larger of the two.
    """
    return matmul.dot(x, activation_sharding.gathered(kernel, *axes))


def _product_backward(
    axes: tuple[str, str], residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    rows, gradient_rows = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
    by_x = matmul.dot(gradient, activation_sharding.gathered_again(kernel, gradient, *axes).T)
    return by_x, activation_sharding.summed_over_rows(_rows_product, rows, gradient_rows, *axes)


def _rows_product(rows: jax.Array, others: jax.Array) -> jax.Array:
    """[N, D] and [N, F] -> [D, F]."""
    return lax.dot_general(rows, others, (((0,), (0,)), ((), ())))


product.defvjp(lambda x, kernel, axes: (product(x, kernel, axes), (x, kernel)), _product_backward)


class RMSNorm(nnx.Module):
    """T5's layer norm: divides by the root mean square, without mean and bias. Statistics in float32."""

    def __init__(self, features: int, axis: str = "embed") -> None:
        self.axis = axis
        self.scale = nnx.Param(jnp.ones((features,), jnp.float32), axes=(axis,))

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        mean_square = jnp.mean(lax.square(x32), axis=-1, keepdims=True)
        scale = activation_sharding.gathered(self.scale[...].astype(x.dtype), self.axis)
        return (x32 * lax.rsqrt(mean_square + 1e-6)).astype(x.dtype) * scale


class Embed(nnx.Module):
    """Token embedding [V, D], not scaled; `attend` is the tied output matrix."""

    def __init__(self, key: jax.Array, vocab_size: int, features: int) -> None:
        shape, axes = (vocab_size, features), ("vocab", "embed")
        self.embedding = parameter(named_key(key, "embedding"), embedding_init, shape, axes)

    def __call__(self, ids: jax.Array, dtype: jnp.dtype, segment_ids: jax.Array | None = None) -> jax.Array:
        """[..., S] int32 -> [..., S, D] in dtype. segment_ids: [..., S], of packed rows."""
        # rows are gathered in float32 and cast afterwards, so that their gradients are summed in float32
        return activation_sharding.rows(self.rows(ids, segment_ids).astype(dtype), "embed")

    def rows(self, ids: jax.Array, segment_ids: jax.Array | None) -> jax.Array:
        """The embeddings of ids, [..., S, D] float32."""
        return _rows_of(self.embedding[...], ids)

    def attend(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., V] float32: inner products with every row."""
        table = activation_sharding.gathered(self.embedding[...], "vocab", "embed")
        logits = matmul.einsum("nd,vd->nv", x.astype(jnp.float32).reshape(-1, x.shape[-1]), table)
        return activation_sharding.rows(logits.reshape(*x.shape[:-1], -1), "vocab")


class NgramEmbed(Embed):
    """The embedding of a token plus those of the n-grams that end with it, rows of a table [N, D] that begin as 0."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        super().__init__(key, config.vocab_size, config.emb_dim)
        assert config.ngrams is not None
        self.lengths, shape = config.ngrams.lengths, (config.ngrams.buckets, config.emb_dim)
        self.ngram_embedding = parameter(
            named_key(key, "ngram_embedding"), initializers.zeros, shape, ("vocab", "embed")
        )

    def rows(self, ids: jax.Array, segment_ids: jax.Array | None) -> jax.Array:
        """As of `Embed`; n-grams keep to their segment."""
        table = self.ngram_embedding[...]
        ngrams = _rows_of(table, ngram_rows(ids, self.lengths, table.shape[0], segment_ids))
        return super().rows(ids, segment_ids) + jnp.sum(ngrams, axis=-2)


def token_embedder(key: jax.Array, config: T5Config) -> Embed:
    """The embedding of a model's tokens."""
    return Embed(key, config.vocab_size, config.emb_dim) if config.ngrams is None else NgramEmbed(key, config)


def _rows_of(table: jax.Array, ids: jax.Array) -> jax.Array:
    """[V, D] and [...] int32 -> [..., D]."""
    axes = ("vocab", "embed")
    gathered = activation_sharding.is_gathered(*axes)
    return _look_up_gathered(table, ids, axes) if gathered else jnp.take(table, ids, axis=0, mode="clip")


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _look_up_gathered(table: jax.Array, ids: jax.Array, axes: tuple[str, str]) -> jax.Array:
    """The rows of a table [V, D] at `ids`."""
    return jnp.take(activation_sharding.gathered(table, *axes), ids, axis=0, mode="clip")


def _look_up_backward(
    axes: tuple[str, str], residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, None]:
    ids, table = residuals

    def scatter(ids: jax.Array, rows: jax.Array) -> jax.Array:
        zeros = jnp.zeros((table.shape[0], rows.shape[1]), rows.dtype)
        return zeros.at[jnp.clip(ids, 0, table.shape[0] - 1)].add(rows)

    rows = gradient.reshape(-1, gradient.shape[-1])
    return activation_sharding.summed_over_rows(scatter, ids.reshape(-1), rows, *axes), None


_look_up_gathered.defvjp(
    lambda table, ids, axes: (_look_up_gathered(table, ids, axes), (ids, jnp.zeros((len(table), 0), table.dtype))),
    _look_up_backward,
)


class Mlp(nnx.Module):
    """act_0(x wi_0) * act_1(x wi_1) ... wo; with one activation the matrix is called wi."""

    def __init__(self, key: jax.Array, config: T5Config) -> None:
        D, F = config.emb_dim, config.mlp_dim
        single = len(config.mlp_activations) == 1
        self.branches = tuple(
            ("wi" if single else f"wi_{index}", activation) for index, activation in enumerate(config.mlp_activations)
        )
        for name, _ in self.branches:
            setattr(self, name, Dense(named_key(key, name), (D, F), ("embed", "mlp")))
        self.wo = Dense(named_key(key, "wo"), (F, D), ("mlp", "embed"))

    def __call__(self, x: jax.Array, dropout: Dropout) -> jax.Array:
        """[B, T, D] -> [B, T, D]."""
        if tuple(activation for _, activation in self.branches) == ("gelu", "linear"):
            gelu, linear = (getattr(self, name)(x) for name, _ in self.branches)
            return self.wo(dropout(gated_gelu(gelu, linear)))
        hidden = [_ACTIVATIONS[activation](getattr(self, name)(x)) for name, activation in self.branches]
        return self.wo(dropout(functools.reduce(jnp.multiply, hidden)))
