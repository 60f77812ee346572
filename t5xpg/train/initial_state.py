"""The initial state of a run: a new one, or one from a checkpoint that has to fit; and the teacher's parameters."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json
from t5xpg.base.paths import shown
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.trained_model import ADAPTER, INITIAL, TEACHER, Origin, vocabulary_differences
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.config import settings
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import decides_predictions
from t5xpg.models import adaptation
from t5xpg.models.config import ENCODER_SETTINGS, TWO_STACK_SETTINGS, setting_name
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Model, Params
from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint import checkpoint_items as items
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.checkpoint.initial_checkpoint import InitialCheckpoint, SavedStep, find_checkpoint
from t5xpg.run.directory import differing

_SHOWN = {"params": 50, "optimizer": 5}  # how many of the arrays that do not fit are listed


@dataclass(frozen=True)
class InitialState:
    """A state on the mesh before the first update; of the checkpoints that it is made from, INITIAL and TEACHER, the
    origins (as in the meta of checkpoints and in the identity of runs) and the records of their vocabularies."""

    state: TrainState
    origins: dict[str, Origin] = field(default_factory=dict)
    vocabularies: dict[str, Mapping[str, Any]] = field(default_factory=dict)


def begin(built: Assembly) -> InitialState:
    """The initial state of the experiment. Raises UserError if its checkpoint is missing or does not fit."""
    made = InitialState(built.new_state()) if built.experiment.initial is None else _load(built)
    if built.experiment.teacher is not None:
        params, made.origins[TEACHER], made.vocabularies[TEACHER] = _teacher(built)
        made = dataclasses.replace(made, state=dataclasses.replace(made.state, frozen=params))
    return dataclasses.replace(made, state=jax.block_until_ready(made.state))


def _teacher(built: Assembly) -> tuple[Params, Origin, Mapping[str, Any]]:
    """The teacher's parameters on the mesh, their origin, and the record of their vocabulary."""
    experiment, frozen = built.experiment, built.abstract_state.frozen
    assert experiment.teacher is not None
    assert frozen is not None
    saved_step = find_checkpoint(experiment.teacher.checkpoint, "TEACHER_CHECKPOINT")
    with Checkpointer(saved_step.checkpoints, experiment.checkpoints, read_only=True) as checkpointer:
        step = checkpointer.latest() if saved_step.step is None else saved_step.step
        require_teacher_fits(SavedStep(saved_step.run, step), experiment, built.abstract_state)
        params, meta = checkpointer.restore_params(step, frozen)
    return params, _origin(experiment.teacher.checkpoint, meta, step, {"params": params}), meta["vocabulary"]


def _load(built: Assembly) -> InitialState:
    experiment = built.experiment
    initial = experiment.initial
    assert initial is not None
    saved_step = find_checkpoint(initial.checkpoint)
    with Checkpointer(saved_step.checkpoints, experiment.checkpoints, read_only=True) as checkpointer:
        step = checkpointer.latest() if saved_step.step is None else saved_step.step
        require_fit(SavedStep(saved_step.run, step), experiment, built.abstract_state)
        if initial.reset_optimizer:
            expected = _initial_params(built.abstract_state, experiment)
            params, meta = checkpointer.restore_params(step, _stored(expected, experiment))
            origin = _origin(initial.checkpoint, meta, step, {"params": params})
            if initial.adapt_decoder:
                factor = initial.cross_attention_factor
                params = adaptation.adapt_decoder(params, expected, experiment.model.config, factor)
            state = built.state_of(params)
        else:
            state, _, meta = checkpointer.restore(step, built.abstract_state)
            arrays = {"params": state.eval_params, "optimizer": items.optimizer_tree(state)}
            origin = _origin(initial.checkpoint, meta, step, arrays)
            _require_learning(experiment, int(state.step))
    return InitialState(state, {INITIAL: origin}, {INITIAL: meta["vocabulary"]})


def _origin(named: str, meta: Mapping[str, Any], step: int | None, arrays: Mapping[str, Any]) -> Origin:
    digest = items.sha256_of_arrays(arrays)
    return {"named": named, "experiment": meta["experiment"], "step": step, "sha256": digest}


def identity(origin: Origin) -> dict[str, Any]:
    """The part of an origin that belongs to a run's identity: all but the checkpoint's name on this machine."""
    return {name: value for name, value in origin.items() if name != "named"}


def require_same_origin(recorded: Origin | None, experiment: Experiment) -> None:
    """Raise UserError if a resumed run names another initial checkpoint than its own checkpoint records.

    It need not be there any more. An adapter needs it, and it may be named where it lies now: `frozen_parameters`
    compares it.
    """
    assert experiment.initial is not None
    named, now = None if recorded is None else recorded["named"], experiment.initial.checkpoint
    if recorded is None or (experiment.adapter is None and named != now):
        raise UserError(
            f"This run was started from {named!r}, and INITIAL_CHECKPOINT is {now!r}: set it back to that (the "
            "checkpoint need not be there any more), or name another run directory with RUN=…"
        )


def origins_of_run(
    built: Assembly,
    checkpointer: Checkpointer,
    step: int,
    get_initial: Callable[[], InitialState],
    vocabulary: Vocabulary,
) -> dict[str, Origin]:
    """The origins of a run's initial checkpoint and teacher, if there are any; they become a part of its identity.

    checkpointer: of the run, which resumes after `step`. get_initial: returns the initial state of a new run (step 0).
    For a new run, raises UserError if the task has another vocabulary than the checkpoints.
    """
    experiment = built.experiment
    if experiment.initial is None and experiment.teacher is None:
        return {}
    if step:
        meta = checkpointer.meta(step)
        if experiment.initial is not None:
            require_same_origin(meta.get(INITIAL), experiment)
        sources = {INITIAL: experiment.initial, TEACHER: experiment.teacher}
        return {name: meta[name] for name, source in sources.items() if source is not None}
    initial = get_initial()
    for name, recorded in initial.vocabularies.items():
        require_vocabulary(vocabulary, recorded, experiment, of_teacher=name == TEACHER)
    for name, origin in initial.origins.items():
        label = "start" if name == INITIAL else name
        print(f"{label}: {origin['experiment']} after step {origin['step']:,}, {origin['named']}", flush=True)
    return initial.origins


def _initial_params(abstract: TrainState, experiment: Experiment) -> Params:
    """The parameters that the initial checkpoint holds: the trained ones, or with an adapter the frozen ones."""
    if experiment.adapter is None:
        return abstract.params
    assert abstract.frozen is not None
    return abstract.frozen


def require_vocabulary(
    task_vocabulary: Vocabulary, recorded: Mapping[str, Any], experiment: Experiment, *, of_teacher: bool = False
) -> None:
    """Raise UserError if the task has another vocabulary than the initial checkpoint or the teacher was trained with.
    recorded: the checkpoint's record of its vocabulary."""
    source = experiment.teacher if of_teacher else experiment.initial
    assert source is not None
    if isinstance(source, InitialCheckpoint) and not source.same_vocabulary:
        return
    kind = "teacher" if of_teacher else "checkpoint"
    if differences := vocabulary_differences(task_vocabulary, recorded, kind):
        all_the_same = "" if of_teacher else "; SAME_VOCABULARY=False starts from it all the same"
        raise UserError(
            f"The {kind} {source.checkpoint} was trained with another vocabulary than "
            f"{experiment.train_dataset.mixture_or_task_name} has: {differences}. Choose a task with its vocabulary"
            f"{all_the_same}."
        )


def require_teacher_fits(saved_step: SavedStep, experiment: Experiment, abstract: TrainState) -> dict[str, Any]:
    """`require_fit` for the teacher's checkpoint."""
    teacher = experiment.teacher
    assert teacher is not None
    assert abstract.frozen is not None
    try:
        return _require_arrays(saved_step, teacher.model, {"params": abstract.frozen})
    except UserError as error:
        raise UserError(
            f"{error}\nIt is TEACHER_CHECKPOINT: what the teacher has otherwise than the model is set in its scope, as "
            "teacher/encoder_decoder.T5Config.emb_dim = 512."
        ) from error


def require_fit(saved_step: SavedStep, experiment: Experiment, abstract: TrainState) -> dict[str, Any]:
    """Raise one UserError that lists all arrays of a checkpoint that do not fit the experiment, with the remedy.

    Returns the checkpoint's meta: {"experiment", "vocabulary", "settings": of the model}.
    """
    initial = experiment.initial
    assert initial is not None
    if initial.adapt_decoder:
        adaptation.check_adaptable(experiment.model)
    expected = {"params": _stored(_initial_params(abstract, experiment), experiment)}
    if not initial.reset_optimizer:
        expected["optimizer"] = items.optimizer_tree(abstract)
    return _require_arrays(saved_step, experiment.base_model, expected, initial)


def _require_arrays(
    saved_step: SavedStep, model: Model, expected_trees: Mapping[str, Any], initial: InitialCheckpoint | None = None
) -> dict[str, Any]:
    """Raise UserError where the arrays of a checkpoint, or settings of its model, are not those that are expected.

    expected_trees: by item, "params" and perhaps "optimizer". initial: None for a teacher. Returns as `require_fit`.
    """
    folder = saved_step.folder()
    try:
        meta = read_json(folder / "meta" / "metadata")
        kinds = {"experiment": str, "vocabulary": dict, "settings": dict}
        lacking = [name for name, kind in kinds.items() if not isinstance(meta[name], kind)]
        if lacking:
            raise ValueError(f"its meta has no {' and no '.join(lacking)}")
        trees = {item: items.array_metadata(folder, item) for item in expected_trees}
        stored = {item: items.array_types(tree) for item, tree in trees.items()}
        layouts = {item: items.stored_layout(tree, trees[item]) for item, tree in expected_trees.items()}
        expected = {item: items.array_types(layout) for item, layout in layouts.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"its meta has no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        reason = reason.strip().splitlines()[0][:200].rstrip(".")
        raise UserError(f"The checkpoint {shown(folder)} cannot be read: {reason}.") from error
    if ADAPTER in meta:
        raise UserError(
            f"The checkpoint {shown(folder)} holds {meta[ADAPTER]} parameters alone. `make export` of its run writes "
            "the whole model, and `make import` of that makes a run to start from."
        )
    other_settings = _other_settings(meta, model, initial)
    misfits = {item: items.array_differences(expected[item], stored[item]) for item in stored}
    if not other_settings and not any(misfits.values()):
        return meta
    lines = [f"The checkpoint {shown(folder)} does not fit the experiment:"]
    lines += [f"  {line}" for line in other_settings]
    for item, differences in misfits.items():
        shown_lines = differences[: _SHOWN[item]]
        lines += [f"  {item}/{line}" for line in shown_lines]
        lines += [f"  and {len(differences) - len(shown_lines)} more"] if len(differences) > len(shown_lines) else []
    advice = _advice(model, stored["params"], initial)
    if misfits.get("optimizer") and not misfits["params"]:
        advice.append("The optimiser is another one: RESET_OPTIMIZER=True begins with a new one.")
    raise UserError("\n".join([*lines, *(advice or ["Use the model that it was trained with."])]))


def _stored(params: Params, experiment: Experiment) -> Params:
    """The part of `params` that the initial checkpoint holds: with ADAPT_DECODER the decoder alone."""
    assert experiment.initial is not None
    adapts = experiment.initial.adapt_decoder
    return adaptation.decoder_params(params, experiment.model.config) if adapts else params


def _other_settings(meta: Mapping[str, Any], model: Model, initial: InitialCheckpoint | None) -> list[str]:
    """The differences from the checkpoint in model settings that change what parameters compute, even where they fit.

    For an initial checkpoint, the attention over inputs may differ: a language model, which has none, does not fix it.
    """
    recorded = meta["settings"]
    current = settings(model)
    compared = {name: current[name] for name in current if name in recorded and decides_predictions(f"model.{name}")}
    if initial is not None:
        compared.pop("inputs_bidirectional_attention", None)
        of_encoder = (*TWO_STACK_SETTINGS, *ENCODER_SETTINGS, "num_encoder_layers") if initial.adapt_decoder else ()
        compared = {name: value for name, value in compared.items() if name.removeprefix("config.") not in of_encoder}
    return [
        f"{setting_name(name.removeprefix('config.')) if '.' in name else f'{type(model).__name__}.{name}'} {old} in "
        f"the checkpoint, {new} now"
        for name, (old, new) in differing({name: recorded[name] for name in compared}, compared).items()
    ]


def _advice(model: Model, stored: Mapping[str, str], initial: InitialCheckpoint | None) -> list[str]:
    """The advice for the parameters of a checkpoint of a decoder alone, or with another number of token embeddings."""
    reads = ("encoder/", "/encoder_decoder_attention/")
    is_decoder = not any(part in f"/{name}" for name in stored for part in reads)
    advice = []
    if type(model) is EncoderDecoderModel and is_decoder and initial is not None and not initial.adapt_decoder:
        advice.append("It is of a decoder alone: ADAPT_DECODER=True begins an encoder-decoder with it.")
    tables = {
        "/".join(map(str, (entry.key for entry in path)))
        for path, axes in jax.tree_util.tree_leaves_with_path(
            model.logical_axes(), is_leaf=lambda node: isinstance(node, tuple)
        )
        if axes and axes[0] == "vocab" and path[-1].key != "ngram_embedding"
    }
    sizes = {int(stored[name].partition("[")[2].partition(",")[0]) for name in tables if name in stored}
    vocab_size = model.config.vocab_size
    if len(sizes) == 1 and sizes != {vocab_size}:
        size = sizes.pop()
        remedy = f"set VOCAB_SIZE={size} and VOCAB_SIZE_MULTIPLE=1"
        advice.append(f"It has {size} embeddings and the model {vocab_size}: {remedy}.")
    return advice


def _require_learning(experiment: Experiment, step: int) -> None:
    """Raise UserError if the learning rate of a restored optimiser is not above 0 in the middle of the run."""
    middle = step + experiment.total_steps // 2
    rate = float(experiment.optimizer.learning_rate(middle))
    if not (math.isfinite(rate) and rate > 0):
        raise UserError(
            f"The optimiser goes on from its step {step:,}, and its learning rate is {rate:g} at step {middle:,}: take "
            "another schedule (SCHEDULE=@schedules.Constant()), or begin anew with RESET_OPTIMIZER=True."
        )
