"""What a run has trained: the parameters of a checkpoint, and the vocabulary of their ids."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.files import vocabulary_of_record
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import decides_predictions, deciding_settings
from t5xpg.models.model import Params
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.checkpoint.initial_checkpoint import find
from t5xpg.run.checkpoint.items import sha256_of_arrays
from t5xpg.run.directory import RunDirectory, differing

Step = int | str | None  # of a checkpoint, "best", "mean:N" (the mean of the last N), or None: the last one
_MEAN = "mean:"
# in the meta of a checkpoint: what the run was started from, and whose probabilities it learned, which are in its
# identity, too; and what it holds, where that is the parameters of an adapter alone
INITIAL, TEACHER, ADAPTER = "initial", "teacher", "adapter"
Origin = Mapping[str, Any]  # {"named": INITIAL_CHECKPOINT, "experiment", "step", "sha256": of the arrays}


def parameters_and_vocabulary(
    directory: RunDirectory, experiment: Experiment, built: Assembly, step: Step = None
) -> tuple[Any, Vocabulary, int]:
    """The parameters of a checkpoint of a run on the mesh, its vocabulary, and its step. Those of an adapter are added
    to those that the run was started from.

    step: of the checkpoint, "best", None for the last one, or "mean:N" for the mean of the parameters of the last N,
    added up in float32 from the first of them on. Raises UserError where there is no such one, or where they are fewer.
    """
    directory.read()
    with Checkpointer(directory.checkpoints, experiment.checkpoints, read_only=True) as checkpointer:
        count = checkpoints_in_mean(step)
        chosen = checkpointer.last(count) if count else [_chosen(checkpointer, experiment, step)]
        params, meta = checkpointer.restore_params(chosen[0], built.abstract_state.params)
        base = None if experiment.adapter is None else frozen_parameters(built, meta[INITIAL])
        params = built.weights(params, base)
        for one in chosen[1:]:
            more, _ = checkpointer.restore_params(one, built.abstract_state.params)
            params = jax.tree.map(jnp.add, params, built.weights(more, base))
        if len(chosen) > 1:
            params = jax.tree.map(lambda total: total / len(chosen), params)
    at = chosen[-1]
    assert at is not None
    return params, vocabulary_of_record(meta["vocabulary"], directory.vocabulary_model), at


def frozen_parameters(built: Assembly, recorded: Origin) -> Params:
    """What lies frozen beside a run's state, read again on the mesh: its teacher, or what an adapter is added to.

    recorded: what a checkpoint of the run says of that. Raises UserError where it is not there, or is something else.
    """
    frozen, teacher = built.abstract_state.frozen, built.experiment.teacher
    source, setting = (teacher, "TEACHER_CHECKPOINT") if teacher else (built.experiment.initial, "INITIAL_CHECKPOINT")
    assert frozen is not None
    assert source is not None
    named = source.checkpoint
    place = find(named, setting)
    step = recorded["step"] if place.step is None and named == recorded["named"] else place.step
    with Checkpointer(place.checkpoints, built.experiment.checkpoints, read_only=True) as checkpointer:
        params, _ = checkpointer.restore_params(step, frozen)
    if (digest := sha256_of_arrays({"params": params})) != recorded["sha256"]:
        raise UserError(
            f"The run was trained beside the parameters of {recorded['experiment']} after step {recorded['step']:,}, "
            f"{recorded['named']} (SHA-256 {recorded['sha256'][:12]}…), and those of {setting}="
            f"{named} are others ({digest[:12]}…). Name where that checkpoint lies now."
        )
    return params


def checkpoints_in_mean(step: Step) -> int:
    """How many checkpoints "mean:N" names; 0 for any other step."""
    return int(step.removeprefix(_MEAN)) if isinstance(step, str) and step.startswith(_MEAN) else 0


def _chosen(checkpointer: Checkpointer, experiment: Experiment, step: Step) -> int | None:
    if step != "best":
        assert not isinstance(step, str)
        return checkpointer.latest() if step is None else step
    best = checkpointer.best()
    if best is None:
        metric = experiment.checkpoints.keep_best
        why = "none is kept as the best (KEEP_BEST)" if metric is None else f"{metric} was measured of none of them"
        raise UserError(f"STEP=best: {why}; there are: {checkpointer.steps()}.")
    return best


def check_same_model(directory: RunDirectory, experiment: Experiment) -> None:
    """Raise UserError if the run is of another model: parameters may fit one that computes something else with them."""
    record = directory.read()
    recorded = record["identity"].get("settings", {})
    now = {name: value for name, value in deciding_settings(experiment).items() if decides_predictions(name)}
    others = {name: value for name, value in recorded.items() if not decides_predictions(name)}
    directory.check(record["experiment"], {"settings": {**others, **now}})


def check_same_vocabulary(task: Vocabulary, trained: Vocabulary | Mapping[str, Any], directory: RunDirectory) -> None:
    """Raise UserError if the task's ids mean something else than `trained`: the run's vocabulary, or its record."""
    recorded = trained.to_json() if isinstance(trained, Vocabulary) else trained
    differences = vocabulary_differences(task, recorded, "run")
    if differences:
        raise UserError(f"{directory.path} was trained with another vocabulary than the task has: {differences}.")


def vocabulary_differences(task: Vocabulary, recorded: Mapping[str, Any], where: str) -> str:
    """What the task's ids mean, and those of the vocabulary that is recorded somewhere; "" where it is the same."""
    ours, theirs = task.to_json(), dict(recorded)
    ours.pop("model_file", None)  # where it lies; its digest is compared
    theirs.pop("model_file", None)
    differences = differing(theirs, ours)
    return ", ".join(f"{name} {old} in the {where}, {new} now" for name, (old, new) in differences.items())
