"""What T5X's checkpoints do not say, and a file beside those that are written here does."""

from __future__ import annotations

import dataclasses
from typing import Any

from t5xpg.models.config import T5Config
from t5xpg.vocabularies import Vocabulary

RECORD = "t5xpg.json"


def record_of(config: T5Config, vocabulary: Vocabulary) -> dict[str, Any]:
    """The sizes of a model and the vocabulary of its ids, as JSON."""
    return {"model": dataclasses.asdict(config), "vocabulary": vocabulary.to_json()}
