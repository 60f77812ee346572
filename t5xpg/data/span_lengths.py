"""How long the inputs and targets of span corruption are, and how many sentinels they take; without TensorFlow.

The numbers are those of `random_spans_helper` and `random_spans_noise_mask` in `t5.data.preprocessors`, with one
sentinel a span and EOS behind inputs and targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from t5xpg.data.spec import SpanCorruption


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


def problems(task: str, lengths: Mapping[str, int], objective: SpanCorruption, sentinels: int) -> list[str]:
    """Why a task with this objective cannot be read with these lengths. sentinels: how many its vocabulary has."""
    inputs, targets = lengths["inputs"], lengths["targets"]
    needed = span_lengths(inputs, objective)
    found = []
    if targets < needed.targets:
        found.append(
            f"Targets of {targets} tokens are too short for {task}: inputs of {inputs} tokens with noise density "
            f"{objective.noise_density:g} and a mean span of {objective.mean_noise_span_length:g} give targets of "
            f"{needed.targets}. Set TASK_FEATURE_LENGTHS = "
            f"{{'inputs': {inputs}, 'targets': {needed.targets}}}, or more."
        )
    if needed.spans > sentinels:
        found.append(
            f"{task} would need {needed.spans} sentinels for {needed.spans} spans in inputs of {inputs} tokens, and "
            f"its vocabulary has {sentinels}: further ones would be ordinary tokens. Use longer spans, a lower noise "
            "density or shorter inputs."
        )
    return found
