"""What to read: the description of one stream of batches, as an experiment gives it. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t5xpg.errors import UserError


@dataclass(frozen=True)
class SpanCorruption:
    """The span corruption objective (Raffel et al. 2020, section 3.1.4), as `t5.data.preprocessors` takes it."""

    noise_density: float = 0.15  # share of the tokens that is masked
    mean_noise_span_length: float = 3.0  # tokens in a masked span: 3 for T5, 20 for ByT5

    def __post_init__(self) -> None:
        if not 0.0 < self.noise_density < 1.0:
            raise UserError(f"SpanCorruption.noise_density is {self.noise_density}: it must lie between 0 and 1.")
        if self.mean_noise_span_length < 1.0:
            raise UserError(
                f"SpanCorruption.mean_noise_span_length is {self.mean_noise_span_length}: it must be at least 1."
            )


@dataclass(frozen=True)
class DatasetConfig:
    """One stream of batches. The names are those of T5X's `utils.DatasetConfig` where it has one.

    `batch_size` is the global batch: rows over all virtual shards. Each of `num_virtual_shards` shards of the data
    gives `batch_size / num_virtual_shards` rows of every batch, so a batch does not depend on how many processes read.
    `num_epochs=None` repeats for ever; with a number the stream ends, and its last batch is padded with rows of zeros.
    Raises UserError for values that cannot be.
    """

    mixture_or_task_name: str
    task_feature_lengths: Mapping[str, int]
    split: str = "train"
    batch_size: int = 128
    shuffle: bool = True
    seed: int = 0
    use_cached: bool = True
    pack: bool = False
    num_epochs: int | None = None
    max_batches: int | None = None
    num_virtual_shards: int = 1
    objective: SpanCorruption | None = None
    module_import: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "task_feature_lengths", dict(self.task_feature_lengths))
        given = self.module_import
        names = tuple(given.replace(",", " ").split()) if isinstance(given, str) else tuple(given)
        object.__setattr__(self, "module_import", names)
        for feature, length in self.task_feature_lengths.items():
            _at_least_one(f"task_feature_lengths[{feature!r}]", length)
        _at_least_one("batch_size", self.batch_size)
        _at_least_one("num_virtual_shards", self.num_virtual_shards)
        for name in ("num_epochs", "max_batches"):
            if getattr(self, name) is not None:
                _at_least_one(name, getattr(self, name))
        if not 0 <= self.seed < 2**31:
            raise UserError(f"DatasetConfig.seed is {self.seed}: it must be from 0 to 2147483647.")
        if self.batch_size % self.num_virtual_shards:
            raise UserError(
                f"The batch of {self.batch_size} rows does not divide over {self.num_virtual_shards} virtual shards: "
                "each shard gives the same number of rows. Choose a multiple."
            )

    @property
    def rows_per_shard(self) -> int:
        """Rows of every batch that one virtual shard gives."""
        return self.batch_size // self.num_virtual_shards

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `from_json` makes an equal config."""
        return dataclasses.asdict(self) | {"module_import": list(self.module_import)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DatasetConfig:
        """The config that `to_json` was called on."""
        objective = value["objective"]
        return cls(**{**value, "objective": SpanCorruption(**objective) if objective is not None else None})


def _at_least_one(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"DatasetConfig.{name} is {value!r}: it must be a whole number of at least 1.")
