"""Lengths of inputs and targets, and numbers of sentinels, of every objective."""

import re

import numpy as np
import pytest
import t5.data
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg.data.objectives import (
    IidDenoising,
    LanguageModel,
    MaskedLM,
    NextLine,
    Objective,
    Passkey,
    PrefixLM,
    SpanCorruption,
)
from t5xpg.data.objectives.span_corruption import span_lengths
from t5xpg.data.tasks.task_names import BYTES, NAMED_BYTES, UL2
from t5xpg.data.vocab.vocabulary import Vocabulary
from tests.refusals import assert_named


@pytest.mark.parametrize(
    ("lengths", "objective", "sentinels", "expected"),
    [
        ((256, 64), SpanCorruption(0.15, 20.0), 125, []),
        ((256, 40), SpanCorruption(0.15, 20.0), 125, ["Targets of 40"]),
        ((512, 512), SpanCorruption(0.5, 2.0), 100, ["170 sentinels for 170 spans"]),
        ((512, 100), SpanCorruption(0.5, 2.0), 100, ["too short", "170 sentinels"]),
        ((512, 256), IidDenoising(), 99, ["need 10. sentinels .* lower noise density or shorter inputs"]),
        ((256, 64), IidDenoising(), 125, [r"density 0\.15 give targets of 1\d\d\. .*'targets': 1\d\d\}, or more"]),
        ((256, 200), PrefixLM(), 0, ["targets of 255"]),
        ((256, 200), PrefixLM(0.25), 0, []),
        ((128, 64), MaskedLM(), 0, [r"\{'inputs': 128, 'targets': 128\}"]),
        ((2, 2), MaskedLM(), 0, ["no room for text in inputs of 2 tokens and targets of 2 tokens"]),
        ((256, 8), NextLine(), 0, []),
        ((1, 1), NextLine(), 0, ["no room"]),
        ((64, 6), Passkey(), 0, []),
        ((36, 6), Passkey(), 0, ["no room"]),
        ((64, 5), Passkey(), 0, ["inputs of 64 tokens give targets of 6"]),
    ],
)
def test_what_cannot_be_is_said(
    lengths: tuple[int, int], objective: Objective, sentinels: int, expected: list[str]
) -> None:
    given = dict(zip(("inputs", "targets"), lengths, strict=True))
    vocabulary = NAMED_BYTES if isinstance(objective, MaskedLM) else Vocabulary("bytes", extra_ids=sentinels)
    found = objective.problems("a_task", given, vocabulary)
    for message, part in zip(found, expected, strict=True):
        assert re.search(part, message), message


def test_a_language_model_has_targets_alone() -> None:
    both = {"inputs": 64, "targets": 64}
    assert LanguageModel().problems("a_task", {"targets": 64}, None) == []
    assert_named(
        LanguageModel().problems("a_task", both, None)[0], ["a_task (lm) has 'targets'", "['inputs', 'targets']"]
    )
    assert "(prefix_lm) has 'inputs' and 'targets'" in PrefixLM().problems("a_task", {"targets": 64}, None)[0]


def test_sentinels_suffice_for_ul2() -> None:
    """X with spans of 3 at rate 0.5 makes 128 spans of 512 inputs, more than T5's 100 sentinels, and 256 of 1,024."""
    for inputs in (64, 512, 1024, 1500):
        for denoiser in UL2:
            lengths = {"inputs": inputs, "targets": inputs}
            assert denoiser.objective.problems("a_task", lengths, NAMED_BYTES, reserved=1) == []
    x1 = next(denoiser.objective for denoiser in UL2 if denoiser.name == "x1")
    assert x1.lengths({"inputs": 512, "targets": 512}).sentinels == 128
    assert x1.problems("a_task", {"inputs": 512, "targets": 512}, BYTES)


def test_counts_of_tokens_masked_one_by_one_are_those_that_hardly_any_example_exceeds() -> None:
    """The same distribution by trying: a thousand-millionth part lies six standard deviations above the mean."""
    draw = np.random.default_rng(0)
    text, density, tries = 127, 0.15, 20_000
    masked = draw.random((tries, text)) < density
    before = np.concatenate([np.ones((tries, 1), bool), masked[:, :-1]], axis=1)
    runs_of_others = (~masked & before).sum(1)
    runs_of_masked = (masked & ~np.concatenate([np.zeros((tries, 1), bool), masked[:, :-1]], axis=1)).sum(1)
    tokens = masked.sum(1) + runs_of_others + 1
    found = IidDenoising(density).lengths({"inputs": text + 1, "targets": 99})
    assert found.text == text
    assert tokens.max() < found.targets < tokens.mean() + 7.5 * tokens.std()
    sentinels = np.maximum(runs_of_others, runs_of_masked)
    assert sentinels.max() < found.sentinels < sentinels.mean() + 7.5 * sentinels.std()
    # as many as can be, where that is not rare
    assert IidDenoising(density).lengths({"inputs": 3, "targets": 9}).targets == 3
    # longer texts are bounded by shorter ones
    longer = [IidDenoising(density).lengths({"inputs": n + 1, "targets": 9}) for n in (2048, 2049, 20480)]
    assert longer[0].targets <= longer[1].targets <= longer[0].targets + 2
    assert longer[2].sentinels == 10 * longer[0].sentinels


@settings(max_examples=300)
@given(
    inputs=st.integers(2, 3000),
    density=st.sampled_from([0.01, 0.1, 0.15, 0.25, 0.5, 0.75, 0.9]) | st.floats(0.01, 0.95),
    mean=st.sampled_from([1.0, 2.5, 3.0, 20.0]) | st.floats(1.0, 64.0),
)
def test_lengths_of_spans_are_those_of_t5(inputs: int, density: float, mean: float) -> None:
    density = min(density, mean / (mean + 1))  # others leave no text between the spans
    text, targets = t5.data.preprocessors.random_spans_helper(inputs, density, mean, 1, 1)
    found = span_lengths(inputs, SpanCorruption(density, mean))
    assert found.text_tokens == text
    # t5's mask has at least one noise token and one span
    noise = min(max(round(text * density), 1), text - 1)
    spans = max(round(noise / mean), 1)
    assert (found.target_tokens, found.spans) == (max(targets, noise + spans + 1), spans)
