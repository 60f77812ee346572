"""The checks of a run's initial checkpoint, its teacher, and the metric that selects its best evaluation."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.paths import shown
from t5xpg.check.data_checks import Service, describe
from t5xpg.check.finding import Finding, errors_as_problems
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.measurements import require_selection
from t5xpg.evaluate.trained_model import INITIAL
from t5xpg.experiment import assembly
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.needs import PlannedIds
from t5xpg.experiment.recipe import Recipe
from t5xpg.models import adaptation
from t5xpg.models.distillation import Teacher
from t5xpg.run.best import BestMetric, validation_names
from t5xpg.run.checkpoint.folders import last_meta
from t5xpg.run.checkpoint.initial_checkpoint import InitialCheckpoint, find_checkpoint
from t5xpg.run.directory import RunDirectory
from t5xpg.train import initial_state


def start_findings(
    loaded: LoadedConfig, directory: RunDirectory, service: Service | None, *, data: bool
) -> Iterator[Finding]:
    """Findings on initial checkpoint, teacher, selection. data: see `checks.require`. service: see `data_findings`."""
    experiment = loaded.experiment
    meta = None
    if experiment.initial is not None:
        record = last_meta(directory.checkpoints).get(INITIAL)
        if record is not None and experiment.adapter is None:
            yield from errors_as_problems("start", _recorded(experiment, record))
        else:
            finding, meta = _initial(experiment, experiment.initial)
            yield finding
    if experiment.teacher is not None:
        yield from errors_as_problems("teacher", _teacher(experiment, experiment.teacher))
    if data:
        yield from _task(experiment, None if meta is None else meta["vocabulary"], service)


def _recorded(experiment: Experiment, record: Mapping[str, Any]) -> Iterator[Finding]:
    """The finding on a run that resumes; raises UserError if INITIAL_CHECKPOINT is another name than before."""
    initial_state.require_same_origin(record, experiment)
    yield Finding("start", f"was {record['experiment']} after step {record['step']:,}, which is not needed any more")


def _initial(experiment: Experiment, initial: InitialCheckpoint) -> tuple[Finding, Mapping[str, Any] | None]:
    """The finding on the initial checkpoint, and its meta if it exists and fits."""
    try:
        place = find_checkpoint(initial.checkpoint)
        abstract = assembly.abstract_state(experiment)
        meta = initial_state.require_fit(place, experiment, abstract)
    except UserError as error:
        return Finding("start", str(error), problem=True), None
    parts = "parameters" if initial.reset_optimizer else "parameters and optimiser"
    text = f"{parts} of {meta['experiment']} after step {int(place.folder().name):,}, in {shown(place.run)}"
    if initial.adapt_decoder:
        parts_of = adaptation.origins(abstract.params, experiment.model.config)
        lines = [f"{ours}  begins as  {theirs}" for ours, theirs in parts_of.items()]
        text = "\n".join([text, *lines, "all others, those of the decoder, as they are"])
    return Finding("start", text), meta


def _teacher(experiment: Experiment, teacher: Teacher) -> Iterator[Finding]:
    """The finding on the teacher; raises UserError if it does not exist or fit."""
    place = find_checkpoint(teacher.checkpoint, "TEACHER_CHECKPOINT")
    meta = initial_state.require_teacher_fits(place, experiment, assembly.abstract_state(experiment))
    size = f"{teacher.model.num_params:,} parameters"
    text = f"{meta['experiment']} after step {int(place.folder().name):,}, {size}; in {shown(place.run)}"
    yield Finding("teacher", text)


def _task(experiment: Experiment, trained_with: Mapping[str, Any] | None, service: Service | None) -> Iterator[Finding]:
    """The findings on vocabulary and selection. trained_with: the initial checkpoint's vocabulary record, if any."""
    selection = experiment.selection
    of_metrics = selection is not None and not selection.of_validation
    dataset = (experiment.of_metrics if of_metrics else experiment).eval_dataset
    recipe = Recipe.of(dataset, experiment.needs)
    row = recipe.task
    if row is not None and trained_with is not None and not isinstance(row.vocabulary, PlannedIds):
        yield from _vocabulary(row.vocabulary, trained_with, experiment)
        trained_with = None
    if row is not None and selection is not None and selection.of_validation:
        parts = [part.name for part in row.parts]
        names = validation_names(parts if len(parts) > 1 else [])
        yield from errors_as_problems("best", _best(selection, functools.partial(selection.require, names)))
        selection = None
    if service is None or (trained_with is None and selection is None) or not recipe.ready:
        return
    try:
        description, readable = describe(service(), dataset)
    except UserError:  # reported where the data is checked
        return
    if trained_with is not None:
        yield from _vocabulary(description.vocabulary, trained_with, experiment)
    if selection is not None:
        require = functools.partial(require_selection, service(), readable, selection)
        yield from errors_as_problems("best", _best(selection, require))


def _vocabulary(task: Vocabulary, trained_with: Mapping[str, Any], experiment: Experiment) -> Iterator[Finding]:
    try:
        initial_state.require_vocabulary(task, trained_with, experiment)
    except UserError as error:
        yield Finding("start", str(error), problem=True)


def _best(selection: BestMetric, require: Callable[[], None]) -> Iterator[Finding]:
    """The finding on the selection. require: raises UserError if the metric is not measured."""
    require()
    patience = selection.patience
    ends = "" if patience is None else f"; ends after {patience} in a row without a better one"
    kept = "kept" if selection.keep else "not kept"
    yield Finding("best", f"{selection.metric}, {selection.mode}, {kept}{ends}")
