"""The prefix language model (Raffel et al. 2020, section 3.2.3)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.data.objectives.objective import Lengths, Objective, ObjectiveLengths, Step
from t5xpg.data.vocab.vocabulary import Vocabulary


@dataclass(frozen=True)
class PrefixLM(Objective):
    """The rest of a text is predicted from its beginning, which has at least a share of 1 - 2 * `noise_density` of the
    tokens; all its lengths are equally likely."""

    noise_density: float = 0.5  # mean share of the tokens that is predicted: 0.25 in UL2's S-denoiser

    name = "prefix_lm"
    needs_ids = False
    reserved_argument = "reserved"

    def __post_init__(self) -> None:
        self._check_density()
        if self.noise_density > 0.5:
            raise UserError(
                f"PrefixLM.noise_density is {self.noise_density!r}: the mean share that is predicted is at most 0.5, "
                "where the beginning may have any length."
            )

    @classmethod
    def known_steps(cls) -> tuple[Step, ...]:
        from t5.data import preprocessors as t5

        return t5.prefix_lm, prefix_lm

    def lengths(self, lengths: Lengths, vocabulary: Vocabulary | None = None, reserved: int = 0) -> ObjectiveLengths:
        text = lengths["inputs"] - reserved - 1
        # as t5's random_prefix_noise_mask counts, in float32
        share = np.float32(1 - 2 * self.noise_density) * np.float32(text - 1)
        shortest_beginning = min(text - 1, max(1, int(np.round(share))))
        return ObjectiveLengths(text, text - shortest_beginning + 1)


def prefix_lm(
    dataset: Any,
    sequence_length: Lengths,
    output_features: Mapping[str, Any],
    noise_density: float = 0.5,
    reserved: int = 0,
) -> Any:
    """`t5.prefix_lm` with room for `reserved` tokens in front of the inputs."""
    from t5.data import preprocessors as t5

    lengths = {**sequence_length, "inputs": sequence_length["inputs"] - reserved}
    return t5.prefix_lm(dataset, lengths, output_features, noise_density=noise_density)
