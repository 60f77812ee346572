"""What an experiment is: the one value that a gin file describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from t5xpg.checkpoints import CheckpointConfig
from t5xpg.data.spec import DatasetConfig
from t5xpg.errors import UserError
from t5xpg.losses import LossConfig
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.optimizers import Optimizer
from t5xpg.partitioning import MeshConfig
from t5xpg.seeds import check_seed


@dataclass(frozen=True)
class Experiment:
    """Everything that determines a run. Configured by gin at the root (`gin/runs/*.gin`), read by the command line.

    Periods and steps count optimiser updates. skip_nonfinite: how many updates of a run may have a loss or a gradient
    that is not finite; they change nothing.
    """

    model: EncoderDecoderModel
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
    model_dir: str | None = None

    def __post_init__(self) -> None:
        positive = ("total_steps", "eval_period", "stats_period", "num_microbatches")
        for name in positive:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UserError(f"Experiment.{name} must be a positive integer, not {value!r}.")
        if not isinstance(self.skip_nonfinite, int) or isinstance(self.skip_nonfinite, bool) or self.skip_nonfinite < 0:
            raise UserError(f"SKIP_NONFINITE is {self.skip_nonfinite!r}: it must be a whole number of at least 0.")
        check_seed(self.random_seed)
        if set(self.lengths) != {"inputs", "targets"}:
            raise UserError(
                f"TASK_FEATURE_LENGTHS gives lengths of {', '.join(map(repr, self.lengths))}: expected "
                "{'inputs': …, 'targets': …}."
            )
        if self.train_dataset.num_epochs is not None or self.train_dataset.max_batches is not None:
            raise UserError(
                "Training repeats its data until TRAIN_STEPS: train/DatasetConfig.num_epochs and max_batches must be "
                "None."
            )

    @property
    def lengths(self) -> Mapping[str, int]:
        """Feature lengths in tokens, as TASK_FEATURE_LENGTHS."""
        return self.train_dataset.task_feature_lengths
