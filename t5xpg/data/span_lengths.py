"""How long the inputs and targets of span corruption are, and how many sentinels they take; without TensorFlow.

The numbers are those of `random_spans_helper` and `random_spans_noise_mask` in `t5.data.preprocessors`, with one
sentinel a span and EOS behind inputs and targets.
"""

from __future__ import annotations

from dataclasses import dataclass

from t5xpg.data.objectives import SpanCorruption


@dataclass(frozen=True)
class SpanLengths:
    """For one length of inputs: tokens of text that fill it, tokens of targets that they give, and spans in them."""

    text: int
    targets: int
    spans: int


def span_lengths(inputs_length: int, objective: SpanCorruption) -> SpanLengths:
    """The lengths that fill inputs of `inputs_length` tokens."""
    density, mean = objective.noise_density, objective.mean_noise_span_length

    def of(text: int) -> tuple[int, int]:
        """Lengths of inputs and targets as t5's helper counts them."""
        noise = round(text * density)
        spans = round(noise / mean)
        return text - noise + spans + 1, noise + spans + 1

    # t5 counts upwards from here; no text below the second number is too long, whatever is rounded
    text = max(inputs_length - 1, int((inputs_length - 3) / (1 - density + density / mean)) - 1)
    while of(text + 1)[0] <= inputs_length:
        text += 1
    inputs, targets = of(text)
    if density == 0.5 and targets > inputs:  # t5 makes the two equal
        text, targets = text - 1, targets - 1
    noise = min(max(round(text * density), 1), text - 1)
    spans = max(round(noise / mean), 1)
    # t5's helper does not know that there is always one span, which tells for very short inputs
    return SpanLengths(text, max(targets, noise + spans + 1), spans)
