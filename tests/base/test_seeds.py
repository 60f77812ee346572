"""Streams are stable, distinct, and independent of jax."""

import jax

from t5xpg.base.seeds import stream_number, stream_seed
from t5xpg.models.rng import stream_key
from tests.refusals import refused


def test_streams_never_change():
    # These numbers are in every published run: a change of them changes every result.
    assert stream_number("params") == 0xA20B52FA
    assert stream_seed(0, "data") == 171566453
    assert jax.random.key_data(stream_key(17, "dropout", 3)).tolist() == [4284713207, 731946636]


def test_streams_differ_by_seed_name_and_step():
    seen = {
        tuple(jax.random.key_data(stream_key(seed, name, step)).tolist())
        for seed in (0, 1, 2**31 - 1)
        for name in ("params", "dropout")
        for step in (None, 0, 1, 1000)
    }
    assert len(seen) == 3 * 2 * 4
    seeds = {stream_seed(seed, name) for seed in range(50) for name in ("data", "eval")}
    assert len(seeds) == 100
    assert all(0 <= one < 2**31 for one in seeds)


def test_a_bad_seed_is_refused():
    for seed in (-1, 2**31, 1.5, True, None, "7"):
        for make in (stream_seed, stream_key):
            with refused("RANDOM_SEED"):
                make(seed, "data")
