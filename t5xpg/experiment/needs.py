"""The exports and vocabularies that an experiment needs, if the name of its task does not determine them.

The fields are options of `make data` and `make vocab` in lower case; None stands for the option's default:

    NEEDS = (@needs.Data(), @needs.Vocabulary())
    needs.Data:
      dataset = 'norwegian'
      max_mb = 20000
    needs.Vocabulary:
      dataset = 'norwegian'
      size = 32000

They do not affect what a run computes: its identity holds the digests of the text and of the vocabulary.
"""

import dataclasses
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base import digests
from t5xpg.base.errors import UserError
from t5xpg.data.text import export, labelled, local_files
from t5xpg.data.text.labelled import TEXT
from t5xpg.data.text.manifest import Manifest, one_word
from t5xpg.data.text.sources import HuggingFace
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.record import NAME, VocabularyRecord
from t5xpg.data.vocab.tokenizers import SENTENCEPIECE
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.data.vocab.vocabulary import Vocabulary as Ids


@dataclass(frozen=True)
class Data:
    """An export. files: the user's files by split, as in `FILES=`. published: where those files are published. sha256:
    the digests of the export by split, as in its manifest; an export of another text is refused."""

    dataset: str
    fields: str | None = None
    files: Mapping[str, str] | None = None
    hub: str | None = None
    config: str | None = None
    revision: str | None = None
    limit: int | None = None
    max_mb: float | None = None
    min_characters: int | None = None
    published: str | None = None
    sha256: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.hub is None and (self.config or self.revision):
            raise UserError("needs.Data.config and needs.Data.revision are of the dataset that needs.Data.hub names.")
        if self.max_mb is not None and not 0 < self.max_mb < math.inf:
            raise UserError(f"needs.Data.max_mb is {self.max_mb!r}: it must be a number of megabytes, or None.")
        if not all(isinstance(digest, str) for digest in (self.sha256 or {}).values()):
            raise UserError(f"needs.Data.sha256 is {self.sha256!r}: expected the hex digest of each split, as a text.")

    @property
    def command(self) -> str:
        """The command that makes it, as a user types it."""
        return _make_command("make data", {**vars(self), "files": self._files, "sha256": None})

    @property
    def _files(self) -> str | None:
        return None if self.files is None else " ".join(f"{split}={files}" for split, files in self.files.items())

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of the fields of a row of the export."""
        return TEXT if self.fields is None else tuple(labelled.parse_fields(self.fields))

    def options(self) -> dict[str, Any]:
        """The arguments of `export.export_dataset`. Raises UserError, with what to type, where a file is missing."""
        try:
            files = None if self._files is None else local_files.parse_files(self._files)
        except UserError as error:
            published = f" They are published: {self.published}." if self.published else ""
            command = dataclasses.replace(self, files=dict.fromkeys(self.files or (), "…")).command
            raise UserError(
                f"{self.dataset} is made of your files: {str(error).removeprefix('FILES: ')}.{published} With files of "
                f"other names, type: {command}"
            ) from None
        return {
            "files": files,
            "fields": None if self.fields is None else labelled.parse_fields(self.fields),
            "hub": None if self.hub is None else HuggingFace(self.hub, self.config, self.revision, streamed=True),
            "limit": self.limit,
            "max_bytes": None if self.max_mb is None else max(1, round(self.max_mb * 1e6)),
            "min_characters": self.min_characters,
        }

    def check(self) -> None:
        """Raise UserError, with what to type, for what prevents the export and is known before any text is read."""
        export.check_source(self.dataset, **self.options())

    def check_made(self, manifest: Manifest) -> None:
        """Raise UserError, with what to type, where the export has another text than the experiment is meant for."""
        actual, needed = manifest.identity, dict(self.sha256 or manifest.identity)
        if names := sorted(split for split in {*actual, *needed} if actual.get(split) != needed.get(split)):
            listed = ", ".join(
                f"{split} {digests.short(actual.get(split, 'none'))}, needed {digests.short(needed.get(split, 'none'))}"
                for split in names
            )
            published = f" Its files are published: {self.published}." if self.published else ""
            raise UserError(
                f"The text of {self.dataset} is not the one that this experiment is for (SHA-256): {listed}."
                f"{published} To export them, type: {self.command} FORCE=1  (to take this text all the same: "
                "--gin.needs.Data.sha256=None; of a need with a scope, --gin.SCOPE/needs.Data.sha256=None)"
            )


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary, trained on an export or copied from the file `tokenizer`. published: the address of that file, or a
    sentence that says how to make it."""

    dataset: str
    size: int | None = None
    extra_ids: int | None = None
    model: str | None = None
    character_coverage: float | None = None
    byte_fallback: bool | None = None
    normalization: str | None = None
    tokenizer: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    name: str | None = None
    published: str | None = None

    def __post_init__(self) -> None:
        if self.tokenizer is not None and self.name is None:
            raise UserError("needs.Vocabulary.tokenizer needs a name: what the vocabulary is called in names of tasks.")
        if self.name is not None and not NAME.fullmatch(self.name):
            raise UserError(f"needs.Vocabulary.name is {self.name!r}: expected letters, digits and underscores.")
        self.settings  # noqa: B018  raises UserError for invalid ones

    @property
    def settings(self) -> VocabularySettings:
        """The settings that determine a trained vocabulary."""
        names = ("size", "extra_ids", "model", "character_coverage", "byte_fallback", "normalization")
        return VocabularySettings(**{name: getattr(self, name) for name in names if getattr(self, name) is not None})

    @property
    def copy_settings(self) -> dict[str, Any]:
        """The settings that determine a copied vocabulary, besides its file."""
        return {"extra_ids": self.extra_ids, "eos_token": self.eos_token, "pad_token": self.pad_token}

    @property
    def keeps_lines(self) -> bool:
        """True if line ends are tokens of their own; False for a copied vocabulary, where this is not known."""
        return self.tokenizer is None and self.settings.keeps_spaces

    @property
    def name_in_tasks(self) -> str:
        """The ending of the names of its tasks."""
        return f"{self.dataset}_{self.name or self.settings.name}"

    @property
    def command(self) -> str:
        """The command that makes it, as a user types it."""
        named = {"vocab" if name == "name" else name: value for name, value in vars(self).items()}
        return _make_command("make vocab", named)

    def check(self) -> None:
        """Raise UserError, with what to type, where it cannot be made because its file has not been fetched."""
        if self.tokenizer is not None and not Path(self.tokenizer).is_file():
            command = shlex.join(["curl", "-L", "-o", self.tokenizer, self.published or ""])
            is_address = (self.published or "").startswith(("http://", "https://"))
            fetch = f" To fetch it, type: {command}" if is_address else f" {self.published}" if self.published else ""
            raise UserError(
                f"The vocabulary {self.name_in_tasks} is copied from a file: there is no file {self.tokenizer}.{fetch}"
            )

    def check_made(self, record: VocabularyRecord) -> None:
        """Raise UserError, with what to type, where the vocabulary of this name was made with other settings."""
        recorded = record.settings
        expected = record.with_coverage(self.settings.to_json()) if self.tokenizer is None else self.copy_settings
        if names := sorted(name for name in {*recorded, *expected} if recorded.get(name) != expected.get(name)):
            listed = ", ".join(f"{name} {recorded.get(name)}, needed {expected.get(name)}" for name in names)
            raise UserError(
                f"The vocabulary {self.name_in_tasks} was made with other settings than this experiment needs: "
                f"{listed}. To make it again, type: {self.command} FORCE=1"
            )

    def planned(self) -> "PlannedIds":
        """Its ids, as far as they are known before it is made."""
        if self.tokenizer is not None and Path(self.tokenizer).is_file():
            found = vocabulary_of_file(Path(self.tokenizer), **self.copy_settings)
            ids = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
            return PlannedIds(**ids, pieces=found.size - found.extra_ids)
        pieces = self.settings.size if self.tokenizer is None else 0
        return PlannedIds(SENTENCEPIECE, self.settings.extra_ids, model_file=self.name_in_tasks, pieces=pieces)


@dataclass(frozen=True)
class PlannedIds(Ids):
    """The ids of a vocabulary that does not exist yet. pieces: the most that it has, without extra ids; 0: unknown."""

    pieces: int = 0

    @property
    def _tokens(self) -> int:
        return self.pieces


Need = Data | Vocabulary


def _make_command(program: str, options: Mapping[str, Any]) -> str:
    """A Make command with its options; `published`, and options that are None or False, are left out."""
    words = [program]
    for name, value in options.items():
        if value is not None and value is not False and name != "published":  # 0 is kept
            text = "1" if value is True else str(value)
            words.append(f"{name.upper()}={one_word(text) if ' ' in text else shlex.quote(text)}")
    return " ".join(words)
