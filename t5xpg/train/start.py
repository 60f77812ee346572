"""The start of a run: its printed header and its record, and the check that all its processes start alike."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t5xpg.base import environment, xla_flags
from t5xpg.base.errors import UserError
from t5xpg.base.files import sha256_of_file, write_text
from t5xpg.data.recording.reader import RecordedData
from t5xpg.data.stream.client import DataService, TaskDescription
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.distributed import Group
from t5xpg.evaluate.trained_model import Origin
from t5xpg.experiment import data_state, prepare
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.config import LoadedConfig, settings
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import identity_settings, vocabulary_identity
from t5xpg.models.adapters import num_trained
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.checkpoint.folders import DIGESTS
from t5xpg.run.checkpoint.initial_checkpoint import find_checkpoint
from t5xpg.run.directory import RunDirectory, differing
from t5xpg.run.loggers import StartedRun
from t5xpg.run.records import to_json
from t5xpg.train import initial_state

_MAX_DIFFERENCES = 20


@dataclass(frozen=True)
class Start:
    """A run that is checked and whose data are prepared, before it is opened. step: the number of updates done before.

    command: the command line that starts it.
    """

    loaded: LoadedConfig
    directory: RunDirectory
    identity: dict[str, Any]
    source: prepare.DataIdentity
    checkpointer: Checkpointer
    service: DataService | RecordedData
    group: Group
    step: int
    command: str


def require_same(group: Group, experiment: Experiment, identity: Mapping[str, Any]) -> None:
    """Raise UserError, with the differences, if this process has other settings, data or versions than the first one.

    identity: the identity of the run as this process sees it, with the text and the caches that it reads.
    """
    facts = to_json(
        {
            "settings": settings(experiment),
            "data": identity["data"],
            "cache": identity["cache"],
            "versions": environment.versions(),
        }
    )
    _require_same(group, "identity", facts)


def require_same_start(group: Group, experiment: Experiment) -> None:
    """Raise UserError if this process finds another initial checkpoint or teacher than the first one."""
    sources = {"INITIAL_CHECKPOINT": experiment.initial, "TEACHER_CHECKPOINT": experiment.teacher}
    files = {name: find_checkpoint(one.checkpoint, name).folder() / DIGESTS for name, one in sources.items() if one}
    digests = {name: sha256_of_file(file) if file.exists() else file.parent.name for name, file in files.items()}
    _require_same(group, "start", digests)


def _require_same(group: Group, name: str, facts: Mapping[str, Any]) -> None:
    first_facts = json.loads(group.broadcast(name, json.dumps(facts).encode("utf-8")))
    differences = differing(first_facts, facts)
    if differences:
        lines = [f"  {name}  {old} in process 0, {new} here" for name, (old, new) in differences.items()]
        heading = f"Process {group.process} was started with other settings, data or versions than process 0:"
        remedy = "Give the same command on every host, with the same checkout, packages, data and checkpoints."
        raise UserError("\n".join([heading, *lines[:_MAX_DIFFERENCES], remedy]))


def print_header(loaded: LoadedConfig, built: Assembly) -> None:
    """Print the name, the size and the main settings of the run, and the devices that it runs on."""
    experiment = loaded.experiment
    model, devices = experiment.model, built.devices
    device = f"{devices['count']} x {devices['kind']}"
    if devices["platform"] == "cpu":
        device = f"CPU ({environment.cpu_model() or 'unknown'}, {environment.usable_cores()} cores)"
        if devices["count"] > 1:
            device += f" as {devices['count']} simulated devices"
    count = f"{model.num_params / 1e6:,.1f} million" if model.num_params >= 10**6 else f"{model.num_params:,}"
    if "processes" in devices:
        device += f" of {devices['processes']} processes"
    print(
        f"{loaded.name}: {count} parameters, {model.config.dtype}, "
        f"{type(experiment.optimizer).__name__}, batch {experiment.train_dataset.shapes} tokens, "
        f"{experiment.total_steps:,} steps, "
        f"seed {experiment.random_seed}\ndevice: {device}",
        flush=True,
    )
    if devices["platform"] == "cpu":
        print(f"products: {xla_flags.describe_products(model.config.dtype)}", flush=True)


def print_data(description: TaskDescription, experiment: Experiment) -> None:
    """Print the task of the run, its size, its objective and its vocabulary."""
    num_documents = description.examples.get(experiment.train_dataset.split)
    size = f", {num_documents:,} documents" if num_documents else ""
    spans = description.objective
    masking = f"; {spans.noise_density:.0%} masked in spans of {spans.mean_noise_span_length:g} tokens" if spans else ""
    cache_state = "cached" if description.cached else "not cached"
    print(f"data: {description.name}, {cache_state}{size}{masking}; {description.vocabulary.summary}", flush=True)


def check_fits(service: DataService | RecordedData, experiment: Experiment) -> None:
    """Print how many of the first examples of supervised tasks are cut. Raises UserError if they are too many."""
    if not isinstance(service, DataService):
        return  # the batches of a recording are fixed
    for dataset in experiment.datasets:
        row = data_state.row_of(dataset.mixture_or_task_name, experiment.needs)
        if row is not None and row.supervised is None:
            continue  # pretraining divides long texts
        fits = service.fits(dataset)
        problems = [problem for fit in fits for problem in fit.problems(dataset, experiment.max_cut_share)]
        if problems:
            raise UserError("\n".join(problems))
        for fit in fits:
            print(f"examples: {fit.summary(dataset)}", flush=True)


def _facts(experiment: Experiment) -> dict[str, Any]:
    facts = {"total_steps": experiment.total_steps, "num_params": experiment.model.num_params}
    if experiment.adapter is not None:
        facts["num_trained"] = num_trained(experiment.model, experiment.adapter)
    return facts


def record_start(start: Start, built: Assembly, vocabulary: Vocabulary, origins: Mapping[str, Origin]) -> None:
    """Write run.json and the configuration. Raises UserError if the run was started with another identity."""
    if not start.directory.writes_records:
        return
    loaded, experiment = start.loaded, start.loaded.experiment
    identity = start.identity | {"vocabulary": vocabulary_identity(vocabulary)}
    identity |= {name: initial_state.identity(origin) for name, origin in origins.items()}
    start.directory.start(
        loaded.name,
        identity,
        step=start.step,
        command=start.command,
        devices=built.devices,
        read=loaded.files,
        facts={
            **_facts(experiment),
            "data": start.source.manifest,
            "selection": settings(experiment.selection) if experiment.selection else None,
        },
    )
    start.directory.copy_vocabulary_model(vocabulary.model_file)
    write_text(start.directory.config_gin, loaded.full)
    write_text(start.directory.operative_gin, loaded.operative)


def started_run(start: Start, built: Assembly) -> StartedRun:
    """The run as loggers see it, without the id, which differs from logger to logger."""
    experiment = start.loaded.experiment
    return StartedRun(
        experiment=start.loaded.name,
        id="",
        directory=start.directory.path,
        folder=start.directory.loggers,
        step=start.step,
        settings=identity_settings(experiment) | {"random_seed": experiment.random_seed},
        gin=start.loaded.full,
        facts=_facts(experiment) | {"devices": built.devices},
    )
