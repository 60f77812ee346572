"""What an import takes of a checkpoint, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.models.config import T5Config
from t5xpg.models.model import Params
from t5xpg.vocabularies import Vocabulary


@dataclass(frozen=True)
class Taken:
    """A checkpoint as this project has it.

    source: where it came from, for people. name: what its run is called. format: of the files ("huggingface", "t5x",
    "mesh_tensorflow"). family: as its own program calls it. files: those that identify it. tokenizer_files: kept with
    the run. step, opt_state: of the optimiser, where it was taken, too (optax's state of `optimizers.Adafactor`).
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

    def sha256(self, digest: Any) -> Mapping[str, str]:
        """Digests of the files by name."""
        return {file.name: digest(file) for file in self.files}
