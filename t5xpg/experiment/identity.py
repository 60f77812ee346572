"""The identity of a run: the settings and data that must stay the same between its starts."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from t5xpg.base.seeds import stream_seed
from t5xpg.data.batch import ENC_DEC
from t5xpg.data.spec import DatasetConfig
from t5xpg.experiment.config import settings
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.config import BEYOND_T5

if TYPE_CHECKING:
    from t5xpg.experiment.recipe import DataIdentity

# Settings that may differ between two starts of one run: its devices, length, checkpoints, loggers and predictions.
# The checkpoint that a run starts from is identified by its digest, not by its name.
FREE_SETTINGS = (
    "total_steps", "model_dir", "mesh", "checkpoints", "decoding", "selection", "initial.checkpoint",
    "initial.same_vocabulary", "teacher.checkpoint", "loggers", "needs", "max_cut_share", "train_dataset.metrics",
    "eval_dataset.metrics", "infer_eval_dataset.metrics", "model.config.scan_layers",
    "model.config.remat_policy", "teacher.model.config.scan_layers", "teacher.model.config.remat_policy",
)  # fmt: skip
# Settings without effect at these values. They are left out: published runs are from before they existed.
WITHOUT_EFFECT = {
    "skip_nonfinite": 0, "ema_decay": None, "train_dataset.objective.whole_words": False,
    "eval_dataset.objective.whole_words": False, "infer_eval_period": None, "infer_eval_steps": None,
    "infer_eval_dataset": None, "initial": None, "initial.adapt_decoder": False, "initial.cross_attention_factor": 1.0,
    "adapter": None, "teacher": None,
    "optimizer.relpos_bias_factor": 1.0, "optimizer.embedding_factor": 1.0, "optimizer.width_factor": 1.0,
    "model.inputs_bidirectional_attention": True, "model.config.attention_chunk_size": None,
    "model.config.relpos_bias_in_every_layer": False,
    **{f"model.config.{name}": default for name, default in BEYOND_T5.items()},
    "train_dataset.feature_converter": ENC_DEC, "train_dataset.loss_on_targets_only": True,
    "eval_dataset.feature_converter": ENC_DEC, "eval_dataset.loss_on_targets_only": True,
    "train_dataset.length_buckets": None, "eval_dataset.length_buckets": None,
}  # fmt: skip
# Model settings that may differ between training and predicting: precision, and settings of training alone.
_FREE_MODEL_SETTINGS = (
    ".dtype", ".float32_attention_logits", ".dropout_rate", ".attention_chunk_size",
    ".scan_layers", ".remat_policy",
)  # fmt: skip
_NONE = object()


def run_identity(experiment: Experiment, source: "DataIdentity | None") -> dict[str, Any]:
    """The identity of a run; a start with another identity is refused.

    source: the identity of the data, from `Recipe.make`; None if it is not known yet: it is left out.
    """
    identity = {"seed": experiment.random_seed, "settings": identity_settings(experiment)}
    return identity if source is None else {**identity, "data": source.data, "cache": source.cache}


def identity_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings that belong to the identity of a run, by their names."""
    return without_free_settings(settings(experiment))


def without_free_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that belong to the identity of a run: those not in FREE_SETTINGS, and not WITHOUT_EFFECT."""
    return {
        name: value
        for name, value in values.items()
        if not name.startswith(FREE_SETTINGS)
        and name != "random_seed"
        and WITHOUT_EFFECT.get(name.removeprefix("teacher."), _NONE) != value
    }


def decides_predictions(setting: str) -> bool:
    """True if changing this setting changes the predictions of given parameters, even where they still fit."""
    return setting.split(".")[0] in ("model", "adapter") and not setting.endswith(_FREE_MODEL_SETTINGS)


def data_config(config: DatasetConfig, random_seed: int) -> DatasetConfig:
    """The dataset with the seed of its own stream."""
    return dataclasses.replace(config, seed=stream_seed(random_seed, f"data/{config.split}"))
