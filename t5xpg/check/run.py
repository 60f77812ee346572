"""The run directory: whether what lies there is this run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json
from t5xpg.base.paths import shown
from t5xpg.check.finding import Finding
from t5xpg.data.text.manifest import find_manifests, read_manifest
from t5xpg.experiment import prepare
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.gin_reading import shortened
from t5xpg.experiment.identity import deciding, run_identity
from t5xpg.run.directory import RunDirectory, differing

_SHOWN = 20  # settings that differ


def look_at(loaded: LoadedConfig, directory: RunDirectory, *, data: bool = True) -> Iterator[Finding]:
    """New, continued, or another one. data: whether the run reads the text that is exported here."""
    try:
        if directory.exists():
            recorded = directory.read()
            directory.check_trains()
            found = {"experiment": recorded["experiment"], **recorded["identity"]}
        else:
            directory.check(loaded.name, {})  # no folder of somebody else's
            found = _of_checkpoint(directory)
    except UserError as error:
        yield Finding("run", str(error), problem=True)
        return
    step = max(_steps(directory), default=0)
    if not found:
        yield Finding("run", f"new, in {shown(directory.path)}")
        return
    now = _identity(loaded, data)
    if not directory.exists():
        now["settings"] = {name: value for name, value in now["settings"].items() if name in found["settings"]}
    # what is not known of either is not compared
    differences = differing(
        {name: found[name] for name in found if name in now}, {name: now[name] for name in now if name in found}
    )
    if not differences:
        total = loaded.experiment.total_steps
        where = f"goes on after step {step:,} of {total:,}" if step < total else f"has been trained for {step:,} steps"
        yield Finding("run", f"{where}, in {shown(directory.path)}")
        return
    lines = [
        f"{_name(key, now['settings'])} {shortened(str(old))} in the run, {shortened(str(new))} now"
        for key, (old, new) in differences.items()
    ]
    shown_lines = lines[:_SHOWN] + ([f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])
    yield Finding(
        "run",
        "\n".join(
            [
                f"{shown(directory.path)} holds a run with other settings:",
                *(f"  {line}" for line in shown_lines),
                f"Set them back to continue it, name another run directory (RUN={directory.path.name}_2), or delete "
                f"{shown(directory.path)} to start over.",
            ]
        ),
        problem=True,
    )


def _identity(loaded: LoadedConfig, data: bool) -> dict[str, Any]:
    """What makes the run the run it is, as far as it is known before anything is made."""

    experiment = loaded.experiment
    identity = run_identity(experiment, prepare.DataIdentity({}))
    del identity["data"], identity["cache"]
    task = experiment.train_dataset.mixture_or_task_name
    row = prepare.row_of(task, experiment.needs)
    name = None if row is None else row.dataset
    if data and name is not None and name in find_manifests(paths.data_directory()):
        with contextlib.suppress(UserError):  # said where the data are looked at
            digests = read_manifest(paths.data_directory() / name).identity
            identity["data"] = {"task": task, "dataset": name, "sha256": digests}
    return {"experiment": loaded.name, **identity}


def _steps(directory: RunDirectory) -> list[int]:
    folders = directory.checkpoints.iterdir() if directory.checkpoints.is_dir() else ()
    return [int(folder.name) for folder in folders if folder.name.isdecimal() and folder.is_dir()]


def _of_checkpoint(directory: RunDirectory) -> dict[str, Any]:
    """The model's settings that stand in the last checkpoint, for a folder whose run.json is gone."""
    for step in sorted(_steps(directory), reverse=True):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # a damaged one: for the checkpoints to say
            meta = read_json(directory.checkpoints / str(step) / "meta" / "metadata")
            of_model = {
                name if name.startswith("model") else f"model.{name}": meta["settings"][name]
                for name in meta["settings"]
            }
            return {"experiment": str(meta["experiment"]), "settings": deciding(of_model)}
    return {}


def _name(key: str, settings: Mapping[str, Any]) -> str:
    """A setting as its gin file names it: "settings.model.config.emb_dim" is T5Config.emb_dim."""
    if not key.startswith("settings."):
        return key
    owner, _, field = key.removeprefix("settings.").rpartition(".")
    kind = settings.get(owner) if owner else "Experiment"
    alone = sum(other == kind for other in settings.values()) <= 1
    return f"{kind}.{field}" if isinstance(kind, str) and alone else key.removeprefix("settings.")
