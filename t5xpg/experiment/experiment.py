"""The experiment: the one value that a gin file describes."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from t5xpg.base.errors import UserError
from t5xpg.base.seeds import check_seed
from t5xpg.data.batch import layout_of
from t5xpg.data.spec import DatasetConfig
from t5xpg.distributed import MeshConfig
from t5xpg.experiment.needs import Need
from t5xpg.models.adapters import Adapter
from t5xpg.models.decoding import DecodingConfig
from t5xpg.models.distillation import Teacher
from t5xpg.models.losses import LossConfig
from t5xpg.models.model import Model
from t5xpg.optim.optimizers import Optimizer
from t5xpg.run.best import BestMetric
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig
from t5xpg.run.checkpoint.initial_checkpoint import InitialCheckpoint
from t5xpg.run.loggers import Logger

_MOST_STEPS = 2**31 - 1  # the optimiser counts them in an int32


@dataclass(frozen=True)
class Experiment:
    """Everything that determines a run. gin configures it as the root of all bindings (`gin/runs/*.gin`).

    Periods and steps count optimiser updates. skip_nonfinite: the number of updates of a run that may have a loss or a
    gradient that is not finite; such an update is counted and changes nothing else. ema_decay: the decay of a moving
    average of the parameters, which is evaluated and used instead of them; None for no average. max_cut_share: the
    largest share of the examples of a supervised task that may be cut because they are longer than its feature lengths.
    infer_eval_period: updates between computations of the tasks' metrics, on predictions for `infer_eval_steps` batches
    of each task (None: all) of `infer_eval_dataset` (None: of eval_dataset); None for never. decoding: the way of
    making predictions, from checkpoints of this run and others. initial: the checkpoint that the run starts from; None
    for new parameters. adapter: what is trained in place of that checkpoint's parameters, which then stay as they are;
    None to train these. teacher: the model whose probabilities are learned from; None for the targets alone. selection:
    which evaluation is the best; None for the lowest validation loss at a checkpoint that is written anyway. loggers:
    receive the records, besides TensorBoard; they change nothing. needs: exports and vocabularies to make first, if the
    task's name does not determine them.
    """

    model: Model
    optimizer: Optimizer
    loss: LossConfig
    train_dataset: DatasetConfig
    eval_dataset: DatasetConfig
    checkpoints: CheckpointConfig
    mesh: MeshConfig
    random_seed: int
    total_steps: int
    eval_period: int
    stats_period: int = 10
    num_microbatches: int = 1
    skip_nonfinite: int = 0
    ema_decay: float | None = None
    max_cut_share: float = 0.2
    infer_eval_period: int | None = None
    infer_eval_steps: int | None = None
    infer_eval_dataset: DatasetConfig | None = None
    model_dir: str | None = None
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    initial: InitialCheckpoint | None = None
    adapter: Adapter | None = None
    teacher: Teacher | None = None
    selection: BestMetric | None = None
    loggers: tuple[Logger, ...] = ()
    needs: tuple[Need, ...] = ()

    def __post_init__(self) -> None:
        self._check_numbers()
        for name in ("train_dataset", "eval_dataset", "infer_eval_dataset"):
            if (dataset := getattr(self, name)) is not None:
                object.__setattr__(self, name, self._with_converter(dataset))
        self._check_datasets()
        if strangers := [each for each in self.loggers if not isinstance(each, Logger)]:
            raise UserError(f"LOGGERS holds {strangers[0]!r}: loggers come in a tuple, as in (@my_module.MyLogger(),).")
        object.__setattr__(self, "loggers", tuple(self.loggers))
        if others := [each for each in self.needs if not isinstance(each, Need)]:
            raise UserError(f"NEEDS holds {others[0]!r}: expected a tuple, as (@needs.Data(), @needs.Vocabulary()).")
        object.__setattr__(self, "needs", tuple(self.needs))
        if self.selection is not None:
            self._select(self.selection)
        self._check_rows()
        self._check_step_offset()
        if self.adapter is not None:
            self._check_adapter(self.adapter)
        if self.teacher is not None:
            self.teacher.check(self.model, self.train_dataset.converter)

    @property
    def datasets(self) -> tuple[DatasetConfig, ...]:
        """What a training reads."""
        metrics = None if self.infer_eval_period is None else self.infer_eval_dataset
        return (self.train_dataset, self.eval_dataset, *([] if metrics is None else [metrics]))

    @property
    def of_metrics(self) -> "Experiment":
        """The experiment with the dataset of the tasks' metrics in the place of its validation."""
        dataset = self.infer_eval_dataset
        return self if dataset is None else replace(self, eval_dataset=dataset, infer_eval_dataset=None)

    def _check_numbers(self) -> None:
        positive = ("total_steps", "eval_period", "stats_period", "num_microbatches")
        for name in (*positive, "infer_eval_period", "infer_eval_steps"):
            value = getattr(self, name)
            if value is None and name not in positive:
                continue
            if value < 1:
                raise UserError(f"Experiment.{name} must be a positive integer, not {value!r}.")
        if self.total_steps > _MOST_STEPS:
            raise UserError(f"TRAIN_STEPS is {self.total_steps:,}; steps are counted to {_MOST_STEPS:,}.")
        if self.skip_nonfinite < 0:
            raise UserError(f"SKIP_NONFINITE is {self.skip_nonfinite!r}: it must be a whole number of at least 0.")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise UserError(f"EMA_DECAY is {self.ema_decay!r}: it must be None, or between 0.0 and 1.0, as 0.999.")
        if not 0 <= self.max_cut_share <= 1:
            raise UserError(f"MAX_CUT_SHARE is {self.max_cut_share!r}: it must be a share of the examples, 0.0 to 1.0.")
        check_seed(self.random_seed)

    def _check_datasets(self) -> None:
        if self.train_dataset.num_epochs is not None or self.train_dataset.max_batches is not None:
            raise UserError(
                "Training repeats its data until TRAIN_STEPS: train/DatasetConfig.num_epochs and max_batches must be "
                "None."
            )
        if self.eval_dataset.num_epochs is None:
            raise UserError("An evaluation has an end: train_eval/DatasetConfig.num_epochs must be a number, as 1.")
        if self.eval_dataset.length_buckets is not None:
            raise UserError("LENGTH_BUCKETS is for training: train_eval/DatasetConfig.length_buckets must be None.")

    def _check_rows(self) -> None:
        """Raise UserError where rows are packed for a model that needs one text in a row."""
        pack = self.train_dataset.pack or self.eval_dataset.pack
        configs = [self.model.config, *([self.teacher.model.config] if self.teacher else [])]
        if pack and any(each.prompt_tokens for each in configs):
            raise UserError("PACK=True puts several texts into a row, and a prompt stands before one: set PACK=False.")

    def _check_step_offset(self) -> None:
        offset = getattr(self.optimizer, "step_offset", 0)
        if offset > 0 and (self.initial is None or self.initial.reset_optimizer):
            raise UserError(
                f"Adafactor.step_offset is {offset}, and the optimiser's updates count from 0: the "
                "decay would be a negative number to a fractional power. Set it to 0, or RESET_OPTIMIZER=False for an "
                "optimiser that goes on."
            )

    def _check_adapter(self, adapter: Adapter) -> None:
        kind = type(adapter).__name__
        if self.initial is None:
            raise UserError(
                f"{kind} trains a few parameters beside those of a checkpoint, and there is none: include "
                "gin/runs/initial_checkpoint.gin, or gin/runs/finetune.gin, and set INITIAL_CHECKPOINT."
            )
        if not self.initial.reset_optimizer:
            raise UserError(f"RESET_OPTIMIZER is False, and the optimiser of the checkpoint has nothing of {kind}'s.")
        if self.initial.adapt_decoder:
            raise UserError(f"ADAPT_DECODER makes parameters of a checkpoint's, and {kind} is for those that it has.")
        if self.teacher is not None:
            raise UserError(
                f"{kind} and a teacher do not go together: leave out gin/adapters or gin/runs/distillation.gin."
            )
        adapter.check(self.model)

    @property
    def base_model(self) -> Model:
        """The model without its adapter: the one that the adapter is added to. Without an adapter, `model`."""
        return self.model if self.adapter is None else self.adapter.base_model(self.model)

    @property
    def frozen_model(self) -> Model | None:
        """The model whose parameters are in the state but not trained: a teacher or an adapter's base model."""
        if self.teacher is not None:
            return self.teacher.model
        return None if self.adapter is None else self.base_model

    def flops_per_example(self, lengths: Mapping[str, int]) -> float:
        """`Model.flops_per_example`, plus a teacher's forward pass: a third of the same number of the teacher."""
        teacher_flops = 0.0 if self.teacher is None else self.teacher.model.flops_per_example(lengths) / 3
        return self.model.flops_per_example(lengths) + teacher_flops

    def _select(self, selection: BestMetric) -> None:
        """Set which best checkpoint is kept. Raises UserError where the selection's metric is never measured."""
        if not selection.of_validation and self.infer_eval_period is None:
            raise UserError(
                f"BEST_METRIC is {selection.metric!r}, a metric of a task, and none is computed while training: set "
                "INFER_EVAL_PERIOD, or select by 'validation/loss'."
            )
        object.__setattr__(self, "checkpoints", dataclasses.replace(self.checkpoints, best=selection))

    def _with_converter(self, dataset: DatasetConfig) -> DatasetConfig:
        """The dataset with its feature converter, or the model's default. Raises UserError for one of another model."""
        accepted = self.model.feature_converters
        converter = dataset.feature_converter or accepted[0]
        if converter not in accepted:
            raise UserError(
                f"FEATURE_CONVERTER is {converter!r}, and a {type(self.model).__name__} takes batches of "
                f"{' or '.join(accepted)}."
            )
        dataset = dataclasses.replace(dataset, feature_converter=converter)
        layout_of(converter).check_lengths(dataset.task_feature_lengths)
        return dataset

    @property
    def lengths(self) -> Mapping[str, int]:
        """Feature lengths in tokens, as TASK_FEATURE_LENGTHS."""
        return self.train_dataset.task_feature_lengths
