"""What T5X's gin files say, and what each of their parameters is called here.

Source: t5x/configs/runs/pretrain.gin and finetune.gin, t5x/examples/t5/t5_1_1 and byt5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t5xpg.config.statements import Reference

# A parameter of T5X by its scope, the class without its module, and its name; a macro is ("", "", NAME).
Key = tuple[str, str, str]


def _data(scope: str, **values: Any) -> dict[Key, Any]:
    return {(scope, "DatasetConfig", name): value for name, value in values.items()}


def _macros(**values: Any) -> dict[Key, Any]:
    return {("", "", name): value for name, value in values.items()}


SCHEDULER = "create_learning_rate_scheduler"
_OF_BOTH = {
    "mixture_or_task_name": Reference("%MIXTURE_OR_TASK_NAME"),
    "task_feature_lengths": Reference("%TASK_FEATURE_LENGTHS"),
    "use_cached": Reference("%USE_CACHED_TASKS"),
    "pack": True,
}
_PRETRAIN: Mapping[Key, Any] = {
    ("", "train", "eval_steps"): 20,
    ("", "train", "eval_period"): 1000,
    **_macros(RANDOM_SEED=None, USE_CACHED_TASKS=True, SHUFFLE_TRAIN_EXAMPLES=True),
    **_data("train", batch_size=128, split="train", **_OF_BOTH),
    **_data("train_eval", batch_size=128, split="validation", **_OF_BOTH),
    ("", "SaveCheckpointConfig", "period"): 1000,
    ("", "SaveCheckpointConfig", "keep"): None,
    ("", SCHEDULER, "factors"): "constant * rsqrt_decay",
    ("", SCHEDULER, "base_learning_rate"): 1.0,
    ("", SCHEDULER, "warmup_steps"): 10000,
}
_FINETUNE: Mapping[Key, Any] = {
    **_PRETRAIN,
    **_macros(DROPOUT_RATE=0.1, BATCH_SIZE=128, EVAL_STEPS=20, EVAL_PERIOD=1000),
    ("", "train", "eval_steps"): Reference("%EVAL_STEPS"),
    ("", "train", "eval_period"): Reference("%EVAL_PERIOD"),
    ("", "train", "infer_eval_dataset_cfg"): Reference("@infer_eval/utils.DatasetConfig()"),
    ("train", "DatasetConfig", "batch_size"): Reference("%BATCH_SIZE"),
    ("train_eval", "DatasetConfig", "batch_size"): Reference("%BATCH_SIZE"),
    ("", "SaveCheckpointConfig", "period"): 5000,
    ("", SCHEDULER, "factors"): "constant",
    ("", SCHEDULER, "base_learning_rate"): 0.001,
    ("", SCHEDULER, "warmup_steps"): 1000,
}
RUNS = {"pretrain": _PRETRAIN, "finetune": _FINETUNE}
MODEL: Mapping[Key, Any] = {
    **_macros(Z_LOSS=0.0001, LABEL_SMOOTHING=0.0, LOSS_NORMALIZING_FACTOR=None),
    ("", "T5Config", "dtype"): "bfloat16",
}

# Ours of T5X's: a macro, or a parameter where there is a dot.
_SAME = (
    "MIXTURE_OR_TASK_NAME", "TASK_FEATURE_LENGTHS", "TRAIN_STEPS", "USE_CACHED_TASKS", "SHUFFLE_TRAIN_EXAMPLES",
    "RANDOM_SEED", "DROPOUT_RATE", "BATCH_SIZE", "EVAL_STEPS", "EVAL_PERIOD", "Z_LOSS", "LABEL_SMOOTHING",
    "LOSS_NORMALIZING_FACTOR",
)  # fmt: skip
_WIDTHS = (
    "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers", "mlp_activations",
    "logits_via_embedding", "float32_attention_logits",
)  # fmt: skip
_ADAFACTOR = {
    "decay_rate": "decay_rate", "step_offset": "step_offset", "clipping_threshold": "clipping_threshold",
    "multiply_by_parameter_scale": "multiply_by_parameter_scale", "factored": "factored", "epsilon1": "epsilon1",
    "epsilon2": "epsilon2", "min_dim_size_to_factor": "min_dim_size_to_factor", "beta1": "momentum",
    "weight_decay_rate": "weight_decay", "weight_decay_rate_lr_exponent": "weight_decay_lr_exponent",
    "global_norm_clip_threshold": "max_gradient_norm",
}  # fmt: skip
OURS: Mapping[Key, str] = {
    **{("", "", name): name for name in _SAME},
    ("", "train", "total_steps"): "TRAIN_STEPS",
    ("", "train", "eval_steps"): "EVAL_STEPS",
    ("", "train", "eval_period"): "EVAL_PERIOD",
    ("", "train", "stats_period"): "STATS_PERIOD",
    ("", "train", "random_seed"): "RANDOM_SEED",
    ("train", "DatasetConfig", "mixture_or_task_name"): "MIXTURE_OR_TASK_NAME",
    ("train", "DatasetConfig", "task_feature_lengths"): "TASK_FEATURE_LENGTHS",
    ("train", "DatasetConfig", "batch_size"): "BATCH_SIZE",
    ("train", "DatasetConfig", "use_cached"): "USE_CACHED_TASKS",
    ("train", "DatasetConfig", "shuffle"): "SHUFFLE_TRAIN_EXAMPLES",
    ("train", "DatasetConfig", "pack"): "PACK",
    ("train", "DatasetConfig", "split"): "train/spec.DatasetConfig.split",
    **{
        ("train_eval", "DatasetConfig", name): f"train_eval/spec.DatasetConfig.{name}"
        for name in ("mixture_or_task_name", "task_feature_lengths", "batch_size", "use_cached", "pack", "split")
    },
    ("", "SaveCheckpointConfig", "period"): "CHECKPOINT_PERIOD",
    ("", "SaveCheckpointConfig", "keep"): "KEEP_CHECKPOINTS",
    ("", "Trainer", "num_microbatches"): "NUM_MICROBATCHES",
    ("", "EncoderDecoderModel", "z_loss"): "Z_LOSS",
    ("", "EncoderDecoderModel", "label_smoothing"): "LABEL_SMOOTHING",
    ("", "EncoderDecoderModel", "loss_normalizing_factor"): "LOSS_NORMALIZING_FACTOR",
    ("", "EncoderDecoderModel.predict_batch_with_aux", "num_decodes"): "decoding.DecodingConfig.num_decodes",
    ("", "T5Config", "dropout_rate"): "DROPOUT_RATE",
    ("", "T5Config", "dtype"): "DTYPE",
    ("", "T5Config", "vocab_size"): "VOCAB_SIZE",
    ("", "T5Config", "scan_layers"): "SCAN_LAYERS",
    ("", "T5Config", "remat_policy"): "REMAT_POLICY",
    **{("", "T5Config", name): f"encoder_decoder.T5Config.{name}" for name in _WIDTHS},
    **{("", "Adafactor", name): f"optimizers.Adafactor.{ours}" for name, ours in _ADAFACTOR.items()},
    ("", "standard_logical_axis_rules", "activation_partitioning_dims"): (
        "partitioning.standard_logical_axis_rules.activation_partitioning_dims"
    ),
    ("", "standard_logical_axis_rules", "parameter_partitioning_dims"): (
        "partitioning.standard_logical_axis_rules.parameter_partitioning_dims"
    ),
}

# What nobody needs to set here, and why.
_DATASET, _PARTS = "the experiment says it once, for training and validation", "the included files say it"
ANY = "*"
UNNEEDED: Mapping[Key, str] = {
    ("", "", "MODEL"): _PARTS,
    ("", "", "MODEL_DIR"): "RUN= of `make train`",
    ("", "", "VOCABULARY"): "the vocabulary is the task's",
    ("", "", "USE_HARDWARE_RNG"): "random numbers are those of the seed on every device",
    ("", "", "EVALUATOR_USE_MEMORY_CACHE"): "the evaluator's examples are kept in memory",
    ("", "", "JSON_WRITE_N_RESULTS"): "`make eval` writes all predictions",
    ("", "train", "use_hardware_rng"): "random numbers are those of the seed on every device",
    ("", "train", "run_eval_before_training"): "every run is measured at its step 0",
    ("", "train", "actions"): "a loss that is not finite ends every run (SKIP_NONFINITE)",
    ("", "TerminateOnNanAction", ANY): "a loss that is not finite ends every run (SKIP_NONFINITE)",
    ("train", "DatasetConfig", "use_custom_packing_ops"): "there is one way to pack",
    ("train_eval", "DatasetConfig", "use_custom_packing_ops"): "there is one way to pack",
    ("", "train", "model_dir"): "RUN= of `make train`",
    **{
        ("", "train", name): _PARTS
        for name in (
            "model", "train_dataset_cfg", "train_eval_dataset_cfg", "checkpoint_cfg", "partitioner", "trainer_cls",
            "summarize_config_fn", "inference_evaluator_cls",
        )
    },
    ("train", "DatasetConfig", "seed"): "RANDOM_SEED decides the order of the data, too",
    ("train_eval", "DatasetConfig", "seed"): "RANDOM_SEED decides the order of the data, too",
    ("train_eval", "DatasetConfig", "shuffle"): "validation is not shuffled",
    ("infer_eval", "DatasetConfig", ANY): "metrics of tasks are computed on the validation dataset",
    ("", "Evaluator", ANY): "metrics go to metrics.jsonl and TensorBoard",
    ("", "JSONLogger", ANY): "`make eval` writes all predictions",
    ("", "SentencePieceVocabulary", ANY): "the vocabulary is the task's",
    ("", "ByteVocabulary", ANY): "the vocabulary is the task's",
    ("", "CheckpointConfig", ANY): _PARTS,
    ("", "SaveCheckpointConfig", "save_dataset"): "the position in the data is always kept",
    ("", "SaveCheckpointConfig", "dtype"): "parameters are kept in float32",
    ("", "RestoreCheckpointConfig", "mode"): "INITIAL_CHECKPOINT names the step",
    ("", "RestoreCheckpointConfig", "dtype"): "parameters are kept in float32",
    ("", "Trainer", "learning_rate_fn"): "SCHEDULE",
    ("", "Trainer", "weight_metrics_computer"): "norms of weights and gradients are recorded with the steps",
    **{("", "EncoderDecoderModel", name): _PARTS for name in ("module", "input_vocabulary", "output_vocabulary",
                                                              "optimizer_def")},
    ("", "Transformer", "config"): _PARTS,
    ("", "Adafactor", "logical_factor_rules"): "for arrays of two axes T5X's rules are those of the sizes",
}  # fmt: skip
PARTITIONERS = ("PjitPartitioner", "ModelBasedPjitPartitioner")
FACTORS = {
    "constant * rsqrt_decay": ("@schedules.InverseSquareRoot()", False),
    "constant * linear_warmup * rsqrt_decay": ("@schedules.InverseSquareRoot()", True),
    "constant": ("@schedules.Constant()", False),
    "constant * linear_warmup": ("@schedules.Constant()", True),
}
ROWS = {"t5_1_1": 32128, "byt5": 384}  # of the embedding, as gin/models/ has them
REMAT = {"none": "none", "minimal": "dots", "full": "full"}
