"""What a run starts from, and the metric that it is selected by: whether they exist, and fit the task."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.paths import shown
from t5xpg.check.data_checks import Service, describe
from t5xpg.check.finding import Finding, or_problem
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.measurements import require_selection
from t5xpg.evaluate.trained_model import INITIAL
from t5xpg.experiment import assembly, data_state
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.needs import PlannedIds
from t5xpg.models import adaptation
from t5xpg.models.distillation import Teacher
from t5xpg.run.best import BestMetric, validation_names
from t5xpg.run.checkpoint.folders import last_meta
from t5xpg.run.checkpoint.initial_checkpoint import InitialCheckpoint, SavedStep, find_checkpoint
from t5xpg.run.directory import RunDirectory
from t5xpg.train import initial_state


def look_at(loaded: LoadedConfig, directory: RunDirectory, service: Service | None, *, data: bool) -> Iterator[Finding]:
    """The findings on what a run starts from. data: as for `checks.require`. service: as for `data_checks.look_at`."""
    experiment = loaded.experiment
    meta = None
    if experiment.initial is not None:
        own = last_meta(directory.checkpoints).get(INITIAL)
        if own is not None and own["named"] == experiment.initial.checkpoint and experiment.adapter is None:
            text = f"was {own['experiment']} after step {own['step']:,}, which is not needed any more"
            yield Finding("start", text)
        else:
            finding, meta = _initial(experiment, experiment.initial)
            yield finding
            if own is not None and finding.problem:
                yield Finding("start", initial_state.as_before(own, experiment), problem=True)
            elif own is not None:
                yield Finding("start", f"`make train` compares it with what the run was started from, {own['named']}")
    if experiment.teacher is not None:
        yield from or_problem("teacher", _teacher(experiment, experiment.teacher))
    if data:
        yield from _of_task(experiment, None if meta is None else meta["vocabulary"], service)


def _initial(experiment: Experiment, initial: InitialCheckpoint) -> tuple[Finding, Mapping[str, Any] | None]:
    """Whether the initial checkpoint is there and fits; and its meta, where it does."""
    try:
        place: SavedStep = find_checkpoint(initial.checkpoint)
        abstract = assembly.abstract_state(experiment)
        meta = initial_state.require_fit(place, experiment, abstract)
    except UserError as error:
        return Finding("start", str(error), problem=True), None
    taken = "parameters" if initial.reset_optimizer else "parameters and optimiser"
    text = f"{taken} of {meta['experiment']} after step {int(place.folder().name):,}, in {shown(place.run)}"
    if initial.adapt_decoder:
        lines = [f"{ours}  begins as  {theirs}" for ours, theirs in adaptation.origins(abstract.params).items()]
        text = "\n".join([text, *lines, "all others, those of the decoder, as they are"])
    return Finding("start", text), meta


def _teacher(experiment: Experiment, teacher: Teacher) -> Iterator[Finding]:
    """Whether the teacher is there and fits."""
    place = find_checkpoint(teacher.checkpoint, "TEACHER_CHECKPOINT")
    meta = initial_state.require_teacher_fits(place, experiment, assembly.abstract_state(experiment))
    size = f"{teacher.model.num_params:,} parameters"
    text = f"{meta['experiment']} after step {int(place.folder().name):,}, {size}; in {shown(place.run)}"
    yield Finding("teacher", text)


def _of_task(experiment: Experiment, trained: Mapping[str, Any] | None, service: Service | None) -> Iterator[Finding]:
    """Whether the task fits the start and the selection. trained: the start's vocabulary record, if there is one."""
    dataset, selection = experiment.eval_dataset, experiment.selection
    state = data_state.state_of(dataset, experiment.needs)
    row = state.row
    if row is not None and trained is not None and not isinstance(row.vocabulary, PlannedIds):
        yield from _vocabulary(row.vocabulary, trained, experiment)
        trained = None
    if row is not None and selection is not None and selection.of_validation:
        parts = [part.name for part in row.parts]
        names = validation_names(parts if len(parts) > 1 else [])
        yield from or_problem("best", _best(selection, functools.partial(selection.require, names)))
        selection = None
    if service is None or (trained is None and selection is None) or not state.ready:
        return
    try:
        described = describe(service(), dataset)
    except UserError:  # reported where the data is checked
        return
    if trained is not None:
        yield from _vocabulary(described.vocabulary, trained, experiment)
    if selection is not None:
        readable = dataclasses.replace(dataset, use_cached=described.cached)
        require = functools.partial(require_selection, service(), readable, selection)
        yield from or_problem("best", _best(selection, require))


def _vocabulary(task: Vocabulary, trained: Mapping[str, Any], experiment: Experiment) -> Iterator[Finding]:
    try:
        initial_state.require_vocabulary(task, trained, experiment)
    except UserError as error:
        yield Finding("start", str(error), problem=True)


def _best(selection: BestMetric, require: Callable[[], None]) -> Iterator[Finding]:
    """Whether the run can be selected so. require: raises UserError where the metric is not measured."""
    require()
    patience = selection.patience
    ends = "" if patience is None else f"; ends after {patience} in a row without a better one"
    kept = "kept" if selection.keep else "not kept"
    yield Finding("best", f"{selection.metric}, {selection.mode}, {kept}{ends}")
