"""The lengths of span corruption, without TensorFlow, beside those of t5."""

from __future__ import annotations

import t5.data
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg.data.objectives import SpanCorruption
from t5xpg.data.tasks.lengths import span_lengths


@settings(deadline=None, max_examples=300)
@given(
    inputs=st.integers(2, 3000),
    density=st.sampled_from([0.01, 0.1, 0.15, 0.25, 0.5, 0.75, 0.9]) | st.floats(0.01, 0.95),
    mean=st.sampled_from([1.0, 2.5, 3.0, 20.0]) | st.floats(1.0, 64.0),
)
def test_the_lengths_are_those_of_t5(inputs: int, density: float, mean: float) -> None:
    text, targets = t5.data.preprocessors.random_spans_helper(
        inputs_length=inputs,
        noise_density=density,
        mean_noise_span_length=mean,
        extra_tokens_per_span_inputs=1,
        extra_tokens_per_span_targets=1,
    )
    found = span_lengths(inputs, SpanCorruption(density, mean))
    assert found.text_tokens == text
    # t5's mask has at least one noise token and one span
    noise = min(max(round(text * density), 1), text - 1)
    spans = max(round(noise / mean), 1)
    assert (found.target_tokens, found.spans) == (max(targets, noise + spans + 1), spans)


def test_absurd_lengths_take_no_time() -> None:
    assert span_lengths(10**9, SpanCorruption(0.15, 20.0)).text_tokens > 10**9
