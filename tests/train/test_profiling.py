"""A trace of some steps: where it is, that its steps are in it, and that the steps compute what they would without."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import jax
import jax.numpy as jnp

from t5xpg.train.startup import NAME, TRACED, WARM_UP, StepProfile


@jax.jit
def step(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    return state + batch, state.sum()


def test_the_trace_holds_its_steps(tmp_path: Path) -> None:
    said: list[str] = []
    profile = StepProfile(tmp_path, said.append)
    traced = profile.around(step)
    state = jnp.zeros(3)
    for number in range(WARM_UP + TRACED + 3):
        state, _ = traced(state, jnp.full(3, number))
    assert state.tolist() == [sum(range(WARM_UP + TRACED + 3))] * 3
    (trace,) = tmp_path.rglob(NAME)
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "train" for event in events) >= TRACED
    assert str(trace) in said[0]
    assert f"{TRACED} steps" in said[0]
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_a_run_that_ends_early_keeps_what_was_traced(tmp_path: Path) -> None:
    said: list[str] = []
    profile = StepProfile(tmp_path, said.append)
    traced = profile.around(step)
    state = jnp.zeros(3)
    for _ in range(WARM_UP + 2):
        state, _ = traced(state, jnp.ones(3))
    profile.stop()
    assert "2 steps" in said[0]
    assert list(tmp_path.rglob(NAME))
    StepProfile(tmp_path / "none", said.append).stop()
    assert not (tmp_path / "none").exists()
