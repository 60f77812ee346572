"""The run directory: whether what lies there is this run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.base.paths import shown
from t5xpg.check.finding import Finding
from t5xpg.data.text.manifest import read_manifest
from t5xpg.experiment import data_state, prepare
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.identity import run_identity
from t5xpg.run.directory import RunDirectory


def look_at(loaded: LoadedConfig, directory: RunDirectory, *, data: bool = True) -> Iterator[Finding]:
    """New, continued, or another one. data: whether the run reads the text that is exported here."""
    try:
        directory.check(loaded.name, _identity(loaded, data))
    except UserError as error:
        yield Finding("run", str(error), problem=True)
        return
    folders = directory.checkpoints.iterdir() if directory.checkpoints.is_dir() else ()
    step = max((int(folder.name) for folder in folders if folder.name.isdecimal()), default=0)
    total = loaded.experiment.total_steps
    course = f"goes on after step {step:,} of {total:,}" if step < total else f"has been trained for {step:,} steps"
    yield Finding("run", f"{course if directory.exists() or step else 'new'}, in {shown(directory.path)}")


def _identity(loaded: LoadedConfig, data: bool) -> dict[str, Any]:
    """What makes the run the run it is, as far as it is known before anything is made."""
    experiment = loaded.experiment
    identity = run_identity(experiment, prepare.DataIdentity({}))
    del identity["data"], identity["cache"]
    row = data_state.row_of(experiment.train_dataset.mixture_or_task_name, experiment.needs)
    if data and row is not None and row.dataset is not None:
        with contextlib.suppress(UserError):  # not exported yet, or said where the data are looked at
            manifest = read_manifest(paths.data_directory() / row.dataset)
            identity["data"] = prepare.identity_of_text(row, manifest)
    return identity
