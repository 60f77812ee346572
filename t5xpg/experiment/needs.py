"""What an experiment says that it needs where the name of its task does not say enough: exports and vocabularies.

The fields are the options of `make data` and `make vocab` in small letters; None stands for what those take by default:

    NEEDS = (@needs.Data(), @needs.Vocabulary())
    needs.Data:
      dataset = 'norwegian'
      max_mb = 20000
    needs.Vocabulary:
      dataset = 'norwegian'
      size = 32000

Needs decide nothing that a run computes: its identity holds the digests of the text and of the vocabulary.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from t5xpg.base.errors import UserError
from t5xpg.data.text import labelled, local_files
from t5xpg.data.text.labelled import TEXT
from t5xpg.data.text.sources import HuggingFace
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.record import VocabularyRecord
from t5xpg.data.vocab.tokenizers import SENTENCEPIECE
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.data.vocab.vocabulary import Vocabulary as Ids


@dataclass(frozen=True)
class Data:
    """An export. files: of the user, the text of `FILES=` for each split. published: where those files can be had."""

    dataset: str
    files: Mapping[str, str] | None = None
    fields: str | None = None
    hub: str | None = None
    config: str | None = None
    revision: str | None = None
    limit: int | None = None
    max_mb: float | None = None
    published: str | None = None

    _options: ClassVar = ("fields", "files", "hub", "config", "revision", "limit", "max_mb")

    @property
    def command(self) -> str:
        """What makes it, as one types it."""
        return _command("make data", self, {**vars(self), "files": self._files})

    @property
    def field_names(self) -> tuple[str, ...]:
        """What a row of the export holds."""
        return TEXT if self.fields is None else tuple(labelled.parse_fields(self.fields))

    def options(self) -> dict[str, Any]:
        """The arguments of `export.export_dataset`. Raises UserError where a file is not there."""
        hub = None if self.hub is None else HuggingFace(self.hub, self.config, self.revision, streamed=True)
        return {
            "files": None if self._files is None else local_files.parse_files(self._files),
            "fields": None if self.fields is None else labelled.parse_fields(self.fields),
            "hub": hub,
            "limit": self.limit,
            "max_bytes": None if self.max_mb is None else round(self.max_mb * 1e6),
        }

    def problem(self) -> str | None:
        """What the user has to fetch before it can be made, in one line; None where there is nothing."""
        try:
            self.options()
        except UserError as error:
            published = f" They are published: {self.published}." if self.published else ""
            given = " ".join(f"{split}=…" for split in self.files or ("train", "validation"))
            yours = _command("make data", self, {**vars(self), "files": given})
            return (
                f"{self.dataset} is made of your files: {str(error).removeprefix('FILES: ')}.{published} With files of "
                f"other names, type: {yours}"
            )
        return None

    @property
    def _files(self) -> str | None:
        return None if self.files is None else " ".join(f"{split}={files}" for split, files in self.files.items())


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary that is trained on an export, or with `tokenizer` copied from a file, published at that address."""

    dataset: str
    name: str | None = None
    size: int | None = None
    extra_ids: int | None = None
    model: str | None = None
    character_coverage: float | None = None
    byte_fallback: bool | None = None
    normalization: str | None = None
    tokenizer: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    published: str | None = None

    _trained: ClassVar = ("size", "extra_ids", "model", "character_coverage", "byte_fallback", "normalization")
    _copied: ClassVar = ("extra_ids", "eos_token", "pad_token")
    _options: ClassVar = (*_trained, "tokenizer", "eos_token", "pad_token", "vocab")

    def __post_init__(self) -> None:
        if self.tokenizer is not None and self.name is None:
            raise UserError("needs.Vocabulary.tokenizer needs a name: what the vocabulary is called in names of tasks.")
        _ = self.settings  # raises UserError for those that cannot be

    @property
    def settings(self) -> VocabularySettings:
        """What decides a trained one."""
        given = {name: getattr(self, name) for name in self._trained}
        return VocabularySettings(**{name: value for name, value in given.items() if value is not None})

    @property
    def copied(self) -> dict[str, Any]:
        """What decides a copied one, besides its file."""
        return {name: getattr(self, name) for name in self._copied}

    @property
    def called(self) -> str:
        """Its name below the export."""
        return self.name or self.settings.name

    @property
    def in_tasks(self) -> str:
        """Its name in the names of tasks."""
        return f"{self.dataset}_{self.called}"

    @property
    def command(self) -> str:
        """What makes it, as one types it."""
        return _command("make vocab", self, {**vars(self), "vocab": self.name})

    def problem(self) -> str | None:
        """What the user has to fetch before it can be made, in one line; None where there is nothing."""
        if self.tokenizer is None or Path(self.tokenizer).is_file():
            return None
        fetch = f" To fetch it, type: curl -L -o {self.tokenizer} {self.published}" if self.published else ""
        return f"The vocabulary {self.in_tasks} is copied from a file: there is no file {self.tokenizer}.{fetch}"

    def difference(self, record: VocabularyRecord) -> str | None:
        """Why a vocabulary of this name is not the one that is needed; None where it is."""
        needed = self.settings.to_json() if self.tokenizer is None else self.copied
        made = record.settings
        if made == needed:
            return None
        names = sorted(name for name in {*made, *needed} if made.get(name) != needed.get(name))
        listed = ", ".join(f"{name} {made.get(name)}, needed {needed.get(name)}" for name in names)
        return (
            f"The vocabulary {self.in_tasks} was made with other settings than this experiment needs: {listed}. To "
            f"make it again, type: {self.command} FORCE=1"
        )

    def planned(self) -> Ids:
        """What is known of its ids before it is made."""
        if self.tokenizer is None:
            settings = self.settings
            return PlannedIds(SENTENCEPIECE, settings.extra_ids, model_file=self.in_tasks, pieces=settings.size)
        if self.problem() is not None:
            return PlannedIds(SENTENCEPIECE, self.settings.extra_ids, model_file=self.tokenizer)
        return vocabulary_of_file(Path(self.tokenizer), **self.copied)


@dataclass(frozen=True)
class PlannedIds(Ids):
    """The ids of a vocabulary that is not there yet: at most so many pieces (0: not known), and the extra ids."""

    pieces: int = 0

    @property
    def _tokens(self) -> int:
        return self.pieces


Need = Data | Vocabulary


def _command(program: str, need: Need, values: Mapping[str, Any]) -> str:
    words = [f"DATASET={need.dataset}"]
    for name in need._options:
        if values[name] not in (None, False):
            value = 1 if values[name] is True else values[name]
            text = f'"{value}"' if " " in str(value) else shlex.quote(str(value))
            words.append(f"{name.upper()}={text}")
    return " ".join([program, *words])
