"""The fit of a supervised task's examples to the lengths of a stream and its vocabulary. Without TensorFlow."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from t5xpg.data.spec import DatasetConfig

EXAMPLES = 1000  # the number of first examples of a split that are examined
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
