"""A folder that `save_pretrained` of transformers wrote, here or on the Hugging Face hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_of
from t5xpg.exchange.formats.weights import files_of, open_weights
from t5xpg.exchange.huggingface import t5gemma
from t5xpg.exchange.huggingface.architectures import CAUSAL, SEQ2SEQ, Exported
from t5xpg.exchange.huggingface.config import config_from_transformers, head_factor_from_transformers
from t5xpg.exchange.huggingface.params import has_own_head, params_from_transformers
from t5xpg.exchange.huggingface.transformers_check import NOT_CHECKED, check_in_transformers
from t5xpg.exchange.huggingface.vocabulary import vocabulary_of_folder
from t5xpg.exchange.import_folders import CONFIG, TOKENIZER_FILES, ImportedCheckpoint, find, require_links_inside
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Model, Params


def read(checkpoint: str, *, tokenizer: str | None, sentinels: str | None) -> ImportedCheckpoint:
    """The checkpoint. Raises UserError where it is not there, not whole, or of a family that cannot be imported."""
    folder = find(checkpoint)
    config_files = (folder.path / name for name in (CONFIG, *TOKENIZER_FILES))
    require_links_inside(folder.path, (*config_files, *files_of(folder.path)))
    settings = read_config(folder.path)
    model, params = model_of(settings, open_weights(folder.path))
    vocabulary = vocabulary_of_folder(folder.path, settings, tokenizer=tokenizer, sentinels=sentinels)
    return ImportedCheckpoint(
        source=folder.source,
        name=folder.name,
        format="huggingface",
        family=str(settings.get("model_type", "t5")),
        model=model,
        params=params,
        vocabulary=vocabulary,
        files=tuple(files_of(folder.path)),
    )


def model_of(settings: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> tuple[Model, Params]:
    """The model of a config.json, and its parameters (numpy float32) from the tensors beside it. Raises UserError where
    transformers would read a setting or a tensor that no model here has."""
    if str(settings.get("model_type")) in (*t5gemma.FAMILIES, *t5gemma.DECODERS):
        config, params = t5gemma.from_transformers(settings, weights)
        return DecoderOnlyModel(config) if t5gemma.is_decoder(settings) else EncoderDecoderModel(config), params
    own_head = has_own_head(weights)
    config = config_from_transformers(settings, own_head)
    params = params_from_transformers(weights, config, head_factor_from_transformers(settings, own_head))
    return EncoderDecoderModel(config), params


def compare(imported: ImportedCheckpoint) -> None:
    """Compare the logits with transformers', where that is installed. Raises UserError where they differ."""
    if imported.format == "gguf" and isinstance(imported.model, EncoderDecoderModel):
        print("not compared: transformers takes a gated ReLU for the MLP of every T5 in a GGUF file", flush=True)
        return
    auto_class = CAUSAL if isinstance(imported.model, DecoderOnlyModel) else SEQ2SEQ
    theirs, file = Exported(auto_class, {"model_type": imported.family}, {}), imported.files[0]
    place = file if imported.format == "gguf" else file.parent
    found = check_in_transformers(place, theirs, imported.model, None, imported.params, imported.vocabulary)
    print(f"compared: {found.text}" if found else NOT_CHECKED, flush=True)


def read_config(folder: Path) -> Mapping[str, Any]:
    """The config.json of a folder. Raises UserError where there is none, or its architecture cannot be imported."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(
            f"{folder} has no {CONFIG}: expected a folder that `save_pretrained` of transformers wrote, or a "
            "checkpoint of T5X or Mesh-TensorFlow."
        )
    settings = json_object_of(path)
    if not settings:
        raise UserError(f"{path} holds no settings: expected an object.")
    architectures = settings.get("architectures")
    kinds = [kind for kind in architectures if isinstance(kind, str)] if isinstance(architectures, list) else []
    endings = ("ForConditionalGeneration", "WithLMHeadModel", "5Model")
    if kinds and not any(kind.endswith(endings) for kind in kinds) and not t5gemma.is_decoder(settings):
        raise UserError(
            f"{folder} is a {kinds[0]}: only encoder-decoders can be imported (T5ForConditionalGeneration, and those "
            "of mT5, umT5 and T5Gemma), and the decoders Gemma 2 and 3 (text)."
        )
    return settings
