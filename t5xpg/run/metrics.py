"""The sums that training and evaluation steps return, added up, and the means that are reported."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# Sums over target tokens, added up over steps and divided once; see `losses.loss_and_metrics`.
SUMS = ("cross_entropy", "z_loss", "weights", "correct", "target_bytes")


@dataclass
class Window:
    """Adds up the metrics of several steps. Its fields are JSON, so that a checkpoint can hold an unfinished one."""

    steps: int = 0
    values: dict[str, float] = field(default_factory=dict)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add one step's metrics: float64 sums of float32 values, in the order of the steps."""
        self.steps += 1
        for name in (*SUMS, "teacher_divergence", "gradient_norm"):
            if name in metrics:
                self.values[name] = self.values.get(name, 0.0) + float(metrics[name])
        if "learning_rate" in metrics:  # that of the last step
            self.values["learning_rate"] = float(metrics["learning_rate"])

    def summary(self) -> dict[str, float | int]:
        """Per target token: loss in nats (no z-loss, no smoothing), z_loss, accuracy; per target byte: nats and bits.
        With a teacher, also the divergence from it, in nats per token.

        The loss is the field's "validation loss": cross entropy over the weighted target tokens, sentinels and EOS
        included. Nats a byte divide the same sum by the UTF-8 bytes that the targets stand for.
        """
        values = self.values
        tokens = values.get("weights", 0.0)
        target_bytes = values.get("target_bytes", 0.0)
        result: dict[str, float | int] = {
            "loss": _ratio(values.get("cross_entropy", 0.0), tokens),
            "accuracy": _ratio(values.get("correct", 0.0), tokens),
            "nats_per_byte": _ratio(values.get("cross_entropy", 0.0), target_bytes),
            "bits_per_byte": _ratio(values.get("cross_entropy", 0.0), target_bytes * math.log(2)),
            "z_loss": _ratio(values.get("z_loss", 0.0), tokens),
            "target_tokens": int(tokens),
            "target_bytes": int(target_bytes),
        }
        if "teacher_divergence" in values:
            result["teacher_divergence"] = _ratio(values["teacher_divergence"], tokens)
        if "gradient_norm" in values:
            result["gradient_norm"] = values["gradient_norm"] / self.steps
        if "learning_rate" in values:
            result["learning_rate"] = values["learning_rate"]
        return result


def format_line(summary: Mapping[str, float | int]) -> str:
    """A summary in a line: loss, use of the encoder, nats and bits per byte where targets are text, and accuracy."""
    use = f", {summary['encoder_use']:+.3f} with other inputs" if "encoder_use" in summary else ""
    per_byte = f"{summary['nats_per_byte']:.3f} nats and {summary['bits_per_byte']:.3f} bits per target byte, "
    return (
        f"loss {summary['loss']:.3f} nats per target token{use}, {per_byte if summary['target_bytes'] else ''}"
        f"token accuracy {summary['accuracy']:.3f}"
    )


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
