"""The first lines that a training prints: what runs, on what, from which data."""

from __future__ import annotations

from pathlib import Path

from t5xpg import environment
from t5xpg.assembly import Assembly
from t5xpg.config import LoadedConfig
from t5xpg.data.client import TaskDescription
from t5xpg.experiment import Experiment
from t5xpg.paths import shown
from t5xpg.token_models import KINDS
from t5xpg.vocabularies import Vocabulary


def print_header(loaded: LoadedConfig, built: Assembly) -> None:
    """Name, size and course of the run, and what it runs on."""
    experiment = loaded.experiment
    train_dataset, lengths = experiment.train_dataset, experiment.lengths
    model, devices = experiment.model, built.devices
    on = f"{devices['count']} x {devices['kind']}"
    if devices["platform"] == "cpu":
        on = f"CPU ({environment.cpu_model() or 'unknown'}, {environment.usable_cores()} cores)"
        if devices["count"] > 1:
            on += f" as {devices['count']} simulated devices"
    if "processes" in devices:
        on += f" of {devices['processes']} processes"
    print(
        f"{loaded.name}: {_count_text(model.num_params)} parameters, {model.config.dtype}, "
        f"{type(experiment.optimizer).__name__}, batch {train_dataset.batch_size} x "
        f"{'/'.join(str(length) for length in lengths.values())} tokens, {experiment.total_steps:,} steps, "
        f"seed {experiment.random_seed}\ndevice: {on}",
        flush=True,
    )


def print_data(description: TaskDescription, experiment: Experiment) -> None:
    """What the run reads."""
    count = description.examples.get(experiment.train_dataset.split)
    size = f", {count:,} documents" if count else ""
    spans = description.objective
    masked = f"; {spans.noise_density:.0%} masked in spans of {spans.mean_noise_span_length:g} tokens" if spans else ""
    cached = "cached" if description.cached else "not cached"
    print(f"data: {description.name}, {cached}{size}{masked}; {_vocabulary_text(description.vocabulary)}", flush=True)


def _count_text(count: int) -> str:
    return f"{count / 1e6:,.1f} million" if count >= 10**6 else f"{count:,}"


def _vocabulary_text(vocabulary: Vocabulary) -> str:
    what = (
        "bytes" if vocabulary.model_file is None else f"{KINDS[vocabulary.kind]} {shown(Path(vocabulary.model_file))}"
    )
    return f"{what}, {vocabulary.size:,} ids, sentinels as {vocabulary.sentinels}"
