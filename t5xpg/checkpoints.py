"""Checkpoints: the state, the exact position in the data, and what a reader of them has to know.

A folder per step, written by orbax beside the training and renamed when it is whole:

    <directory>/<step>/params      the parameters, under their own names: can be read alone
    <directory>/<step>/optimizer   the step and the optimiser's arrays
    <directory>/<step>/data        the data position, as bytes
    <directory>/<step>/meta        JSON

An interruption at any moment leaves every earlier folder as it was; the next Checkpointer removes what is unfinished.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import absl.logging
import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from t5xpg import phases
from t5xpg.errors import UserError
from t5xpg.models.encoder_decoder import Params
from t5xpg.partitioning import path_names
from t5xpg.state import TrainState

_DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
)


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
        self._being_saved: int | None = None
        if read_only and not self._directory.is_dir():
            raise UserError(f"There is no checkpoint in {self._directory}. Train first.")
        policies: list[checkpoint_managers.PreservationPolicy] = [checkpoint_managers.LatestN(config.keep)]
        if config.keep_best is not None:
            policies.append(
                checkpoint_managers.BestN(
                    get_metric_fn=self._badness, reverse=True, n=1, keep_checkpoints_without_metrics=False
                )
            )
        with _disk_errors(self._directory):
            self._manager = ocp.CheckpointManager(
                self._directory,
                options=ocp.CheckpointManagerOptions(
                    best_fn=self._badness if config.keep_best is not None else None,
                    best_mode="min",
                    preservation_policy=checkpoint_managers.AnyPreservationPolicy(policies),
                    cleanup_tmp_directories=not read_only,
                    read_only=read_only,
                    enable_async_checkpointing=config.asynchronous,
                ),
                handler_registry=_handlers(),
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
        if step in self._manager.all_steps():
            return False
        self._being_saved = step
        phases.tell("begin", "save", step)
        chosen = None
        if self._config.keep_best is not None and metrics is not None and self._config.keep_best in metrics:
            chosen = {self._config.keep_best: float(metrics[self._config.keep_best])}
        with _disk_errors(self._directory):
            return self._manager.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(state.params),
                    optimizer=ocp.args.StandardSave(_optimizer_tree(state)),
                    data=ocp.args.StandardSave({"npz": _pack(data_state)}),
                    meta=ocp.args.JsonSave(dict(meta)),
                ),
                metrics=chosen,
            )

    def steps(self) -> list[int]:
        """The steps that have a whole checkpoint, ascending."""
        self.wait()
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """The last step that has a whole checkpoint."""
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """The step with the lowest `keep_best` metric; None where no checkpoint has one."""
        self.wait()
        return None if self._config.keep_best is None else self._manager.best_step()

    def restore(
        self, step: int | None, abstract_state: TrainState
    ) -> tuple[TrainState, dict[str, np.ndarray], dict[str, Any]]:
        """(state, data_state, meta) of `step`, or of the last checkpoint.

        abstract_state: ShapeDtypeStructs with shardings (`partitioning.with_shardings`), on any mesh. Raises UserError
        where there is no such checkpoint, or where its arrays are not those of abstract_state.
        """
        step = self._existing(step)
        self._check(step, {"params": abstract_state.params, "optimizer": _optimizer_tree(abstract_state)})
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(abstract_state.params),
                optimizer=ocp.args.StandardRestore(_optimizer_tree(abstract_state)),
                data=ocp.args.StandardRestore(),
                meta=ocp.args.JsonRestore(),
            ),
        )
        state = _state_from(restored["params"], restored["optimizer"], abstract_state)
        return state, _unpack(np.asarray(restored["data"]["npz"])), restored["meta"]

    def restore_params(self, step: int | None, abstract_params: Params) -> tuple[Params, dict[str, Any]]:
        """(params, meta) of `step`, or of the last checkpoint: what evaluation, inference and export need."""
        step = self._existing(step)
        self._check(step, {"params": abstract_params})
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(params=ocp.args.StandardRestore(abstract_params), meta=ocp.args.JsonRestore()),
        )
        return restored["params"], restored["meta"]

    def meta(self, step: int | None = None) -> dict[str, Any]:
        """The JSON of `step`, or of the last checkpoint, without reading arrays."""
        step = self._existing(step)
        return self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]

    def wait(self) -> None:
        """Return when nothing is being written. Raises what went wrong with writing."""
        with _disk_errors(self._directory):
            self._manager.wait_until_finished()
        if self._being_saved is not None:
            phases.tell("end", "save", self._being_saved)
            self._being_saved = None

    def close(self) -> None:
        """Wait, and release orbax's threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _existing(self, step: int | None) -> int:
        steps = self.steps()
        if not steps:
            raise UserError(f"There is no checkpoint in {self._directory}. Train first.")
        if step is None:
            return steps[-1]
        if step not in steps:
            raise UserError(f"There is no checkpoint of step {step} in {self._directory}; there are: {steps}.")
        return step

    def _check(self, step: int, expected: Mapping[str, Any]) -> None:
        """Raises one UserError that names every array which is missing, superfluous, or of another shape or type."""
        found_items = self._manager.item_metadata(step)
        differences: list[str] = []
        for item, tree in expected.items():
            wanted = _descriptions(tree)
            found = _descriptions(found_items[item])
            for name in sorted(wanted.keys() | found.keys()):
                want, have = wanted.get(name, "nothing"), found.get(name, "nothing")
                if want != have:
                    differences.append(f"  {item}/{name}: expected {want}, found {have}")
        if differences:
            shown = differences[:20] + ([f"  ... and {len(differences) - 20} more"] if len(differences) > 20 else [])
            raise UserError(
                f"The checkpoint {self._directory / str(step)} is of another model or optimiser than this one:\n"
                + "\n".join(shown)
                + "\nUse the settings that it was trained with, or another run directory."
            )

    def _badness(self, metrics: Mapping[str, float]) -> float:
        """The metric to be low; a metric that is not a number is the worst."""
        assert self._config.keep_best is not None
        value = metrics.get(self._config.keep_best, math.inf)
        return math.inf if math.isnan(value) else value


def _handlers() -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for item in ("params", "optimizer", "data"):
        registry.add(item, ocp.args.StandardSave, ocp.StandardCheckpointHandler())
        registry.add(item, ocp.args.StandardRestore, ocp.StandardCheckpointHandler())
    registry.add("meta", ocp.args.JsonSave, ocp.JsonCheckpointHandler())
    registry.add("meta", ocp.args.JsonRestore, ocp.JsonCheckpointHandler())
    return registry


def _optimizer_tree(state: TrainState) -> dict[str, Any]:
    """The step and the optimiser's arrays as nested dicts: the tuples of optax have no names on disk."""
    tree: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state):
        *parents, name = path_names(path)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return {"step": state.step, "state": tree}


def _state_from(params: Params, optimizer: Mapping[str, Any], abstract_state: TrainState) -> TrainState:
    paths, treedef = jax.tree_util.tree_flatten_with_path(abstract_state.opt_state)
    leaves = []
    for path, _ in paths:
        node = optimizer["state"]
        for name in path_names(path):
            node = node[name]
        leaves.append(node)
    return TrainState(step=optimizer["step"], params=params, opt_state=jax.tree.unflatten(treedef, leaves))


def _descriptions(tree: Any) -> dict[str, str]:
    """{"encoder/layers_0/...": "float32[64, 128]"} for arrays, ShapeDtypeStructs and orbax's metadata."""
    return {
        "/".join(path_names(path)): f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _pack(data_state: Mapping[str, np.ndarray]) -> np.ndarray:
    """Any arrays as one: orbax keeps neither empty arrays nor arbitrary names."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{name: np.asarray(array) for name, array in data_state.items()})
    return np.frombuffer(file.getvalue(), np.uint8)


def _unpack(packed: np.ndarray) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(packed.tobytes()), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


@contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    """A full or read-only disk is the user's to mend. tensorstore raises ValueErrors with the number in their text."""
    try:
        yield
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None)
        if number is None and (match := re.search(r"os_error_code='(\d+)'", str(error))):
            number = int(match[1])
        if number not in _DISK_ERRORS:
            raise
        raise UserError(
            f"A checkpoint cannot be written into {directory}: {os.strerror(number)}. "
            "Earlier ones are whole; make room or choose another folder, and run the same command again."
        ) from error
