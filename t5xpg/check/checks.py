"""`make check`: everything that can be known before anything expensive is done; before `make train` by itself.

Nothing is compiled, exported, cached or written. What `make train` would make first is no problem. TensorFlow is
started only for what cannot be known without it: tasks that users registered, the lengths of supervised examples,
caches whose task has changed, and names of task metrics.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from jax.sharding import AbstractMesh, Mesh

from t5xpg import distributed
from t5xpg.base import environment, paths, stores
from t5xpg.base.errors import UserError
from t5xpg.check import data_checks, run_checks, start_checks
from t5xpg.check.finding import Finding, or_problem, report
from t5xpg.check.plan import memory
from t5xpg.check.plan.devices import USABLE_MEMORY, Device
from t5xpg.data.stream.client import DataService
from t5xpg.distributed import hardware
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
    """Print what an experiment needs and whether it is there, as a table or as JSON; returns 0 where it can be trained,
    1 otherwise.

    overrides, gin_files: as `config.load` takes them. run: the run directory, by default the experiment's own. device:
    what is to train it, if not this machine; the devices that are here then stand for it. Where the experiment can be
    built in spite of mistakes in its configuration, the rest is checked too.
    """
    loaded, mistakes = config.examine(name, overrides, gin_files)
    found = [Finding("gin", mistake, problem=True) for mistake in mistakes]
    if loaded is None:
        found.append(Finding("the rest", "is looked at once these are mended", looked_at=False))
    else:
        if not mistakes:
            found.append(Finding("gin", f"{paths.shown(loaded.gin_file)}, seed {loaded.experiment.random_seed}"))
        directory = RunDirectory(run or paths.run_directory(loaded.experiment.model_dir or loaded.name))
        stores.pull(directory.path, RunDirectory.is_record)
        found += findings(loaded, directory, device=device)
    return report(found, as_json=as_json)


def require(loaded: LoadedConfig, directory: RunDirectory, *, data: bool = True) -> None:
    """Raise one UserError with everything that stands in the way of training `loaded` in `directory`.

    data: whether the task's text is checked; a run from a recording needs none. Users' tasks are left to the data
    process, which reports the same about them.
    """
    found = dict.fromkeys(findings(loaded, directory, data=data, quick=True))
    problems = [each.text for each in found if each.problem]
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

    quick: without what is only information, and without TensorFlow. device: as for `check`.
    """
    experiment = loaded.experiment
    mesh, finding = _mesh(experiment)
    yield finding
    yield from or_problem("batch", _batch(experiment, mesh))
    yield from or_problem("model", _model(experiment, mesh, quick, device))
    with contextlib.ExitStack() as stack:
        service = None if quick else functools.cache(lambda: stack.enter_context(DataService()))
        if data:
            for dataset in (experiment.train_dataset, experiment.eval_dataset):
                yield from data_checks.look_at(dataset, experiment, service)
        for logger in experiment.loggers:
            yield from or_problem("logger", _logger(logger))
        yield from start_checks.look_at(loaded, directory, service, data=data)
    yield from or_problem("run", run_checks.look_at(loaded, directory, data=data))


def _logger(logger: Logger) -> Iterator[Finding]:
    logger.check()
    yield Finding("logger", f"TensorBoard and {type(logger).__name__}")


def _mesh(experiment: Experiment) -> tuple[Mesh, Finding]:
    """The mesh; where devices are missing, an abstract mesh of the same sizes, with which the checks go on."""
    wanted = experiment.mesh
    try:
        mesh = distributed.make_mesh(wanted)
    except (UserError, RuntimeError) as error:  # the latter from a backend that does not start
        shape = wanted.shape(wanted.devices or 1)
        absent = AbstractMesh(tuple(shape.values()), tuple(shape))
        return cast(Mesh, absent), Finding("devices", str(error).splitlines()[0], problem=True)
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
    if experiment.adapter is not None:
        trained, frozen = num_trained(model, experiment.adapter), experiment.base_model.num_params
        kind = type(experiment.adapter).__name__
        yield Finding("trained", f"{trained:,} parameters of {kind} ({trained / frozen:.2%}); {frozen:,} are frozen")
    abstract = assembly.abstract_state(experiment)
    shardings = assembly.state_shardings(experiment, abstract, mesh)
    if quick:
        needed = memory.least(experiment, abstract, shardings)
    else:
        is_cpu = isinstance(mesh, AbstractMesh) or mesh.devices.flat[0].platform == "cpu"
        fuses = device is not None or not is_cpu
        needed = memory.estimate(experiment, abstract, shardings, mesh, fuses=fuses)
    yield _memory(needed, mesh, device)


def _memory(needed: memory.Memory, mesh: Mesh, device: Device | None) -> Finding:
    """Whether a step fits into the memory. As its need is only estimated, it is a problem only where it cannot fit."""
    kinds = {"state": needed.state, "gradients": needed.gradients, "activations": needed.activations}
    parts = ", ".join(f"{kind} {size / 2**20:,.0f}" for kind, size in kinds.items())
    text = f"about {needed.total / 2**20:,.0f} MiB a device ({parts})"
    if isinstance(mesh, AbstractMesh):
        return Finding("memory", text)
    first = mesh.devices.flat[0]
    available = hardware.device_memory(first) if device is None else int(device.memory * USABLE_MEMORY)
    if available is None:
        return Finding("memory", text)
    # devices simulated on one CPU share its memory
    sharing = max(1, len(mesh.local_devices)) if first.platform == "cpu" and device is None else 1
    verdict = memory.fits(needed.total * sharing, available)
    if verdict == memory.DOES_NOT_FIT:
        smaller = (
            "Lower BATCH_SIZE or TASK_FEATURE_LENGTHS, raise NUM_MICROBATCHES, or split"
            if needed.activations
            else "Split"
        )
        return Finding(
            "memory",
            f"A step takes {text}{f' on each of {sharing}' if sharing > 1 else ''}, and there are "
            f"{available / _GIB:,.1f} GiB. {smaller} the model over more devices.",
            problem=True,
        )
    tight = "" if verdict == memory.FITS else " and may not suffice"
    where = "are there" if device is None else f"of a {device.name} can be used"
    return Finding("memory", f"{text}; {available / _GIB:,.1f} GiB {where}{tight}")
