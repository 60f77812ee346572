"""Imports a checkpoint of another program as a run: parameters, vocabulary, and gin files to use it with."""

import dataclasses
import os
import tempfile
from pathlib import Path

import jax.numpy as jnp

from t5xpg.base import environment, paths, stores
from t5xpg.base.errors import UserError
from t5xpg.base.files import copy_file, directory_atomically, sha256_of_file, write_text
from t5xpg.base.paths import shown
from t5xpg.exchange import from_gguf, from_t5x, from_transformers
from t5xpg.exchange.formats.t5x_files import holds_checkpoint
from t5xpg.exchange.import_folders import CONFIG, GGUF, ImportedCheckpoint, tokenizer_files
from t5xpg.exchange.imported_gin import MODEL_FILE, TOKENIZER, experiment_gin, model_gin
from t5xpg.experiment.config import settings
from t5xpg.experiment.identity import without_free_settings
from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from t5xpg.run.directory import RunDirectory


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

    checkpoint: a folder of transformers, T5X or Mesh-TensorFlow, a GGUF file, or a name on the Hugging Face hub.
    tokenizer, sentinels: see `vocabulary_of_folder`. optimizer: import Adafactor, too. force: replace what was there.
    It appears whole or not at all. Raises UserError for a missing, damaged or unknown checkpoint, or a name in use.
    """
    with tempfile.TemporaryDirectory() as scratch:
        imported = _read(checkpoint, Path(scratch), tokenizer=tokenizer, sentinels=sentinels, optimizer=optimizer)
        return _import(imported, runs, name, force)


def _import(imported: ImportedCheckpoint, runs: Path, name: str | None, force: bool) -> Path:
    """Make the run directory of a checkpoint that was read; returns it."""
    name = imported.name if name is None else name
    if not name.isidentifier():
        raise UserError(f"NAME={name}: expected letters, digits and underscores, no digit first, as in byt5_small.")
    if name in paths.experiments():
        raise UserError(f"NAME={name} is an experiment, whose runs are called so. Give the checkpoint another name.")
    target = (runs / name).absolute()
    stores.pull(target)
    _check_target(target, force)
    if imported.format in ("huggingface", "gguf"):
        from_transformers.compare(imported)
    with directory_atomically(target) as temporary:
        evaluation = _write_run(temporary, target, name, imported)
    vocabulary = imported.vocabulary
    if vocabulary.model_file is not None:
        vocabulary = dataclasses.replace(
            vocabulary, model_file=shown(target / TOKENIZER / Path(vocabulary.model_file).name)
        )
    facts = f"{imported.family}, {imported.model.num_params:,} parameters, {vocabulary.summary}"
    optimizer_note = f", Adafactor after step {imported.step:,}" if imported.opt_state is not None else ""
    print(f"{imported.source}: {facts}{optimizer_note}")
    print(f"run: {shown(target)}; make infer EXP={name} PROMPT=…, {evaluation}", flush=True)
    stores.push(target)
    return target


def _write_run(temporary: Path, target: Path, name: str, imported: ImportedCheckpoint) -> str:
    """Write the run into `temporary`, which will be moved to `target`; returns the command that evaluates it."""
    vocabulary, model = imported.vocabulary, imported.model
    digests = {file.name: sha256_of_file(file) for file in imported.files}
    identity = {
        "imported": {"source": imported.source, "format": imported.format, "sha256": digests},
        "settings": without_free_settings(settings(model, "model")),
        "vocabulary": vocabulary.identity,
    }
    directory = RunDirectory(temporary)
    facts = {"num_params": model.num_params}
    directory.start(name, identity, step=0, command=environment.command_line(), facts=facts)
    directory.copy_vocabulary_model(vocabulary.model_file)
    vocabulary_record = vocabulary.to_json()
    if vocabulary.model_file is not None:
        file = Path(vocabulary.model_file)
        (temporary / TOKENIZER).mkdir()
        for beside in {*tokenizer_files(file.parent), file}:
            copy_file(beside, temporary / TOKENIZER / beside.name)
        vocabulary_record["model_file"] = str(target / TOKENIZER / file.name)
    write_text(temporary / MODEL_FILE, model_gin(model, vocabulary, imported.source))
    gin, evaluation = experiment_gin(name, target, model, vocabulary, imported.source)
    write_text(temporary / f"{name}.gin", gin)
    state = TrainState(
        step=jnp.asarray(imported.step, jnp.int32),
        params=imported.params,
        opt_state={} if imported.opt_state is None else imported.opt_state,  # without an optimiser: no arrays
    )
    meta = {"experiment": name, "vocabulary": vocabulary_record, "settings": settings(model)}
    with Checkpointer(directory.checkpoints, CheckpointConfig(asynchronous=False)) as checkpointer:
        checkpointer.save(0, state, {}, meta)
    return evaluation


def _read(
    checkpoint: str, scratch: Path, *, tokenizer: str | None, sentinels: str | None, optimizer: bool
) -> ImportedCheckpoint:
    """Read a checkpoint. A folder with a config.json counts as one of transformers, whatever else it holds.

    scratch: a folder for the files of a tokenizer that is no file of its own.
    """
    path = Path(os.path.expanduser(checkpoint))
    if checkpoint and holds_checkpoint(path) and not (path / CONFIG).is_file():
        return from_t5x.read(checkpoint, tokenizer=tokenizer, sentinels=sentinels, optimizer=optimizer)
    if checkpoint.startswith("gs://"):
        raise UserError(
            f"CHECKPOINT={checkpoint} is in Google's store. Copy it and name the copy: gcloud storage cp -r "
            f"{checkpoint} here"
        )
    if optimizer:
        raise UserError("OPTIMIZER=1 is for checkpoints of T5X and Mesh-TensorFlow: others keep none with them.")
    if path.suffix == GGUF and path.is_file():
        return from_gguf.read(path, scratch, tokenizer=tokenizer, sentinels=sentinels)
    return from_transformers.read(checkpoint, tokenizer=tokenizer, sentinels=sentinels)


def _check_target(target: Path, force: bool) -> None:
    """Raise UserError for a folder that is no imported checkpoint, and without `force` also for one that is."""
    directory = RunDirectory(target)
    if not target.exists():
        directory.check(target.name, {})
        return
    if not directory.exists() or directory.imported() is None:
        raise UserError(f"{target} is there, and holds no imported checkpoint. Give this one another name: NAME=…")
    if not force:
        raise UserError(
            f"{target} holds an imported checkpoint already. FORCE=1 replaces it; NAME=… puts this beside it."
        )
