"""The records of a run: its start, metrics, timings, the trail of its batches, TensorBoard and other loggers.

Numbers that the run determines (metrics.jsonl, batches.sha256) and timings (timing.jsonl) go to different files.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.files import write_text
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.distributed import Group
from t5xpg.evaluate.infer_eval import SPLIT, TaskMetrics
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.config import LoadedConfig, settings
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import identity_settings
from t5xpg.models.adapters import num_trained
from t5xpg.run.batch_trail import BatchTrail, Shares
from t5xpg.run.directory import RunDirectory
from t5xpg.run.loggers import StartedRun
from t5xpg.run.loggers.fanout import LoggerFanout, start_threads
from t5xpg.run.metrics import Window
from t5xpg.run.records import Closing, JsonlWriter, NoWriter, TensorBoardWriter, to_json
from t5xpg.train import nonfinite
from t5xpg.train.nonfinite import NonFinite

Record = dict[str, Any]


def record_start(
    directory: RunDirectory,
    loaded: LoadedConfig,
    identity: Mapping[str, Any],
    built: Assembly,
    vocabulary: Vocabulary,
    *,
    step: int,
    command: str,
    data: Any,
) -> None:
    """Write run.json and the configuration. data: the manifest of the text. Raises UserError if the run was started
    with another identity."""
    if not directory.writes_records:
        return
    selection = loaded.experiment.selection
    facts = {"data": data, "selection": settings(selection) if selection else None}
    directory.start(
        loaded.name,
        identity,
        step=step,
        command=command,
        devices=built.devices,
        read=loaded.files,
        facts=_facts(loaded.experiment) | facts,
    )
    directory.copy_vocabulary_model(vocabulary.model_file)
    write_text(directory.config_gin, loaded.full)
    write_text(directory.operative_gin, loaded.operative)


def _facts(experiment: Experiment) -> dict[str, Any]:
    facts = {"total_steps": experiment.total_steps, "num_params": experiment.model.num_params}
    trained = {} if experiment.adapter is None else {"num_trained": num_trained(experiment.model, experiment.adapter)}
    return facts | trained


def _started_run(directory: RunDirectory, loaded: LoadedConfig, built: Assembly, step: int) -> StartedRun:
    """The run as loggers see it, without the id, which differs from logger to logger."""
    experiment = loaded.experiment
    return StartedRun(
        experiment=loaded.name,
        id="",
        directory=directory.path,
        folder=directory.loggers,
        step=step,
        settings=identity_settings(experiment) | {"random_seed": experiment.random_seed},
        gin=loaded.full,
        facts=_facts(experiment) | {"devices": built.devices},
    )


def _trail(directory: RunDirectory, built: Assembly, group: Group, step: int) -> BatchTrail:
    num_shards = built.experiment.train_dataset.num_virtual_shards
    if group.count == 1:
        return BatchTrail(directory.batches, step, num_shards)
    shards_by_host = [built.rows_of_host(number).shards for number in range(group.count)]
    shares = Shares(shards_by_host, group.process, functools.partial(group.gather, "batches"))
    return BatchTrail(directory.batches if group.first else None, step, num_shards, shares)


class RunRecords(Closing):
    """The open records of a run that continues after `step`; leaving the block closes them.

    Records of later steps, which an earlier process wrote after its last checkpoint, are cut off. log: prints a
    logger's line.
    """

    def __init__(
        self,
        directory: RunDirectory,
        loaded: LoadedConfig,
        built: Assembly,
        group: Group,
        step: int,
        log: Callable[[str], None],
    ) -> None:
        self.trail = _trail(directory, built, group, step)
        self._nonfinite = directory.nonfinite
        written = directory.writes_records
        # A run that never saved starts over: none of its records is valid any more.
        last_kept_step = step if step > 0 else -1
        self._metrics = JsonlWriter(directory.metrics_jsonl, last_kept_step) if written else NoWriter()
        self._timing = JsonlWriter(directory.timing_jsonl, last_kept_step) if written else NoWriter()
        files, started_run = (
            (directory.metrics_jsonl, directory.timing_jsonl),
            _started_run(directory, loaded, built, step),
        )
        threads = start_threads(loaded.experiment.loggers, started_run, *files, log) if written else ()
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
