"""An experiment as T5X's gin file: the macros that gin/engines/t5x.gin reads, and what T5X cannot do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.data import objectives
from t5xpg.distributed.mesh import STANDARD_RULES
from t5xpg.exchange.t5x.networks import SCALABLE, network_gin, network_of
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.losses import LossConfig
from t5xpg.optim.optimizers import Adafactor
from t5xpg.optim.schedules import Constant, InverseSquareRoot

EVAL_STEPS = 20  # where an experiment validates on all of the split, which T5X cannot


def experiment_gin(experiment: Experiment, name: str, model_dir: Path, initial: Path | None) -> str:
    """The text of the file that T5X parses before gin/engines/t5x.gin.

    model_dir: where T5X writes. initial: a checkpoint of T5X to start from. Raises one UserError that lists everything
    that T5X does not have.
    """
    if problems := list(unsupported(experiment)):
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise UserError(f"T5X cannot train {name} as it is:\n{listed}")
    train = experiment.train_dataset
    macros = macros_of(experiment) | {
        "MODEL_DIR": str(model_dir),
        "INITIAL_CHECKPOINT_PATH": [] if initial is None else str(initial),
    }
    lines = [
        f"# {name} for T5X: the macros of gin/engines/t5x.gin.",
        # for `engine.train`, which compares files: these two reach T5X's process as variables
        f"# objective {objectives.to_json(train.objective)}, MODULE_IMPORT {train.module_import}",
        "from __gin__ import dynamic_registration",
        "",
        *network_gin(experiment.model),
        "",
        *(f"{macro} = {value!r}" for macro, value in macros.items()),
    ]
    return "\n".join([*lines, ""])


def macros_of(experiment: Experiment) -> dict[str, Any]:
    """{"TRAIN_STEPS": 100, …} of an experiment that T5X can train."""
    train, loss, optimizer = experiment.train_dataset, experiment.loss, experiment.optimizer
    assert isinstance(loss, LossConfig)
    assert isinstance(optimizer, Adafactor)
    schedule = _schedule(optimizer.learning_rate)
    assert schedule is not None
    factors, rate, warmup = schedule
    return {
        "MIXTURE_OR_TASK_NAME": train.mixture_or_task_name,
        "TASK_FEATURE_LENGTHS": dict(train.task_feature_lengths),
        "TRAIN_SPLIT": train.split,
        "EVAL_SPLIT": experiment.eval_dataset.split,
        "BATCH_SIZE": train.batch_size,
        "SHUFFLE_TRAIN_EXAMPLES": train.shuffle,
        "USE_CACHED_TASKS": train.use_cached,
        "PACK": train.pack,
        "RANDOM_SEED": experiment.random_seed,
        "TRAIN_STEPS": experiment.total_steps,
        "EVAL_STEPS": experiment.eval_dataset.max_batches or EVAL_STEPS,
        "EVAL_PERIOD": experiment.eval_period,
        "STATS_PERIOD": experiment.stats_period,
        "CHECKPOINT_PERIOD": experiment.checkpoints.period,
        "KEEP_CHECKPOINTS": experiment.checkpoints.keep,
        "NUM_MICROBATCHES": experiment.num_microbatches,
        "MODEL_PARALLEL": experiment.mesh.model,
        "DROPOUT_RATE": experiment.model.config.dropout_rate,
        "Z_LOSS": loss.z_loss,
        "LABEL_SMOOTHING": loss.label_smoothing,
        "LOSS_NORMALIZING_FACTOR": loss.loss_normalizing_factor,
        "FACTORS": factors,
        "LEARNING_RATE": rate,
        "WARMUP_STEPS": warmup,
        **{name.upper(): value for name, value in vars(optimizer).items() if name != "learning_rate"},
    }


def unsupported(experiment: Experiment) -> Iterator[str]:
    """Every setting of an experiment that T5X does not have, or has in another way, with what to set instead."""
    yield from _unsupported_model(experiment)
    settings = {  # in an experiment that T5X can train they are None, 0 or ()
        "initial": "INITIAL_CHECKPOINT: T5X starts from a checkpoint of its own; name one with INITIAL=path.",
        "teacher": "gin/runs/distillation.gin: T5X has no distillation.",
        "infer_eval_period": "INFER_EVAL_PERIOD: metrics of tasks are not computed while T5X trains; set it to None.",
        "skip_nonfinite": "SKIP_NONFINITE: T5X has no such thing; set it to 0.",
        "selection": "gin/runs/select_best.gin: T5X keeps the last step; set experiment.Experiment.selection to None.",
        "ema_decay": "EMA_DECAY: T5X keeps no average of the parameters; set it to None.",
        "loggers": "LOGGERS: T5X writes its own records alone; leave LOGGER out, or set it to ().",
    }
    yield from (message for name, message in settings.items() if getattr(experiment, name))
    if experiment.mesh.rules != STANDARD_RULES or experiment.mesh.slices > 1:
        yield "gin/partitioning: T5X is driven with data_parallel.gin and tensor_parallel.gin alone, on one slice."
    yield from _unsupported_data(experiment)
    periods = {"EVAL_PERIOD": experiment.eval_period, "CHECKPOINT_PERIOD": experiment.checkpoints.period}
    least = min(periods.values())
    for name, period in periods.items():
        if period % least:
            yield f"{name}={period}: for T5X it must be a multiple of {least}."


def _unsupported_model(experiment: Experiment) -> Iterator[str]:
    """The settings of model and optimiser that T5X does not have."""
    model, optimizer, network = experiment.model, experiment.optimizer, None
    try:
        network = network_of(model)
    except UserError as error:
        yield str(error)
    else:
        if not isinstance(model, EncoderDecoderModel) or type(model).__name__ != EncoderDecoderModel.__name__:
            yield f"{type(model).__name__}: only encoder-decoders are driven through T5X."
        elif network == SCALABLE and model.config.float32_attention_logits:
            yield "float32_attention_logits: T5X's network with tables of positions in every layer has no such setting."
    if not isinstance(optimizer, Adafactor):
        yield (
            f"{type(optimizer).__name__}: T5X trains with its Adafactor here. "
            'GIN="--gin_file=gin/optimizers/adafactor.gin" takes it.'
        )
    else:
        if _schedule(optimizer.learning_rate) is None:
            yield (
                f"{type(optimizer.learning_rate).__name__}: T5X has no such schedule. "
                "SCHEDULE=@schedules.InverseSquareRoot() and @schedules.Constant() are in both."
            )
        if optimizer.step_offset and network == SCALABLE:
            yield "step_offset: not with tables of positions in every layer."


def _unsupported_data(experiment: Experiment) -> Iterator[str]:
    """The settings of both datasets that T5X does not have."""
    train, measured = experiment.train_dataset, experiment.eval_dataset
    if measured.pack:
        yield "train_eval/spec.DatasetConfig.pack: T5X validates without packing here; set it to False."
    of_both = (
        "mixture_or_task_name", "task_feature_lengths", "batch_size", "use_cached", "objective", "module_import"
    )  # fmt: skip
    if others := [name for name in of_both if getattr(train, name) != getattr(measured, name)]:
        yield f"train_eval/spec.DatasetConfig: T5X is driven with one {' and '.join(others)} for both datasets."
    if train.feature_converter not in (None, "EncDecFeatureConverter"):
        yield f"FEATURE_CONVERTER={train.feature_converter}: T5X's encoder-decoders take EncDecFeatureConverter."
    if train.num_virtual_shards != 1:
        yield "NUM_VIRTUAL_SHARDS: T5X reads one shard for each process; set it to 1."
    if train.length_buckets is not None:
        yield "LENGTH_BUCKETS: T5X's batches are of one shape; set it to None."


def _schedule(schedule: Any) -> tuple[str, float, int] | None:
    """T5X's factors, base rate and warmup steps; None for a schedule that T5X does not have."""
    if isinstance(schedule, InverseSquareRoot):
        factors = "constant * linear_warmup * rsqrt_decay" if schedule.linear_warmup else "constant * rsqrt_decay"
        return factors, schedule.base_learning_rate, schedule.warmup_steps
    if isinstance(schedule, Constant):
        factors = "constant * linear_warmup" if schedule.warmup_steps else "constant"
        return factors, schedule.value, max(1, schedule.warmup_steps)
    return None
