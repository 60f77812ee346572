"""The vocabulary of any SentencePiece model or Hugging Face tokenizer by its path."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import sha256_of_file
from t5xpg.data.vocab.tokenizers import HUGGING_FACE, KINDS, SENTENCEPIECE, TokenModel, load
from t5xpg.data.vocab.vocabulary import OWN, SEQIO, Vocabulary

# Of a folder, the first of these that it holds.
FILES = ("tokenizer.json", "sentencepiece.model", "spiece.model", "tokenizer.model")
DEFAULT_EXTRA_IDS = 100  # of T5


def vocabulary_of_file(
    path: Path, extra_ids: int | None = None, *, eos_token: str | None = None, pad_token: str | None = None
) -> Vocabulary:
    """The vocabulary of a SentencePiece model, of a tokenizer.json, or of the folder that holds one of them.

    extra_ids: how many sentinels come behind the tokens. None: none where the model has tokens `<extra_id_0>` … of its
    own, the last ids counting down; 100 otherwise. eos_token, pad_token: of a tokenizer that does not name them itself,
    or in tokenizer_config.json or special_tokens_map.json beside it.

    Padding is id 0 here. Another padding of a tokenizer changes places with its token 0; where it has none, token 0
    gets a new id behind all others. Raises UserError where there is no such file, or no end token, or text would be
    taken for padding.
    """
    file = next((path / name for name in FILES if (path / name).is_file()), path)
    file = Path(os.path.abspath(file))  # not resolved: a link of the hub's cache leads to a file without an ending
    if not file.is_file():
        what = f"holds none of {', '.join(FILES)}" if path.is_dir() else "is not there"
        raise UserError(f"{path} {what}. Expected a SentencePiece model, or a tokenizer.json of Hugging Face.")
    kind = HUGGING_FACE if file.suffix == ".json" else SENTENCEPIECE
    model = load(kind, str(file))
    special = dict(model.special_ids)
    for role, piece in (("eos_id", eos_token), ("pad_id", pad_token)):
        if piece is not None:
            if kind == SENTENCEPIECE:
                raise UserError(f"{file} is a SentencePiece model, which itself says what its special tokens are.")
            pieces = {model.piece(token): token for token in range(model.size)}
            if piece not in pieces:
                raise UserError(f"{file} has no token {piece!r}.{nearest(piece, pieces)}")
            special[role] = pieces[piece]
    end, unknown = special["eos_id"], special["unk_id"]
    if end is None:
        raise UserError(
            f"The {KINDS[kind]} {file} has no token for the end of a text, which training needs."
            + (" Name one of its tokens: EOS_TOKEN='…' (eos_token= in Python)." if kind == HUGGING_FACE else "")
        )
    swapped = _padding(kind, model, special, file)
    there = {swapped: 0, 0: swapped}
    eos, unk = there.get(end, end), None if unknown is None else there.get(unknown, unknown)
    if eos == 0:
        raise UserError(f"The end token of {file} is its padding, too: name another padding or end token.")
    if unk is None and kind == SENTENCEPIECE:
        raise UserError(f"The SentencePiece model {file} has no unknown token.")
    own = Vocabulary(kind, 0, OWN, str(file), eos_id=eos, unk_id=unk, tokenizer_pad_id=swapped)
    if own.num_sentinels and (extra_ids == 0 or (extra_ids is None and own.counts_down_from_last)):
        return own
    return dataclasses.replace(own, extra_ids=DEFAULT_EXTRA_IDS if extra_ids is None else extra_ids, sentinels=SEQIO)


def vocabulary_of_record(value: Mapping[str, Any], copy: Path) -> Vocabulary:
    """`Vocabulary.from_json`, with `copy` for the model where that is not where it was, or is another one now."""
    model = value.get("model_file")
    if model is None or (Path(model).is_file() and sha256_of_file(Path(model)) == value["model_sha256"]):
        return Vocabulary.from_json(value)
    return Vocabulary.from_json({**value, "model_file": str(copy)} if copy.is_file() else value)


def _padding(kind: str, model: TokenModel, special: dict[str, int | None], file: Path) -> int:
    """The id that changes places with 0, so that 0 is padding and no text has it; 0 where it is so already."""
    padding = special["pad_id"]
    if padding == 0:
        return 0
    is_control_token = kind == SENTENCEPIECE and model.num_bytes[0] == 0 and special["unk_id"] != 0
    if padding is None and (is_control_token or (special["unk_id"] == 0 and model.covers_all_text)):  # in no text
        return 0
    if kind == SENTENCEPIECE:
        raise UserError(
            f"The SentencePiece model {file} has {model.piece(0)!r} as id 0, and batches are padded with 0: text would "
            "be taken for padding. Train or choose one with pad_id=0 (T5's have it)."
        )
    return model.size if padding is None or padding == special["eos_id"] else padding
