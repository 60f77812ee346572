"""A run's checkpoint as T5X restores it, with what T5X's checkpoints do not say."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import optax

from t5xpg.base.errors import UserError
from t5xpg.base.files import directory_atomically, write_json, write_text
from t5xpg.base.paths import shown
from t5xpg.evaluate.trained_model import check_same_model, parameters_and_vocabulary
from t5xpg.exchange.formats.t5x_writer import write_checkpoint
from t5xpg.exchange.t5x.adafactor import SLOTS, param_states, zeros_of_stacked_layers
from t5xpg.exchange.t5x.networks import RECORD, SCALABLE, in_t5x, model_gin, network_of, record_of
from t5xpg.experiment import assembly
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.model import Model, Params
from t5xpg.optim.optimizers import Adafactor
from t5xpg.optim.schedules import Constant
from t5xpg.run.checkpoint import items
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.checkpoint.items import as_stored
from t5xpg.run.directory import RunDirectory

FOLDER = "t5x"  # in the run directory, where no other one is named
MODEL_FILE = "model.gin"


def export(loaded: LoadedConfig, path: Path, output: Path | None = None) -> Path:
    """Write the last checkpoint of the run at `path` in T5X's own layout; returns the folder of `checkpoint_<step>`.

    Beside it lie a gin file of the model for T5X's runs, the model of the vocabulary, and t5xpg.json, by which
    `make import` knows both. output: the folder, which appears whole or not at all; one that an earlier export wrote
    is replaced. Raises UserError where T5X has no network that computes the same.
    """
    experiment = dataclasses.replace(loaded.experiment, model=loaded.experiment.model.with_layers_apart())
    directory = RunDirectory(path)
    check_same_model(directory, experiment)
    target = (directory.path / FOLDER if output is None else output).absolute()
    _check_target(target)
    network = network_of(experiment.model)
    built = assembly.assemble(experiment)
    params, vocabulary, step = parameters_and_vocabulary(directory, experiment, built)
    assembly.check_vocabulary(vocabulary, experiment)
    trees, updates, kept = None, step, "zeros for T5X's Adafactor"
    if network != SCALABLE and experiment.adapter is None:
        trees, updates = _accumulators(directory, experiment, built, step)
        kept = kept if trees is None else "its Adafactor"
    with directory_atomically(target) as folder:
        if trees is None:
            states = new_param_states(experiment.model, params)
        else:
            states = param_states({slot: in_t5x(experiment.model, tree) for slot, tree in trees.items()})
        written = write_checkpoint(folder, in_t5x(experiment.model, params), updates, states)
        write_json(folder / RECORD, record_of(experiment.model.config, vocabulary))
        if vocabulary.model_file is not None:
            shutil.copyfile(vocabulary.model_file, folder / Path(vocabulary.model_file).name)
        comment = f"The model of {loaded.name} for T5X, whose runs include it: its parameters are {written.name}."
        write_text(folder / MODEL_FILE, model_gin(experiment.model, vocabulary, target, comment))
    print(f"{loaded.name} after step {step:,} as a checkpoint of {network.module}, with {kept}: {shown(target)}")
    print(f"restored by T5X with utils.RestoreCheckpointConfig.path = '{target / written.name}'", flush=True)
    return target


def _check_target(target: Path) -> None:
    """Raise UserError for a folder that holds something else than an export: it would be gone."""
    if target.exists() and not (target / RECORD).is_file() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"OUTPUT={target} is there, and is no folder that an export for T5X wrote. Name another one.")
    if target.is_dir() and any(target.glob("events.out*")):
        raise UserError(f"OUTPUT={target} is a folder in which T5X has trained. Name another one.")


def _accumulators(
    directory: RunDirectory, experiment: Experiment, built: assembly.Assembly, step: int
) -> tuple[Any, int]:
    """The trees of Adafactor's accumulators and its step; (None, step) where T5X's would not go on from them."""
    optimizer = experiment.optimizer
    if not isinstance(optimizer, Adafactor) or optimizer.momentum is not None or not optimizer.factored:
        return None, step
    stored = items.arrays_of(directory.checkpoints / str(step), "optimizer")
    expected = as_stored(items.optimizer_tree(built.abstract_state), stored)
    if items.described(stored) != items.described(expected):
        return None, step  # imported without it
    with Checkpointer(directory.checkpoints, experiment.checkpoints, read_only=True) as checkpointer:
        state, _, _ = checkpointer.restore(step, built.abstract_state)
    return _factored(state.opt_state), int(state.step)


def _factored(opt_state: Any) -> dict[str, Params]:
    (kept,) = [node for node in opt_state if isinstance(node, optax.FactoredState)]
    return {slot: getattr(kept, slot) for slot in SLOTS}


def new_param_states(model: Model, params: Params) -> Params:
    """The zeros with which T5X's Adafactor begins."""
    if network_of(model) == SCALABLE:
        return zeros_of_stacked_layers(in_t5x(model, params))
    state = Adafactor(Constant(1.0)).transformation(model.logical_axes()).init(params)
    return param_states({slot: in_t5x(model, tree) for slot, tree in _factored(state).items()})
