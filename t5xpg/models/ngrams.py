"""N-grams of ids, by hashes that number the rows of a table of embeddings (BLT: Pagnoni et al. 2024, section 3.2.1).

A model of bytes has few embeddings, and its layers have to find out which word a byte belongs to; the embeddings of
the n-grams that end with the byte tell them.
"""

import jax
import jax.numpy as jnp

_BASE, _MIX = 1_000_003, 0x2C1B3C6D  # a prime, and an odd number whose bits are well spread


def ngram_rows(
    ids: jax.Array, lengths: tuple[int, ...], buckets: int, segment_ids: jax.Array | None = None
) -> jax.Array:
    """ids [..., S] int32 -> [..., S, N] int32 in [0, buckets): for each position, the row of the n-gram of each length.

    An n-gram ends at its position; what lies before its text counts as 0, in packed rows too. It is the number modulo
    2^32 whose digits in base 1,000,003 are its ids plus 1, the last one first; its bits are mixed, modulo `buckets`.
    """

    def shifted(x: jax.Array, distance: int) -> jax.Array:
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(distance, 0)])[..., : x.shape[-1]]

    number, rows = jnp.zeros(ids.shape, jnp.uint32), []
    for distance in range(max(lengths)):
        earlier_ids = shifted(ids, distance).astype(jnp.uint32)
        if segment_ids is not None:
            earlier_ids = jnp.where(shifted(segment_ids, distance) == segment_ids, earlier_ids, 0)
        number = number * _BASE + earlier_ids + 1
        if distance + 1 in lengths:
            mixed = (number ^ (number >> 15)) * _MIX
            rows.append((mixed ^ (mixed >> 16)) % buckets)
    return jnp.stack(rows, axis=-1).astype(jnp.int32)
