"""The writer and reader of a run's checkpoints: the state, the exact position in the data, and facts for a reader.

    <directory>/<step>/params      the parameters, or their average, under their own names: can be read alone
    <directory>/<step>/optimizer   the step and the optimiser's arrays
    <directory>/<step>/data        the data position, as bytes
    <directory>/<step>/meta        JSON
    <directory>/<step>/metrics     JSON: the numbers measured for it, one of which decides which is the best

orbax writes a checkpoint in threads, while the training goes on, into a folder of another name. The folder is renamed
when it is whole and has the digests of its files (`folders`). An interruption at any moment leaves every earlier folder
unchanged; the next Checkpointer removes the unfinished one.

Several processes write one checkpoint: each the parts of arrays that its devices hold. The first does everything else.
"""

import errno
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import absl.logging
import numpy as np
import orbax.checkpoint as ocp

from t5xpg.base import phases
from t5xpg.base.errors import UserError
from t5xpg.base.files import DISK_FULL, Closing
from t5xpg.base.paths import require_path_for_orbax
from t5xpg.distributed.group import ALONE, Group
from t5xpg.models.config import is_count
from t5xpg.models.model import Params
from t5xpg.optim.state import TrainState
from t5xpg.run.best import BestMetric
from t5xpg.run.checkpoint import checkpoint_items
from t5xpg.run.checkpoint.folders import RESUME_ONLY, CheckpointFolders, best_step, lasting_steps, saved_steps

Value = TypeVar("Value")
_DISK_ERRORS = (*DISK_FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EIO)


@dataclass(frozen=True)
class CheckpointConfig:
    """period: updates between checkpoints. keep: how many of the last ones stay; None for all.

    best: a metric of those given to `save`; if its `keep` is True, the checkpoint with its best value stays as well.
    asynchronous: whether training goes on while a checkpoint is written.
    """

    period: int = 1000
    keep: int | None = 2
    best: BestMetric = field(default_factory=BestMetric)
    asynchronous: bool = True

    def __post_init__(self) -> None:
        for name, alternative in (("period", ""), ("keep", ", or None for all")):
            value = getattr(self, name)
            if not is_count(value) and not (alternative and value is None):
                raise UserError(
                    f"CheckpointConfig.{name} is {value!r}; it has to be a whole number of at least 1{alternative}."
                )


class Checkpointer(Closing):
    """Writes and reads the checkpoints of one run; leaving the block waits for what is being written.

    One process at a time may write. read_only: changes nothing, so that a run can be read while it trains; UserError
    where there is no such directory. group: the processes that write together, with the same calls in order.
    committed: called when a checkpoint is whole, beside the training; `wait` raises what it raises.
    """

    def __init__(
        self,
        directory: Path,
        config: CheckpointConfig,
        *,
        read_only: bool = False,
        group: Group = ALONE,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        # orbax logs its inner workings, and every error once in each of its threads; errors reach the caller anyway.
        absl.logging.set_verbosity(absl.logging.FATAL)
        self._config = config
        self._group = group
        self._committed = committed
        self._directory = directory.absolute()
        require_path_for_orbax(self._directory)
        self._writing: threading.Thread | None = None
        self._error: BaseException | None = None
        if read_only and not self._directory.is_dir():
            raise UserError(f"There is no checkpoint in {self._directory}. Train first.")
        if not group.first:
            group.barrier("checkpoints")  # the first process has removed unfinished folders
        with self._disk_errors("written into"):
            self._folders = CheckpointFolders(self._directory, read_only=read_only or not group.first)
        if group.first:
            group.barrier("checkpoints")
        self._quiet = ExitStack()
        self._quiet.enter_context(checkpoint_items.without_late_write_logs())
        handler = ocp.CompositeCheckpointHandler(handler_registry=checkpoint_items.handlers())
        self._orbax = ocp.AsyncCheckpointer(handler)

    def save(
        self,
        step: int,
        state: TrainState,
        data_state: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
        *,
        resume_only: bool = False,
    ) -> bool:
        """Begin to write the checkpoint of `step`; the arrays have been copied when this returns.

        resume_only: it is only to continue from, and is removed when the next one is written. Waits first for
        an earlier one that is still being written, and raises its error, if any. Returns False, and writes nothing, if
        the step already has a checkpoint: a run that continues reaches the same state.
        """
        self.wait()
        with self._disk_errors("written into"):
            exists = self._group.first and self._folders.path(step).is_dir()
        if self._group.broadcast("saved", b"1" if exists else b"0") == b"1":
            return False
        items: dict[str, ocp.args.CheckpointArgs] = {
            "params": ocp.args.StandardSave(state.eval_params),
            "optimizer": ocp.args.StandardSave(checkpoint_items.optimizer_tree(state)),
            "data": ocp.args.StandardSave({"npz": checkpoint_items.pack(data_state)}),
            "meta": ocp.args.JsonSave({**meta, **({RESUME_ONLY: True} if resume_only else {})}),
        }
        if metrics:
            items["metrics"] = ocp.args.JsonSave({name: float(value) for name, value in metrics.items()})
        phases.begin("save", step)
        with self._disk_errors("written into"):
            try:
                target = self._folders.unfinished(step)
                self._orbax.save(target, args=ocp.args.Composite(**items), force=True)
            except BaseException:
                self._discard(step)
                raise
        self._writing = threading.Thread(target=self._finish, args=(step,), name="checkpoint")
        self._writing.start()
        if not self._config.asynchronous:
            self.wait()
        return True

    def _finish(self, step: int) -> None:
        """Complete a checkpoint, in a thread beside the training; `wait` raises its error."""
        try:
            self._orbax.wait_until_finished()
            if self._group.first:
                self._folders.finish(step)
            phases.end("save", step)
            self._tidy()
            self._committed()
        except BaseException as error:
            self._error = error
            self._discard(step)

    def _discard(self, step: int) -> None:
        if self._group.first:
            self._folders.discard(step)

    def tidy(self) -> None:
        """Remove old checkpoints that an interruption left. Call it once the last one is known to be whole."""
        self.wait()
        with self._disk_errors("written into"):
            self._tidy()

    def _tidy(self) -> None:
        """Keep only the very last checkpoint and, of those of an unbroken run, the last `keep` and the best."""
        if self._group.first:
            lasting = lasting_steps(self._directory)
            last = lasting if self._config.keep is None else lasting[-self._config.keep :]
            self._folders.keep({*last, *saved_steps(self._directory)[-1:], self._best()})

    def _best(self) -> int | None:
        best = self._config.best
        return best_step(self._directory, best.metric, str(best.mode)) if best.keep else None

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending. They may be damaged: `latest` and `restore` check that."""
        return self._read(lambda: saved_steps(self._directory))

    def latest(self) -> int | None:
        """The last step that has a whole checkpoint; None where there is no checkpoint at all.

        Damaged ones after it are moved aside (with `read_only`, skipped), and a line on stderr says so. Raises
        UserError where there are checkpoints and none is whole.
        """
        step = self.latest_here() if self._group.first else None
        answer = self._group.broadcast("latest", b"" if step is None else str(step).encode("ascii"))
        return int(answer) if answer else None

    def latest_here(self) -> int | None:
        """`latest` of this process alone, without messages to the others, which may have ended."""
        return self._read(self._folders.latest)

    def last_steps(self, count: int) -> list[int]:
        """The last `count` steps of an unbroken run's checkpoints, ascending. UserError where there are fewer."""
        lasting = self._read(lambda: lasting_steps(self._directory))
        if len(lasting) < count:
            raise UserError(
                f"STEP=mean:{count}: {self._directory} has {len(lasting)} checkpoints, of the steps {lasting}. A run "
                f"keeps as many as KEEP_CHECKPOINTS says: --gin.KEEP_CHECKPOINTS={count}"
            )
        return lasting[-count:]

    def best(self) -> int | None:
        """The step with the best value of the config's `best`; None where no checkpoint has one."""
        return self._read(self._best)

    def _read(self, read: Callable[[], Value]) -> Value:
        self.wait()
        with self._disk_errors("read from"):
            return read()

    def restore(
        self, step: int | None, abstract_state: TrainState
    ) -> tuple[TrainState, dict[str, np.ndarray], dict[str, Any]]:
        """(state, data_state, meta) of `step`, or of the last whole checkpoint.

        abstract_state: ShapeDtypeStructs with shardings, on any mesh, of scanned or plain layers, whichever were saved.
        Raises UserError where there is no such checkpoint, it is damaged, or it holds other arrays.
        """
        step = self._whole_step(step)
        requested = {"params": abstract_state.params, "optimizer": checkpoint_items.optimizer_tree(abstract_state)}
        stored = self._stored(step, requested)
        restored = self._restore(
            step,
            params=ocp.args.StandardRestore(stored["params"]),
            optimizer=ocp.args.StandardRestore(stored["optimizer"]),
            data=ocp.args.StandardRestore(),
        )
        params, optimizer = (
            checkpoint_items.requested_layout(restored[item], tree) for item, tree in requested.items()
        )
        state = checkpoint_items.state_from(params, optimizer, abstract_state)
        return state, checkpoint_items.unpack(np.asarray(restored["data"]["npz"])), restored["meta"]

    def restore_params(self, step: int | None, abstract_params: Params) -> tuple[Params, dict[str, Any]]:
        """(params, meta) of `step`, or of the last whole checkpoint, for evaluation, inference and export."""
        step = self._whole_step(step)
        stored = self._stored(step, {"params": abstract_params})
        restored = self._restore(step, params=ocp.args.StandardRestore(stored["params"]))
        return checkpoint_items.requested_layout(restored["params"], abstract_params), restored["meta"]

    def meta(self, step: int | None = None) -> dict[str, Any]:
        """The meta of `step`, or of the last whole checkpoint."""
        return self._restore(self._whole_step(step))["meta"]

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is whole. Raises the error of writing it."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        error, self._error = self._error, None
        if error is not None:
            with self._disk_errors("written into"):
                raise error

    def close(self) -> None:
        """Wait for the last write, and release orbax's threads."""
        try:
            self.wait()
        finally:
            self._orbax.close()
            self._quiet.close()

    def _whole_step(self, step: int | None) -> int:
        """`step`, or the last step, after a check that its checkpoint is whole."""
        if step is None:
            if (latest := self.latest()) is None:
                raise UserError(f"There is no checkpoint in {self._directory}. Train first.")
            return latest
        if self._group.first:
            self._require_whole(step)
        self._group.barrier("whole")
        return step

    def _require_whole(self, step: int) -> None:
        """Raise UserError where `step` has no checkpoint, or a damaged one."""
        if step not in (steps := self.steps()):
            listed = f"; there are: {steps}" if steps else ""
            raise UserError(f"There is no checkpoint of step {step} in {self._directory}{listed}.")
        with self._disk_errors("read from", step):
            damage = self._folders.damage(step)
        if damage is not None:
            others = [other for other in steps if other != step]
            raise UserError(
                f"The checkpoint {self._folders.path(step)} is damaged: {damage}. "
                + (f"Use another one; there are: {others}." if others else "Put it back from a copy, or train again.")
            )

    def _restore(self, step: int, **items: ocp.args.CheckpointArgs) -> Mapping[str, Any]:
        """The items of a checkpoint, and its meta."""
        with self._disk_errors("read from", step):
            restored = self._orbax.restore(
                self._folders.path(step), args=ocp.args.Composite(**items, meta=ocp.args.JsonRestore())
            )
        if not isinstance(restored["meta"], dict):
            raise UserError(f"{self._folders.path(step) / 'meta'} is none of a checkpoint: it holds no JSON object.")
        return restored

    def _stored(self, step: int, requested: Mapping[str, Any]) -> dict[str, Any]:
        """The shapes of the arrays to read, in the stored layout. Raises one UserError that names all differences."""
        with self._disk_errors("read from", step):
            metadata = self._orbax.metadata(self._folders.path(step)).item_metadata
        stored = {item: checkpoint_items.stored_layout(tree, metadata[item]) for item, tree in requested.items()}
        differences = [
            f"  {item}/{line}"
            for item, tree in stored.items()
            for line in checkpoint_items.array_differences(*map(checkpoint_items.array_types, (tree, metadata[item])))
        ]
        if differences:
            shown = differences[:20] + ([f"  ... and {len(differences) - 20} more"] if len(differences) > 20 else [])
            raise UserError(
                f"The checkpoint {self._folders.path(step)} is of another model or optimiser than this one:\n"
                + "\n".join(shown)
                + "\nUse the settings that it was trained with, or another run directory."
            )
        return stored

    @contextmanager
    def _disk_errors(self, doing: str, step: int | None = None) -> Iterator[None]:
        """Raise the disk's errors (full, read-only, …) as UserError. tensorstore's ValueErrors contain errno.
        step: that of the checkpoint that is read, which the run's training may remove meanwhile."""
        try:
            yield
        except (OSError, ValueError) as error:
            if step is not None and not self._folders.path(step).exists():
                gone = f"The checkpoint {self._folders.path(step)} was removed while it was read: its run goes on."
                raise UserError(f"{gone} Run the same command again.") from error
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
