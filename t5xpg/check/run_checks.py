"""The check that the run directory is empty or holds this run."""

import contextlib
from collections.abc import Iterator
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.check.finding import Finding
from t5xpg.data.text.manifest import read_manifest
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.identity import run_identity, without_free_settings
from t5xpg.experiment.known_tasks import known_task
from t5xpg.experiment.recipe import identity_of_text
from t5xpg.run.checkpoint.folders import last_meta, saved_steps
from t5xpg.run.directory import RunDirectory, run_differences


def run_findings(loaded: LoadedConfig, directory: RunDirectory, *, data: bool = True) -> Iterator[Finding]:
    """The finding whether the run is new, continued, or another one; raises UserError if it cannot be trained.

    data: whether the run reads the text that is exported here.
    """
    identity = _identity(loaded, data)
    if directory.exists():
        directory.require_trainable()
        recorded = directory.read()
    else:
        directory.check(loaded.name, {})  # refuses a folder of other files
        recorded = _checkpoint_record(directory)
        known = recorded["identity"].get("settings", {})
        identity = {"settings": {name: value for name, value in identity["settings"].items() if name in known}}
    step = max(saved_steps(directory.checkpoints), default=0)
    if not recorded["identity"]:
        yield Finding("run", f"new, in {paths.shown(directory.path)}")
        return
    changes = run_differences(recorded, loaded.name, identity)
    if changes:
        yield Finding("run", directory.mismatch(changes, identity["settings"]), problem=True)
        return
    total = loaded.experiment.total_steps
    progress = f"goes on after step {step:,} of {total:,}" if step < total else f"has been trained for {step:,} steps"
    yield Finding("run", f"{progress}, in {paths.shown(directory.path)}")


def _identity(loaded: LoadedConfig, data: bool) -> dict[str, Any]:
    """The identity of the run, as far as it is known before the data is prepared."""
    experiment = loaded.experiment
    identity = run_identity(experiment, None)
    row = known_task(experiment.train_dataset.mixture_or_task_name, experiment.needs)
    if data and row is not None and row.dataset is not None:
        with contextlib.suppress(UserError):  # not exported yet, or `data_checks` reports it
            identity["data"] = identity_of_text(row, read_manifest(paths.data_directory() / row.dataset))
    return identity


def _checkpoint_record(directory: RunDirectory) -> dict[str, Any]:
    """The model settings recorded in the last checkpoint, for a folder without run.json."""
    meta = last_meta(directory.checkpoints)
    if not meta or not isinstance(meta.get("settings"), dict):
        return {"experiment": "", "identity": {}}
    settings = {name if name.startswith("model") else f"model.{name}": one for name, one in meta["settings"].items()}
    return {"experiment": str(meta.get("experiment")), "identity": {"settings": without_free_settings(settings)}}
