"""The model that a run has trained: the parameters of a checkpoint, and the run's vocabulary."""

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from t5xpg.base.errors import UserError
from t5xpg.base.files import sha256_of_file
from t5xpg.data.vocab.files import vocabulary_of_record
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.experiment import config, run_gin
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.gin_reading import find_gin_file
from t5xpg.experiment.identity import decides_predictions, identity_settings
from t5xpg.models.model import Params
from t5xpg.run.checkpoint.checkpoint_items import sha256_of_arrays
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.checkpoint.folders import DIGESTS
from t5xpg.run.checkpoint.initial_checkpoint import find_checkpoint
from t5xpg.run.command_options import overrides_of
from t5xpg.run.directory import RunDirectory, differing

Step = int | str | None  # of a checkpoint, "best", "mean:N" (the mean of the last N), or None: the last one
_MEAN = re.compile("mean:([1-9][0-9]*)")
# Keys of a checkpoint's meta: the origins of the run's start and of its teacher, which are also in its identity; and
# the kind of the adapter, where the checkpoint holds only an adapter's parameters.
INITIAL, TEACHER, ADAPTER = "initial", "teacher", "adapter"
Origin = Mapping[str, Any]  # {"named": INITIAL_CHECKPOINT, "experiment", "step", "sha256": of the arrays}


def load_run(
    path: Path, overrides: Sequence[str] = (), gin_files: Sequence[str] = (), experiment: str | None = None
) -> LoadedConfig:
    """The experiment of a run as the run was made, whatever its gin files hold today, with overrides of its evaluation.

    Overrides and gin files that the run was made with are in it already, and may be given again. experiment: the one
    that the user named. Raises UserError where there is no run, where its configuration or an override cannot be read,
    and where it names code that neither the user nor this checkout names (`run_gin`).
    """
    record = RunDirectory(path).read()
    own = path / f"{path.name}.gin"  # an imported run has one
    file = own if own.exists() else RunDirectory(path).operative_gin  # config.gin also has bindings that nothing reads
    user_files = [found for name in gin_files if (found := find_gin_file(name))]
    user_files += [Path(experiment)] if experiment and experiment.endswith(".gin") else []
    task_modules = run_gin.require_data(file, user_files)
    typed = {one.partition("=")[2].strip().strip("'\"") for one in overrides if one.startswith("MODULE_IMPORT")}
    bindings, files = config.split_overrides(" ".join(overrides_of(record["starts"][-1]["command"])))
    overrides = [one for one in overrides if one not in bindings]
    gin_files = [one for one in gin_files if one not in files]
    loaded = config.load(str(file), overrides, gin_files)
    imported = {name for dataset in loaded.experiment.datasets for name in dataset.module_import}
    run_gin.require_task_modules(file, imported, task_modules | typed)
    return dataclasses.replace(loaded, name=record["experiment"])


def parameters_and_vocabulary(
    directory: RunDirectory, experiment: Experiment, built: Assembly, step: Step = None
) -> tuple[Any, Vocabulary, int]:
    """The parameters of a run's checkpoint on the mesh, its vocabulary, and its step. An adapter is merged into the
    parameters that the run was started from.

    step: of the checkpoint, "best", None for the last one, or "mean:N" for the mean of the parameters of the last N,
    summed in float32 from the oldest on. Raises UserError where there is no such checkpoint, or fewer than N.
    """
    directory.read()
    with Checkpointer(directory.checkpoints, experiment.checkpoints, read_only=True) as checkpointer:
        count = checkpoints_in_mean(step)
        steps = checkpointer.last_steps(count) if count else [chosen_step(checkpointer, experiment, step)]
        if count:
            print(f"the mean of the parameters after steps {', '.join(map('{:,}'.format, steps))}", file=sys.stderr)
        params, meta = checkpointer.restore_params(steps[0], built.abstract_state.params)
        frozen = None if experiment.adapter is None else frozen_parameters(built, meta[INITIAL])
        params = built.model_params(params, frozen)
        for later_step in steps[1:]:
            other_params, _ = checkpointer.restore_params(later_step, built.abstract_state.params)
            params = jax.tree.map(jnp.add, params, built.model_params(other_params, frozen))
        if len(steps) > 1:
            params = jax.tree.map(lambda total: total / len(steps), params)
    last_step = steps[-1]
    assert last_step is not None
    return params, vocabulary_of_record(meta["vocabulary"], directory.vocabulary_model), last_step


def frozen_parameters(built: Assembly, recorded: Origin) -> Params:
    """The frozen parameters of a run, read again onto the mesh: its teacher's, or those that an adapter is added to.

    recorded: their origin in a checkpoint of the run. Raises UserError if they are missing, or are others.
    """
    frozen, teacher = built.abstract_state.frozen, built.experiment.teacher
    source, setting = (teacher, "TEACHER_CHECKPOINT") if teacher else (built.experiment.initial, "INITIAL_CHECKPOINT")
    assert frozen is not None
    assert source is not None
    checkpoint = source.checkpoint
    saved_step = find_checkpoint(checkpoint, setting)
    step = recorded["step"] if saved_step.step is None and checkpoint == recorded["named"] else saved_step.step
    with Checkpointer(saved_step.checkpoints, built.experiment.checkpoints, read_only=True) as checkpointer:
        params, _ = checkpointer.restore_params(step, frozen)
    if (digest := sha256_of_arrays({"params": params})) != recorded["sha256"]:
        raise UserError(
            f"The run was trained beside the parameters of {recorded['experiment']} after step {recorded['step']:,}, "
            f"{recorded['named']} (SHA-256 {recorded['sha256'][:12]}…), and those of {setting}="
            f"{checkpoint} are others ({digest[:12]}…). Name where that checkpoint lies now."
        )
    return params


def checkpoints_in_mean(step: Step) -> int:
    """The number N of "mean:N"; 0 for any other step."""
    match = _MEAN.fullmatch(str(step))
    return int(match[1]) if match else 0


def chosen_step(checkpointer: Checkpointer, experiment: Experiment, step: Step) -> int | None:
    """The number of a step; None if nothing is saved. Raises UserError for unknown words, and if there is no best."""
    if step != "best":
        if isinstance(step, str):
            raise UserError(f"step {step!r} is neither a number nor best nor mean:N.")
        return checkpointer.latest() if step is None else step
    best = checkpointer.best()
    if best is None:
        rule = experiment.checkpoints.best
        why = f"{rule.metric} was measured of none of them" if rule.keep else "none is kept as the best (KEEP_BEST)"
        raise UserError(f"STEP=best: {why}; there are: {checkpointer.steps()}.")
    return best


def checkpoint_facts(directory: RunDirectory, saved_step: int, step: Step) -> dict[str, Any]:
    """The facts on a checkpoint in records: its step, the number of those in a mean, and its digest. step: as it was
    asked for."""
    count, digests = checkpoints_in_mean(step), directory.checkpoints / str(saved_step) / DIGESTS
    mean = {"mean_of_checkpoints": count} if count else {}
    return {"step": saved_step, **mean, "checkpoint": sha256_of_file(digests) if digests.is_file() else None}


def check_same_model(directory: RunDirectory, experiment: Experiment) -> None:
    """Raise UserError if the run is of another model. Parameters may fit a model that computes something else."""
    record = directory.read()
    recorded = record["identity"].get("settings", {})
    settings = {name: value for name, value in identity_settings(experiment).items() if decides_predictions(name)}
    unchecked = {name: value for name, value in recorded.items() if not decides_predictions(name)}
    directory.check(record["experiment"], {"settings": {**unchecked, **settings}})


def check_same_vocabulary(
    task_vocabulary: Vocabulary, trained_vocabulary: Vocabulary | Mapping[str, Any], directory: RunDirectory
) -> None:
    """Raise UserError if the task's vocabulary is another than the run's. trained_vocabulary: it, or its record."""
    recorded = trained_vocabulary.to_json() if isinstance(trained_vocabulary, Vocabulary) else trained_vocabulary
    differences = vocabulary_differences(task_vocabulary, recorded, "run")
    if differences:
        raise UserError(
            f"{directory.path} was trained with another vocabulary than the task has: {differences}. "
            "Name a task whose vocabulary is the run's; `make vocab TOKENIZER=…` makes one of the run's tokenizer."
        )


def vocabulary_differences(task_vocabulary: Vocabulary, recorded: Mapping[str, Any], where: str) -> str:
    """The differences of the task's vocabulary from a recorded one, as text; "" for none. where: the place of the
    record, as messages name it."""
    settings = {name: value for name, value in recorded.items() if name != "model_file"}
    differences = differing(settings, task_vocabulary.identity)
    return ", ".join(f"{name} {old} in the {where}, {new} now" for name, (old, new) in differences.items())
