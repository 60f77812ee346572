"""Kept programs: used again with the same numbers, bounded, and harmless when they are damaged."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

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


def start(events: list[str] | None = None) -> np.ndarray:
    """What a process does that starts: it knows no program."""
    jax.clear_caches()
    seen: list[str] = []
    monitoring.register_event_listener(lambda event, **_: seen.append(event))
    x = np.random.default_rng(0).normal(size=(33, 17)).astype(np.float32)
    with compile_cache.kept_programs():
        result = np.asarray(jax.jit(program)(x))
    monitoring.clear_event_listeners()
    if events is not None:
        events += [event.rpartition("/")[2] for event in seen if event.endswith(("cache_hits", "cache_misses"))]
    return result


def entries(store: Path) -> list[Path]:
    return sorted(store.glob("*/*-cache"))


def test_a_kept_program_is_used_and_gives_the_same_bits(store: Path) -> None:
    first, second = [], []
    cold, warm = start(first), start(second)
    assert "cache_hits" not in first
    assert set(second) == {"cache_hits"}
    assert cold.tobytes() == warm.tobytes()
    assert jax.config.jax_compilation_cache_dir is None
    assert [path.name for path in store.glob("*/.*")] == []  # the process's own folder is gone


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_program_is_compiled_again(store: Path, damage: str) -> None:
    cold = start()
    for path in entries(store):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes({"cut": bytes(data[:100]), "flipped": bytes(data)}[damage])
    events: list[str] = []
    assert start(events).tobytes() == cold.tobytes()
    assert "cache_hits" not in events
    events = []
    assert start(events).tobytes() == cold.tobytes()  # it was replaced
    assert set(events) == {"cache_hits"}


def test_without_room_for_the_copies_nothing_is_left_of_them(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    monkeypatch.setattr(compile_cache, "_use_file", Mock(side_effect=OSError(28, "No space left on device")))
    start()
    assert list(store.glob("*/.*")) == []


def test_what_was_not_used_for_longest_goes_first(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    kept = entries(store)
    old = kept[0].with_name("jit_old-0-cache")
    old.write_bytes(b"x" * 1000)
    os.utime(old, (1, 1))
    monkeypatch.setattr(compile_cache, "LIMIT", sum(path.stat().st_size for path in kept) + 500)
    start()
    assert entries(store) == kept


def test_nothing_is_kept_where_that_cannot_be(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compile_cache.VARIABLE, "0")
    start()
    assert not store.exists()
    monkeypatch.setenv(compile_cache.VARIABLE, str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("no folder")
    start()
