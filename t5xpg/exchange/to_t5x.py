"""A run's checkpoint in T5X's layout, with the facts that T5X's checkpoints lack."""

import shutil
from pathlib import Path

import optax

from t5xpg.base.errors import UserError
from t5xpg.base.files import directory_atomically, write_json, write_text
from t5xpg.base.paths import shown
from t5xpg.evaluate.trained_model import parameters_and_vocabulary
from t5xpg.exchange.formats.t5x_files import write_checkpoint
from t5xpg.exchange.t5x.adafactor import SLOTS, new_param_states, param_states
from t5xpg.exchange.t5x.networks import RECORD, SCALABLE, in_t5x, model_gin, network_of, record_of
from t5xpg.exchange.to_transformers import open_run, require_replaceable
from t5xpg.experiment import assembly
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.model import Params
from t5xpg.optim.optimizers import Adafactor
from t5xpg.run.checkpoint import checkpoint_items
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.directory import RunDirectory

FOLDER = "t5x"  # in the run directory, unless another folder is named
MODEL_FILE = "model.gin"


def export(loaded: LoadedConfig, path: Path, output: Path | None = None) -> Path:
    """Write the last checkpoint of the run at `path` in T5X's own layout, as `checkpoint_<step>`; returns its folder.

    Beside it lie a gin file of the model for T5X's runs, the vocabulary's file, and t5xpg.json, from which
    `make import` knows model and vocabulary. output: the folder, which appears whole or not at all; one that an earlier
    export wrote is replaced. Raises UserError where T5X has trained in it, or has no network that computes the same.
    """
    experiment, directory = open_run(loaded, path)
    target = (directory.path / FOLDER if output is None else output).absolute()
    require_replaceable(target, all((target / name).is_file() for name in (RECORD, MODEL_FILE)), "an export for T5X")
    if any(target.rglob("events.out*")):
        raise UserError(f"OUTPUT={target} is a folder in which T5X has trained. Name another one.")
    network = network_of(experiment.model)
    built = assembly.assemble(experiment)
    params, vocabulary, step = parameters_and_vocabulary(directory, experiment, built)
    t5x_params = in_t5x(experiment.model, params)
    own_states = _own_param_states(directory, experiment, built, step)
    states, updates = own_states or (new_param_states(t5x_params), step)
    note = "its Adafactor" if own_states else "zeros for T5X's Adafactor"
    with directory_atomically(target) as folder:
        checkpoint = write_checkpoint(folder, t5x_params, updates, states)
        write_json(folder / RECORD, record_of(experiment.model.config, vocabulary))
        if vocabulary.model_file is not None:
            shutil.copyfile(vocabulary.model_file, folder / Path(vocabulary.model_file).name)
        comment = f"The model of {loaded.name} for T5X, whose runs include it: its parameters are {checkpoint.name}."
        converter, optimizer = experiment.eval_dataset.converter, experiment.optimizer if own_states else None
        write_text(folder / MODEL_FILE, model_gin(experiment.model, vocabulary, target, comment, converter, optimizer))
    print(f"{loaded.name} after step {step:,} as a checkpoint of {network.module}, with {note}: {shown(target)}")
    print(f"restored by T5X with utils.RestoreCheckpointConfig.path = '{target / checkpoint.name}'", flush=True)
    return target


def _own_param_states(
    directory: RunDirectory, experiment: Experiment, built: assembly.Assembly, step: int
) -> tuple[Params, int] | None:
    """T5X's `param_states` from the run's Adafactor, and its step; None if T5X's cannot continue from it."""
    optimizer = experiment.optimizer
    if network_of(experiment.model) == SCALABLE or experiment.adapter is not None:
        return None
    if not isinstance(optimizer, Adafactor) or optimizer.momentum is not None or not optimizer.factored:
        return None
    stored = checkpoint_items.array_metadata(directory.checkpoints / str(step), "optimizer")
    expected = checkpoint_items.stored_layout(checkpoint_items.optimizer_tree(built.abstract_state), stored)
    if checkpoint_items.array_types(stored) != checkpoint_items.array_types(expected):
        return None  # imported without its optimiser
    with Checkpointer(directory.checkpoints, experiment.checkpoints, read_only=True) as checkpointer:
        state, _, _ = checkpointer.restore(step, built.abstract_state)
    (factored_state,) = [node for node in state.opt_state if isinstance(node, optax.FactoredState)]
    trees = {slot: in_t5x(experiment.model, getattr(factored_state, slot)) for slot in SLOTS}
    return param_states(trees), int(state.step)
