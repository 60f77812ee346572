"""Random keys from (seed, stream name, step): nothing random is carried along, so nothing has to be saved."""

import jax

from t5xpg.base.seeds import check_seed, stream_number


def stream_key(seed: int, name: str, step: int | jax.Array | None = None) -> jax.Array:
    """The key of the stream `name` ("params", "dropout", ...), at `step` if one is given. The step may be traced."""
    # the generator is named, because jax's default can be changed from outside
    key = jax.random.fold_in(jax.random.key(check_seed(seed), impl="threefry2x32"), stream_number(name))
    return key if step is None else jax.random.fold_in(key, step)
