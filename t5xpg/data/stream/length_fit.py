"""The fit of a supervised task's examples to the lengths of a stream and its vocabulary."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t5xpg.data.spec import DatasetConfig

_EXAMPLES = 1000  # the number of first examples of a split that are examined
_WARNED_OF = 0.01  # a larger share of cut examples, or of unknown tokens, gives a warning


@dataclass(frozen=True)
class LengthFit:
    """By feature, in the first `examples` of a task: examples cut, tokens of the longest, all tokens, unknown tokens.

    padding: with length buckets, the share of padding in their batches, and what it would be without buckets.
    """

    task: str
    examples: int
    cut: Mapping[str, int]
    longest: Mapping[str, int]
    tokens: Mapping[str, int]
    unknown: Mapping[str, int]
    padding: tuple[float, float] | None = None

    def share_cut(self, feature: str) -> float:
        """The share of the examples that are cut, because the feature is longer than its length."""
        return self.cut[feature] / max(1, self.examples)

    def share_unknown(self, feature: str) -> float:
        """The share of the tokens of a feature that the vocabulary does not know."""
        return self.unknown[feature] / max(1, self.tokens[feature])

    def summary(self, config: DatasetConfig) -> str:
        """One line: the shares of cut examples and unknown tokens by feature, with a warning where one is large."""
        parts = [
            f"{feature} {self.share_cut(feature):.1%} cut at {config.task_feature_lengths[feature]} (longest "
            f"{self.longest[feature]}), {self.share_unknown(feature):.2%} unknown"
            for feature in self.cut
        ]
        is_large = [max(self.share_cut(name), self.share_unknown(name)) > _WARNED_OF for name in self.cut]
        text = f"{self.task}, {config.split}, the first {self.examples:,}: {'; '.join(parts)}"
        if self.padding is not None:
            bucketed, unbucketed = self.padding
            text += f"; padding {bucketed:.0%}, {unbucketed:.0%} without length buckets"
        return f"WARNING: {text}" if any(is_large) else text

    def problems(self, config: DatasetConfig, max_share: float) -> Iterator[str]:
        """Yields a message for each feature that would be cut in a larger share of the examples than `max_share`."""
        for feature, length in config.task_feature_lengths.items():
            if feature in self.cut and self.share_cut(feature) > max_share:
                yield (
                    f"{self.share_cut(feature):.0%} of the examples of {self.task}, {config.split}, would be cut: "
                    f"their {feature} are longer than {length} tokens (the longest of the first {self.examples:,} has "
                    f"{self.longest[feature]}). Raise TASK_FEATURE_LENGTHS, or, to train on parts of examples, "
                    f"MAX_CUT_SHARE (now {max_share:g}): --gin.MAX_CUT_SHARE=1.0"
                )


def measure(provider: Any, config: DatasetConfig) -> list[LengthFit]:
    """The fit of each task whose examples are cut to the lengths of its features.

    Tasks with a pretraining objective are left out: they divide their text and cut nothing. So are tasks whose steps
    fail without lengths. Imports TensorFlow.
    """
    from t5xpg.data.tasks.providers import tasks_of
    from t5xpg.data.tasks.steps import objective_of

    fits = []
    for task in tasks_of(provider):
        if config.split in task.splits and objective_of(task) is None:
            try:
                fits.append(_measure(task, config))
            except Exception:  # of steps of the user's that need lengths: whatever they raise
                continue
    return fits


def _measure(task: Any, config: DatasetConfig) -> LengthFit:
    from t5xpg.data.stream.pipeline import without_autograph
    from t5xpg.data.tasks.providers import reads_cache

    names = [name for name in config.token_features if name in config.task_feature_lengths]
    lengths: dict[str, list[int]] = {name: [] for name in names}
    unknown = dict.fromkeys(names, 0)
    cached = reads_cache(task, config)
    dataset = without_autograph(lambda: task.get_dataset(None, config.split, use_cached=cached, shuffle=False))
    for example in dataset.take(_EXAMPLES).as_numpy_iterator():
        for name in names:
            lengths[name].append(len(example[name]))
            unknown[name] += int(np.sum(example[name] == task.output_features[name].vocabulary.unk_id))
    return LengthFit(
        task=task.name,
        examples=max(map(len, lengths.values()), default=0),
        cut={name: sum(n > config.task_feature_lengths[name] for n in lengths[name]) for name in names},
        longest={name: max(lengths[name], default=0) for name in names},
        tokens={name: sum(lengths[name]) for name in names},
        unknown=unknown,
        padding=None if config.length_buckets is None else _padding(lengths, config),
    )


def _padding(lengths: Mapping[str, Sequence[int]], config: DatasetConfig) -> tuple[float, float]:
    """The share of padding in rows of examples with these lengths: in their buckets, and all in the longest bucket."""
    sizes = config.task_feature_lengths
    lengths_cut = np.stack([np.minimum(lengths[name], sizes[name]) for name in lengths])
    buckets = np.array(list(config.buckets))
    of_example = buckets[np.searchsorted(buckets, lengths_cut.max(axis=0))]

    def share(bucket: np.ndarray) -> float:
        return float(1 - lengths_cut.sum() / max(1, sum(np.minimum(bucket, sizes[name]).sum() for name in lengths)))

    return share(of_example), share(np.full_like(of_example, buckets[-1]))
