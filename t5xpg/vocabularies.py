"""Vocabularies without TensorFlow: text to token ids and back, and the numbering of sentinels.

A sentinel stands for a blank in an input and for the head of its filling in a target; its text is `<extra_id_3>`.
Three numberings of the same sentinels are in use for bytes, and a model trained with one reads nonsense in another, so
the convention is a property of the vocabulary:

- `seqio`: the last id, counting down. What `t5.data.preprocessors.span_corruption` writes. With 125 extra ids the
  first sentinel of the byte vocabulary is 383; with T5's SentencePiece model and 100 extra ids it is 32099.
- `byt5_google`: 258 counting down, as Google's ByT5 checkpoints were trained (a byte vocabulary without extra ids).
  These are the ids of the bytes 0xFF downwards; 0xFF to 0xF5 never occur in UTF-8: eleven sentinels are unambiguous.
- `transformers`: 259 counting up, as the ByT5 tokenizer of `transformers` numbers them. For SentencePiece it counts
  down from the last id, the same as `seqio`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.errors import UserError, nearest
from t5xpg.files import sha256_of_file
from t5xpg.filling import SENTINEL

KINDS = ("bytes", "sentencepiece")
SEQIO = "seqio"
BYT5_GOOGLE = "byt5_google"
TRANSFORMERS = "transformers"
# what each convention numbers
CONVENTIONS: Mapping[str, tuple[str, ...]] = {
    SEQIO: ("bytes", "sentencepiece"),
    BYT5_GOOGLE: ("bytes",),
    TRANSFORMERS: ("bytes", "sentencepiece"),
}

# ids of the byte vocabulary: 0 padding, 1 end, 2 unknown, then the 256 bytes
_FIRST_BYTE = 3
_NUM_BYTES = 256
# no vocabulary in use has more than some thousands
_MOST_EXTRA_IDS = 1_000_000
# what a record of a vocabulary says in any case
_RECORDED = ("kind", "extra_ids", "sentinels", "pad_id", "eos_id", "unk_id")
# the bytes that no UTF-8 text holds and that stand together at the end: 0xF5 to 0xFF
_NUM_BYTES_OUTSIDE_UTF8 = 11


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary: `kind` "bytes" or "sentencepiece", `extra_ids` ids behind the tokens, `sentinels` a convention.

    `model_file` is the SentencePiece model (`sentencepiece` alone).
    Raises UserError for an unknown kind or convention, or a convention that the kind has no ids for.
    """

    kind: str = "bytes"
    extra_ids: int = 125
    sentinels: str = SEQIO
    model_file: str | None = None
    pad_id: int = 0
    eos_id: int = 1
    unk_id: int = 2

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"There is no vocabulary of the kind {self.kind!r}.{nearest(self.kind, KINDS)}")
        if self.sentinels not in tuple(CONVENTIONS):
            raise UserError(
                f"There is no sentinel convention {self.sentinels!r}.{nearest(self.sentinels, CONVENTIONS)}"
            )
        if self.kind not in CONVENTIONS[self.sentinels]:
            raise UserError(f"The sentinel convention {self.sentinels!r} does not number a {self.kind} vocabulary.")
        if (self.kind == "sentencepiece") != (self.model_file is not None):
            raise UserError(f"A {self.kind} vocabulary {'needs' if self.model_file is None else 'has no'} model file.")
        if not _is_count(self.extra_ids) or self.extra_ids > _MOST_EXTRA_IDS:
            raise UserError(f"extra_ids is {self.extra_ids!r}: it counts ids, so it is from 0 to {_MOST_EXTRA_IDS}.")
        for name in ("pad_id", "eos_id", "unk_id"):
            if not _is_count(getattr(self, name)):
                raise UserError(f"{name} is {getattr(self, name)!r}: an id is a whole number of at least 0.")

    @property
    def size(self) -> int:
        """Every id is below it."""
        return self._tokens + self.extra_ids

    @property
    def _tokens(self) -> int:
        """How many ids stand before the extra ids."""
        return _FIRST_BYTE + _NUM_BYTES if self.kind == "bytes" else len(_pieces(self._model()).names)

    def _model(self) -> str:
        assert self.model_file is not None
        return self.model_file

    @property
    def num_sentinels(self) -> int:
        """How many sentinels have an id that means nothing else."""
        return _NUM_BYTES_OUTSIDE_UTF8 if self.sentinels == BYT5_GOOGLE else self.extra_ids

    def sentinel_id(self, index: int) -> int:
        """The id of `<extra_id_{index}>`. Raises UserError where there are fewer sentinels."""
        if not 0 <= index < self.num_sentinels:
            raise UserError(
                f"<extra_id_{index}> has no id: this vocabulary has {self.num_sentinels} sentinels"
                + (f", <extra_id_0> to <extra_id_{self.num_sentinels - 1}>." if self.num_sentinels else ".")
            )
        first, step = self._sentinel_numbering()
        return first + step * index

    def sentinel_index(self, token: int) -> int | None:
        """Which sentinel an id is; None for other tokens."""
        first, step = self._sentinel_numbering()
        index = (int(token) - first) * step
        return index if 0 <= index < self.num_sentinels else None

    def _sentinel_numbering(self) -> tuple[int, int]:
        if self.sentinels == BYT5_GOOGLE:
            return _FIRST_BYTE + _NUM_BYTES - 1, -1
        if self.sentinels == TRANSFORMERS and self.kind == "bytes":
            return _FIRST_BYTE + _NUM_BYTES, 1
        return self.size - 1, -1

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without an end token; `<extra_id_N>` becomes the id of that sentinel.

        Raises UserError for a sentinel that the vocabulary does not have.
        """
        ids: list[int] = []
        end = 0
        for match in SENTINEL.finditer(text):
            ids += self._encode_plain(text[end : match.start()])
            ids.append(self.sentinel_id(int(match.group(1))))
            end = match.end()
        return ids + self._encode_plain(text[end:])

    def _encode_plain(self, text: str) -> list[int]:
        if self.kind == "bytes":
            # a lone surrogate (half a character, from broken JSON) has no UTF-8 bytes
            return [byte + _FIRST_BYTE for byte in text.encode("utf-8", errors="replace")]
        return list(_pieces(self._model()).processor.EncodeAsIds(text)) if text else []

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids up to the first end token.

        Sentinels become `<extra_id_N>`; padding and ids without a text are left out; bytes that are not UTF-8 become
        U+FFFD.
        """
        parts: list[str] = []
        run: list[int] = []
        for token in map(int, ids):
            if token == self.eos_id:
                break
            index = self.sentinel_index(token)
            if index is not None:
                parts += [self._decode_plain(run, bool(parts)), f"<extra_id_{index}>"]
                run = []
            elif token != self.pad_id:
                run.append(token)
        return "".join([*parts, self._decode_plain(run, bool(parts))])

    def _decode_plain(self, ids: list[int], follows: bool) -> str:
        """The text of a run without sentinels; `follows`: something stands before it."""
        if self.kind == "bytes":
            codes = (token - _FIRST_BYTE for token in ids)
            return bytes(code for code in codes if 0 <= code < _NUM_BYTES).decode("utf-8", errors="replace")
        pieces = _pieces(self._model())
        known = [token for token in ids if 0 <= token < len(pieces.names)]
        text = str(pieces.processor.DecodeIds(known)) if known else ""
        # SentencePiece drops the space of the first word: right at the start of a text, wrong behind a sentinel
        return " " + text if follows and text and pieces.names[known[0]].startswith("▁") else text

    def token_bytes(self) -> np.ndarray:
        """int32[size]: how many UTF-8 bytes of text each id stands for; 0 for padding, end, unknown and sentinels."""
        counts = np.zeros(self.size, np.int32)
        if self.kind == "bytes":
            counts[_FIRST_BYTE : _FIRST_BYTE + _NUM_BYTES] = 1
        else:
            pieces = _pieces(self._model())
            counts[: len(pieces.names)] = pieces.num_bytes
        for index in range(self.num_sentinels):
            counts[self.sentinel_id(index)] = 0
        return counts

    def to_json(self) -> dict[str, Any]:
        """What `from_json` needs, the size, and the SHA-256 of the model file."""
        value: dict[str, Any] = {
            "kind": self.kind,
            "size": self.size,
            "extra_ids": self.extra_ids,
            "sentinels": self.sentinels,
            "pad_id": self.pad_id,
            "eos_id": self.eos_id,
            "unk_id": self.unk_id,
        }
        if self.model_file is not None:
            value |= {"model_file": self.model_file, "model_sha256": sha256_of_file(Path(self.model_file))}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Vocabulary:
        """The vocabulary that `to_json` described.

        Raises UserError for what describes none, and where the model file is gone or another one.
        """
        if not isinstance(value, Mapping):
            raise UserError(f"A {type(value).__name__} is recorded as the vocabulary, expected an object.")
        if absent := [name for name in _RECORDED if name not in value]:
            raise UserError(f"What is recorded as the vocabulary has no {', '.join(absent)}.")
        model_file = value.get("model_file")
        if model_file is not None:
            _check_model_file(model_file, value.get("model_sha256"))
        vocabulary = cls(model_file=model_file, **{name: value[name] for name in _RECORDED})
        if value.get("size", vocabulary.size) != vocabulary.size:
            raise UserError(f"The recorded vocabulary has {value['size']!r} ids, and by its kind {vocabulary.size}.")
        return vocabulary


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_model_file(model_file: Any, sha256: Any) -> None:
    """Raise UserError unless the SentencePiece model is the one that was recorded."""
    if not isinstance(model_file, str) or "\0" in model_file:
        raise UserError(f"The recorded SentencePiece model is {model_file!r}: expected the name of a file.")
    if not Path(model_file).is_file():
        raise UserError(f"The SentencePiece model {model_file} is not there.")
    if sha256_of_file(Path(model_file)) != sha256:
        raise UserError(f"{model_file} is not the SentencePiece model that was recorded (sha256 {sha256}).")


def translate_sentinels(ids: Iterable[int] | np.ndarray, source: Vocabulary, target: Vocabulary) -> np.ndarray:
    """The same tokens with the sentinels of `source` numbered as in `target`; int32, the shape of `ids`.

    Both vocabularies must have the same tokens. Raises ValueError where they have not; UserError where `target` has
    fewer sentinels than are used, or takes one of the other ids for a sentinel.
    """
    if (source.kind, source._tokens) != (target.kind, target._tokens):
        raise ValueError(f"cannot translate between the tokens of {source} and {target}")
    given = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int32)
    translated = given.copy()
    for token in np.unique(given):
        index = source.sentinel_index(token)
        if index is not None:
            translated[given == token] = target.sentinel_id(index)
        elif target.sentinel_index(token) is not None:
            raise UserError(
                f"Token {token} is no sentinel in the convention {source.sentinels!r} but is "
                f"<extra_id_{target.sentinel_index(token)}> in {target.sentinels!r}."
            )
    return translated


@dataclass(frozen=True)
class _Pieces:
    """A loaded SentencePiece model."""

    processor: Any
    names: list[str]
    num_bytes: np.ndarray  # int32[len(names)]


@functools.cache
def _pieces(model_file: str) -> _Pieces:
    # imported here: byte vocabularies, the default, do without it
    import sentencepiece

    if not Path(model_file).is_file():
        raise UserError(f"The SentencePiece model {model_file} is not there.")
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.Load(model_file)
    except (RuntimeError, OSError) as error:
        raise UserError(f"{model_file} is not a SentencePiece model ({error}).") from None
    names = [processor.IdToPiece(i) for i in range(processor.GetPieceSize())]
    num_bytes = np.zeros(len(names), np.int32)
    for i, name in enumerate(names):
        if processor.IsByte(i):
            num_bytes[i] = 1
        elif not (processor.IsControl(i) or processor.IsUnknown(i) or processor.IsUnused(i)):
            num_bytes[i] = len(name.replace("▁", " ").encode("utf-8"))
    return _Pieces(processor, names, num_bytes)
