"""A trace of some updates, for TensorBoard's profiler and Perfetto (`make train PROFILE=1`)."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from t5xpg.base.paths import shown

# Updates before the trace, in which memory is taken and the data run up, and updates in it.
WARM_UP, TRACED = 5, 10
NAME = "perfetto_trace.json.gz"

Update = Callable[[Any, Any], tuple[Any, Any]]


@contextlib.contextmanager
def profiled_updates(update: Update, folder: Path, log: Callable[[str], None]) -> Iterator[Update]:
    """Yield `update`, of which the sixth to fifteenth call in the block are traced into `folder`.

    folder/plugins/profile/<time>/ is what TensorBoard's profiler opens, and the perfetto_trace.json.gz in it what
    Perfetto opens. The updates compute what they would without; those at the ends of the trace wait for the device. A
    block that ends before writes what there is.
    """
    calls, tracing = 0, False

    def stop() -> None:
        nonlocal tracing
        tracing = False
        jax.profiler.stop_trace()
        traces = sorted(folder.rglob(NAME), key=lambda path: path.stat().st_mtime)
        where = shown(traces[-1]) if traces else shown(folder)
        log(f"profile of {calls - WARM_UP} steps: {where}, for https://ui.perfetto.dev")
        log(f"or, installed as docs/logging.md says: tensorboard --logdir {shown(folder)}")

    def traced(state: Any, batch: Any) -> tuple[Any, Any]:
        nonlocal calls, tracing
        if calls == WARM_UP:
            jax.block_until_ready(state)
            jax.profiler.start_trace(folder, create_perfetto_trace=True)
            tracing = True
        calls += 1
        with jax.profiler.StepTraceAnnotation("train", step_num=calls):
            result = update(state, batch)
        if tracing and calls == WARM_UP + TRACED:
            jax.block_until_ready(result)
            stop()
        return result

    try:
        yield traced
    finally:
        if tracing:
            stop()
