"""The checkpoint that a run starts from: its name, the parts that are taken from it, and its folder."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from t5xpg.base import paths, stores
from t5xpg.base.errors import UserError, nearest
from t5xpg.run.checkpoint.folders import saved_steps
from t5xpg.run.directory import training_hint

_FOLDER = "checkpoints"  # in a run directory


@dataclass(frozen=True)
class InitialCheckpoint:
    """checkpoint: a run's name, its folder, or `<folder>/checkpoints/<step>`; without a step the last one.

    reset_optimizer: take the parameters alone. False: take the optimiser as well, with its own step, which its learning
    rate and its decays follow; the steps of the run count from 0 in any case. same_vocabulary: refuse a
    checkpoint that was trained with another vocabulary than the task has. adapt_decoder: the checkpoint is of a decoder
    alone, and the new model an encoder-decoder (`t5xpg.models.adaptation`). cross_attention_factor: of what its cross
    attention adds at first. Raises UserError for invalid values.
    """

    checkpoint: str
    reset_optimizer: bool = True
    same_vocabulary: bool = True
    adapt_decoder: bool = False
    cross_attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.checkpoint, str) or not self.checkpoint.strip():
            raise UserError(f"INITIAL_CHECKPOINT is {self.checkpoint!r}: expected the name or the folder of a run.")
        if self.adapt_decoder and not self.reset_optimizer:
            raise UserError("ADAPT_DECODER takes parameters alone: it does not go with RESET_OPTIMIZER=False.")
        if not 0 <= self.cross_attention_factor <= 1:
            raise UserError(
                f"CROSS_ATTENTION_FACTOR is {self.cross_attention_factor!r}: expected a number from 0 to 1."
            )
        if self.cross_attention_factor != 1 and not self.adapt_decoder:
            raise UserError("CROSS_ATTENTION_FACTOR is for ADAPT_DECODER=True, which makes cross attention.")


@dataclass(frozen=True)
class SavedStep:
    """The place of a checkpoint: its run's folder and its step; None for the last one."""

    run: Path
    step: int | None

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.run / _FOLDER

    def folder(self) -> Path:
        """The folder of the checkpoint. If the last one is damaged, an earlier one may be read instead."""
        return self.checkpoints / str(saved_steps(self.checkpoints)[-1] if self.step is None else self.step)


def find_checkpoint(checkpoint: str, setting: str = "INITIAL_CHECKPOINT") -> SavedStep:
    """The place of the checkpoint that a setting names. Raises UserError, with the nearest names, if there is none."""
    path, step = paths.local(os.path.expanduser(checkpoint)), None
    if path.name == _FOLDER:
        path = path.parent
    elif path.parent.name == _FOLDER and re.fullmatch("[0-9]{1,18}", path.name):
        path, step = path.parent.parent, int(path.name)
    # a name is that of a run; a path is also looked up from the working directory
    candidates = [*([path] if os.sep in checkpoint else []), paths.runs_directory() / path]
    for candidate in candidates:
        stores.pull(candidate)
    run = next((candidate for candidate in candidates if candidate.is_dir()), candidates[0])
    steps = saved_steps(run / _FOLDER)
    if not run.is_dir():
        raise UserError(
            f"{setting}: there is no run {paths.shown(run)}.{training_hint(run.name) or _nearest_runs(run)}"
        )
    if not steps:
        raise UserError(f"{setting}: {paths.shown(run)} holds no checkpoint. Train it first.{_nearest_runs(run)}")
    if step is not None and step not in steps:
        raise UserError(f"{setting}: {paths.shown(run)} has no checkpoint of step {step}; there are: {steps}.")
    return SavedStep(run, step)


def _nearest_runs(run: Path) -> str:
    """The message with the nearest names among the runs beside `run` that have checkpoints."""
    folders = run.parent.iterdir() if run.parent.is_dir() else ()
    known = [entry.name for entry in folders if entry != run and saved_steps(entry / _FOLDER)]
    return nearest(run.name, known)
