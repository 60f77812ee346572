"""Checkpoints: the state, the exact position in the data, and what a reader of them has to know.

    <directory>/<step>/params      the parameters, under their own names: can be read alone
    <directory>/<step>/optimizer   the step and the optimiser's arrays
    <directory>/<step>/data        the data position, as bytes
    <directory>/<step>/meta        JSON
    <directory>/<step>/metrics     JSON: what decides about the best checkpoint, where that was measured

orbax writes them beside the training, into a folder of another name, which is renamed when it is whole and carries
the digests of its files (checkpoint_digests). An interruption at any moment leaves every earlier folder as it was;
the next Checkpointer removes what is unfinished.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import absl.logging
import jax
import numpy as np
import orbax.checkpoint as ocp

from t5xpg import checkpoint_items, phases
from t5xpg.checkpoint_digests import CheckpointFolders
from t5xpg.errors import UserError
from t5xpg.models.encoder_decoder import Params
from t5xpg.state import TrainState

_DISK_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST,
    errno.EIO,
)  # fmt: skip


@dataclass(frozen=True)
class CheckpointConfig:
    """period: updates between checkpoints. keep: how many of the last ones stay.

    keep_best: the metric (of those given to `save`) whose lowest value marks one more checkpoint that stays; None for
    no such checkpoint. asynchronous: whether training goes on while a checkpoint is written.
    """

    period: int = 1000
    keep: int = 2
    keep_best: str | None = "validation_loss"
    asynchronous: bool = True

    def __post_init__(self) -> None:
        for name in ("period", "keep"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"CheckpointConfig.{name} is {value!r}; it has to be a whole number of at least 1.")


class Checkpointer:
    """Writes and reads the checkpoints of one run. A context manager; leaving it waits for what is being written.

    One process at a time may write. With `read_only`, nothing is changed, so that a run can be looked at while it
    trains; raises UserError where there is no such directory.
    """

    def __init__(self, directory: Path, config: CheckpointConfig, *, read_only: bool = False) -> None:
        # orbax logs its inner workings, and every error once in each of its threads; errors reach the caller anyway.
        absl.logging.set_verbosity(absl.logging.FATAL)
        self._config = config
        self._directory = Path(directory).absolute()
        self._writing: threading.Thread | None = None
        self._error: BaseException | None = None
        if read_only and not self._directory.is_dir():
            raise UserError(f"There is no checkpoint in {self._directory}. Train first.")
        with self._disk_errors("written into"):
            self._folders = CheckpointFolders(self._directory, read_only=read_only, read=checkpoint_items.read_through)
        self._quiet = ExitStack()
        self._quiet.enter_context(checkpoint_items.late_writes_unsaid())
        self._orbax = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(handler_registry=checkpoint_items.handlers())
        )

    def save(
        self,
        step: int,
        state: TrainState,
        data_state: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
    ) -> bool:
        """Begin to write the checkpoint of `step`; the arrays have been copied when this returns.

        Waits first for an earlier one that is still being written, and raises what went wrong with it. Returns False,
        and writes nothing, where the step already has a checkpoint: a run that continues reaches the same state.
        """
        if jax.process_count() > 1:
            # every process has a data position of its own, and only the first one's would be written
            raise UserError(
                "Training on several processes is not supported yet: the position of each process in the data would "
                "have to be saved. Use one process with all devices of the machine."
            )
        self.wait()
        with self._disk_errors("written into"):
            if self._folders.path(step).is_dir():
                return False
        items: dict[str, ocp.args.CheckpointArgs] = {
            "params": ocp.args.StandardSave(state.params),
            "optimizer": ocp.args.StandardSave(checkpoint_items.optimizer_tree(state)),
            "data": ocp.args.StandardSave({"npz": checkpoint_items.pack(data_state)}),
            "meta": ocp.args.JsonSave(dict(meta)),
        }
        best = self._config.keep_best
        if best is not None and metrics is not None and best in metrics:
            items["metrics"] = ocp.args.JsonSave({best: float(metrics[best])})
        phases.tell("begin", "save", step)
        with self._disk_errors("written into"):
            try:
                target = self._folders.unfinished(step)
                self._orbax.save(
                    target, args=ocp.args.Composite(**items), force=True, custom_metadata=checkpoint_items.MARK
                )
            except BaseException:
                self._folders.discard(step)
                raise
        self._writing = threading.Thread(target=self._finish, args=(step,), name="checkpoint")
        self._writing.start()
        if not self._config.asynchronous:
            self.wait()
        return True

    def _finish(self, step: int) -> None:
        """What a checkpoint needs beside the training; `wait` raises what goes wrong."""
        try:
            self._orbax.wait_until_finished()
            self._folders.finish(step)
            phases.tell("end", "save", step)
            steps = self._folders.steps()
            self._folders.keep({*steps[-self._config.keep :], self._best(steps)})
        except BaseException as error:
            self._error = error
            self._folders.discard(step)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending. Whether they are whole, `latest` and `restore` find out."""
        self.wait()
        with self._disk_errors("read from"):
            return self._folders.steps()

    def latest(self) -> int | None:
        """The last step that has a whole checkpoint; None where there is no checkpoint at all.

        Damaged ones after it are moved aside (with `read_only`, passed over), and a line says so. Raises UserError
        where there are checkpoints and none is whole.
        """
        self.wait()
        with self._disk_errors("read from"):
            return self._folders.latest()

    def best(self) -> int | None:
        """The step with the lowest `keep_best` metric; None where no checkpoint has one."""
        return self._best(self.steps())

    def restore(
        self, step: int | None, abstract_state: TrainState
    ) -> tuple[TrainState, dict[str, np.ndarray], dict[str, Any]]:
        """(state, data_state, meta) of `step`, or of the last whole checkpoint.

        abstract_state: ShapeDtypeStructs with shardings (`partitioning.with_shardings`), on any mesh. Raises UserError
        where there is no such checkpoint, where it is damaged, or where its arrays are not those of abstract_state.
        """
        step = self._existing(step)
        optimizer = checkpoint_items.optimizer_tree(abstract_state)
        self._check(step, {"params": abstract_state.params, "optimizer": optimizer})
        restored = self._restore(
            step,
            params=ocp.args.StandardRestore(abstract_state.params),
            optimizer=ocp.args.StandardRestore(optimizer),
            data=ocp.args.StandardRestore(),
        )
        state = checkpoint_items.state_from(restored["params"], restored["optimizer"], abstract_state)
        return state, checkpoint_items.unpack(np.asarray(restored["data"]["npz"])), restored["meta"]

    def restore_params(self, step: int | None, abstract_params: Params) -> tuple[Params, dict[str, Any]]:
        """(params, meta) of `step`, or of the last whole checkpoint: what evaluation, inference and export need."""
        step = self._existing(step)
        self._check(step, {"params": abstract_params})
        restored = self._restore(step, params=ocp.args.StandardRestore(abstract_params))
        return restored["params"], restored["meta"]

    def meta(self, step: int | None = None) -> dict[str, Any]:
        """The JSON of `step`, or of the last whole checkpoint."""
        return self._restore(self._existing(step))["meta"]

    def wait(self) -> None:
        """Return when nothing is being written. Raises what went wrong with writing."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        error, self._error = self._error, None
        if error is not None:
            with self._disk_errors("written into"):
                raise error

    def close(self) -> None:
        """Wait, and release orbax's threads."""
        try:
            self.wait()
        finally:
            self._orbax.close()
            self._quiet.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _existing(self, step: int | None) -> int:
        """`step`, or the last one, as one that has a whole checkpoint."""
        if step is None:
            if (latest := self.latest()) is None:
                raise UserError(f"There is no checkpoint in {self._directory}. Train first.")
            return latest
        if step not in (steps := self.steps()):
            there_are = f"; there are: {steps}" if steps else ""
            raise UserError(f"There is no checkpoint of step {step} in {self._directory}{there_are}.")
        with self._disk_errors("read from"):
            damage = self._folders.damage(step)
        if damage is not None:
            others = [other for other in steps if other != step]
            raise UserError(
                f"The checkpoint {self._folders.path(step)} is damaged: {damage}. "
                + (f"Use another one; there are: {others}." if others else "Put it back from a copy, or train again.")
            )
        return step

    def _restore(self, step: int, **items: ocp.args.CheckpointArgs) -> Mapping[str, Any]:
        """These items of a checkpoint, and its meta."""
        with self._disk_errors("read from"):
            restored = self._orbax.restore(
                self._folders.path(step), args=ocp.args.Composite(**items, meta=ocp.args.JsonRestore())
            )
        if not isinstance(restored["meta"], dict):
            raise UserError(f"{self._folders.path(step) / 'meta'} is none of a checkpoint: it holds no JSON object.")
        return restored

    def _check(self, step: int, expected: Mapping[str, Any]) -> None:
        """Raises one UserError that names every array which is missing, superfluous, or of another shape or type."""
        with self._disk_errors("read from"):
            found_items = self._orbax.metadata(self._folders.path(step)).item_metadata
        differences = [
            f"  {item}/{line}"
            for item, tree in expected.items()
            for line in checkpoint_items.array_differences(tree, found_items[item])
        ]
        if differences:
            shown = differences[:20] + ([f"  ... and {len(differences) - 20} more"] if len(differences) > 20 else [])
            raise UserError(
                f"The checkpoint {self._folders.path(step)} is of another model or optimiser than this one:\n"
                + "\n".join(shown)
                + "\nUse the settings that it was trained with, or another run directory."
            )

    def _best(self, steps: list[int]) -> int | None:
        """The one of `steps` with the lowest metric, the last of equals. One that is not a number is the worst."""
        badness: dict[int, float] = {}
        for step in steps if self._config.keep_best is not None else []:
            with suppress(OSError, ValueError, KeyError, TypeError):  # not measured then, or damaged
                metrics = json.loads((self._folders.path(step) / "metrics" / "metrics").read_bytes())
                value = float(metrics[self._config.keep_best])
                badness[step] = math.inf if math.isnan(value) else value
        return min(badness, key=lambda step: (badness[step], -step), default=None)

    @contextmanager
    def _disk_errors(self, doing: str) -> Iterator[None]:
        """A full or read-only disk is the user's to mend. tensorstore's ValueErrors have the number in their text."""
        try:
            yield
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None)
            if number is None and (match := re.search(r"os_error_code='(\d+)'", str(error))):
                number = int(match[1])
            if number not in _DISK_ERRORS:
                raise
            remedy = "Earlier ones are whole; make room or choose another folder, and run the same command again."
            if doing != "written into":
                remedy = "Make that possible, and run the same command again."
            raise UserError(
                f"A checkpoint cannot be {doing} {self._directory}: {os.strerror(number)}. {remedy}"
            ) from error
