"""How well a vocabulary fits a text that it was not made from: numbers for a person to judge it by."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.data.manifest import split_path
from t5xpg.progress import Progress
from t5xpg.vocabularies import Vocabulary

# The first of these that an export has is measured on.
SPLITS = ("validation", "test", "train")
MOST_BYTES = 4_000_000  # of text that is measured on
_LONGEST = 10  # pieces that are named
_SHOWN_LENGTHS = 12  # pieces of more characters are one line of the table


def measure(vocabulary: Vocabulary, folder: Path) -> dict[str, Any]:
    """What there is to say of a vocabulary on the held-out text of the export in `folder`.

    "split", "documents", "characters", "bytes", "words", "tokens": what was measured on. "coverage": the share of
    characters that are not the unknown token. "tokens_per_word" (words stand between white space), "bytes_per_token".
    "used": the share of the pieces that occur. "pieces_by_length": how many pieces have how many characters (as the
    model writes them; special tokens and byte pieces are left out). "longest_pieces".
    """
    split = next(split for split in SPLITS if split_path(folder, split).is_file())
    counts: collections.Counter[str] = collections.Counter()
    seen = np.zeros(vocabulary.size, bool)
    with Progress(f"measure on {split}", None, "documents") as progress:
        for text in _texts(split_path(folder, split)):
            ids = vocabulary.encode_plain(text)
            seen[ids] = True
            counts.update(
                documents=1,
                characters=len(text),
                bytes=len(text.encode("utf-8")),
                words=len(text.split()),
                tokens=len(ids),
                unknown=vocabulary.unknown_characters(text),
            )
            progress.advance()
            if counts["bytes"] >= MOST_BYTES:
                break
    pieces = {token: vocabulary.piece(token) for token in np.flatnonzero(vocabulary.token_bytes()).tolist()}
    texts = {token: piece for token, piece in pieces.items() if not (piece.startswith("<0x") and len(piece) == 6)}
    lengths = collections.Counter(len(piece) for piece in texts.values())
    return {
        "split": split,
        **{name: counts[name] for name in ("documents", "characters", "bytes", "words", "tokens")},
        "coverage": 1 - counts["unknown"] / max(1, counts["characters"]),
        "tokens_per_word": counts["tokens"] / max(1, counts["words"]),
        "bytes_per_token": counts["bytes"] / max(1, counts["tokens"]),
        "used": int(seen[list(pieces)].sum()) / max(1, len(pieces)),
        "pieces": len(pieces),
        "pieces_by_length": {str(length): lengths[length] for length in sorted(lengths)},
        "longest_pieces": sorted(texts.values(), key=lambda piece: (-len(piece), piece))[:_LONGEST],
    }


def table(report: dict[str, Any]) -> str:
    """The report for a person."""
    lengths = {int(length): count for length, count in report["pieces_by_length"].items()}
    beyond = sum(count for length, count in lengths.items() if length > _SHOWN_LENGTHS)
    shown = [f"{length}: {count:,}" for length, count in lengths.items() if length <= _SHOWN_LENGTHS]
    rows = [
        ("measured on", f"{report['split']}, {report['documents']:,} documents, {report['bytes']:,} bytes"),
        ("coverage", f"{report['coverage']:.4%} of the characters have tokens"),
        ("tokens a word", f"{report['tokens_per_word']:.3f}"),
        ("bytes a token", f"{report['bytes_per_token']:.3f}"),
        ("pieces used", f"{report['used']:.1%} of {report['pieces']:,}"),
        ("by length", ", ".join([*shown, *([f"longer: {beyond:,}"] if beyond else [])])),
        ("longest", " ".join(map(_printable, report["longest_pieces"]))),
    ]
    return "\n".join(f"  {name:<14} {value}" for name, value in rows)


def _printable(piece: str) -> str:
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in piece)


def _texts(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for line in file:
            yield from json.loads(line).values()
