"""What makes a run the run it is: a start that would go on with something else is refused."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from t5xpg.base.seeds import stream_seed
from t5xpg.data.batch import ENC_DEC
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.experiment.config import settings
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.config import BEYOND_T5

if TYPE_CHECKING:
    from t5xpg.experiment.prepare import DataIdentity

# What may differ between two starts of one run: where it runs, how far, what it keeps, how it is asked afterwards.
# What it started from is known by its digest, and not by its name.
FREE_SETTINGS = (
    "total_steps", "model_dir", "mesh", "checkpoints", "decoding", "selection", "initial.checkpoint",
    "initial.same_vocabulary", "teacher.checkpoint", "loggers", "needs", "max_cut_share", "train_dataset.metrics",
    "eval_dataset.metrics", "model.config.scan_layers",
    "model.config.remat_policy",
)  # fmt: skip
# Settings that change nothing at these values: runs from before there were such settings are the same runs.
WITHOUT_EFFECT = {
    "skip_nonfinite": 0,
    "ema_decay": None,
    "train_dataset.objective.whole_words": False,
    "eval_dataset.objective.whole_words": False,
    "infer_eval_period": None,
    "infer_eval_steps": None,
    "initial": None,
    "initial.adapt_decoder": False,
    "adapter": None,
    "teacher": None,
    "optimizer.relpos_bias_factor": 1.0,
    "optimizer.embedding_factor": 1.0,
    "optimizer.width_factor": 1.0,
    "model.inputs_bidirectional_attention": True,
    "model.config.attention_chunk_size": None,
    "model.config.attention_kernel": "dot_product",
    "model.config.relpos_bias_in_every_layer": False,
    **{f"model.config.{name}": default for name, default in BEYOND_T5.items()},
    "train_dataset.feature_converter": ENC_DEC,
    "train_dataset.loss_on_targets_only": True,
    "eval_dataset.feature_converter": ENC_DEC,
    "eval_dataset.loss_on_targets_only": True,
    "train_dataset.length_buckets": None,
    "eval_dataset.length_buckets": None,
}
# What may differ between training and predicting: how precisely is computed, and what happens only in training.
_FREE_MODEL_SETTINGS = (
    ".dtype", ".float32_attention_logits", ".dropout_rate", ".attention_chunk_size",
    ".attention_kernel", ".scan_layers", ".remat_policy",
)  # fmt: skip
_NONE = object()


def run_identity(experiment: Experiment, source: "DataIdentity | None") -> dict[str, Any]:
    """What makes a run the run it is; a start with another identity is refused.

    source: what `prepare.prepare` says of the text; None before that, for all else that makes the run.
    """
    identity = {"seed": experiment.random_seed, "settings": deciding_settings(experiment)}
    return identity if source is None else {**identity, "data": source.data, "cache": source.cache}


def deciding_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings that make a run the run it is, by their names."""
    return deciding(settings(experiment))


def deciding(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that make a run the run it is."""
    return {
        name: value
        for name, value in values.items()
        if not name.startswith(FREE_SETTINGS)
        and name != "random_seed"
        and WITHOUT_EFFECT.get(name.removeprefix("teacher."), _NONE) != value
    }


def decides_predictions(setting: str) -> bool:
    """Whether parameters mean something else with another value of the setting, though they fit."""
    return setting.split(".")[0] in ("model", "adapter") and not setting.endswith(_FREE_MODEL_SETTINGS)


def data_config(config: DatasetConfig, random_seed: int) -> DatasetConfig:
    """The dataset with the seed of its own stream."""
    return dataclasses.replace(config, seed=stream_seed(random_seed, f"data/{config.split}"))


def vocabulary_identity(vocabulary: Vocabulary) -> dict[str, Any]:
    """What the ids mean: the digest of a model file, and not where it lies."""
    return {name: value for name, value in vocabulary.to_json().items() if name != "model_file"}
