"""One seed, many named streams: the part that needs no jax (models/rng.py makes JAX keys)."""

import hashlib

from t5xpg.base.errors import UserError

SEED_LIMIT = 2**31  # what fits the signed 32-bit seeds of TensorFlow


def check_seed(seed: int, name: str = "RANDOM_SEED") -> int:
    """`seed` itself, if it is a whole number in [0, 2**31). Raises UserError that calls it `name` otherwise."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEED_LIMIT:
        raise UserError(f"{name} is {seed!r}; it has to be a whole number from 0 to {SEED_LIMIT - 1}.")
    return seed


def stream_number(name: str) -> int:
    """A number in [0, 2**32) for the name of a stream: the same on every machine and in every process."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:4], "big")


def stream_seed(seed: int, name: str) -> int:
    """The seed of the stream `name` under the experiment's `seed`, in [0, 2**31): fits a signed 32-bit integer."""
    return stream_number(f"{check_seed(seed)}/{name}") >> 1
