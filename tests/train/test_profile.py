"""A trace of some steps: where it is, that its steps are in it, and that the steps compute what they would without."""

import gzip
import json
from pathlib import Path

import jax
import jax.numpy as jnp

from t5xpg.train.profile import NAME, WARM_UP, profiled_updates


@jax.jit
def step(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    return state + batch, state.sum()


def test_a_run_that_ends_early_keeps_what_was_traced(tmp_path: Path) -> None:
    lines: list[str] = []
    with profiled_updates(step, tmp_path, lines.append) as traced:
        for _ in range(WARM_UP + 2):
            traced(jnp.zeros(3), jnp.ones(3))
    (trace,) = tmp_path.rglob(NAME)
    assert f"2 steps: {trace}" in lines[0]
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "train" for event in events) >= 2
    assert not [event for event in events if event.get("name", "").startswith("$")]  # Python's functions
    with profiled_updates(step, tmp_path / "none", lines.append):
        pass
    assert not (tmp_path / "none").exists()
    assert lines[-1].startswith("no profile")
