"""What a run starts from, where it does not start from scratch: the name of a checkpoint, and what is taken from it."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from t5xpg.base import paths, stores
from t5xpg.base.errors import UserError, nearest
from t5xpg.run.checkpoint.folders import saved_steps
from t5xpg.run.directory import to_train

_FOLDER = "checkpoints"  # in a run directory


@dataclass(frozen=True)
class InitialCheckpoint:
    """checkpoint: a run's name, its folder, or `<folder>/checkpoints/<step>`; without a step the last one.

    reset_optimizer: take the parameters alone. False: the optimiser goes on as well, with its own step, which its
    learning rate and its decays follow; the steps of the run count from 0 in any case. same_vocabulary: refuse a
    checkpoint that was trained with another vocabulary than the task has. adapt_decoder: the checkpoint is of a decoder
    alone, and begins an encoder-decoder (`t5xpg.models.adaptation`). Raises UserError for values that cannot be.
    """

    checkpoint: str
    reset_optimizer: bool = True
    same_vocabulary: bool = True
    adapt_decoder: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.checkpoint, str) or not self.checkpoint.strip():
            raise UserError(f"INITIAL_CHECKPOINT is {self.checkpoint!r}: expected the name or the folder of a run.")
        if self.adapt_decoder and not self.reset_optimizer:
            raise UserError("ADAPT_DECODER takes parameters alone: it does not go with RESET_OPTIMIZER=False.")


@dataclass(frozen=True)
class SavedStep:
    """Where a checkpoint lies. step: None for the last one."""

    run: Path
    step: int | None

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.run / _FOLDER

    def folder(self) -> Path:
        """The checkpoint itself. If the last one is damaged, an earlier one may be read instead."""
        return self.checkpoints / str(saved_steps(self.checkpoints)[-1] if self.step is None else self.step)


def find(checkpoint: str, setting: str = "INITIAL_CHECKPOINT") -> SavedStep:
    """The checkpoint that a setting names. Raises UserError, with the nearest names, where there is no such one."""
    named, step = paths.local(os.path.expanduser(checkpoint)), None
    if named.name == _FOLDER:
        named = named.parent
    elif named.parent.name == _FOLDER and re.fullmatch("[0-9]{1,18}", named.name):
        named, step = named.parent.parent, int(named.name)
    # a name names a run; a path is also looked up from the working directory
    places = [*([named] if os.sep in checkpoint else []), paths.runs_directory() / named]
    for place in places:
        stores.pull(place)
    run = next((place for place in places if place.is_dir()), places[0])
    steps = saved_steps(run / _FOLDER)
    if not run.is_dir():
        raise UserError(f"{setting}: there is no run {paths.shown(run)}.{to_train(run.name) or _near(run)}")
    if not steps:
        raise UserError(f"{setting}: {paths.shown(run)} holds no checkpoint. Train it first.{_near(run)}")
    if step is not None and step not in steps:
        raise UserError(f"{setting}: {paths.shown(run)} has no checkpoint of step {step}; there are: {steps}.")
    return SavedStep(run, step)


def _near(run: Path) -> str:
    """The runs beside it that have checkpoints."""
    folders = run.parent.iterdir() if run.parent.is_dir() else ()
    known = [entry.name for entry in folders if entry != run and saved_steps(entry / _FOLDER)]
    return nearest(run.name, known)
