"""A trace of some updates, for TensorBoard's profiler and Perfetto (`make train PROFILE=1`)."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from t5xpg.base.paths import shown

# Updates before the trace, while memory is allocated and the data starts to flow, and updates in the trace.
WARM_UP, TRACED = 5, 10
NAME = "perfetto_trace.json.gz"

Update = Callable[[Any, Any], tuple[Any, Any]]


@contextlib.contextmanager
def profiled_updates(update: Update, folder: Path, log: Callable[[str], None]) -> Iterator[Update]:
    """Yield `update`, with the sixth to the fifteenth call in the block traced into `folder`.

    TensorBoard's profiler opens folder/plugins/profile/<time>/, Perfetto opens the perfetto_trace.json.gz in it. The
    trace does not change what updates compute, but those at its ends wait for the device. Where the block ends early,
    what has been traced is written.
    """
    calls, tracing = 0, False
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # that of Python's functions crashes where a thread, as of a checkpoint, just ends

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
            jax.profiler.start_trace(folder, create_perfetto_trace=True, profiler_options=options)
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
        elif calls <= WARM_UP:
            log(f"no profile: the trace begins after {WARM_UP} updates")
