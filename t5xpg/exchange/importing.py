"""A checkpoint of another program as a run of ours: parameters, vocabulary, and gin files to use it with."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from t5xpg.base import environment, paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import directory_atomically, sha256_of_file, write_text
from t5xpg.base.paths import shown
from t5xpg.data.tasks.task_names import SPAN_CORRUPTION, VOCABULARIES, task_name
from t5xpg.data.vocab.tokenizers import HUGGING_FACE
from t5xpg.data.vocab.vocabulary import BYTES, Vocabulary
from t5xpg.exchange import from_t5x, from_transformers
from t5xpg.exchange.import_folders import CONFIG
from t5xpg.exchange.imported import Taken
from t5xpg.experiment.config import settings
from t5xpg.experiment.identity import deciding, vocabulary_identity
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from t5xpg.run.directory import RunDirectory

MODEL_FILE = "model.gin"
_SIZES = ("emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers")
_CHOICES = ("mlp_activations", "logits_via_embedding", "relpos_bias_in_every_layer")
_DISTANCES = ("relative_attention_num_buckets", "relative_attention_max_distance")


def model_gin(config: T5Config, vocabulary: Vocabulary, source: str) -> str:
    """Defines MODEL, as the files of gin/models do."""
    is_bytes = vocabulary.kind == BYTES
    default = T5Config(vocab_size=config.vocab_size)
    bound = {name: getattr(config, name) for name in (*_SIZES, *_CHOICES)}
    bound |= {name: value for name in _DISTANCES if (value := getattr(config, name)) != getattr(default, name)}
    return "\n".join(
        [
            f"# The model of {_on_one_line(source)}.",
            "from __gin__ import dynamic_registration",
            "",
            "from t5xpg.models import encoder_decoder",
            "",
            "include 'gin/models/t5_1_1.gin'",
            "",
            f"VOCAB_SIZE = {config.vocab_size}",
            "VOCAB_SIZE_MULTIPLE = 1",
            f"DROPOUT_RATE = {config.dropout_rate!r}",
            f"MEAN_NOISE_SPAN_LENGTH = {20.0 if is_bytes else 3.0}",
            "",
            "encoder_decoder.T5Config:",
            *(f"  {name} = {value!r}" for name, value in bound.items()),
            "",
        ]
    )


def experiment_gin(name: str, folder: Path, vocabulary: Vocabulary, source: str) -> str:
    """An experiment to evaluate and to ask the checkpoint with. folder: where the run lies."""
    inputs, targets = (1024, 189) if vocabulary.kind == BYTES else (512, 114)
    task, how = _task(name, folder, vocabulary)
    prompt = "The <extra_id_0> ruined my sleep" if vocabulary.num_sentinels else "The owl"
    return "\n".join(
        [
            f"# {_on_one_line(source)}, as `make import` took it: parameters in checkpoints/0, sizes in {MODEL_FILE}.",
            f'#   make infer EXP={name} PROMPT="{prompt}"',
            f"#   make eval EXP={name}",
            f"# To train on, write an experiment with this model and INITIAL_CHECKPOINT = '{name}'.",
            "from __gin__ import dynamic_registration",
            "",
            "from t5xpg.data import spec",
            "",
            f"include {_named(folder / MODEL_FILE)!r}",
            "include 'gin/optimizers/adafactor.gin'",
            "include 'gin/partitioning/one_device.gin'",
            "include 'gin/runs/pretrain.gin'",
            "",
            *how,
            f"MIXTURE_OR_TASK_NAME = '{task}'",
            f"TASK_FEATURE_LENGTHS = {{'inputs': {inputs}, 'targets': {targets}}}",
            "BATCH_SIZE = 8",
            "TRAIN_STEPS = 1",
            "RANDOM_SEED = 0",
            "# prompts need no blanks, and tasks keep the numbers that they have",
            "spec.DatasetConfig.objective = None",
            "",
        ]
    )


def _task(name: str, folder: Path, vocabulary: Vocabulary) -> tuple[str, list[str]]:
    """A task with the vocabulary, and what is said of how to get it."""
    known = [one for one in VOCABULARIES if one.vocabulary == vocabulary and SPAN_CORRUPTION in one.objectives]
    if known:
        return task_name("pydocs", SPAN_CORRUPTION, known[0].suffix), []
    if vocabulary.kind == BYTES:
        said = "# No task of the table numbers sentinels as this model does: name one of your own."
        return task_name("pydocs", SPAN_CORRUPTION), [said]
    file = shlex.quote(_named(folder / "tokenizer" / Path(str(vocabulary.model_file)).name))
    extra = "" if vocabulary.kind == HUGGING_FACE else f" EXTRA_IDS={vocabulary.extra_ids}"
    command = _on_one_line(f"make vocab DATASET=pydocs TOKENIZER={file} VOCAB={name}{extra}")
    return task_name("pydocs", SPAN_CORRUPTION, f"pydocs_{name}"), [f"# makes the task: {command}"]


def _on_one_line(text: str) -> str:
    """What stands in a comment: names of folders may hold anything, and a new line would be a statement."""
    return text.encode("unicode_escape").decode("ascii")


def _named(file: Path) -> str:
    """A file by its path in the checkout, as the commands say it, or by its whole path."""
    file = file.resolve()
    return str(file.relative_to(paths.REPOSITORY) if file.is_relative_to(paths.REPOSITORY) else file)


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
