"""A checkpoint of another program as a run of ours: parameters, vocabulary, and gin files to use it with."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from t5xpg import environment, paths
from t5xpg.checkpoints import CheckpointConfig, Checkpointer
from t5xpg.config import settings
from t5xpg.errors import UserError
from t5xpg.files import directory_atomically, sha256_of_file, write_text
from t5xpg.importing import from_t5x, from_transformers
from t5xpg.importing.folders import CONFIG
from t5xpg.importing.gin_files import MODEL_FILE, experiment_gin, model_gin
from t5xpg.importing.taken import Taken
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.paths import shown
from t5xpg.run_identity import deciding, vocabulary_identity
from t5xpg.rundir import RunDirectory
from t5xpg.state import TrainState
from t5xpg.vocabularies import Vocabulary

TOKENIZER = "tokenizer"  # the folder of the tokenizer's files in the run directory


def import_checkpoint(
    checkpoint: str,
    runs: Path,
    *,
    name: str | None = None,
    tokenizer: str | None = None,
    sentinels: str | None = None,
    optimizer: bool = False,
    force: bool = False,
) -> Path:
    """Make the run directory `runs/<name>` of a checkpoint of T5's families; returns it.

    checkpoint: a folder of transformers, T5X or Mesh-TensorFlow, or a name on the Hugging Face hub. tokenizer,
    sentinels: see `vocabulary_of_folder`. optimizer: take the Adafactor of T5X's or Mesh-TensorFlow's, too. force:
    replace what was imported before. The directory appears whole or not at all.

    Raises UserError where the checkpoint is not there, not whole, not of these families, or does not fit its config.
    """
    taken = _taken(checkpoint, tokenizer=tokenizer, sentinels=sentinels, optimizer=optimizer)
    name = taken.name if name is None else name
    if not name.isidentifier():
        raise UserError(f"NAME={name}: expected letters, digits and underscores, as in byt5_small.")
    if (paths.EXPERIMENTS / name).is_dir():
        raise UserError(f"NAME={name} is an experiment, whose runs are called so. Give the checkpoint another name.")
    target = (runs / name).absolute()
    _check_target(target, force)
    vocabulary, model = taken.vocabulary, EncoderDecoderModel(taken.config)
    identity = {
        "imported": {"source": taken.source, "format": taken.format, "sha256": taken.sha256(sha256_of_file)},
        "settings": deciding(settings(model, "model")),
        "vocabulary": vocabulary_identity(vocabulary),
    }
    with directory_atomically(target) as temporary:
        directory = RunDirectory(temporary)
        directory.start(
            name, identity, step=0, command=environment.command_line(), facts={"num_params": model.num_params}
        )
        directory.keep_model(vocabulary.model_file)
        _keep_tokenizer(taken, temporary / TOKENIZER)
        write_text(temporary / MODEL_FILE, model_gin(taken.config, vocabulary, taken.source))
        write_text(temporary / f"{name}.gin", experiment_gin(name, target, vocabulary, taken.source))
        meta = {
            "experiment": name,
            "vocabulary": _recorded(vocabulary, target / TOKENIZER),
            "settings": settings(model),
        }
        _save(directory, taken, meta)
    kept = f", Adafactor after step {taken.step:,}" if taken.opt_state is not None else ""
    print(f"{taken.source}: {taken.family}, {model.num_params:,} parameters, {_said(vocabulary)}{kept}")
    print(f"run: {shown(target)}; make infer EXP={name} PROMPT=…, make eval EXP={name}", flush=True)
    return target


def _taken(checkpoint: str, *, tokenizer: str | None, sentinels: str | None, optimizer: bool) -> Taken:
    """A folder with a config.json is one of transformers, whatever else it holds."""
    if from_t5x.is_one(checkpoint) and not (Path(checkpoint).expanduser() / CONFIG).is_file():
        return from_t5x.take(checkpoint, tokenizer=tokenizer, sentinels=sentinels, optimizer=optimizer)
    if checkpoint.startswith("gs://"):
        raise UserError(
            f"CHECKPOINT={checkpoint} is in Google's store. Copy it and name the copy: gcloud storage cp -r "
            f"{checkpoint} here"
        )
    if optimizer:
        raise UserError("OPTIMIZER=1 is for checkpoints of T5X and Mesh-TensorFlow: transformers keeps none with them.")
    return from_transformers.take(checkpoint, tokenizer=tokenizer, sentinels=sentinels)


def _check_target(target: Path, force: bool) -> None:
    """Raise UserError for a folder that holds something else than what was imported before."""
    directory = RunDirectory(target)
    if not target.exists():
        return
    if not directory.exists() or directory.imported() is None:
        raise UserError(f"{target} is there, and holds no imported checkpoint. Give this one another name: NAME=…")
    if not force:
        raise UserError(
            f"{target} holds an imported checkpoint already. FORCE=1 replaces it; NAME=… puts this beside it."
        )


def _keep_tokenizer(taken: Taken, target: Path) -> None:
    """The tokenizer's files as they are, and the vocabulary's model, which may come from elsewhere."""
    target.mkdir()
    model = taken.vocabulary.model_file
    for file in (*taken.tokenizer_files, *([Path(model)] if model is not None else [])):
        shutil.copyfile(file, target / file.name)


def _recorded(vocabulary: Vocabulary, tokenizer: Path) -> dict[str, Any]:
    """The vocabulary as checkpoints record it, with its model in the run directory."""
    value = vocabulary.to_json()
    if vocabulary.model_file is not None:
        value["model_file"] = str(tokenizer / Path(vocabulary.model_file).name)
    return value


def _save(directory: RunDirectory, taken: Taken, meta: Mapping[str, Any]) -> None:
    """The checkpoint of step 0; without an optimiser, one that has kept nothing."""
    config = CheckpointConfig(asynchronous=False)
    opt_state = {} if taken.opt_state is None else taken.opt_state
    state = TrainState(step=jnp.asarray(taken.step, jnp.int32), params=taken.params, opt_state=opt_state)
    with Checkpointer(directory.checkpoints, config) as checkpointer:
        checkpointer.save(0, state, {}, meta)


def _said(vocabulary: Vocabulary) -> str:
    return f"{vocabulary.kind}, {vocabulary.size:,} ids, sentinels as {vocabulary.sentinels}"
