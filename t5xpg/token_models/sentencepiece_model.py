"""SentencePiece models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import sentencepiece

from t5xpg.errors import UserError
from t5xpg.token_models import sentinels_among

SPACE = "▁"


class SentencePieceModel:
    """A SentencePiece model as a `TokenModel`. Raises UserError for a file that is none."""

    def __init__(self, file: str) -> None:
        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.Load(file)
        except (RuntimeError, OSError) as error:
            raise UserError(f"{file} is not a SentencePiece model ({error}).") from None
        self._processor = processor
        self._pieces = [processor.IdToPiece(token) for token in range(processor.GetPieceSize())]
        self.size = len(self._pieces)
        # SeqIO writes a space before the sentinels that it adds to a model
        self.own_sentinels = sentinels_among(
            {piece.removeprefix(SPACE): token for token, piece in enumerate(self._pieces)}
        )
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
        """See `TokenModel`."""
        return list(self._processor.EncodeAsIds(text)) if text else []

    def decode(self, ids: Sequence[int], follows: bool) -> str:
        """See `TokenModel`."""
        known = [token for token in ids if 0 <= token < self.size]
        text = str(self._processor.DecodeIds(known)) if known else ""
        # SentencePiece drops the space of the first word: right at the start of a text, wrong behind a sentinel
        return " " + text if follows and text and self._pieces[known[0]].startswith(SPACE) else text

    def piece(self, token: int) -> str:
        """See `TokenModel`."""
        return str(self._pieces[token])

    def unknown_characters(self, text: str) -> int:
        """See `TokenModel`; characters of the text as the model normalises it."""
        unknown = self._processor.unk_id()
        if unknown not in self._processor.EncodeAsIds(text):
            return 0
        pieces = self._processor.EncodeAsImmutableProto(text).pieces
        return sum(len(piece.surface) for piece in pieces if piece.id == unknown)
