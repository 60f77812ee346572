"""The records of a run: metrics, timings, the trail of its batches, TensorBoard and other loggers.

Numbers that the run determines (metrics.jsonl, batches.sha256) and timings (timing.jsonl) go to different files.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.evaluate.infer_eval import SPLIT, TaskMetrics
from t5xpg.run.batch_trail import BatchTrail
from t5xpg.run.directory import RunDirectory
from t5xpg.run.loggers import Logger, StartedRun
from t5xpg.run.loggers.fanout import LoggerFanout, start_threads
from t5xpg.run.metrics import Window
from t5xpg.run.records import Closing, JsonlWriter, NoWriter, TensorBoardWriter, to_json
from t5xpg.train import nonfinite
from t5xpg.train.nonfinite import NonFinite

Record = dict[str, Any]


class RunRecords(Closing):
    """The open records of a run that continues after `step`; leaving the block closes them.

    Records of later steps, which an earlier process wrote after its last checkpoint, are cut off. trail: of the
    batches. loggers: the experiment's. started_run: the run as loggers see it. log: prints a logger's line.
    """

    def __init__(
        self,
        directory: RunDirectory,
        step: int,
        trail: BatchTrail,
        loggers: Sequence[Logger],
        started_run: StartedRun,
        log: Callable[[str], None],
    ) -> None:
        self.trail = trail
        self._nonfinite = directory.nonfinite
        written = directory.writes_records
        # A run that never saved starts over: none of its records is valid any more.
        last_kept_step = step if step > 0 else -1
        self._metrics = JsonlWriter(directory.metrics_jsonl, last_kept_step) if written else NoWriter()
        self._timing = JsonlWriter(directory.timing_jsonl, last_kept_step) if written else NoWriter()
        files = (directory.metrics_jsonl, directory.timing_jsonl)
        threads = start_threads(loggers, started_run, *files, log) if written else ()
        tensorboard = TensorBoardWriter(directory.tensorboard, last_kept_step) if written else NoWriter()
        tensorboard.hyperparameters(started_run.settings)
        self._loggers = LoggerFanout(tensorboard, threads)

    def keep_nonfinite(self, problem: NonFinite, metrics: Mapping[str, Any]) -> Path:
        """Keep the batch of an update that was not finite; returns the folder."""
        return nonfinite.keep(self._nonfinite, problem, metrics, self.trail.batch_of(problem.step))

    def skipped(self, problem: NonFinite) -> None:
        """Record an update that was skipped."""
        self._metrics.write({"step": problem.step, "split": "skipped", "parameters": list(problem.parameters)})

    def training(self, step: int, window: Window, timing: Record | None) -> None:
        """Record the means and timings of the window of updates that ends with `step`; of an empty window nothing."""
        self.trail.flush()
        if not window.steps:
            return
        summary = window.summary()
        self._metrics.write({"step": step, "split": "train", **summary})
        self._loggers.values(step, summary, prefix="train")
        if timing is not None:
            self._write_timing(step, timing)

    def validation(
        self, step: int, summary: Mapping[str, Any], by_task: Mapping[str, Mapping[str, Any]]
    ) -> list[Record]:
        """Record the loss of the validation split and of every task of a mixture. Returns the records as written."""
        of_split = {"step": step, "split": "validation"}
        records = [self._write({**of_split, **summary})]
        records += [self._write({**of_split, "task": task, **values}) for task, values in by_task.items()]
        self._loggers.values(step, summary, prefix="validation")
        for task, values in by_task.items():
            self._loggers.values(step, values, prefix=f"validation/{task}")
        self._loggers.flush()
        return records

    def task_metrics(self, step: int, measured: Sequence[TaskMetrics], seconds: float) -> list[Record]:
        """Record the metrics of the tasks, and how long they took. Returns the records as written."""
        records = [self._write(task_metrics.to_record(step)) for task_metrics in measured]
        for task_metrics in measured:
            self._loggers.values(step, task_metrics.metrics, prefix=f"{SPLIT}/{task_metrics.task}")
        self._write_timing(step, {"infer_eval_seconds": seconds})
        self._loggers.flush()
        return records

    def complete(self) -> None:
        """Tell the loggers that nothing more will be recorded for the last step."""
        self._loggers.complete()

    def close(self) -> None:
        """Close all records, and wait for the loggers."""
        self.trail.close()
        self._metrics.close()
        self._timing.close()
        self._loggers.close()

    def _write(self, record: Record) -> Record:
        written: Record = to_json(record)  # as a process that continues the run reads it
        self._metrics.write(written)
        return written

    def _write_timing(self, step: int, values: Record) -> None:
        self._timing.write({"step": step, "time": time.time(), **values})
        self._loggers.values(step, values, prefix="timing")
