"""A checkpoint of another program, read into this project's own terms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.models.config import T5Config
from t5xpg.models.model import Params


def run_name(name: str) -> str:
    """What a run of a checkpoint that is called so is called, unless it is given a name."""
    return re.sub(r"\W+", "_", name).strip("_") or "imported"


@dataclass(frozen=True)
class ImportedCheckpoint:
    """A model, its parameters and its vocabulary.

    source: where it came from, for people. name: what its run is called. format: of the files ("huggingface", "t5x",
    "mesh_tensorflow"). family: as its own program calls it. files: those that identify it. tokenizer_files: kept with
    the run. step, opt_state: of the optimiser, where it was read, too (optax's state of `optimizers.Adafactor`).
    """

    source: str
    name: str
    format: str
    family: str
    config: T5Config
    params: Params
    vocabulary: Vocabulary
    files: tuple[Path, ...]
    tokenizer_files: tuple[Path, ...] = ()
    step: int = 0
    opt_state: Any = None
