"""What to read: the description of one stream of batches, as an experiment gives it. Standard library only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t5xpg.errors import UserError
from t5xpg.seeds import check_seed

_SEPARATORS = {"/", "\\"}
_BEYOND = 2**63  # no counter of the data libraries holds it
_MOST_NUMBERS = 2**31 - 1  # in one array of a batch: what its frameworks can index


@dataclass(frozen=True)
class SpanCorruption:
    """The span corruption objective (Raffel et al. 2020, section 3.1.4), as `t5.data.preprocessors` takes it."""

    noise_density: float = 0.15  # share of the tokens that is masked
    mean_noise_span_length: float = 3.0  # tokens in a masked span: 3 for T5, 20 for ByT5

    def __post_init__(self) -> None:
        if not _is_number(self.noise_density) or not 0.0 < self.noise_density < 1.0:
            raise UserError(f"SpanCorruption.noise_density is {self.noise_density!r}: it must lie between 0 and 1.")
        if not _is_number(self.mean_noise_span_length) or not 1.0 <= self.mean_noise_span_length < math.inf:
            raise UserError(
                f"SpanCorruption.mean_noise_span_length is {self.mean_noise_span_length!r}: it must be a number of at "
                "least 1."
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
        for name in ("mixture_or_task_name", "split"):
            _check_name(name, getattr(self, name))
        if not isinstance(self.task_feature_lengths, Mapping):
            raise UserError(
                f"DatasetConfig.task_feature_lengths is {self.task_feature_lengths!r}: expected a length for each "
                "feature, such as {'inputs': 512, 'targets': 114}."
            )
        object.__setattr__(self, "task_feature_lengths", dict(self.task_feature_lengths))
        object.__setattr__(self, "module_import", _module_names(self.module_import))
        for feature, length in self.task_feature_lengths.items():
            _at_least_one(f"task_feature_lengths[{feature!r}]", length)
        for name in ("batch_size", "num_virtual_shards", "num_epochs", "max_batches"):
            if getattr(self, name) is not None or name in ("batch_size", "num_virtual_shards"):
                _at_least_one(name, getattr(self, name))
        for name in ("shuffle", "use_cached", "pack"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"DatasetConfig.{name} is {getattr(self, name)!r}: it must be True or False.")
        if self.objective is not None and not isinstance(self.objective, SpanCorruption):
            raise UserError(f"DatasetConfig.objective is {self.objective!r}: expected a SpanCorruption, or None.")
        check_seed(self.seed)
        longest = max(self.task_feature_lengths.values(), default=0)
        if self.batch_size * longest > _MOST_NUMBERS:
            raise UserError(
                f"A batch of {self.batch_size} rows of {longest} tokens would have arrays of more than {_MOST_NUMBERS} "
                "numbers. Lower BATCH_SIZE or TASK_FEATURE_LENGTHS."
            )
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at_least_one(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _BEYOND:
        raise UserError(f"DatasetConfig.{name} is {value!r}: it must be a whole number of at least 1 (below 2**63).")


def _check_name(name: str, value: Any) -> None:
    """Names become names of files and folders: they may not lead out of them."""
    if not isinstance(value, str) or not value.strip(" .") or not value.isprintable() or _SEPARATORS & set(value):
        raise UserError(f"DatasetConfig.{name} is {value!r}: expected a name, without a path.")


def _module_names(given: Any) -> tuple[str, ...]:
    """Modules given one by one, or as one text with commas or spaces between them."""
    names = tuple(given.replace(",", " ").split()) if isinstance(given, str) else given
    if not isinstance(names, tuple | list) or not all(
        isinstance(name, str) and all(part.isidentifier() for part in name.split(".")) for name in names
    ):
        raise UserError(f"MODULE_IMPORT is {given!r}: expected names of Python modules, such as my_tasks,my.other.")
    return tuple(names)
