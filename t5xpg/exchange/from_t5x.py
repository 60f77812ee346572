"""A checkpoint of T5X or of Mesh-TensorFlow, recognised by its files.

Such checkpoints contain neither the activations of their MLPs nor the meaning of their ids; docs/interop.md lists the
files that are searched for both.
"""

import os
import re
from collections.abc import Mapping
from glob import escape
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax

from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_of
from t5xpg.data.vocab.vocabulary import BYTES, Vocabulary
from t5xpg.exchange.formats.t5x_files import TENSORFLOW, open_checkpoint
from t5xpg.exchange.huggingface.vocabulary import vocabulary_of_folder
from t5xpg.exchange.import_folders import (
    TOKENIZER_FILES,
    ImportedCheckpoint,
    require_links_inside,
    run_name,
    tokenizer_files,
)
from t5xpg.exchange.t5x.adafactor import accumulators_of
from t5xpg.exchange.t5x.networks import RECORD
from t5xpg.exchange.t5x.params import config_of, params_of, state_of
from t5xpg.models.config import ACTIVATIONS, BEYOND_T5, T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Params
from t5xpg.optim.optimizers import Adafactor
from t5xpg.optim.schedules import Constant

_GIN_FILES = ("config.gin", "operative_config.gin", "operative.gin")
_VALUE = r"\s*=[\s\\]*([\[(][^\])]*[\])]|[^\s#]*)"
# what no array shows; of numbers, how the one that all of T5 has is written
_USUAL: Mapping[str, tuple[str, ...]] = {"max_distance": ("128",), "epsilon": ("1e-6", "1e-06")}
_NAMES = rf"mlp_activations|DenseReluDense\.activation|{'|'.join(_USUAL)}"
_SETTINGS = re.compile(rf"^[^#\n]*({_NAMES}){_VALUE}", re.MULTILINE)
_MACROS = re.compile(rf"^(\w+){_VALUE}", re.MULTILINE)
_PART = re.compile(r"state|checkpoint(_\d+)?|model\.ckpt-.*|checkpoints")  # of a run's path, below its name
_BYTE_ROWS = range(259, 513)
_PIECES = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"


def read(checkpoint: str, *, tokenizer: str | None, sentinels: str | None, optimizer: bool) -> ImportedCheckpoint:
    """The checkpoint, with the state of its Adafactor if `optimizer` is true.

    Raises UserError if it is not whole, or no encoder-decoder of T5's families.
    """
    path = Path(os.path.expanduser(checkpoint)).resolve()
    stored = open_checkpoint(path)
    folders = folders_of(stored.path if stored.path.is_dir() else stored.path.parent)
    metadata_files = (folder / name for folder in folders for name in (*_GIN_FILES, RECORD, *TOKENIZER_FILES))
    array_files = (
        stored.path.rglob("*") if stored.path.is_dir() else stored.path.parent.glob(f"{escape(stored.path.name)}.*")
    )
    require_links_inside(folders[-1], (*metadata_files, *array_files))
    record: Mapping[str, Any] = next(filter(None, (json_object_of(folder / RECORD) for folder in folders)), {})
    state = state_of(stored)
    config = config_of(state, _activations(folders, record))
    # sizes are those of the arrays, whose names and shapes are compared below
    values = config.recorded()
    shown = {name: values[name] for name in ("relative_attention_max_distance", *BEYOND_T5)}
    for name, theirs in record.get("model", {}).items():
        if theirs != shown.get(name, theirs):
            raise UserError(
                f"{name} is {theirs!r} in the {RECORD} of {folders[0]}, and {shown[name]!r} in all of T5X's."
            )
    vocabulary = _vocabulary(folders, config, record, tokenizer, sentinels)
    params = params_of(state, config)
    step, opt_state = 0, None
    if optimizer:
        step, trees = accumulators_of(state, params)
        opt_state = _optax_state(config, params, step, trees)
    return ImportedCheckpoint(
        source=str(stored.path),
        name=run_name(folders_of(path)[-1].name),
        format=stored.kind,
        family="Mesh-TensorFlow" if stored.kind == TENSORFLOW else "T5X",
        model=EncoderDecoderModel(config),
        params=params,
        vocabulary=vocabulary,
        files=stored.files,
        step=step,
        opt_state=opt_state,
    )


def folders_of(first: Path) -> list[Path]:
    """The folders that may hold further files of a checkpoint: from its own path up to the folder of its run."""
    folders = [first]
    while _PART.fullmatch(folders[-1].name):
        folders.append(folders[-1].parent)
    return folders


def _activations(folders: list[Path], record: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The activations of the MLP, where a file names them. Raises UserError where it names none that are known."""
    try:
        if recorded := record.get("model", {}).get("mlp_activations"):
            return tuple(recorded)
    except (AttributeError, TypeError):
        raise UserError(
            f"The {RECORD} of {folders[0]} describes no model: copy it again, or remove it (docs/interop.md)."
        ) from None
    for file in (folder / name for folder in folders for name in _GIN_FILES if (folder / name).is_file()):
        text, choices = file.read_text(encoding="utf-8", errors="replace"), set()
        macros: dict[str, str] = {f"%{name}": value for name, value in _MACROS.findall(text)}
        for match in _SETTINGS.finditer(text):
            value = macros.get(match[2], match[2])
            if usual := _USUAL.get(match[1]):
                is_good, expected = value in usual, f"{usual[0]}: no checkpoint with another one can be imported"
            else:
                choices.add(names := tuple(re.findall(r"\w+", value)))
                is_good = len(choices) == 1 and names != () and set(names) <= set(ACTIVATIONS)
                expected = (
                    f"one choice of {', '.join(ACTIVATIONS)} in the whole file: write that of the checkpoint there, as "
                    "in mlp_activations = ('gelu', 'linear')"
                )
            if not is_good:
                line = text.count("\n", 0, match.start()) + 1
                raise UserError(f"{file}, line {line}: {' '.join(match[0].split())}. Expected {expected}.")
        if choices:
            return choices.pop()
    return None


def _vocabulary(
    folders: list[Path], config: T5Config, record: Mapping[str, Any], tokenizer: str | None, sentinels: str | None
) -> Vocabulary:
    rows = {"vocab_size": config.vocab_size}
    if tokenizer is None:
        if sentinels is None and "vocabulary" in record:
            return _recorded_vocabulary(record["vocabulary"], folders, rows)
        for folder in folders:
            if tokenizer_files(folder):
                return vocabulary_of_folder(folder, rows, sentinels=sentinels)
        if config.vocab_size not in _BYTE_ROWS:
            raise UserError(
                f"{folders[0]} does not say what its {config.vocab_size:,} ids mean. Name the SentencePiece model that "
                f"it was trained with: TOKENIZER=path (T5's is a copy of {_PIECES}), or TOKENIZER=bytes."
            )
        tokenizer = BYTES
    return vocabulary_of_folder(folders[0], rows, tokenizer=tokenizer, sentinels=sentinels)


def _recorded_vocabulary(value: Mapping[str, Any], folders: list[Path], rows: Mapping[str, int]) -> Vocabulary:
    model = value.get("model_file") if isinstance(value, Mapping) else None
    if isinstance(model, str):
        # a run of ENGINE=t5x names the file where it lies, an export takes a copy along
        candidates = [*(folder / Path(model).name for folder in folders), Path(model)]
        file = next((file for file in candidates if file.is_file()), candidates[0])
        value = {**value, "model_file": str(file)}
    vocabulary = Vocabulary.from_json(value)
    if vocabulary.size > rows["vocab_size"]:
        raise UserError(f"{RECORD} says {vocabulary.size:,} ids, and the model has {rows['vocab_size']:,}.")
    return vocabulary


def _optax_state(config: T5Config, params: Params, updates: int, trees: Mapping[str, Params]) -> Any:
    """The state of the optimiser of `gin/optimizers/adafactor.gin`, after `updates`, with accumulators by slot."""
    empty = Adafactor(Constant(1.0)).transformation(EncoderDecoderModel(config).logical_axes()).init(params)
    step = jnp.asarray(updates, jnp.int32)

    def fill(node: Any) -> Any:
        if isinstance(node, optax.FactoredState):
            return node._replace(count=step, **trees)
        return node._replace(count=step) if "count" in getattr(node, "_fields", ()) else node

    return tuple(fill(node) for node in empty)
