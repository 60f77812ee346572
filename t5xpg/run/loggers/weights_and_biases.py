"""Weights & Biases: LOGGER=wandb. The package is imported when a run starts."""

from __future__ import annotations

import importlib
import importlib.util
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.metric_values import Histogram, Image, MetricValue
from t5xpg.run.loggers import Logger, StartedRun

_MAGIC = b":W&B"
_HEADER = 7
_BLOCK = 32 * 1024
_PART = struct.Struct("<IHB")
_WHOLE, _LAST = 1, 4


def last_step(folder: Path, run_id: str) -> int:
    """The last step of the rows in `folder`, wandb's own, that belong to a run; -1 where there is none."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    steps = [-1]
    for file in folder.glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"):
        for entry in entries(file.read_bytes()):
            record = messages.Record.FromString(entry)
            if record.WhichOneof("record_type") == "history":
                steps.append(record.history.step.num)
    return max(steps)


def entries(data: bytes) -> Iterator[bytes]:
    """The whole entries of a file, until the first that is none."""
    if not data.startswith(_MAGIC):
        return
    at, begun = _HEADER, b""
    while at + _PART.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _PART.size:  # too little for a part: filled up
            at += left
            continue
        _, size, kind = _PART.unpack_from(data, at)
        at += _PART.size
        if not kind or at + size > len(data):
            return
        begun += data[at : at + size]
        at += size
        if kind in (_WHOLE, _LAST):
            yield begun
            begun = b""


# Seconds that it may take to begin or to end, which the end of a process waits for; less than a teller's own.
_PATIENCE = 50.0
_FLUSH = 2.0  # seconds after which its files hold a row


@dataclass
class WeightsAndBiases(Logger):
    """A run of Weights & Biases for each run directory. What goes on continues it, at the step after its last one.

    Names are those of `wandb.init`; None for what the variable says (WANDB_PROJECT, WANDB_MODE, …). mode: "online",
    "offline" or "disabled". Steps are updates. Its files lie in the run's directory.
    """

    project: str | None = None  # t5xpg where no variable says another
    entity: str | None = None
    name: str | None = None  # of the run; the run directory's
    group: str | None = None
    tags: tuple[str, ...] = ()
    mode: str | None = None
    _wandb: Any = field(default=None, init=False, repr=False)
    _run: Any = field(default=None, init=False, repr=False)

    def check(self) -> None:
        """Whether the package is there, and `mode` one of its own."""
        if self.mode not in (None, "online", "offline", "disabled"):
            raise UserError(f"WANDB_MODE is {self.mode!r}: it must be online, offline, disabled or None.")
        if importlib.util.find_spec("wandb") is None:
            raise UserError(
                "LOGGER=wandb needs the package wandb, which is not installed: .venv/bin/python -m pip install wandb"
            )

    def start(self, run: StartedRun) -> int | None:
        """Begin the run, or continue it."""
        self._wandb = wandb = importlib.import_module("wandb")
        mode = self.mode or wandb.setup(settings=wandb.Settings(silent=True)).settings.mode
        # no question on the terminal: that is the run's
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            raise UserError("no key: set WANDB_API_KEY, type `wandb login`, or use WANDB_MODE=offline")
        self._run = wandb.init(
            project=self.project or os.environ.get("WANDB_PROJECT") or "t5xpg",
            entity=self.entity,
            name=self.name or os.environ.get("WANDB_NAME") or run.directory.name,
            group=self.group,
            tags=list(self.tags),
            id=run.id,
            resume="allow",
            mode=self.mode,
            dir=str(run.folder),
            config={**run.settings, **run.facts, "experiment": run.experiment},
            settings=wandb.Settings(
                console="off",
                silent=True,
                init_timeout=_PATIENCE,
                finish_timeout=_PATIENCE,
                finish_timeout_raises=True,
                x_transaction_log_flush_interval=_FLUSH,
            ),
        )
        if mode == "offline":
            return last_step(run.folder / "wandb", run.id)
        return int(self._run.starting_step) - 1 if mode == "online" else None

    def record(self, step: int, values: Mapping[str, MetricValue]) -> None:
        """One row."""
        self._run.log({name: self._shown(value) for name, value in values.items()}, step=step, commit=True)

    def finish(self) -> None:
        """Hand over what is left."""
        self._run.finish()

    def _shown(self, value: MetricValue) -> Any:
        if isinstance(value, Histogram):
            return self._wandb.Histogram(np_histogram=value.counted())
        if isinstance(value, Image):
            return [self._wandb.Image(picture) for picture in value.pictures[: value.max_outputs]]
        return value if isinstance(value, int | float | str) else None
