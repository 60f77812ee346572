"""The objective of a SeqIO task: found by its steps, and changed. Imports TensorFlow."""

import dataclasses
import functools
from typing import Any

import seqio

from t5xpg.base.errors import UserError
from t5xpg.data.objectives import CHOSEN, KINDS, Objective
from t5xpg.data.objectives.masked_lm import CHOSEN_VALUE, NOT_CHOSEN_VALUE


def output_features(objective: Objective, vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
    """The output features of a task with the steps of an objective."""
    # the end that is added to the chosen and the others was not chosen
    flags = seqio.PassThroughVocabulary(size=CHOSEN_VALUE + 1, eos_id=NOT_CHOSEN_VALUE)
    kinds = {name: flags if name == CHOSEN else vocabulary for name in objective.features}
    return {name: seqio.Feature(kind, add_eos=True) for name, kind in kinds.items()}


def objective_of(task: seqio.Task) -> Objective | None:
    """The objective of a task's steps; None where it has none that is known here."""
    for kind, arguments in _known_steps(task).values():
        names = [field.name for field in dataclasses.fields(kind) if field.name in arguments]  # type: ignore[arg-type]
        return kind(**{name: arguments[name] for name in names})
    return None


def reserved_of(task: seqio.Task) -> int:
    """Tokens in front of the inputs that a task's objective leaves room for."""
    steps = _known_steps(task).values()
    return next((int(arguments.get(kind.reserved_argument or "") or 0) for kind, arguments in steps), 0)


def with_objective(task: seqio.Task, objective: Objective) -> seqio.Task:
    """The task with other numbers of its objective; its cache stays valid. UserError where it has none of that kind."""
    if objective_of(task) == objective:
        return task
    theirs, ours = objective.known_steps()[0], objective.known_steps()[-1]
    steps = list(task.preprocessors)
    for place, (kind, arguments) in _known_steps(task).items():
        if kind.name == objective.name:
            steps[place] = functools.partial(ours, **{**arguments, **objective.numbers})
    if steps == list(task.preprocessors):
        raise UserError(
            f"The experiment sets the objective {KINDS[objective.name].__name__}, and {task.name} has no step "
            f"{theirs.__module__}.{theirs.__name__}: leave the objective out (include 'gin/objectives/none.gin' behind "
            "gin/runs/pretrain.gin), or choose another task."
        )
    return task.replace(preprocessors=steps)


def _known_steps(task: seqio.Task) -> dict[int, tuple[type[Objective], dict[str, Any]]]:
    """The steps that are of an objective, by their places: its class, and the arguments that are bound."""
    known = [(kind, step) for kind in KINDS.values() for step in kind.known_steps()]
    found = {}
    for place, step in enumerate(task.preprocessors):
        function, arguments = _unwrap(step)
        # not by hash: other steps may be objects that have none
        if (kind := next((kind for kind, step in known if step is function), None)) is not None:
            found[place] = kind, arguments
    return found


def _unwrap(step: Any) -> tuple[Any, dict[str, Any]]:
    """The function below `functools.partial`s, and the keyword arguments that they bind."""
    arguments: dict[str, Any] = {}
    while isinstance(step, functools.partial):
        arguments = {**step.keywords, **arguments}
        step = step.func
    return step, arguments
