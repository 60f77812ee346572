"""`make check`: everything that can be known before training."""

from __future__ import annotations

import dataclasses

from t5xpg import assembly, environment, hardware, paths, preparation
from t5xpg.assembly import Assembly
from t5xpg.config import LoadedConfig
from t5xpg.data.client import DataService
from t5xpg.data.task_names import NOT_CACHED
from t5xpg.errors import UserError
from t5xpg.paths import shown
from t5xpg.progress import duration
from t5xpg.training import data_config


def check(loaded: LoadedConfig) -> int:
    """Print what an experiment needs and whether it is there; returns 0 where it can be trained, 1 otherwise.

    Nothing is exported, cached or written. What is missing but would be made by `make train` is no mistake.
    """
    experiment = loaded.experiment
    print(f"gin      ok: {shown(loaded.gin_file)}, seed {experiment.random_seed}")
    with DataService(data_dir=paths.data_directory(), cache_dir=paths.cache_directory()) as service:
        built = assembly.assemble(experiment)
        _print_devices(built)
        _print_model(built)
        _print_memory_and_time(built)
        try:
            problem = _check_data(loaded, service)
        except UserError as error:
            problem = f"data     no: {error}"
    if problem:
        print(problem)
    return 1 if problem else 0


def _check_data(loaded: LoadedConfig, service: DataService) -> str | None:
    experiment = loaded.experiment
    missing = preparation.missing(experiment.train_dataset)
    if missing:
        print(f"data     not there yet; `make train` makes it first: {', '.join(missing)}")
        return None
    for dataset in (experiment.train_dataset, experiment.eval_dataset):
        config = data_config(dataset, experiment.random_seed)
        try:
            description = service.describe(config)
        except UserError as error:
            if preparation.dataset_of(config.mixture_or_task_name) or NOT_CACHED not in str(error):
                raise
            description = service.describe(dataclasses.replace(config, use_cached=False))
        assembly.check_vocabulary(description.vocabulary, experiment)
        count = description.examples.get(dataset.split)
        print(
            f"data     ok: {description.name}, {dataset.split}, "
            f"{_cached_text(description.cached, dataset.use_cached)}" + (f", {count:,} documents" if count else "")
        )
    spans = description.objective
    if spans is not None:
        print(
            f"spans    ok: {spans.text_tokens} tokens of text give {spans.spans} spans and "
            f"{spans.target_tokens} target tokens of {experiment.lengths['targets']}"
        )
    return None


def _cached_text(cached: bool, wanted: bool) -> str:
    if wanted and not cached:
        return "no cache yet (`make train` makes it first, where the task can be cached)"
    return "cached" if cached else "not cached"


def _print_devices(built: Assembly) -> None:
    devices = built.devices
    mesh = " x ".join(f"{name} {size}" for name, size in devices["mesh"].items())
    cpu = f" ({environment.cpu_model()})" if devices["platform"] == "cpu" else ""
    print(f"devices  ok: {devices['count']} x {devices['kind']}{cpu}, mesh {mesh}")


def _print_model(built: Assembly) -> None:
    experiment = built.experiment
    lengths = experiment.lengths
    print(
        f"model    ok: {experiment.model.num_params:,} parameters; batch {experiment.train_dataset.batch_size} x "
        + "/".join(f"{length}" for length in lengths.values())
        + f" in {experiment.num_microbatches} part{'s' if experiment.num_microbatches > 1 else ''}"
    )


def _print_memory_and_time(built: Assembly) -> None:
    """What the compiled step says of memory on each device, and the time that the matrix products take at peak."""
    experiment = built.experiment
    dataset = experiment.train_dataset
    memory = built.compile_train_step().memory_analysis()
    if memory is not None:
        state, working = memory.argument_size_in_bytes / 2**20, memory.temp_size_in_bytes / 2**20
        print(
            f"memory   {state + working:,.0f} MiB a device: {state:,.0f} state and batch, {working:,.0f} for the step"
        )
    flops = dataset.batch_size * experiment.model.flops_per_example(experiment.lengths)
    peak = hardware.peak_flops_of_mesh(built.mesh, experiment.model.config.dtype)
    if peak:
        seconds = flops / peak
        print(
            f"time     at least {duration(seconds * experiment.total_steps)}: {experiment.total_steps:,} steps of "
            f"{flops / 1e9:,.1f} GFLOP at {peak / 1e9:,.0f} GFLOP/s, the peak of the hardware"
        )
