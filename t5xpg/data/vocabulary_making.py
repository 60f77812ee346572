"""Makes the vocabulary of a dataset: trained on its export, or copied from a model that there is, with a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from t5xpg import digests, token_models
from t5xpg.data import vocabulary_report
from t5xpg.data.manifest import read_manifest, split_path
from t5xpg.data.vocabulary_record import NAME, RECORD, REPORT, VocabularyRecord, folder_of, read_record
from t5xpg.data.vocabulary_training import VocabularySettings, draw_sample, train_model
from t5xpg.environment import versions
from t5xpg.errors import UserError
from t5xpg.files import directory_atomically, read_json, remove_abandoned, write_json
from t5xpg.token_models import HUGGING_FACE
from t5xpg.vocabularies import Vocabulary
from t5xpg.vocabulary_files import vocabulary_of_file

_MODEL_FILES = {"sentencepiece": "sentencepiece.model", HUGGING_FACE: "tokenizer.json"}
_MAKERS = ("t5xpg", "sentencepiece")  # whose versions are recorded
Log = Callable[[str], None]


def train_vocabulary(
    dataset: str,
    settings: VocabularySettings,
    *,
    data_dir: Path,
    name: str | None = None,
    force: bool = False,
    log: Log = print,
) -> VocabularyRecord:
    """Train a SentencePiece model on the training split of an export, unless that is done.

    It goes to `data_dir/dataset/vocabularies/name/`. One that is there and was made from another text or with other
    settings is said to be so, and replaced with `force` alone: its ids are what models were trained with. Raises
    UserError for that, and where the text is too little or not as it was exported.
    """
    manifest = read_manifest(data_dir / dataset)
    manifest.check_files(data_dir / dataset)
    name = settings.name if name is None else name
    source = {"kind": "export", "dataset": dataset, "sha256": manifest.splits["train"].sha256}
    wanted = VocabularyRecord(dataset, name, _MODEL_FILES["sentencepiece"], {}, source, settings.to_json(), {}, {})
    if not force and (record := _there(wanted, data_dir, log)) is not None:
        return record
    train = split_path(data_dir / dataset, "train")
    sample = draw_sample(dataset, train, manifest.splits["train"].documents, settings)
    sentences = sample.sentences()
    if not sentences:
        raise UserError(f"SAMPLE={settings.sample} of {dataset} holds no sentence: give more.")
    log(
        f"training {settings.model} with {settings.size:,} pieces on {len(sentences):,} of {sample.offered:,} lines, "
        f"{sample.bytes / 1e6:,.1f} MB …"
    )
    model = train_model(sentences, settings, sample.bytes)
    read = {"lines": sample.offered, "used_lines": len(sentences), "used_bytes": sample.bytes}
    wanted = dataclasses.replace(wanted, text=read)
    record = _put(wanted, data_dir, model, lambda file: vocabulary_of_file(file, settings.extra_ids), log)
    pieces = record.vocabulary["size"] - settings.extra_ids
    if pieces < settings.size:
        log(f"the text has no more than {pieces:,} pieces to give, {settings.size:,} were asked for")
    return record


def copy_vocabulary(
    dataset: str,
    file: Path,
    *,
    data_dir: Path,
    name: str,
    extra_ids: int | None = None,
    eos_token: str | None = None,
    pad_token: str | None = None,
    force: bool = False,
    log: Log = print,
) -> VocabularyRecord:
    """Take a SentencePiece model or a Hugging Face tokenizer for a vocabulary of the table; `vocabulary_of_file`
    explains `extra_ids`, `eos_token` and `pad_token`.

    The model is copied, and measured on the text of the dataset. As `train_vocabulary` otherwise.
    """
    found = vocabulary_of_file(file, extra_ids, eos_token=eos_token, pad_token=pad_token)
    model = Path(str(found.model_file))
    read_manifest(data_dir / dataset)
    source = {"kind": "file", "path": str(file), "sha256": found.to_json()["model_sha256"]}
    settings = {"extra_ids": extra_ids, "eos_token": eos_token, "pad_token": pad_token}
    wanted = VocabularyRecord(dataset, name, _MODEL_FILES[found.kind], {}, source, settings, {}, {})
    if not force and (record := _there(wanted, data_dir, log)) is not None:
        return record

    def copied(copy: Path) -> Vocabulary:
        # not read again: what says which token is the end may lie beside the original alone
        return dataclasses.replace(found, model_file=str(copy))

    return _put(wanted, data_dir, model.read_bytes(), copied, log)


def _there(wanted: VocabularyRecord, data_dir: Path, log: Log) -> VocabularyRecord | None:
    """The vocabulary of that name, where it is the one that is wanted. Raises UserError where it is another."""
    _check_name(wanted.name)
    folder = folder_of(data_dir, wanted.dataset, wanted.name)
    remove_abandoned(folder.parent)
    if not (folder / RECORD).exists():
        return None
    record = read_record(folder)
    changes = [
        *_changes("the text" if wanted.source["kind"] == "export" else "the file", record.source, wanted.source),
        *_changes("", record.settings, wanted.settings),
    ]
    if changes:
        listed = "\n".join(f"  {change}" for change in changes)
        raise UserError(
            f"The vocabulary in {folder} was made from something else than is asked for now:\n{listed}\n"
            "Models that were trained with it, and caches, need it as it is. To keep both, give the new one a name of "
            "its own: VOCAB=…  To replace it: FORCE=1"
        )
    record.check_model(folder)
    log(f"{wanted.dataset}_{wanted.name} is up to date: {_summary(record)}")
    if (folder / REPORT).is_file():
        log(vocabulary_report.table(read_json(folder / REPORT)))
    return record


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name) or len(name) > 100:
        raise UserError(f"VOCAB={name[:100]}: a name is at most 100 letters, digits and underscores.")


def _changes(what: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    found = []
    for name in sorted({*then, *now} - {"path"}):
        if then.get(name) != now.get(name):
            said = [str(value) if value is None else _short(value) for value in (then.get(name), now.get(name))]
            found.append(f"{' '.join(filter(None, (what, f'({name})' if what else name)))}: {said[0]}, now {said[1]}")
    return found


def _short(value: Any) -> str:
    return digests.short(value) if isinstance(value, str) and len(value) == 64 else str(value)


def _put(
    wanted: VocabularyRecord,
    data_dir: Path,
    model: bytes,
    vocabulary_of: Callable[[Path], Vocabulary],
    log: Log,
) -> VocabularyRecord:
    """Write a vocabulary and its report, whole or not at all."""
    _check_name(wanted.name)
    folder = folder_of(data_dir, wanted.dataset, wanted.name)
    remove_abandoned(folder.parent)
    with directory_atomically(folder) as new:
        (new / wanted.model_file).write_bytes(model)
        vocabulary = vocabulary_of(new / wanted.model_file)
        described = {key: value for key, value in vocabulary.to_json().items() if key != "model_file"}
        made_by = {name: version for name, version in versions().items() if name in _MAKERS and version is not None}
        record = dataclasses.replace(wanted, vocabulary=described, versions=made_by)
        record.write(new)
        report = vocabulary_report.measure(vocabulary, data_dir / wanted.dataset)
        write_json(new / REPORT, report)
    token_models.load.cache_clear()  # another model may have had the same name
    log(f"{wanted.dataset}_{wanted.name}: {_summary(record)}")
    log(vocabulary_report.table(report))
    return record


def _summary(record: VocabularyRecord) -> str:
    size, extra_ids = record.vocabulary["size"], record.vocabulary["extra_ids"]
    return f"{size:,} ids ({size - extra_ids:,} tokens and {extra_ids:,} sentinels)"
