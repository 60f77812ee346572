"""The description of one stream of batches, as an experiment sets it. Without TensorFlow."""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.seeds import check_seed
from t5xpg.data import objectives
from t5xpg.data.batch import ENC_DEC, PREFIX_LM, BatchSpec, layout_of, longest_array
from t5xpg.data.metrics import check_metric_name
from t5xpg.data.objectives import Objective, SpanCorruption

# SpanCorruption: gin files know it as `spec.SpanCorruption`
__all__ = ["DatasetConfig", "SpanCorruption"]

_COUNTER_LIMIT = 2**63  # beyond the counters of the data libraries
_MAX_ELEMENTS = 2**31 - 1  # of one array of a batch that its frameworks can index
# The rows of a length bucket are a multiple of gcd(BATCH_SIZE, this number), so that batches divide over devices.
_ROWS_DIVISOR = 8


@dataclass(frozen=True)
class DatasetConfig:
    """One stream of batches. The names are those of T5X's `utils.DatasetConfig`, as far as it has them.

    `batch_size` is the global batch. Each of the `num_virtual_shards` shards of the data gives the same number of its
    rows, however many processes read. `num_epochs=None` repeats for ever; with a number the stream ends, its last batch
    padded with rows of zeros. `feature_converter`: the name of one of SeqIO's, or of one that `batch.add_layout` added;
    None for the model's. `loss_on_targets_only`: as in `seqio.PrefixLMFeatureConverter`. `length_buckets`: ascending
    lengths in tokens, up to the longest of `task_feature_lengths`; examples of about one length form a batch (see
    `buckets`). `metrics`: names in `t5xpg.data.metrics`, or "module.function"; they replace the task's metrics. Raises
    UserError for values that are not allowed.
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
    objective: Objective | None = None
    module_import: tuple[str, ...] = ()
    feature_converter: str | None = None
    loss_on_targets_only: bool = True
    length_buckets: tuple[int, ...] | None = None
    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("mixture_or_task_name", "split"):
            value = getattr(self, name)
            is_name = isinstance(value, str) and value.strip(" .") and value.isprintable()
            if not is_name or set("/\\") & set(value):  # files are named so: they may not lead out of folders
                raise UserError(f"DatasetConfig.{name} is {value!r}: expected a name, without a path.")
        if not isinstance(self.task_feature_lengths, Mapping):
            raise UserError(
                f"DatasetConfig.task_feature_lengths is {self.task_feature_lengths!r}: expected a length for each "
                "feature, such as {'inputs': 512, 'targets': 114}."
            )
        object.__setattr__(self, "task_feature_lengths", dict(self.task_feature_lengths))
        object.__setattr__(self, "module_import", _names("MODULE_IMPORT", self.module_import))
        object.__setattr__(self, "metrics", _names("METRICS", self.metrics))
        for name in self.metrics:
            check_metric_name(name)
        for feature, length in self.task_feature_lengths.items():
            _at_least_one(f"task_feature_lengths[{feature!r}]", length)
        for name in ("batch_size", "num_virtual_shards", "num_epochs", "max_batches"):
            if getattr(self, name) is not None or name in ("batch_size", "num_virtual_shards"):
                _at_least_one(name, getattr(self, name))
        layout_of(self.converter)
        if not self.loss_on_targets_only and self.feature_converter not in (None, PREFIX_LM):
            raise UserError(f"LOSS_ON_TARGETS_ONLY = False is for {PREFIX_LM}; here it is {self.feature_converter}.")
        if self.objective is not None and not isinstance(self.objective, Objective):
            names = ", ".join(kind.__name__ for kind in objectives.KINDS.values())
            raise UserError(f"DatasetConfig.objective is {self.objective!r}: expected one of {names}, or None.")
        check_seed(self.seed)
        longest = max(self.task_feature_lengths.values(), default=0)
        if self.batch_size * longest > _MAX_ELEMENTS:
            raise UserError(
                f"A batch of {self.batch_size} rows of {longest} tokens would have arrays of more than {_MAX_ELEMENTS} "
                "numbers. Lower BATCH_SIZE or TASK_FEATURE_LENGTHS."
            )
        if self.batch_size % self.num_virtual_shards:
            raise UserError(
                f"The batch of {self.batch_size} rows does not divide over {self.num_virtual_shards} virtual shards: "
                "each shard gives the same number of rows. Choose a multiple."
            )
        if self.length_buckets is not None:
            object.__setattr__(self, "length_buckets", self._checked_buckets(self.length_buckets, longest))

    def _checked_buckets(self, value: Any, longest: int) -> tuple[int, ...]:
        lengths = tuple(value) if isinstance(value, tuple | list) else ()
        are_whole = all(isinstance(length, int) and not isinstance(length, bool) and length > 0 for length in lengths)
        if not are_whole or list(lengths) != sorted(set(lengths)) or lengths[-1:] != (longest,):
            raise UserError(
                f"LENGTH_BUCKETS is {value!r}: expected ascending lengths in tokens, the last one the longest of "
                f"TASK_FEATURE_LENGTHS, as in ({max(1, longest // 4)}, {max(1, longest // 2)}, {longest})."
            )
        if self.pack:
            raise UserError(
                "LENGTH_BUCKETS and PACK = True both save padding, and exclude each other: set one of them."
            )
        if self.num_virtual_shards > 1:
            raise UserError(
                f"LENGTH_BUCKETS needs NUM_VIRTUAL_SHARDS = 1, and it is {self.num_virtual_shards}: shards do not fill "
                "a bucket at the same time."
            )
        if any(len(features) > 1 for features in layout_of(self.converter).arrays.values()):
            raise UserError(
                f"LENGTH_BUCKETS is not for {self.converter}, which joins features in one array. Set it to None."
            )
        return lengths

    def check_task(self, task: str, features: Collection[str], splits: Collection[str]) -> None:
        """Raise UserError where a task with these features and splits has not what the stream takes."""
        layout = layout_of(self.converter)
        if missing := {*layout.task_features, *layout.flags}.difference(features):
            raise UserError(f"{task} has no feature {' and '.join(sorted(missing))}, which {self.converter} takes.")
        if self.split not in splits:
            raise UserError(f"{task} has no split {self.split!r}.{nearest(self.split, splits)}")

    @property
    def rows_per_shard(self) -> int:
        """Rows of every batch that one virtual shard gives."""
        return self.batch_size // self.num_virtual_shards

    @functools.cached_property
    def buckets(self) -> Mapping[int, "DatasetConfig"]:
        """The config of the batches of each length bucket, by its length, ascending; without buckets, this config.

        An example belongs to the first bucket that holds the longest of its features. A bucket's batches have at most
        as many tokens per feature as `batch_size` rows of the longest bucket: rows = batch_size * longest // length,
        rounded down to a multiple of gcd(8, batch_size). Their arrays are no longer than the bucket.
        """
        if self.length_buckets is None:
            return {max(layout_of(self.converter).lengths(self.task_feature_lengths, self.pack).values()): self}
        multiple, tokens = math.gcd(self.batch_size, _ROWS_DIVISOR), self.batch_size * self.length_buckets[-1]
        return {
            bucket: dataclasses.replace(
                self,
                batch_size=tokens // bucket // multiple * multiple,
                task_feature_lengths={name: min(bucket, size) for name, size in self.task_feature_lengths.items()},
                length_buckets=None,
            )
            for bucket in self.length_buckets
        }

    def of_batch(self, batch: Mapping[str, Any]) -> "DatasetConfig":
        """The config in `buckets` for the length of a batch's longest array; this config without such a bucket."""
        return self.buckets.get(longest_array(batch), self)

    @property
    def shapes(self) -> str:
        """Rows and lengths of the batches, for people: "64 x 512/114"; with length buckets, those of each bucket."""
        return " or ".join(
            f"{each.batch_size} x {'/'.join(str(length) for length in each.task_feature_lengths.values())}"
            for each in self.buckets.values()
        )

    @property
    def converter(self) -> str:
        """The name of the feature converter."""
        return ENC_DEC if self.feature_converter is None else self.feature_converter

    @property
    def token_features(self) -> tuple[str, ...]:
        """The features of the task that hold ids of the model's vocabulary."""
        return layout_of(self.converter).token_features

    def batch_spec(self, rows: int | None = None, vocab_size: int | None = None) -> BatchSpec:
        """The spec of the stream's batches. rows: those of a part of a batch; None for a whole batch."""
        size = self.batch_size if rows is None else rows
        return BatchSpec(size, self.task_feature_lengths, self.pack, vocab_size, self.converter)

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `from_json` makes an equal config."""
        lists = {name: list(getattr(self, name)) for name in ("module_import", "metrics")}
        buckets = None if self.length_buckets is None else list(self.length_buckets)
        other = {"objective": objectives.to_json(self.objective), "length_buckets": buckets, **lists}
        return dataclasses.asdict(self) | other

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "DatasetConfig":
        """The inverse of `to_json`."""
        return cls(**{**value, "objective": objectives.from_json(value["objective"])})


def _at_least_one(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _COUNTER_LIMIT:
        raise UserError(f"DatasetConfig.{name} is {value!r}: it must be a whole number of at least 1 (below 2**63).")


def unpacked(config: DatasetConfig) -> DatasetConfig:
    """The config for prediction and scoring: the same examples, not packed, with only the targets in the loss."""
    return dataclasses.replace(config, pack=False, loss_on_targets_only=True, length_buckets=None)


_EXPECTED = {
    "MODULE_IMPORT": "names of Python modules, such as my_tasks,my.other",
    "METRICS": "names of metrics, such as bleu,my_module.my_metric",
}


def _names(macro: str, given: Any) -> tuple[str, ...]:
    names = tuple(given.replace(",", " ").split()) if isinstance(given, str) else given
    if not isinstance(names, tuple | list) or not all(
        isinstance(name, str) and all(part.isidentifier() for part in name.split(".")) for name in names
    ):
        raise UserError(f"{macro} is {given!r}: expected {_EXPECTED[macro]}.")
    return tuple(names)
