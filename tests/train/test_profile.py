"""A trace of some steps: where it is, that its steps are in it, and that the steps compute what they would without."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import jax
import jax.numpy as jnp

from t5xpg.train.profile import NAME, TRACED, WARM_UP, profiled_updates


@jax.jit
def step(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    return state + batch, state.sum()


def test_the_trace_holds_its_steps(tmp_path: Path) -> None:
    lines: list[str] = []
    state = jnp.zeros(3)
    with profiled_updates(step, tmp_path, lines.append) as traced:
        for number in range(WARM_UP + TRACED + 3):
            state, _ = traced(state, jnp.full(3, number))
    assert state.tolist() == [sum(range(WARM_UP + TRACED + 3))] * 3
    (trace,) = tmp_path.rglob(NAME)
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "train" for event in events) >= TRACED
    assert str(trace) in lines[0]
    assert f"{TRACED} steps" in lines[0]
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_a_run_that_ends_early_keeps_what_was_traced(tmp_path: Path) -> None:
    lines: list[str] = []
    with profiled_updates(step, tmp_path, lines.append) as traced:
        for _ in range(WARM_UP + 2):
            traced(jnp.zeros(3), jnp.ones(3))
    assert "2 steps" in lines[0]
    assert list(tmp_path.rglob(NAME))
    with profiled_updates(step, tmp_path / "none", lines.append):
        pass
    assert not (tmp_path / "none").exists()
