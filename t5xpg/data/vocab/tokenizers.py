"""Tokenizers in files, whichever library reads them: text to ids, ids to text, bytes of an id. A `Vocabulary` is such a
model with ids for sentinels behind its tokens, or none. Each library is imported by the model that needs it."""

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_of, size_text

SENTENCEPIECE = "sentencepiece"
HUGGING_FACE = "huggingface"
# kind of a model -> what its file is called in messages
KINDS = {SENTENCEPIECE: "SentencePiece model", HUGGING_FACE: "Hugging Face tokenizer"}

SPACE = "▁"  # as SentencePiece writes it
# What tokenizers call the tokens of each role, where no file beside them says so.
_USUAL_NAMES = {
    "pad_id": ("<pad>", "[PAD]", "<|padding|>", "<|pad|>"),
    "eos_id": ("</s>", "<eos>", "[EOS]", "<|endoftext|>", "<|end_of_text|>", "<|eos|>"),
    "unk_id": ("<unk>", "[UNK]", "<|unk|>"),
}
# Files beside tokenizer.json that say which token has which role; the first that does counts.
_ROLE_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_MOST_IDS = 10_000_000
_MOST_BYTES = 100_000_000  # the largest tokenizers that are known have 35 MB
# A token that every tokenizer has something for: what is decoded behind it stands inside of a text.
_ANCHOR = "a"
_NO_TEXT = "\uffff"  # before a token that no text is to become: Unicode says that it is no character


class HuggingFaceTokenizer:
    """A Hugging Face tokenizer as a `TokenModel`. Raises UserError for a file that is none. Ids are its own, but where
    its padding is not 0, `tokenizer_pad_id` and 0 change places; without padding that is a new id behind the last.

    A text that spells out the padding, the end or the unknown token means those characters; other added tokens are
    text. eos_id: the end of the vocabulary, which may be another one than the tokenizer's."""

    def __init__(self, file: str, tokenizer_pad_id: int = 0, eos_id: int | None = None) -> None:
        import tokenizers

        if (size := Path(file).stat().st_size) > _MOST_BYTES:  # reading takes 18 times as much memory
            raise UserError(
                f"{file} has {size_text(size)}: a tokenizer.json of more than {size_text(_MOST_BYTES)} is not read."
            )
        try:
            read = tokenizers.Tokenizer.from_file(file)
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"{file} is not a tokenizer.json of Hugging Face ({str(error)[:200]}).") from None
        read.no_truncation()
        read.no_padding()
        self._pad = tokenizer_pad_id
        ids_of_pieces = read.get_vocab(with_added_tokens=True)
        own_size = max(ids_of_pieces.values(), default=-1) + 1
        if own_size > _MOST_IDS:
            raise UserError(
                f"{file} has an id of {own_size - 1:,}: tokenizers with more than {_MOST_IDS:,} are not read."
            )
        if tokenizer_pad_id > own_size:
            raise UserError(f"{file} has {own_size:,} tokens: {tokenizer_pad_id} cannot be its padding.")
        self.size = max(own_size, tokenizer_pad_id + 1)
        self._pieces = {self._swapped(token): piece for piece, token in ids_of_pieces.items()}
        if len(self._pieces) < len(ids_of_pieces):
            piece, token = next(one for one in ids_of_pieces.items() if self._pieces[self._swapped(one[1])] != one[0])
            other = self._pieces[self._swapped(token)]
            raise UserError(
                f"{file} gives the id {token} to two tokens, {piece!r} and {other!r}: one of them has to go."
            )
        self.own_sentinels = sentinels_among({piece: token for token, piece in self._pieces.items()})
        definition = json.loads(read.to_str())
        roles = _roles(Path(file).parent, definition, ids_of_pieces)
        added = {self._swapped(one["id"]) for one in definition["added_tokens"]}
        if eos_id is not None:
            roles |= {name: self._pieces[id] for name, id in (("pad_id", 0), ("eos_id", eos_id)) if id in added}
        special = {name: None if one is None else self._swapped(ids_of_pieces[one]) for name, one in roles.items()}
        self.special_ids = special
        decoders = list(_flat(definition.get("decoder")))
        self.num_bytes = np.zeros(self.size, np.int32)
        for token, piece in self._pieces.items():
            if token not in self.own_sentinels and token not in special.values():
                self.num_bytes[token] = len(piece.encode()) if token in added else _num_bytes(piece, decoders)
        self.covers_all_text = any(one["type"] in ("ByteLevel", "ByteFallback") for one in decoders)
        _rename(definition, {piece: _NO_TEXT + piece for piece in roles.values() if piece is not None})
        self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))
        self._anchor = self._tokenizer.encode(_ANCHOR, add_special_tokens=False).ids
        self._anchor_text = self._tokenizer.decode(self._anchor)

    def _swapped(self, token: int) -> int:
        """The id here of one of the tokenizer's, and the other way round."""
        return self._pad if token == 0 else 0 if token == self._pad else token

    def encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self._swapped(token) for token in ids] if self._pad else list(ids)

    def decode(self, ids: Sequence[int], follows: bool) -> str:
        no_text = self.special_ids.values()
        known = [self._swapped(token) for token in ids if token in self._pieces and token not in no_text]
        if not follows or not known:
            return str(self._tokenizer.decode(known, skip_special_tokens=False))
        # tokenizers drop the space of the first word: right at the start of a text, wrong behind a sentinel
        text = str(self._tokenizer.decode([*self._anchor, *known], skip_special_tokens=False))
        return text.removeprefix(self._anchor_text)

    def piece(self, token: int) -> str:
        return self._pieces.get(token, "")

    def unknown_characters(self, text: str) -> int:
        unknown = self.special_ids["unk_id"]
        if unknown is None:
            return 0
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return sum(end - start for token, (start, end) in spans if self._swapped(token) == unknown)


def _rename(definition: dict[str, Any], names: Mapping[str, str]) -> None:
    """Give tokens of a tokenizer.json other texts, which no merges make."""
    model = definition["model"]
    for one in definition["added_tokens"]:
        one["content"] = names.get(one["content"], one["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): token for piece, token in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    model |= {"unk_token": names[model["unk_token"]]} if model.get("unk_token") in names else {}
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not names.keys() & {*pair, "".join(pair)}]
    definition["post_processor"] = None


def _flat(decoder: Any) -> Iterator[Mapping[str, Any]]:
    """The decoders that one is made of."""
    if isinstance(decoder, Mapping) and decoder.get("type") == "Sequence":
        for one in decoder["decoders"]:
            yield from _flat(one)
    elif isinstance(decoder, Mapping):
        yield decoder


def _num_bytes(piece: str, decoders: Sequence[Mapping[str, Any]]) -> int:
    """UTF-8 bytes that a token stands for inside of a text."""
    for decoder in decoders:
        match decoder["type"]:
            case "ByteLevel":
                return len(piece)  # each of its characters stands for a byte
            case "ByteFallback" if _BYTE_PIECE.fullmatch(piece):
                return 1
            case "Metaspace":
                piece = piece.replace(decoder["replacement"], " ")
            case "Replace" if "String" in decoder["pattern"]:
                piece = piece.replace(decoder["pattern"]["String"], decoder["content"])
            case "WordPiece":
                piece = piece.removeprefix(decoder["prefix"])
            case "BPEDecoder":
                piece = piece.replace(decoder["suffix"], " ")
    return len(piece.encode("utf-8"))


def _roles(folder: Path, definition: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, str | None]:
    """Which tokens are padding, end and unknown: as the files beside the tokenizer say, or by their usual names."""
    unknown = definition["model"].get("unk_token")
    if unknown is None and isinstance(number := definition["model"].get("unk_id"), int):
        unknown = next((piece for piece, token in ids.items() if token == number), None)
    files = [json_object_of(folder / name, "which token is padding and which the end") for name in _ROLE_FILES]
    found: dict[str, str | None] = {}
    for name, usual in _USUAL_NAMES.items():
        given = [one.get(name.replace("_id", "_token")) for one in files]
        contents = [one.get("content") if isinstance(one, Mapping) else one for one in given]
        candidates = [*contents, unknown if name == "unk_id" else None, *usual]
        found[name] = next((piece for piece in candidates if isinstance(piece, str) and piece in ids), None)
    return found


class SentencePieceModel:
    """A SentencePiece model as a `TokenModel`. Raises UserError for a file that is none."""

    def __init__(self, file: str) -> None:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.Load(file)
        except (RuntimeError, OSError) as error:
            raise UserError(f"{file} is not a SentencePiece model ({error}).") from None
        self._processor = processor
        self._pieces = [processor.IdToPiece(token) for token in range(processor.GetPieceSize())]
        self.size = len(self._pieces)
        # SeqIO writes a space before the sentinels that it adds to a model
        self.own_sentinels = sentinels_among({one.removeprefix(SPACE): id for id, one in enumerate(self._pieces)})
        self.num_bytes = np.array([self._num_bytes(token) for token in range(self.size)], np.int32)
        self.num_bytes[list(self.own_sentinels)] = 0
        given = {"pad_id": processor.pad_id(), "eos_id": processor.eos_id(), "unk_id": processor.unk_id()}
        self.special_ids = {name: token if token >= 0 else None for name, token in given.items()}
        self.covers_all_text = any(processor.IsByte(token) for token in range(self.size))

    def _num_bytes(self, token: int) -> int:
        processor = self._processor
        if processor.IsByte(token):
            return 1
        if processor.IsControl(token) or processor.IsUnknown(token) or processor.IsUnused(token):
            return 0
        return len(self._pieces[token].replace(SPACE, " ").encode("utf-8"))

    def encode(self, text: str) -> list[int]:
        return list(self._processor.EncodeAsIds(text)) if text else []

    def decode(self, ids: Sequence[int], follows: bool) -> str:
        known = [token for token in ids if 0 <= token < self.size]
        text = str(self._processor.DecodeIds(known)) if known else ""
        # SentencePiece drops the space of the first word: right at the start of a text, wrong behind a sentinel
        return " " + text if follows and text and self._pieces[known[0]].startswith(SPACE) else text

    def piece(self, token: int) -> str:
        return str(self._pieces[token])

    def unknown_characters(self, text: str) -> int:
        """Characters of the text as the model normalises it."""
        unknown = self._processor.unk_id()
        if unknown not in self._processor.EncodeAsIds(text):
            return 0
        pieces = self._processor.EncodeAsImmutableProto(text).pieces
        return sum(len(piece.surface) for piece in pieces if piece.id == unknown)


@functools.cache
def load(
    kind: str, file: str, tokenizer_pad_id: int = 0, eos_id: int | None = None
) -> HuggingFaceTokenizer | SentencePieceModel:
    """The model in a file, which stays loaded until `load.cache_clear()`. tokenizer_pad_id, eos_id: see `Vocabulary`.
    Raises UserError where there is none that can be read."""
    if not Path(file).is_file():
        raise UserError(f"The {KINDS[kind]} {file} is not there.")
    if kind == SENTENCEPIECE:
        return SentencePieceModel(file)
    return HuggingFaceTokenizer(file, tokenizer_pad_id, eos_id)


def sentinels_among(ids_of_pieces: dict[str, int]) -> tuple[int, ...]:
    """The ids of the tokens `<extra_id_0>`, `<extra_id_1>` … up to the first that is not there."""
    found: list[int] = []
    while (piece := f"<extra_id_{len(found)}>") in ids_of_pieces:
        found.append(ids_of_pieces[piece])
    return tuple(found)


class PlainIds:
    """The ids below `size` as a `TokenModel`. None of them stands for bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_bytes = np.zeros(size, np.int32)
        self.own_sentinels: tuple[int, ...] = ()
        self.special_ids: dict[str, int | None] = {}  # known to the vocabulary alone
        self.covers_all_text = False

    def encode(self, text: str) -> list[int]:
        """The ids that a text names: "5 17 3". Raises UserError for what is none."""
        words = text.split()
        for word in words:
            if not (word.isascii() and word.isdecimal() and len(word) <= len(str(self.size)) and int(word) < self.size):
                raise UserError(
                    f"{word!r} is no id of this vocabulary, which knows no words: expected numbers from 0 to "
                    f"{self.size - 1} with spaces between them."
                )
        return [int(word) for word in words]

    def decode(self, ids: Sequence[int], follows: bool) -> str:
        return " ".join(str(token) for token in ids if 0 <= token < self.size)

    def piece(self, token: int) -> str:
        return str(token)

    def unknown_characters(self, text: str) -> int:
        return 0  # what names no id is an error


plain_ids = functools.cache(PlainIds)
# A loaded model, with ids below `size`. num_bytes: int32[size], see `Vocabulary.token_bytes`. own_sentinels: the ids of
# its tokens `<extra_id_0>`, `<extra_id_1>` …, up to the first gap. special_ids: its own padding, end and unknown token,
# or None. covers_all_text: no text has unknown tokens. `encode` adds no end token; `decode` leaves out ids that stand
# for no text (follows: something stands before it); `piece` is "" for an id that is not used.
TokenModel: TypeAlias = HuggingFaceTokenizer | SentencePieceModel | PlainIds
