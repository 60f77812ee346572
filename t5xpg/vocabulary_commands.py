"""The commands `vocab` and `tokens`: make a vocabulary, and look at one."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t5xpg.errors import UserError

if TYPE_CHECKING:
    from t5xpg.vocabularies import Vocabulary

_DIGITS = 12


def add_options(vocab: argparse.ArgumentParser, tokens: argparse.ArgumentParser) -> None:
    """The options of the two commands."""
    vocab.add_argument("dataset")
    vocab.add_argument("--size", type=_number, default=32_000, metavar="N", help="pieces, without the sentinels")
    vocab.add_argument("--extra-ids", type=_number, metavar="N", help="sentinels behind the pieces (default: 100)")
    vocab.add_argument("--model", default="unigram", help="unigram (default) or bpe")
    vocab.add_argument("--sample", default="1000000", metavar="N", help="train on so many lines, or bytes: 200MB")
    vocab.add_argument("--seed", type=_number, default=0, metavar="N", help="chooses the sample")
    vocab.add_argument("--character-coverage", type=float, default=0.9995, metavar="SHARE")
    vocab.add_argument("--byte-fallback", action="store_true", help="characters without a piece become bytes")
    vocab.add_argument("--normalization", default="nmt_nfkc", help="SentencePiece's rule; identity keeps all (code)")
    vocab.add_argument("--name", help="what it is called (default: <model>_<size>)")
    vocab.add_argument("--tokenizer", metavar="FILE", help="take a SentencePiece model or tokenizer.json instead")
    vocab.add_argument("--eos-token", metavar="TOKEN", help="the end token of a tokenizer that names none")
    vocab.add_argument("--pad-token", metavar="TOKEN", help="the padding of a tokenizer that names none")
    vocab.add_argument("--force", action="store_true", help="replace another one of the same name")
    tokens.add_argument(
        "vocabulary", help="a task of the table, or the path of a SentencePiece model or tokenizer.json"
    )
    tokens.add_argument("--text", help="may hold sentinels: <extra_id_0>")
    tokens.add_argument("--ids", help="ids instead of a text: 383,105,1")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS:
        raise argparse.ArgumentTypeError(f"{ascii(text)[1:-1]} is not a number")
    return int(text)


def make(options: argparse.Namespace) -> int:
    """Train a vocabulary, or copy one."""
    from t5xpg import preparation
    from t5xpg.data import supervised, task_names
    from t5xpg.data.text_sample import SampleSize
    from t5xpg.data.vocabulary_training import VocabularySettings

    if options.tokenizer:
        if not options.name:
            raise UserError("TOKENIZER=… needs a VOCAB=…: what the vocabulary is called in the names of tasks.")
        record = preparation.copy_vocabulary(
            options.dataset,
            Path(options.tokenizer),
            name=options.name,
            extra_ids=options.extra_ids,
            eos_token=options.eos_token,
            pad_token=options.pad_token,
            force=options.force,
        )
    else:
        settings = VocabularySettings(
            size=options.size,
            extra_ids=100 if options.extra_ids is None else options.extra_ids,
            model=options.model,
            character_coverage=options.character_coverage,
            byte_fallback=options.byte_fallback,
            normalization=options.normalization,
            sample=SampleSize.parse(options.sample),
            seed=options.seed,
        )
        record = preparation.train_vocabulary(options.dataset, settings, name=options.name, force=options.force)
    kinds = supervised.endings(preparation.dataset_fields()[record.dataset]) or [task_names.SPAN_CORRUPTION]
    task = task_names.task_name(record.dataset, kinds[0], f"{record.dataset}_{record.name}")
    size = record.vocabulary["size"]
    print(f"in an experiment:\n  MIXTURE_OR_TASK_NAME = '{task}'\n  VOCAB_SIZE = {size}", flush=True)
    return 0


def show(options: argparse.Namespace) -> int:
    """Print the special ids of a vocabulary and, where they are given, a text or ids token by token."""
    from t5xpg.vocabularies import OWN

    if options.text is not None and options.ids is not None:
        raise UserError("Give one of TEXT='The <extra_id_0> sat' and IDS=383,105,1.")
    vocabulary = _vocabulary(options.vocabulary)
    last = vocabulary.num_sentinels - 1
    named = "tokens of its own" if vocabulary.sentinels == OWN else f"as {vocabulary.sentinels} numbers them"
    print(f"{vocabulary.kind}, {vocabulary.size:,} ids: padding {vocabulary.pad_id}, end {vocabulary.eos_id}", end="")
    print("" if vocabulary.unk_id is None else f", unknown {vocabulary.unk_id}")
    if last >= 0:
        ends = f"<extra_id_0> {vocabulary.sentinel_id(0)} to <extra_id_{last}> {vocabulary.sentinel_id(last)}"
        print(f"sentinels, {named}: {ends}")
    if options.text is not None or options.ids is not None:
        ids = vocabulary.encode(options.text) if options.ids is None else _ids(options.ids, vocabulary)
        _print_tokens(vocabulary, ids)
    return 0


def _vocabulary(name: str) -> Vocabulary:
    """Of a task, or of a file."""
    from t5xpg import paths, preparation
    from t5xpg.data import task_names
    from t5xpg.vocabulary_files import vocabulary_of_file

    if Path(name).exists():
        return vocabulary_of_file(Path(name))
    dataset, entries = preparation.dataset_of(name), task_names.vocabularies(paths.data_directory())
    if dataset is None:
        get = task_names.how_to_get(name, entries)
        raise UserError(f"There is no task of the table named {name}, and no such file.{get}")
    return task_names.row_of(name, dataset, entries).vocabulary


def _ids(text: str, vocabulary: Vocabulary) -> list[int]:
    words = text.replace(",", " ").split()
    if not all(word.isascii() and word.isdecimal() and len(word) <= _DIGITS for word in words):
        raise UserError(f"IDS={text}: expected whole numbers, 383,105,1.")
    ids = [int(word) for word in words]
    if ids and max(ids) >= vocabulary.size:
        raise UserError(f"IDS={text}: the vocabulary has ids below {vocabulary.size:,}.")
    return ids


def _print_tokens(vocabulary: Vocabulary, ids: Sequence[int]) -> None:
    """A line a token: its id, here and where others number it otherwise, its bytes, the token."""
    others = _elsewhere(vocabulary)
    counts = vocabulary.token_bytes()
    print("  ".join(["      id", *(f"{name:>{max(8, len(name))}}" for name in others), "bytes", "token"]))
    for token in ids:
        index = vocabulary.sentinel_index(token)
        cells = [f"{token:8}"]
        for name, other in others.items():
            said: int | None = token
            if isinstance(other, int):
                said = {0: other, other: 0}.get(token, token)
            elif index is not None:
                said = other.sentinel_id(index) if index < other.num_sentinels else None
            cells.append(f"{'-' if said is None else said:>{max(8, len(name))}}")
        piece = vocabulary.piece(token)
        shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in piece)
        print("  ".join([*cells, f"{counts[token]:5}", shown]))
    print(f"{len(ids):,} tokens for {counts[list(ids)].sum():,} bytes; as text: {vocabulary.decode(ids)!r}")


def _elsewhere(vocabulary: Vocabulary) -> dict[str, Vocabulary | int]:
    """Who numbers the same tokens otherwise: a convention of sentinels, or the tokenizer itself (its padding)."""
    from t5xpg.vocabularies import BYT5_GOOGLE, BYTES, TRANSFORMERS

    if vocabulary.tokenizer_pad_id:
        return {"tokenizer": vocabulary.tokenizer_pad_id}
    if vocabulary.kind != BYTES:
        return {}
    return {
        TRANSFORMERS: dataclasses.replace(vocabulary, sentinels=TRANSFORMERS),
        BYT5_GOOGLE: dataclasses.replace(vocabulary, extra_ids=0, sentinels=BYT5_GOOGLE),
    }
