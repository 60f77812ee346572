"""The gin files of an imported checkpoint: its model, and an experiment to evaluate it with."""

import shlex
from pathlib import Path

from t5xpg.base import paths
from t5xpg.data.tasks.task_names import SPAN_CORRUPTION, VOCABULARIES, task_name
from t5xpg.data.vocab.vocabulary import BYTES, Vocabulary
from t5xpg.models.config import PARTS, T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.model import Model

MODEL_FILE = "model.gin"
TOKENIZER = "tokenizer"  # the folder of the tokenizer's files in the run directory
_SIZES = ("emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers")
_CHOICES = ("mlp_activations", "logits_via_embedding")
_OPTIONAL = ("layer_norms", "logit_softcap", "decoder_start_token_id", "prompt_tokens")


def model_gin(model: Model, vocabulary: Vocabulary, source: str) -> str:
    """A file that defines MODEL, as the files of gin/models do."""
    config = model.config
    architecture = "include 'gin/architectures/decoder_only.gin'\n" if isinstance(model, DecoderOnlyModel) else ""
    default = T5Config(vocab_size=config.vocab_size)
    lines = [f"  {name} = {getattr(config, name)!r}" for name in (*_SIZES, *_CHOICES)]
    lines += [
        f"  {name} = {value!r}" for name in _OPTIONAL if (value := getattr(config, name)) != getattr(default, name)
    ]
    modules, of_parts = {"encoder_decoder"}, []
    for name in PARTS:
        part, usual = getattr(config, name), getattr(default, name)
        kind = f"{type(part).__module__.rpartition('.')[2]}.{type(part).__name__}"
        if type(part) is not type(usual):
            lines.append(f"  {name} = {'None' if part is None else f'@{kind}()'}")
            usual = None
        if part is not None and part != usual:
            modules.add(kind.partition(".")[0])
            of_parts += [
                f"{kind}.{field} = {value!r}"
                for field, value in vars(part).items()
                if value != getattr(usual, field, None)
            ]
    bindings, imports = "\n".join(lines), "\n".join(f"from t5xpg.models import {one}" for one in sorted(modules))
    return f"""\
# The model of {_on_one_line(source)}.
from __gin__ import dynamic_registration

{imports}

include 'gin/models/t5_1_1.gin'
{architecture}
VOCAB_SIZE = {config.vocab_size}
VOCAB_SIZE_MULTIPLE = 1
DROPOUT_RATE = {config.dropout_rate!r}
MEAN_NOISE_SPAN_LENGTH = {20.0 if vocabulary.kind == BYTES else 3.0}

encoder_decoder.T5Config:
{bindings}
""" + "".join(f"\n{line}" for line in of_parts)


def experiment_gin(name: str, folder: Path, model: Model, vocabulary: Vocabulary, source: str) -> tuple[str, str]:
    """The gin file of an experiment that evaluates the checkpoint and answers prompts, and the command to evaluate it.

    folder: the run directory. The command is on one line.
    """
    inputs, targets = (1024, 189) if vocabulary.kind == BYTES else (512, 114)
    lengths = {"inputs": inputs, "targets": targets}
    objective, is_alone = SPAN_CORRUPTION, isinstance(model, DecoderOnlyModel)
    if is_alone:
        objective, lengths = "lm", {"targets": inputs}
    elif not vocabulary.num_sentinels or not vocabulary.counts_down_from_last:  # as span corruption needs them
        objective, lengths = "prefix_lm", dict.fromkeys(lengths, inputs)
    task, evaluation = _task(name, folder, vocabulary, objective)
    prompt = "The <extra_id_0> ruined my sleep" if vocabulary.num_sentinels and not is_alone else "The owl"
    text = f"""\
# {_on_one_line(source)}, as `make import` took it: parameters in checkpoints/0, sizes in {MODEL_FILE}.
#   make infer EXP={name} PROMPT="{prompt}"
#   {evaluation}
# To train on, write an experiment with this model and INITIAL_CHECKPOINT = '{name}'.
from __gin__ import dynamic_registration

from t5xpg.data import spec

include {_path_from_checkout(folder / MODEL_FILE)!r}
include 'gin/optimizers/adafactor.gin'
include 'gin/partitioning/one_device.gin'
include 'gin/runs/pretrain.gin'

MIXTURE_OR_TASK_NAME = '{task}'
TASK_FEATURE_LENGTHS = {lengths}
BATCH_SIZE = 8
TRAIN_STEPS = 1
RANDOM_SEED = 0
# prompts need no blanks, and tasks keep the numbers that they have
spec.DatasetConfig.objective = None
"""
    return text, evaluation


def _task(name: str, folder: Path, vocabulary: Vocabulary, objective: str) -> tuple[str, str]:
    """A task with the vocabulary, and the command that evaluates on it, after the one that makes an unknown task."""
    evaluate = f"make eval EXP={name}"
    vocabularies = [one for one in VOCABULARIES if one.vocabulary == vocabulary and objective in one.objectives]
    if vocabularies:
        return task_name("pydocs", objective, vocabularies[0].suffix), evaluate
    if vocabulary.model_file is None:
        own = f'{evaluate} GIN="--gin.MIXTURE_OR_TASK_NAME=my_task --gin.MODULE_IMPORT=my_tasks"'
        return task_name("pydocs", objective), f"{own} (no task of the table has these ids: write one of your own)"
    file = shlex.quote(_path_from_checkout(folder / TOKENIZER / Path(str(vocabulary.model_file)).name))
    make = f"make vocab DATASET=pydocs TOKENIZER={file} VOCAB={name} EXTRA_IDS={vocabulary.extra_ids}"
    return task_name("pydocs", objective, f"pydocs_{name}"), f"{_on_one_line(make)} && {evaluate}"


def _on_one_line(text: str) -> str:
    """A text for a comment: names of folders may hold anything, and a new line would be a statement."""
    return text.encode("unicode_escape").decode("ascii")


def _path_from_checkout(file: Path) -> str:
    """A file's path relative to the checkout, as the commands print it; its absolute path if it is not in there."""
    file = file.resolve()
    return str(file.relative_to(paths.REPOSITORY) if file.is_relative_to(paths.REPOSITORY) else file)
