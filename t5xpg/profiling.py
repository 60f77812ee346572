"""A trace of some training steps, for TensorBoard's profiler or https://ui.perfetto.dev: `make train PROFILE=1`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from t5xpg.paths import shown

# Updates before the trace, in which memory is taken and the data run up, and updates in it.
WARM_UP, TRACED = 5, 10
NAME = "perfetto_trace.json.gz"

Step = Callable[[Any, Any], tuple[Any, Any]]


class StepProfile:
    """Traces the updates of a process from the sixth on, ten of them, into `folder`.

    folder/plugins/profile/<time>/ is what TensorBoard's profiler opens, and the perfetto_trace.json.gz in it what
    Perfetto opens. The updates compute what they would without; those at the ends of the trace wait for the device.
    """

    def __init__(self, folder: Path, log: Callable[[str], None] = print) -> None:
        self._folder, self._log = folder, log
        self._steps = 0
        self._tracing = False

    def around(self, step: Step) -> Step:
        """`step`, traced when its turn comes."""

        def traced(state: Any, batch: Any) -> tuple[Any, Any]:
            if self._steps == WARM_UP:
                jax.block_until_ready(state)
                jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
                self._tracing = True
            self._steps += 1
            with jax.profiler.StepTraceAnnotation("train", step_num=self._steps):
                result = step(state, batch)
            if self._tracing and self._steps == WARM_UP + TRACED:
                jax.block_until_ready(result)
                self.stop()
            return result

        return traced

    def stop(self) -> None:
        """End the trace and write it; nothing where there is none under way, as in a run that ended before."""
        if not self._tracing:
            return
        self._tracing = False
        jax.profiler.stop_trace()
        traces = sorted(self._folder.rglob(NAME), key=lambda path: path.stat().st_mtime)
        where = shown(traces[-1]) if traces else shown(self._folder)
        self._log(f"profile of {self._steps - WARM_UP} steps: {where}, for https://ui.perfetto.dev")
        self._log(f"or: tensorboard --logdir {shown(self._folder)}")
