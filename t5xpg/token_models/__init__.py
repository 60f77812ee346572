"""Models of tokens that lie in files, whichever library reads them: text to ids, ids to text, bytes of an id.

A vocabulary (`t5xpg.vocabularies`) is such a model with ids for sentinels behind its tokens, or none: bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from t5xpg.errors import UserError

SENTENCEPIECE = "sentencepiece"
HUGGING_FACE = "huggingface"
# kind of a model -> what its file is called in messages
KINDS = {SENTENCEPIECE: "SentencePiece model", HUGGING_FACE: "Hugging Face tokenizer"}


class TokenModel(Protocol):
    """A loaded model. Ids are below `size`.

    num_bytes: int32[size], the bytes of text that each id stands for (see `Vocabulary.token_bytes`). own_sentinels: the
    ids of the model's own tokens `<extra_id_0>`, `<extra_id_1>` and so on, as far as there is no gap. special_ids: the
    model's own padding, end and unknown token, None where it has none. covers_all_text: no text has unknown tokens.
    """

    size: int
    num_bytes: np.ndarray
    own_sentinels: tuple[int, ...]
    special_ids: dict[str, int | None]
    covers_all_text: bool

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end token."""
        ...

    def decode(self, ids: Sequence[int], follows: bool) -> str:
        """The text of ids; ids that stand for no text are left out. follows: something stands before it."""
        ...

    def piece(self, token: int) -> str:
        """The token as the model writes it; "" for an id that it does not use."""
        ...

    def unknown_characters(self, text: str) -> int:
        """How many characters of a text become the unknown token."""
        ...


@functools.cache
def load(kind: str, file: str, tokenizer_pad_id: int = 0) -> TokenModel:
    """The model in a file. tokenizer_pad_id: see `Vocabulary`. Raises UserError where there is none that can be read.

    A model stays loaded; whoever writes another one into the same file has to call `load.cache_clear()`.
    """
    if not Path(file).is_file():
        raise UserError(f"The {KINDS[kind]} {file} is not there.")
    # imported here: byte vocabularies do without either library
    if kind == SENTENCEPIECE:
        from t5xpg.token_models.sentencepiece_model import SentencePieceModel

        return SentencePieceModel(file)
    from t5xpg.token_models.huggingface_tokenizer import HuggingFaceTokenizer

    return HuggingFaceTokenizer(file, tokenizer_pad_id)


def sentinels_among(ids_of_pieces: dict[str, int]) -> tuple[int, ...]:
    """The ids of the tokens `<extra_id_0>`, `<extra_id_1>` … up to the first that is not there."""
    found: list[int] = []
    while (piece := f"<extra_id_{len(found)}>") in ids_of_pieces:
        found.append(ids_of_pieces[piece])
    return tuple(found)
