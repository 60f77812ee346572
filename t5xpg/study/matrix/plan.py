"""What a matrix trains: matrix.toml in an experiment's folder, beside the gin file that all of its cells share.

dataset = "pydocs"

[architectures.decoder_lm]                # what an entry of an axis lays over the gin file; both may be left out
title = "decoder-only, LM"
gin_files = ["gin/architectures/decoder_only.gin"]
bindings = ["encoder_decoder.T5Config.num_decoder_layers=4"]

[objectives.lm]                           # the name of an objective of the table of tasks
title = "LM"

[vocabularies.bpe]
title = "BPE"
train = { model = "bpe", size = 2000 }    # the options of `make vocab`; none for bytes

[trained]                                 # architecture = its objectives, each with every vocabulary
decoder_lm = ["lm"]

[[left_out]]                              # every other pair, and why
architectures = ["decoder_lm"]
objectives = ["mlm"]
reason = "…"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from t5xpg.data.tasks.task_names import task_name
from t5xpg.data.vocab.training import VocabularySettings

FILE_NAME = "matrix.toml"
AXES = ("architectures", "objectives", "vocabularies")


@dataclass(frozen=True)
class Entry:
    """An entry of an axis. bindings: such as "PACK=True"; they and the files are laid over the experiment's."""

    name: str
    title: str
    gin_files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()


@dataclass(frozen=True)
class VocabularyEntry(Entry):
    """A vocabulary. settings: of the one that is trained on the dataset as `trained_as`; None for bytes."""

    settings: VocabularySettings | None = None
    trained_as: str | None = None


@dataclass(frozen=True)
class Cell:
    """One of each axis, which is a training run of `dataset`."""

    dataset: str
    architecture: Entry
    objective: Entry
    vocabulary: VocabularyEntry

    @property
    def task(self) -> str:
        """The task or mixture of the table that it is trained on."""
        name = self.vocabulary.trained_as
        return task_name(self.dataset, self.objective.name, "" if name is None else task_name(self.dataset, name))

    @property
    def gin_files(self) -> list[str]:
        return [file for entry in self._entries for file in entry.gin_files]

    @property
    def bindings(self) -> list[str]:
        return [f"MIXTURE_OR_TASK_NAME={self.task}", *(one for entry in self._entries for one in entry.bindings)]

    @property
    def name(self) -> str:
        """One name for one cell, that of its folder, too."""
        return ",".join(entry.name for entry in (self.architecture, self.objective, self.vocabulary))

    @property
    def _entries(self) -> tuple[Entry, ...]:
        return self.vocabulary, self.architecture, self.objective


@dataclass(frozen=True)
class Plan:
    """A whole matrix. trained: the objectives of each architecture. left_out: (architectures, objectives, reason)."""

    file: Path
    dataset: str
    architectures: tuple[Entry, ...]
    objectives: tuple[Entry, ...]
    vocabularies: tuple[VocabularyEntry, ...]
    trained: Mapping[str, Sequence[str]]
    left_out: tuple[tuple[frozenset[str], frozenset[str], str], ...]

    def cells(self) -> list[Cell]:
        """All that is trained, vocabulary by vocabulary."""
        return [
            Cell(self.dataset, architecture, objective, vocabulary)
            for vocabulary in self.vocabularies
            for architecture in self.architectures
            for objective in self.objectives
            if objective.name in self.trained.get(architecture.name, ())
        ]

    def reason(self, architecture: str, objective: str) -> str | None:
        """Why a pair is not trained; None for one that is."""
        if objective in self.trained.get(architecture, ()):
            return None
        return next(why for some, others, why in self.left_out if architecture in some and objective in others)
