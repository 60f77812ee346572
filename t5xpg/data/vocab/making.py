"""Makes the vocabulary of a dataset: trained on its export, or copied from a model that there is, with a report."""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base import digests
from t5xpg.base.environment import versions
from t5xpg.base.errors import UserError
from t5xpg.base.files import directory_atomically, read_json, remove_abandoned, write_json
from t5xpg.base.progress import Progress
from t5xpg.data.text import labelled
from t5xpg.data.text.manifest import read_manifest, split_path, texts_of_line
from t5xpg.data.vocab import tokenizers
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.record import (
    NAME,
    RECORD,
    REPORT,
    VocabularyRecord,
    come_back,
    find_vocabularies,
    folder_of,
    read_record,
)
from t5xpg.data.vocab.token_listing import printable
from t5xpg.data.vocab.tokenizers import HUGGING_FACE
from t5xpg.data.vocab.training import VocabularySettings, draw_sample, train_model
from t5xpg.data.vocab.vocabulary import Vocabulary

# The first of these that an export has is measured on.
SPLITS = ("validation", "test", "train")
MOST_BYTES = 4_000_000  # of text that is measured on
_COUNTS = ("documents", "kept", "words_kept", "characters", "bytes", "words", "tokens")
_LONGEST = 10  # pieces that are named
_MODEL_FILES = {"sentencepiece": "sentencepiece.model", HUGGING_FACE: "tokenizer.json"}
_MAKERS = ("t5xpg", "sentencepiece")  # whose versions are recorded
Log = Callable[[str], None]


def measure(vocabulary: Vocabulary, folder: Path) -> dict[str, Any]:
    """What there is to say of a vocabulary on the held-out text in `folder`: counts of what was measured on, "coverage"
    (known characters), "tokens_per_word", "bytes_per_token", "used" (share of pieces) and "longest_pieces";
    documents that ids give back as they were ("kept") or but for white space ("words_kept"), a word's "first_change".
    """
    split = next(split for split in SPLITS if split_path(folder, split).is_file())
    counts: collections.Counter[str] = collections.Counter()
    seen, first_change = np.zeros(vocabulary.size, bool), None
    with split_path(folder, split).open("rb") as file, Progress(f"measure on {split}", None, "documents") as progress:
        for line in file:
            kept = words_kept = True
            for text in texts_of_line(line):
                ids = vocabulary.encode_plain(text)
                back = vocabulary.decode(ids)
                change = next((pair for pair in zip_longest(text.split(), back.split()) if pair[0] != pair[1]), None)
                kept, words_kept = kept and back == text, words_kept and not change
                first_change = first_change or change
                seen[ids] = True
                counts.update(characters=len(text), bytes=len(text.encode("utf-8")), words=len(text.split()))
                counts.update(tokens=len(ids), unknown=vocabulary.unknown_characters(text))
            counts.update(documents=1, kept=kept, words_kept=words_kept)
            progress.advance()
            if counts["bytes"] >= MOST_BYTES:
                break
    pieces = {token: vocabulary.piece(token) for token in np.flatnonzero(vocabulary.token_bytes()).tolist()}
    texts = [piece for piece in pieces.values() if not (piece.startswith("<0x") and len(piece) == 6)]
    return {
        "split": split,
        **{name: counts[name] for name in _COUNTS},
        "first_change": first_change,
        "coverage": 1 - counts["unknown"] / max(1, counts["characters"]),
        "tokens_per_word": counts["tokens"] / max(1, counts["words"]),
        "bytes_per_token": counts["bytes"] / max(1, counts["tokens"]),
        "used": int(seen[list(pieces)].sum()) / max(1, len(pieces)),
        "pieces": len(pieces),
        "longest_pieces": sorted(texts, key=lambda piece: (-len(piece), piece))[:_LONGEST],
    }


def table(report: dict[str, Any]) -> str:
    """The report for a person."""
    rows = [
        ("measured on", f"{report['split']}, {report['documents']:,} documents, {report['bytes']:,} bytes"),
        ("coverage", f"{report['coverage']:.4%} of the characters have tokens"),
        *([("come back", come_back(report))] if "kept" in report else []),  # reports of earlier versions have no counts
        ("tokens a word", f"{report['tokens_per_word']:.3f}"),
        ("bytes a token", f"{report['bytes_per_token']:.3f}"),
        ("pieces used", f"{report['used']:.1%} of {report['pieces']:,}"),
        ("longest", " ".join(map(printable, report["longest_pieces"]))),
    ]
    return "\n".join(f"  {name:<14} {value}" for name, value in rows)


def train_vocabulary(
    dataset: str,
    settings: VocabularySettings,
    *,
    data_dir: Path,
    name: str | None = None,
    force: bool = False,
    log: Log = print,
) -> VocabularyRecord:
    """Train a model on the training split of an export, into `data_dir/dataset/vocabularies/name/`, unless it is there.
    UserError where there is another (`force` replaces it), and where the text is too little or not as it was exported.
    """
    manifest = read_manifest(data_dir / dataset)
    manifest.check_files(data_dir / dataset)
    name = settings.name if name is None else name
    if "train" not in manifest.splits:
        raise UserError(f"DATASET={dataset} has no train split, which a vocabulary is trained on: name another.")
    source = {"kind": "export", "dataset": dataset, "sha256": manifest.splits["train"].sha256}
    wanted = VocabularyRecord(dataset, name, _MODEL_FILES["sentencepiece"], {}, source, settings.to_json(), {}, {})
    if (record := _there(wanted, data_dir, force, log)) is not None:
        return record
    train = split_path(data_dir / dataset, "train")
    sample = draw_sample(dataset, train, manifest.splits["train"].documents, settings)
    sentences = sample.sentences()
    if not sentences:
        raise UserError(f"SAMPLE={settings.sample} of {dataset} holds no sentence: give more.")
    settings = settings.for_text(sentences)
    log(
        f"training {settings.model} with {settings.size:,} pieces on {len(sentences):,} of {sample.offered:,} lines, "
        f"{sample.bytes / 1e6:,.1f} MB …"
    )
    tasks = labelled.supervised_tasks(manifest.fields).values()
    model = train_model(sentences, settings, sample.bytes, [task.prompt(dataset) for task in tasks])
    read = {"lines": sample.offered, "used_lines": len(sentences), "used_bytes": sample.bytes}
    wanted = dataclasses.replace(wanted, text=read, settings=settings.to_json())
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
    """Copy a SentencePiece model or Hugging Face tokenizer as a vocabulary of the table, measured on the text of the
    dataset; `vocabulary_of_file` explains `extra_ids`, `eos_token` and `pad_token`. Otherwise as `train_vocabulary`."""
    found = vocabulary_of_file(file, extra_ids, eos_token=eos_token, pad_token=pad_token)
    model = Path(str(found.model_file))
    read_manifest(data_dir / dataset)
    source = {"kind": "file", "path": str(file), "sha256": found.to_json()["model_sha256"]}
    settings = {"extra_ids": extra_ids, "eos_token": eos_token, "pad_token": pad_token}
    wanted = VocabularyRecord(dataset, name, _MODEL_FILES[found.kind], {}, source, settings, {}, {})
    if (record := _there(wanted, data_dir, force, log)) is not None:
        return record

    # not read again: what says which token is the end may lie beside the original alone
    return _put(
        wanted, data_dir, model.read_bytes(), lambda copy: dataclasses.replace(found, model_file=str(copy)), log
    )


def _there(wanted: VocabularyRecord, data_dir: Path, force: bool, log: Log) -> VocabularyRecord | None:
    """The vocabulary of that name, where it is the one that is wanted; None to replace it. Raises UserError where it is
    another, and for a name that cannot be."""
    folder = _folder(wanted, data_dir)
    if force or not (folder / RECORD).exists():
        return None
    record = read_record(folder)
    what = "text" if wanted.source["kind"] == "export" else "file"
    changes = _changes(f"the {what} ({{}})", record.source, wanted.source)
    changes += _changes("{}", record.settings, record.with_coverage(wanted.settings))
    if changes:
        listed = "\n  ".join(changes)
        raise UserError(
            f"The vocabulary in {folder} was made from something else than is asked for now:\n  {listed}\n"
            "Models that were trained with it, and caches, need it as it is. To keep both, give the new one a name of "
            "its own: VOCAB=…  To replace it: FORCE=1"
        )
    record.check_model(folder)
    log(f"{wanted.dataset}_{wanted.name} is up to date: {_summary(record.vocabulary_in(folder))}")
    if (folder / REPORT).is_file():
        log(table(read_json(folder / REPORT)))
    return record


def _folder(wanted: VocabularyRecord, data_dir: Path) -> Path:
    if not NAME.fullmatch(wanted.name) or len(wanted.name) > 100:
        raise UserError(f"VOCAB={wanted.name[:100]}: a name is at most 100 letters, digits and underscores.")
    folder = folder_of(data_dir, wanted.dataset, wanted.name)
    name = f"{wanted.dataset}_{wanted.name}"
    if (other := find_vocabularies(data_dir).get(name, folder)) != folder:  # a + b_c and a_b + c
        raise UserError(f"Tasks name {other} {name!r}, too: give this vocabulary another name, VOCAB=…")
    remove_abandoned(folder.parent)
    return folder


def _changes(form: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    def text(value: Any) -> str:
        return digests.short(value) if isinstance(value, str) and len(value) == 64 else str(value)

    names = [name for name in sorted({*then, *now} - {"path"}) if then.get(name) != now.get(name)]
    return [f"{form.format(name)}: {text(then.get(name))}, now {text(now.get(name))}" for name in names]


def _put(
    wanted: VocabularyRecord, data_dir: Path, model: bytes, vocabulary_of: Callable[[Path], Vocabulary], log: Log
) -> VocabularyRecord:
    folder = _folder(wanted, data_dir)
    with directory_atomically(folder) as new:
        (new / wanted.model_file).write_bytes(model)
        vocabulary = vocabulary_of(new / wanted.model_file)
        made_by = {name: version for name, version in versions().items() if name in _MAKERS and version is not None}
        record = dataclasses.replace(wanted, vocabulary=vocabulary.identity, versions=made_by)
        record.write(new)
        report = measure(vocabulary, data_dir / wanted.dataset)
        write_json(new / REPORT, report)
    tokenizers.load.cache_clear()  # another model may have had the same name
    log(f"{wanted.dataset}_{wanted.name}: {_summary(record.vocabulary_in(folder))}")
    log(table(report))
    return record


def _summary(vocabulary: Vocabulary) -> str:
    size, sentinels = vocabulary.size, vocabulary.num_sentinels
    return f"{size:,} ids ({size - sentinels:,} tokens and {sentinels:,} sentinels)"
