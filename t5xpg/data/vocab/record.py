"""Vocabularies that were made for the exports: where they lie, and the record of what they were made from.

A vocabulary is a folder `<data folder>/<dataset>/vocabularies/<name>/` with the model (`sentencepiece.model` or
`tokenizer.json`), `vocabulary.json` and `report.json`. Tasks call it `<dataset>_<name>`.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base import digests
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, write_json
from t5xpg.data.vocab.training import IDENTITY, WORD
from t5xpg.data.vocab.vocabulary import Vocabulary

FOLDER = "vocabularies"
RECORD = "vocabulary.json"
REPORT = "report.json"
NAME = re.compile(r"[A-Za-z0-9_]+")
_FORMAT = 1


@dataclass(frozen=True)
class VocabularyRecord:
    """What a vocabulary was made from, and what it is.

    model_file: the name of the model in its folder. vocabulary: `Vocabulary.to_json` without the path of the model.
    source: the text that it was trained on, or the file that it was copied from, with digests. settings: everything
    else that decides it. text: how much was read and used. versions: of the libraries that made it.
    """

    dataset: str
    name: str
    model_file: str
    vocabulary: Mapping[str, Any]
    source: Mapping[str, Any]
    settings: Mapping[str, Any]
    text: Mapping[str, int]
    versions: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write the record into the vocabulary's folder."""
        write_json(folder / RECORD, {"format": _FORMAT, **vars(self)})

    def vocabulary_in(self, folder: Path) -> Vocabulary:
        """The vocabulary; its model is looked at when it is used. Raises UserError for what describes none."""
        value = {"tokenizer_pad_id": 0, **self.vocabulary}
        names = ("kind", "extra_ids", "sentinels", "eos_id", "unk_id", "tokenizer_pad_id")
        return Vocabulary(model_file=str(folder.resolve() / self.model_file), **{name: value[name] for name in names})

    @property
    def keeps_lines(self) -> bool:
        """Whether it was trained so that the ends of lines are tokens of their own."""
        return self.settings.get("normalization") == IDENTITY and self.settings.get("model") != WORD

    def with_coverage(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settings that are asked for, with this vocabulary's character coverage if they leave that to the text."""
        return {"character_coverage": self.settings.get("character_coverage"), **settings}

    def check_model(self, folder: Path) -> None:
        """Raise UserError where the model is not the one that was made."""
        digests.check(
            folder,
            {self.model_file: self.vocabulary["model_sha256"]},
            f"The vocabulary {self.dataset}_{self.name} is not as it was made",
            f"To make it again, type: {self.command(force=True)}",
        )

    def command(self, force: bool = False) -> str:
        """What to type to make it again."""
        given: dict[str, Any] = {"DATASET": self.dataset, "VOCAB": self.name}
        if self.source.get("kind") == "file":
            given["TOKENIZER"] = self.source.get("path")
        given |= {option.upper(): value for option, value in self.settings.items() if value is not None}
        words = [f"{name}={shlex.quote(str(value))}" for name, value in given.items() if value is not False]
        return " ".join(["make vocab", *(word.replace("=True", "=1") for word in words), *(["FORCE=1"] * force)])


def come_back(report: Mapping[str, Any]) -> str:
    """A sentence on the documents that come back from ids as they were, and on what becomes of the others."""
    kept, words_kept, documents = (report.get(name, 0) for name in ("kept", "words_kept", "documents"))
    text = f"{kept:,} of {documents:,} documents as they were"
    text += f", {words_kept - kept:,} but for white space" if words_kept > kept else ""
    change = " to ".join(map(repr, report.get("first_change") or ()))
    return f"{text}; others are changed, such as {change}" if change else text


def check_model_of(vocabulary: Vocabulary) -> None:
    """`VocabularyRecord.check_model` of a vocabulary of the table, where it was made (bytes were not)."""
    if vocabulary.model_file is not None:
        folder = Path(vocabulary.model_file).parent
        read_record(folder).check_model(folder)


def folder_of(data_dir: Path, dataset: str, name: str) -> Path:
    return data_dir / dataset / FOLDER / name


def find_vocabularies(data_dir: Path) -> dict[str, Path]:
    """The folders of all vocabularies below `data_dir` by `<dataset>_<name>`, sorted. Nothing is read."""
    found: dict[str, Path] = {}
    for path in sorted(data_dir.glob(f"[!.]*/{FOLDER}/[!.]*/{RECORD}")) if data_dir.is_dir() else ():
        folder = path.parent
        dataset, name = folder.parent.parent.name, folder.name
        if NAME.fullmatch(dataset) and NAME.fullmatch(name):
            found.setdefault(f"{dataset}_{name}", folder)
    return found


def read_record(folder: Path) -> VocabularyRecord:
    """The record of a vocabulary's folder. Raises UserError where it cannot be read."""
    path = folder / RECORD
    try:
        value = read_json(path)
        if value.pop("format") != _FORMAT:
            raise ValueError("another format")
        record = VocabularyRecord(**value)
        record.vocabulary_in(folder)
        if not all(isinstance(text, str) for text in (record.model_file, record.vocabulary["model_sha256"])):
            raise ValueError("it names no model")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError) as error:
        raise UserError(
            f"{path} is not the record of a vocabulary of this version ({type(error).__name__}: {error}). To make it "
            f"anew, give its `make vocab` with FORCE=1."
        ) from None
    return record
