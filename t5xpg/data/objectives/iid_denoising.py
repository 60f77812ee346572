"""Denoising of single tokens (Raffel et al. 2020, section 3.1.4)."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from t5xpg.data.objectives.objective import Lengths, Objective, ObjectiveLengths, Step, sentinels_problem, text_of
from t5xpg.data.vocab.vocabulary import Vocabulary

_RARE = 1e-9  # the probability that an example exceeds the numbers that are given for it
_LONGEST_COUNTED = 1 << 11  # tokens of text; for longer ones its numbers are scaled


@dataclass(frozen=True)
class IidDenoising(Objective):
    """Each token is masked by itself, and runs of them become sentinels."""

    noise_density: float = 0.15  # probability that a token is masked

    name = "iid_denoising"

    def __post_init__(self) -> None:
        self._check_density()

    @classmethod
    def known_steps(cls) -> tuple[Step, ...]:
        from t5.data import preprocessors as t5

        return t5.iid_denoising, iid_denoising

    def lengths(self, lengths: Lengths, vocabulary: Vocabulary | None = None, reserved: int = 0) -> ObjectiveLengths:
        text = lengths["inputs"] - reserved - 1
        noise_and_runs, runs = _iid_most(max(text, 1), self.noise_density)
        return ObjectiveLengths(text, noise_and_runs + 1, runs)

    def vocabulary_problem(self, task: str, vocabulary: Vocabulary) -> str | None:
        return sentinels_problem(task, vocabulary)


@functools.cache
def _iid_most(text: int, density: float) -> tuple[int, int]:
    """Of `text` tokens masked one by one: most tokens of targets (masked ones, and a sentinel for each run of others)
    without an end, and most sentinels; the inputs have one for each run of masked ones."""
    if text > _LONGEST_COUNTED:  # no larger share of a longer text
        tokens, sentinels = _iid_most(_LONGEST_COUNTED, density)
        return -(-tokens * text // _LONGEST_COUNTED), -(-sentinels * text // _LONGEST_COUNTED)
    masked_and_runs = _most(text, density, {"mm": 1, "om": 1, "mo": 1}, before="m")
    runs_of_masked = _most(text, density, {"om": 1}, before="o")
    runs_of_others = _most(text, density, {"mo": 1}, before="m")
    return masked_and_runs, max(runs_of_masked, runs_of_others)


def _most(text: int, density: float, counted: Mapping[str, int], before: str) -> int:
    """The number that a count exceeds with probability _RARE: of pairs of neighbours, "m" masked and "o" other ones,
    the distribution of which is followed token by token. before: what stands before the first token."""
    ways = {state: np.zeros(text + 1) for state in "mo"}  # probability of each count, by the last token
    ways[before][0] = 1.0
    chances = {"m": density, "o": 1.0 - density}

    def moved(last: str, state: str) -> np.ndarray:
        by = counted.get(last + state, 0)
        return np.concatenate([np.zeros(by), ways[last][: text + 1 - by]])

    for _ in range(text):
        ways = {state: chances[state] * (moved("m", state) + moved("o", state)) for state in "mo"}
    beyond = np.cumsum((ways["m"] + ways["o"])[::-1])[::-1]  # of at least so many
    return int(np.flatnonzero(beyond > _RARE)[-1])


def iid_denoising(
    dataset: Any, sequence_length: Lengths, output_features: Mapping[str, Any], noise_density: float = 0.15
) -> Any:
    """`t5.iid_denoising`, which has a density of 0.15, with others."""
    from t5.data import preprocessors as t5

    dataset = text_of(dataset, output_features)
    dataset = t5.split_tokens_to_inputs_length(
        dataset, output_features=output_features, sequence_length=sequence_length
    )
    return t5.denoise(
        dataset,
        output_features,
        inputs_fn=t5.noise_span_to_unique_sentinel,
        targets_fn=t5.nonnoise_span_to_unique_sentinel,
        noise_density=noise_density,
        noise_mask_fn=t5.iid_noise_mask,
    )
