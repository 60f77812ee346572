"""Tables of the meaning of T5X's gin files here: for what converts them, and for messages about T5X's names.

A key is a parameter of T5X: its scope, the class or function without its module, and its name, as in
`train/DatasetConfig.batch_size`; a macro is its name alone.
"""

from collections.abc import Mapping
from typing import Any

from t5xpg.experiment.gin_statements import GinReference

CONVERT = " It is T5X's: `make convert-gin FILE=…` makes an experiment of T5X's gin files."
SCHEDULER = "create_learning_rate_scheduler"

# What T5X's own files of runs say.
_DATASET: Mapping[str, Any] = {
    "mixture_or_task_name": GinReference("%MIXTURE_OR_TASK_NAME"),
    "task_feature_lengths": GinReference("%TASK_FEATURE_LENGTHS"),
    "batch_size": GinReference("%BATCH_SIZE"),
    "use_cached": GinReference("%USE_CACHED_TASKS"),
    "pack": True,
    "module": GinReference("%MIXTURE_OR_TASK_MODULE"),
}
_PRETRAIN: Mapping[str, Any] = {
    "BATCH_SIZE": 128, "USE_CACHED_TASKS": True, "MIXTURE_OR_TASK_MODULE": None, "SHUFFLE_TRAIN_EXAMPLES": True,
    "RANDOM_SEED": None, "TRAIN_STEPS_RELATIVE": None, "train.total_steps": GinReference("%TRAIN_STEPS"),
    "train.relative_steps": GinReference("%TRAIN_STEPS_RELATIVE"), "train.eval_steps": 20, "train.eval_period": 1000,
    "train.random_seed": GinReference("%RANDOM_SEED"), "train.infer_eval_dataset_cfg": None,
    **{f"{scope}/DatasetConfig.{name}": _DATASET[name] for scope in ("train", "train_eval") for name in _DATASET},
    "train/DatasetConfig.split": "train", "train/DatasetConfig.shuffle": GinReference("%SHUFFLE_TRAIN_EXAMPLES"),
    "train_eval/DatasetConfig.split": "validation", "SaveCheckpointConfig.period": 1000,
    "SaveCheckpointConfig.keep": None, "Trainer.num_microbatches": None,
    f"{SCHEDULER}.factors": "constant * rsqrt_decay", f"{SCHEDULER}.base_learning_rate": 1.0,
    f"{SCHEDULER}.warmup_steps": 10000,
}  # fmt: skip
_FINETUNE: Mapping[str, Any] = {
    **{name: value for name, value in _PRETRAIN.items() if name != "SHUFFLE_TRAIN_EXAMPLES"},
    "DROPOUT_RATE": 0.1, "EVAL_STEPS": 20, "EVAL_PERIOD": 1000, "EVALUATOR_NUM_EXAMPLES": None,
    "Evaluator.num_examples": GinReference("%EVALUATOR_NUM_EXAMPLES"), "train.eval_steps": GinReference("%EVAL_STEPS"),
    "train.eval_period": GinReference("%EVAL_PERIOD"),
    "train.infer_eval_dataset_cfg": GinReference("@infer_eval/utils.DatasetConfig()"),
    "train/DatasetConfig.shuffle": True, "RestoreCheckpointConfig.path": GinReference("%INITIAL_CHECKPOINT_PATH"),
    "SaveCheckpointConfig.period": 5000, f"{SCHEDULER}.factors": "constant",
    f"{SCHEDULER}.base_learning_rate": 0.001, f"{SCHEDULER}.warmup_steps": 1000,
}  # fmt: skip
RUNS = {"pretrain": _PRETRAIN, "finetune": _FINETUNE}
# What its files of models say.
_MODEL: Mapping[str, Any] = {
    "Z_LOSS": 0.0001, "LABEL_SMOOTHING": 0.0, "LOSS_NORMALIZING_FACTOR": None,
    "DROPOUT_RATE": GinReference("%gin.REQUIRED"), "MODEL": GinReference("@models.EncoderDecoderModel()"),
    "OPTIMIZER": GinReference("@adafactor.Adafactor()"),
    "EncoderDecoderModel.optimizer_def": GinReference("%OPTIMIZER"),
    "EncoderDecoderModel.z_loss": GinReference("%Z_LOSS"),
    "EncoderDecoderModel.label_smoothing": GinReference("%LABEL_SMOOTHING"),
    "EncoderDecoderModel.loss_normalizing_factor": GinReference("%LOSS_NORMALIZING_FACTOR"),
    "T5Config.dtype": "bfloat16", "T5Config.dropout_rate": GinReference("%DROPOUT_RATE"),
    "T5Config.mlp_activations": ("gelu", "linear"), "T5Config.logits_via_embedding": False,
}  # fmt: skip
_SCALABLE = {"T5Config.scan_layers": True, "T5Config.remat_policy": "minimal"}
_WIDTHS = ("emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers")
_TINY = (8, 4, 3, 16, 2, 2)
_SIZES = {
    "t5_1_1": {
        "tiny": _TINY,
        "small": (512, 6, 64, 1024, 8, 8),
        "base": (768, 12, 64, 2048, 12, 12),
        "large": (1024, 16, 64, 2816, 24, 24),
        "xl": (2048, 32, 64, 5120, 24, 24),
        "xxl": (4096, 64, 64, 10240, 24, 24),
    },
    "byt5": {
        "small": (1472, 6, 64, 3584, 12, 4),
        "base": (1536, 12, 64, 3968, 18, 6),
        "large": (1536, 16, 64, 3840, 36, 12),
        "xl": (2560, 32, 64, 6720, 36, 12),
        "xxl": (4672, 64, 64, 12352, 36, 12),
    },
}


def model(family: str, size: str, *, scalable: bool) -> tuple[str, dict[str, Any]] | None:
    """Our model that equals one of T5X's model files, and what that file sets; None where T5X has no such file.

    The values decide, not the name: T5X's tiny models are smaller than those here, and its byt5/tiny is a t5_1_1.
    """
    family = "t5_1_1" if size == "tiny" else family
    widths = _SIZES.get(family, {}).get(size)
    if widths is None:
        return None
    values = {f"T5Config.{name}": value for name, value in zip(_WIDTHS, widths, strict=True)}
    return f"{family}_{size}", {
        **_MODEL, "T5Config.vocab_size": ROWS[family], **values, **(_SCALABLE if scalable else {})
    }  # fmt: skip


# T5X's parameter: ours, which is a macro, or with a dot a parameter. T5X's macros count where a parameter names them.
_SAME_IN_CONFIG = (
    "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers", "mlp_activations",
    "logits_via_embedding", "float32_attention_logits",
)  # fmt: skip
_SAME_IN_ADAFACTOR = (
    "decay_rate", "step_offset", "clipping_threshold", "multiply_by_parameter_scale", "factored", "epsilon1",
    "epsilon2", "min_dim_size_to_factor",
)  # fmt: skip
_DATASET_MACROS = {name: "PACK" if one is True else one.text[1:] for name, one in _DATASET.items() if name != "module"}
_AXIS_RULES = "standard_logical_axis_rules"
OURS: Mapping[str, str] = {
    **{f"train/DatasetConfig.{name}": macro for name, macro in _DATASET_MACROS.items()},
    **{f"train_eval/DatasetConfig.{name}": f"train_eval/spec.DatasetConfig.{name}" for name in _DATASET_MACROS},
    **{f"T5Config.{name}": f"encoder_decoder.T5Config.{name}" for name in _SAME_IN_CONFIG},
    **{f"Adafactor.{name}": f"optimizers.Adafactor.{name}" for name in _SAME_IN_ADAFACTOR},
    # the first of these are carried over by rules of `convert_gin`
    "train/DatasetConfig.module": "MODULE_IMPORT", "train.relative_steps": "TRAIN_STEPS",
    "train.infer_eval_dataset_cfg": "INFER_EVAL_PERIOD", "RestoreCheckpointConfig.path": "INITIAL_CHECKPOINT",
    f"{SCHEDULER}.factors": "SCHEDULE", f"{SCHEDULER}.base_learning_rate": "LEARNING_RATE",
    f"{SCHEDULER}.warmup_steps": "WARMUP_STEPS", "PjitPartitioner.num_partitions": "MODEL_PARALLEL",
    "ModelBasedPjitPartitioner.num_partitions": "MODEL_PARALLEL", "train.total_steps": "TRAIN_STEPS",
    "train.eval_steps": "EVAL_STEPS", "train.eval_period": "EVAL_PERIOD", "train.stats_period": "STATS_PERIOD",
    "train.random_seed": "RANDOM_SEED", "train/DatasetConfig.shuffle": "SHUFFLE_TRAIN_EXAMPLES",
    "train/DatasetConfig.split": "train/spec.DatasetConfig.split",
    "train_eval/DatasetConfig.split": "train_eval/spec.DatasetConfig.split",
    "SaveCheckpointConfig.period": "CHECKPOINT_PERIOD", "SaveCheckpointConfig.keep": "KEEP_CHECKPOINTS",
    "Trainer.num_microbatches": "NUM_MICROBATCHES", "EncoderDecoderModel.z_loss": "Z_LOSS",
    "EncoderDecoderModel.label_smoothing": "LABEL_SMOOTHING",
    "EncoderDecoderModel.loss_normalizing_factor": "LOSS_NORMALIZING_FACTOR",
    "EncoderDecoderModel.predict_batch_with_aux.num_decodes": "decoding.DecodingConfig.num_decodes",
    "T5Config.dropout_rate": "DROPOUT_RATE", "T5Config.dtype": "DTYPE", "T5Config.vocab_size": "VOCAB_SIZE",
    "T5Config.scan_layers": "SCAN_LAYERS", "T5Config.remat_policy": "REMAT_POLICY",
    "Adafactor.beta1": "optimizers.Adafactor.momentum",
    "Adafactor.weight_decay_rate": "optimizers.Adafactor.weight_decay",
    "Adafactor.weight_decay_rate_lr_exponent": "optimizers.Adafactor.weight_decay_lr_exponent",
    "Adafactor.global_norm_clip_threshold": "optimizers.Adafactor.max_gradient_norm",
    **{
        f"{_AXIS_RULES}.{name}": f"distributed.{_AXIS_RULES}.{name}"
        for name in ("activation_partitioning_dims", "parameter_partitioning_dims")
    },
}  # fmt: skip

# T5X's parameters of the dataset of metrics, and our macros (gin/runs/infer_eval.gin).
INFER_EVAL = {
    "infer_eval/DatasetConfig.mixture_or_task_name": "INFER_EVAL_TASK",
    "infer_eval/DatasetConfig.split": "INFER_EVAL_SPLIT",
    "infer_eval/DatasetConfig.task_feature_lengths": "INFER_EVAL_LENGTHS",
}

# Why a parameter need not be set here: the parameters for which this holds. A star stands for all of a class.
_REASONS: Mapping[str, str] = {
    "the included files say it": (
        "MODEL OPTIMIZER train.model train.train_dataset_cfg train.train_eval_dataset_cfg train.checkpoint_cfg "
        "train.partitioner train.trainer_cls train.summarize_config_fn train.inference_evaluator_cls "
        "EncoderDecoderModel.module EncoderDecoderModel.optimizer_def EncoderDecoderModel.input_vocabulary "
        "EncoderDecoderModel.output_vocabulary Transformer.config PjitPartitioner.logical_axis_rules"
    ),
    "a run that starts from a checkpoint names it": "CheckpointConfig.restore",
    "checkpoints are kept as CHECKPOINT_PERIOD says": "CheckpointConfig.save",
    "RUN= of `make train`": "MODEL_DIR train.model_dir",
    "RUN= and STEP= of `make eval` and `make infer`": "CHECKPOINT_PATH EVAL_OUTPUT_DIR INFER_OUTPUT_DIR",
    "the vocabulary is the task's": "VOCABULARY SentencePieceVocabulary.* ByteVocabulary.*",
    "random numbers are those of the seed on every device": "USE_HARDWARE_RNG train.use_hardware_rng",
    "the evaluator's examples are kept in memory": "EVALUATOR_USE_MEMORY_CACHE",
    "`make eval` writes all predictions": "JSON_WRITE_N_RESULTS JSONLogger.*",
    "every run is measured at its step 0": "train.run_eval_before_training",
    "a loss that is not finite ends every run (SKIP_NONFINITE)": "train.actions TerminateOnNanAction.*",
    "there is one way to pack": (
        "train/DatasetConfig.use_custom_packing_ops train_eval/DatasetConfig.use_custom_packing_ops"
    ),
    "RANDOM_SEED decides the order of the data, too": "train/DatasetConfig.seed train_eval/DatasetConfig.seed",
    "validation is not shuffled": "train_eval/DatasetConfig.shuffle",
    "metrics of tasks are measured as validation is read": "infer_eval/DatasetConfig.*",
    "INFER_EVAL_STEPS counts batches of each task": "Evaluator.num_examples",
    "metrics go to metrics.jsonl and TensorBoard": "Evaluator.*",
    "the position in the data is always kept": (
        "SaveCheckpointConfig.save_dataset SaveCheckpointConfig.keep_dataset_checkpoints"
    ),
    "parameters are kept in float32": "SaveCheckpointConfig.dtype RestoreCheckpointConfig.dtype",
    "INITIAL_CHECKPOINT names the step": "RestoreCheckpointConfig.mode",
    "SCHEDULE": "Trainer.learning_rate_fn",
    "MODEL_PARALLEL is the number of its devices, and JAX chooses which": (
        "PjitPartitioner.model_parallel_submesh ModelBasedPjitPartitioner.model_parallel_submesh"
    ),
    "norms of weights and gradients are recorded with the steps": "Trainer.weight_metrics_computer",
    "for arrays of two axes T5X's rules are those of the sizes": "Adafactor.logical_factor_rules",
}
UNNEEDED: Mapping[str, str] = {key: why for why, keys in _REASONS.items() for key in keys.split()}
# Such a parameter is not needed only if its value ends so, as in T5X's own files. Another value is not carried over.
STANDARD: Mapping[str, tuple[str, ...]] = {
    "MODEL": (".EncoderDecoderModel()",), "train.model": ("%MODEL", ".EncoderDecoderModel()"),
    "train.train_dataset_cfg": ("@train/utils.DatasetConfig()",),
    "train.train_eval_dataset_cfg": ("@train_eval/utils.DatasetConfig()",),
    "train.checkpoint_cfg": (".CheckpointConfig()",), "train.partitioner": ("PjitPartitioner()",),
    "train.trainer_cls": (".Trainer",), "EncoderDecoderModel.module": (".Transformer()",),
    "OPTIMIZER": (".Adafactor()",), "EncoderDecoderModel.optimizer_def": (".Adafactor()",),
    "Transformer.config": (".T5Config()",), "CheckpointConfig.restore": ("None", ".RestoreCheckpointConfig()"),
    "CheckpointConfig.save": (".SaveCheckpointConfig()",), "Evaluator.num_examples": ("None",),
    "Trainer.learning_rate_fn": (".create_learning_rate_scheduler()",),
    "Adafactor.logical_factor_rules": ("None", ".standard_logical_factor_rules()"),
}  # fmt: skip

PARTITIONERS = ("PjitPartitioner", "ModelBasedPjitPartitioner")
_ROOT = {"SCHEDULE": GinReference("@schedules.InverseSquareRoot()")}
_CONSTANT = {
    "SCHEDULE": GinReference("@schedules.Constant()"),
    "schedules.Constant.value": GinReference("%LEARNING_RATE"),
    "schedules.Constant.warmup_steps": GinReference("%WARMUP_STEPS"),
}
FACTORS: Mapping[str, dict[str, Any]] = {  # T5X's factors of the learning rate, and what they are here
    "constant * rsqrt_decay": _ROOT,
    "constant * linear_warmup * rsqrt_decay": {**_ROOT, "schedules.InverseSquareRoot.linear_warmup": True},
    "constant": {**_CONSTANT, "WARMUP_STEPS": 0},
    "constant * linear_warmup": _CONSTANT,
}
ROWS = {"t5_1_1": 32128, "byt5": 384}  # of the embedding, as gin/models/ has them
REMAT = {"none": "none", "minimal": "dots", "full": "full"}
_PLACES = {
    "encoder_decoder": "t5xpg.models", "spec": "t5xpg.data", "decoding": "t5xpg.models", "distributed": "t5xpg",
    "optimizers": "t5xpg.optim", "positions": "t5xpg.models", "schedules": "t5xpg.optim",
}  # fmt: skip
# What a file imports, by the first part of a parameter's name.
IMPORTS = {module: f"from {place} import {module}" for module, place in _PLACES.items()}
# {"INITIAL_CHECKPOINT_PATH": "RestoreCheckpointConfig.path"}: the parameters that T5X's macros are for
_READERS = {
    value.text[1:]: key
    for table in (_MODEL, _FINETUNE, _PRETRAIN)
    for key, value in reversed([*table.items()])
    if isinstance(value, GinReference) and value.text[0] == "%"
}


def key_of(scope: str, selector: str, parameter: str) -> str:
    """The key of a binding: without the module, which files may name freely; a method keeps its class."""
    parts = selector.split(".")
    first = next((place for place, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    name = ".".join([*filter(None, parts[first:]), parameter])
    return f"{scope}/{name}" if scope else name


def translation(scope: str, selector: str, parameter: str) -> str:
    """A sentence that names our parameter for one of T5X, or for a macro of its files ("", "", NAME); "" for others."""
    key = key_of(scope, selector, parameter)
    for name in (key, _READERS.get(key, ""), f"train/{key}", key.rpartition("/")[2]):
        if ours := OURS.get(name):
            return f"{key} of T5X is {ours} here: --gin.{ours}=…"
        if why := UNNEEDED.get(name) or UNNEEDED.get(f"{name.rpartition('.')[0]}.*"):
            return f"{key} of T5X is not set here: {why}."
    return ""
