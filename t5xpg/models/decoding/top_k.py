"""`top_k` and `argmax` by reductions over whole rows: on CPUs these are vectorised, and sorting is slow.

Of equal numbers, the first counts as the larger one, as in `lax.top_k`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

_BLOCK = 64  # numbers in a block, of which the first pass uses only the largest


def argmax(x: jax.Array) -> jax.Array:
    """[..., V] -> [...] int32: argmax as two plain reductions."""
    V = x.shape[-1]
    largest = jnp.max(x, axis=-1, keepdims=True)
    # "not smaller" instead of "equal", so that something is found in a row with NaNs, too
    return jnp.min(jnp.where(x < largest, jnp.int32(V), jnp.arange(V, dtype=jnp.int32)), axis=-1)


def top_k(x: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """[B, M] -> the `count` largest of each row (above -inf), descending, and their places, float32 and int32."""
    if jax.default_backend() != "cpu":  # CPUs take one after another: for few, this is a fraction of top_k's time
        return lax.top_k(x, count)

    def take(remaining: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        place = argmax(remaining)
        is_place = jnp.arange(remaining.shape[-1], dtype=jnp.int32) == place[:, None]
        return jnp.where(is_place, -jnp.inf, remaining), (jnp.max(remaining, axis=-1), place)

    _, (values, places) = lax.scan(take, x, None, length=count)
    return values.T, places.T


def top_k_of_sums(logits: jax.Array, shifts: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The `count` largest of logits [B, N, V] + shifts [B, N, 1], over N and V together, and their places n * V + v.

    Descending; [B, count] float32 and int32. The logits are read once: the largest number of each block shows which
    blocks can hold one of the `count`, and only those few are searched.
    """
    B, N, V = logits.shape
    logits = jnp.pad(logits, ((0, 0), (0, 0), (0, -V % _BLOCK)), constant_values=-jnp.inf)
    blocks = logits.reshape(B, N, -1, _BLOCK)
    per_beam = blocks.shape[2]
    block_maxima = (jnp.max(blocks, axis=-1) + shifts).reshape(B, -1)
    _, chosen = top_k(block_maxima, min(count, N * per_beam))
    chosen = jnp.sort(chosen, axis=-1)  # in order of place, because the first of equal numbers wins
    beams, offsets = chosen // per_beam, chosen % per_beam * _BLOCK
    candidates = jnp.take_along_axis(blocks.reshape(B, -1, _BLOCK), chosen[..., None], axis=1, mode="clip")
    candidates = candidates + jnp.take_along_axis(shifts[..., 0], beams, axis=1, mode="clip")[..., None]
    values, flat_places = top_k(candidates.reshape(B, -1), count)
    block, place = flat_places // _BLOCK, flat_places % _BLOCK
    beam = jnp.take_along_axis(beams, block, axis=1, mode="clip")
    return values, beam * V + jnp.take_along_axis(offsets, block, axis=1, mode="clip") + place


def in_order(x: jax.Array) -> jax.Array:
    """float32 -> int32 in the same order: results compare as the numbers do (with -0.0 before 0.0)."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def highest_threshold(x: jax.Array, enough: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The highest t for which x >= t keeps enough: x [..., V] float32 -> t [...] int32, to compare with in_order(x).

    enough: boolean [..., V], what is kept -> boolean [...]; true if all is kept, and if true, also true for more.
    t is found bit by bit from the top, in 32 passes over x; sorting a vocabulary takes some 20 times as long on CPUs.
    """
    ordered = in_order(x)
    lowest = jnp.full(x.shape[:-1], jnp.iinfo(jnp.int32).min, jnp.int32)
    threshold = jnp.where(enough(ordered >= 0), jnp.int32(0), lowest)

    def refine(index: jax.Array, threshold: jax.Array) -> jax.Array:
        higher = threshold + lax.shift_left(jnp.int32(1), jnp.int32(30) - index.astype(jnp.int32))
        return jnp.where(enough(ordered >= higher[..., None]), higher, threshold)

    return lax.fori_loop(0, 31, refine, threshold)
