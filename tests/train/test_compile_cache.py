"""Kept programs: used again with the same numbers, and harmless when they are cut short or cannot be kept."""

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

from t5xpg.train import compile_cache


def program(x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ x.T).sum(axis=0) / 3


@pytest.fixture(autouse=True)
def _no_other_programs() -> Iterator[None]:
    """Those that the tests keep for each other are left alone."""
    kept = {"jax_compilation_cache_dir": jax.config.jax_compilation_cache_dir}
    compile_cache._configure({"jax_compilation_cache_dir": None})
    yield
    compile_cache._configure(kept)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    monkeypatch.setenv(compile_cache.VARIABLE, str(folder))
    return folder


def start() -> tuple[bytes, set[str]]:
    """What a process does that starts: it knows no program. Returns the result's bytes, and hits and misses."""
    jax.clear_caches()
    seen: list[str] = []
    monitoring.register_event_listener(lambda event, **_: seen.append(event))
    x = np.random.default_rng(0).normal(size=(33, 17)).astype(np.float32)
    with compile_cache.kept_programs():
        result = np.asarray(jax.jit(program)(x))
    monitoring.clear_event_listeners()
    found = {event.rpartition("/")[2] for event in seen if event.endswith(("cache_hits", "cache_misses"))}
    return result.tobytes(), found


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_kept_program_is_used_and_one_that_was_cut_short_is_compiled(store: Path, is_cut: bool) -> None:
    cold, first = start()
    assert "cache_hits" not in first
    for path in store.glob("*/*-cache") if is_cut else ():
        path.write_bytes(path.read_bytes()[:100])
    warm, second = start()
    assert warm == cold
    assert ("cache_hits" in second) != is_cut
    assert jax.config.jax_compilation_cache_dir is None


def test_nothing_is_kept_where_that_is_asked_for_or_impossible(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compile_cache.VARIABLE, "0")
    start()
    monkeypatch.setenv(compile_cache.VARIABLE, str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("no folder")
    start()
    assert not store.exists()
