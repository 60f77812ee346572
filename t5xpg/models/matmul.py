"""Matrix products of two arrays, which XLA's library for CPUs computes on their own; and programs that may have others.

XLA hands oneDNN an addition or activation that follows a product, too. Its sums with arrays that are broadcast run in
slow reference code, and where it computes an activation, the other users of the product get the activation's result:
with float32, gradients of `jax.checkpoint(jax.nn.gelu)(x @ w)` are wrong by 40% (jaxlib 0.12.0.1).
"""

import functools
import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jax.stages import Compiled, Lowered

from t5xpg.base.xla_flags import ONEDNN_OPTIONS

CompilerOptions = Mapping[str, str | bool]
_FUSED = re.compile(r'"fusions":\{[^}]*"ops":\[([^\]]*)\]')
_SUMS = {"SUM", "BINARY_ADD"}


def _alone(x: jax.Array) -> jax.Array:
    """x, with which XLA fuses nothing that uses it on CPUs."""
    return lax.platform_dependent(x, cpu=lax.optimization_barrier, default=lambda x: x)


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """As `jnp.dot`; it is not made to be differentiated."""
    return _alone(jnp.dot(a, b))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def einsum(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """As `jnp.einsum` of two arrays. Each letter is in two of the three terms, or in all (the axes of a batch)."""
    factors, result = subscripts.split("->")
    letters_of_a, letters_of_b = factors.split(",")
    return _product(letters_of_a, letters_of_b, result, a, b)


def _product(letters_of_a: str, letters_of_b: str, result: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """The first factor is the one that is summed along its last axis, else the smaller one.

    Then the larger one, attention's weights, is not transposed, which takes as long as its product.
    """
    summed = sorted(set(letters_of_a) & set(letters_of_b) - set(result))
    if (letters_of_a[-1] in summed, b.size) < (letters_of_b[-1] in summed, a.size):
        a, b, letters_of_a, letters_of_b = b, a, letters_of_b, letters_of_a
    batch = [letter for letter in letters_of_a if letter in letters_of_b and letter in result]
    of_a, of_b = ([[*map(letters.index, axes)] for axes in (summed, batch)] for letters in (letters_of_a, letters_of_b))
    product = lax.dot_general(a, b, ((of_a[0], of_b[0]), (of_a[1], of_b[1])))
    letters = batch + [letter for letter in letters_of_a + letters_of_b if letter not in [*batch, *summed]]
    return _alone(jnp.transpose(product, [letters.index(letter) for letter in result]))


def _backward(
    subscripts: str, residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    (a, b), (factors, result) = residuals, subscripts.split("->")
    axes_of_a, axes_of_b = factors.split(",")
    by_a = _product(result, axes_of_b, axes_of_a, gradient, b)
    return by_a, _product(axes_of_a, result, axes_of_b, a, gradient)


einsum.defvjp(lambda subscripts, a, b: (einsum(subscripts, a, b), (a, b)), _backward)


def compile_program(lowered: Lowered, options: CompilerOptions | None = None) -> Compiled:
    """Compile a program; without oneDNN if that would compute activations in it, which it does wrongly.

    The products of this package's layers give it none; a layer of one's own, written with `jnp.dot`, may.
    """
    compiled = lowered.compile(None if options is None else dict(options))
    if activations_by_onednn(compiled):
        return lowered.compile({**(options or {}), **ONEDNN_OPTIONS["without"]})
    return compiled


def activations_by_onednn(compiled: Compiled) -> set[str]:
    """The names of the operations other than sums that oneDNN computes with a product: {"GELU_TANH"}."""
    text = compiled.as_text() or ""
    fused = {name.strip('" ') for names in _FUSED.findall(text) for name in names.split(",")}
    return fused - _SUMS - {""}
