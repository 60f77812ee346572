"""The pretraining objectives: a file each, and a line of KINDS. `docs/objectives.md` describes them."""

from collections.abc import Mapping
from typing import Any

from t5xpg.data.objectives.iid_denoising import IidDenoising
from t5xpg.data.objectives.language_model import LanguageModel
from t5xpg.data.objectives.masked_lm import MaskedLM
from t5xpg.data.objectives.next_line import NextLine
from t5xpg.data.objectives.objective import CHOSEN, Objective
from t5xpg.data.objectives.passkey import Passkey
from t5xpg.data.objectives.prefix_lm import PrefixLM
from t5xpg.data.objectives.span_corruption import SpanCorruption

__all__ = [
    "CHOSEN", "KINDS", "IidDenoising", "LanguageModel", "MaskedLM", "NextLine", "Objective", "Passkey", "PrefixLM",
    "SpanCorruption", "from_json", "to_json",
]  # fmt: skip

KINDS: Mapping[str, type[Objective]] = {
    kind.name: kind for kind in (SpanCorruption, IidDenoising, PrefixLM, LanguageModel, MaskedLM, NextLine, Passkey)
}


def to_json(objective: Objective | None) -> dict[str, Any] | None:
    """The JSON for `from_json`."""
    return None if objective is None else {"kind": objective.name, **objective.numbers}


def from_json(value: Mapping[str, Any] | None) -> Objective | None:
    """The inverse of `to_json`."""
    if value is None:
        return None
    numbers = dict(value)
    return KINDS[numbers.pop("kind")](**numbers)
