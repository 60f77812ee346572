"""`make check`: all checks that need no expensive work; `make train` begins with them too.

Nothing is compiled, exported, cached or written. Missing data that `make train` makes first is no problem. TensorFlow
is started only for what cannot be known without it: tasks that users registered, the lengths of supervised examples,
caches whose task has changed, and names of task metrics.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from jax.sharding import AbstractMesh, Mesh

from t5xpg.base import environment, paths, stores, xla_flags
from t5xpg.base.errors import UserError
from t5xpg.check import data_checks, finding, run_checks, start_checks
from t5xpg.check.finding import Finding, errors_as_problems, report
from t5xpg.check.plan import memory
from t5xpg.check.plan.devices import USABLE_MEMORY, Device
from t5xpg.data.stream.client import DataService
from t5xpg.distributed import hardware, make_mesh
from t5xpg.experiment import assembly, config
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.adapters import num_trained
from t5xpg.run.directory import RunDirectory
from t5xpg.run.loggers import Logger

_GIB = 2**30


def check(
    name: str,
    overrides: Sequence[str],
    gin_files: Sequence[str],
    run: Path | None,
    device: Device | None = None,
    *,
    as_json: bool = False,
) -> int:
    """Print the findings about an experiment, as a table or as JSON; returns 0 if it can be trained, else 1.

    overrides, gin_files: as in `config.load`. run: the run directory, by default the experiment's own. device: the
    accelerator that is to train it, if not this machine's; the devices here then stand for it. If the experiment can be
    built in spite of mistakes in its configuration, the rest is checked too.
    """
    loaded, mistakes = config.examine(name, overrides, gin_files)
    all_findings = finding.mistakes(mistakes, loaded=loaded is not None)
    if loaded is not None:
        if not mistakes:
            all_findings.append(Finding("gin", f"{paths.shown(loaded.gin_file)}, seed {loaded.experiment.random_seed}"))
        directory = RunDirectory(run or paths.run_directory(loaded.experiment.model_dir or loaded.name))
        stores.pull(directory.path, RunDirectory.is_record)
        all_findings += findings(loaded, directory, device=device)
    return report(all_findings, as_json=as_json)


def require(loaded: LoadedConfig, directory: RunDirectory, *, data: bool = True) -> None:
    """Raise one UserError with all problems that prevent training `loaded` in `directory`.

    data: whether the task's text is checked; a run from recorded batches needs none. Users' tasks are left to the data
    process, which reports the same about them.
    """
    distinct = dict.fromkeys(findings(loaded, directory, data=data, quick=True))
    problems = [each.text for each in distinct if each.problem]
    if len(problems) == 1:
        raise UserError(problems[0])
    if problems:
        indented = [problem.replace("\n", "\n    ") for problem in problems]
        raise UserError("\n  ".join([f"{len(problems)} things stand in the way of training {loaded.name}:", *indented]))


def findings(
    loaded: LoadedConfig,
    directory: RunDirectory,
    *,
    data: bool = True,
    quick: bool = False,
    device: Device | None = None,
) -> Iterator[Finding]:
    """All findings about an experiment and the directory of its run. data: as for `require`.

    quick: without findings that are only information, and without TensorFlow. device: as for `check`.
    """
    experiment = loaded.experiment
    mesh, finding = _mesh(experiment)
    yield finding
    yield from errors_as_problems("batch", _batch(experiment, mesh))
    yield from errors_as_problems("model", _model(experiment, mesh, quick, device))
    with contextlib.ExitStack() as stack:
        service = None if quick else functools.cache(lambda: stack.enter_context(DataService()))
        if data:
            for dataset in experiment.datasets:
                yield from data_checks.data_findings(dataset, experiment, service)
        for logger in experiment.loggers:
            yield from errors_as_problems("logger", _logger(logger))
        yield from start_checks.start_findings(loaded, directory, service, data=data)
    yield from errors_as_problems("run", run_checks.run_findings(loaded, directory, data=data))


def _logger(logger: Logger) -> Iterator[Finding]:
    logger.check()
    yield Finding("logger", f"TensorBoard and {type(logger).__name__}")


def _mesh(experiment: Experiment) -> tuple[Mesh, Finding]:
    """The mesh; if devices are missing, an abstract mesh of the same sizes, with which the checks go on."""
    mesh_config = experiment.mesh
    try:
        mesh = make_mesh(mesh_config)
    except (UserError, RuntimeError) as error:  # the latter from a backend that does not start
        shape = mesh_config.shape(mesh_config.devices or 1)
        abstract_mesh = AbstractMesh(tuple(shape.values()), tuple(shape))
        return cast(Mesh, abstract_mesh), Finding("devices", str(error).splitlines()[0], problem=True)
    first = mesh.devices.flat[0]
    axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
    cpu = f" ({environment.cpu_model()})" if first.platform == "cpu" else ""
    return mesh, Finding("devices", f"{mesh.devices.size} x {first.device_kind}{cpu}, mesh {axes}")


def _batch(experiment: Experiment, mesh: Mesh) -> Iterator[Finding]:
    assembly.check_batches(experiment, mesh)
    parts = experiment.num_microbatches
    yield Finding("batch", f"{experiment.train_dataset.shapes} tokens in {parts} part{'s' if parts > 1 else ''}")


def _model(experiment: Experiment, mesh: Mesh, quick: bool, device: Device | None) -> Iterator[Finding]:
    model = experiment.model
    buckets = experiment.train_dataset.buckets.values()
    flops = max(each.batch_size * experiment.flops_per_example(each.task_feature_lengths) for each in buckets)
    yield Finding("model", f"{model.num_params:,} parameters, {flops / 1e9:,.1f} GFLOP an update")
    is_cpu = isinstance(mesh, AbstractMesh) or mesh.devices.flat[0].platform == "cpu"
    dtype = model.config.dtype
    yield Finding("products", xla_flags.describe_products(dtype) if is_cpu and device is None else dtype)
    if experiment.adapter is not None:
        trained, frozen = num_trained(model, experiment.adapter), experiment.base_model.num_params
        kind = type(experiment.adapter).__name__
        yield Finding("trained", f"{trained:,} parameters of {kind} ({trained / frozen:.2%}); {frozen:,} are frozen")
    abstract = assembly.abstract_state(experiment)
    shardings = assembly.shardings_of_state(experiment, abstract, mesh)
    if quick:
        step_memory = memory.state_and_gradients(experiment, abstract, shardings)
    else:
        step_memory = memory.estimate(experiment, abstract, shardings, mesh, fuses=device is not None or not is_cpu)
    yield _memory(step_memory, mesh, device)


def _memory(step_memory: memory.Memory, mesh: Mesh, device: Device | None) -> Finding:
    """The finding on the memory of a step. It is only estimated, so it is a problem only where it cannot fit."""
    kinds = {"state": step_memory.state, "gradients": step_memory.gradients, "activations": step_memory.activations}
    parts = ", ".join(f"{kind} {size / 2**20:,.0f}" for kind, size in kinds.items())
    text = f"about {step_memory.total / 2**20:,.0f} MiB a device ({parts})"
    if isinstance(mesh, AbstractMesh):
        return Finding("memory", text)
    first = mesh.devices.flat[0]
    available = hardware.device_memory(first) if device is None else int(device.memory * USABLE_MEMORY)
    if available is None:
        return Finding("memory", text)
    # devices simulated on one CPU share its memory
    sharers = max(1, len(mesh.local_devices)) if first.platform == "cpu" and device is None else 1
    verdict = memory.fits(step_memory.total * sharers, available)
    if verdict == memory.DOES_NOT_FIT:
        smaller = (
            "Lower BATCH_SIZE or TASK_FEATURE_LENGTHS, raise NUM_MICROBATCHES, or split"
            if step_memory.activations
            else "Split"
        )
        return Finding(
            "memory",
            f"A step takes {text}{f' on each of {sharers}' if sharers > 1 else ''}, and there are "
            f"{available / _GIB:,.1f} GiB. {smaller} the model over more devices.",
            problem=True,
        )
    tight = "" if verdict == memory.FITS else " and may not suffice"
    where = "are there" if device is None else f"of a {device.name} can be used"
    return Finding("memory", f"{text}; {available / _GIB:,.1f} GiB {where}{tight}")
