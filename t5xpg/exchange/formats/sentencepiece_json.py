"""A SentencePiece model as a tokenizer.json of Hugging Face, which has the same ids.

What SentencePiece does to a text before it looks for pieces (a table of characters, spaces, the space before the first
word) is written as one step of the tokenizer each. Models like T5's are written as transformers' T5Tokenizer writes
them: it makes its tokenizer anew, of the file's pieces and table alone.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.tokenizers import SPACE

_UNIGRAM, _BPE = 1, 2  # TrainerSpec.ModelType
_SPECIAL = {0: "<pad>", 1: "</s>", 2: "<unk>"}  # of T5's models
_METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}


class SentencePieceFile:
    """A model's definition, taken apart. Raises UserError for one that a tokenizer.json cannot say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._model = sentencepiece_model_pb2.ModelProto()
        self._model.ParseFromString(path.read_bytes())
        self._trainer, self._normalizer = self._model.trainer_spec, self._model.normalizer_spec
        if self._trainer.model_type not in (_UNIGRAM, _BPE):
            raise self._cannot("it is of words or characters, and pieces by unigram or BPE can be")
        if self._trainer.treat_whitespace_as_suffix or not self._normalizer.escape_whitespaces:
            raise self._cannot("it does not write spaces before words")

    def is_like_t5(self) -> bool:
        """Whether transformers' T5Tokenizer, with the pieces and the table of characters, gives the same ids."""
        trainer, normalizer = self._trainer, self._normalizer
        processor = sentencepiece.SentencePieceProcessor(model_file=str(self.path))
        pieces = [piece.piece for piece in self._model.pieces[: len(_SPECIAL)]]
        return bool(
            trainer.model_type == _UNIGRAM
            and not trainer.byte_fallback
            and trainer.split_by_whitespace
            and normalizer.add_dummy_prefix
            and normalizer.remove_extra_whitespaces
            and pieces == list(_SPECIAL.values())
            # it splits at every white space, where SentencePiece knows spaces alone
            and processor.Normalize("a\tb\nc\u3000d") == f"{SPACE}a{SPACE}b{SPACE}c{SPACE}d"
        )

    def definition(self, names: Mapping[int, str], size: int, *, as_t5: bool) -> dict[str, Any]:
        """The tokenizer.json without its post-processor. names: ids that have another text than the model's pieces.

        size: how many ids there are, those of `names` behind the pieces included.
        """
        parts = self._as_t5() if as_t5 else self._step_by_step()
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            **parts,
            "post_processor": None,
            "model": self._tokens(names, size),
        }

    def _tokens(self, names: Mapping[int, str], size: int) -> dict[str, Any]:
        pieces = list(self._model.pieces)
        texts = [names.get(token, pieces[token].piece if token < len(pieces) else "") for token in range(size)]
        scores = [pieces[token].score if token < len(pieces) else 0.0 for token in range(size)]
        unknown = self._trainer.unk_id
        if self._trainer.model_type == _UNIGRAM:
            vocab = [[text, score] for text, score in zip(texts, scores, strict=True)]
            fallback = self._trainer.byte_fallback
            return {"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": fallback}
        ids = {text: token for token, text in enumerate(texts)}
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": texts[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": self._trainer.byte_fallback,
            "ignore_merges": False,
            "vocab": ids,
            "merges": self._merges(ids),
        }

    def _merges(self, ids: Mapping[str, int]) -> list[list[str]]:
        """BPE's merges in their order, which SentencePiece keeps as the order of the pieces that come of them."""
        normal = sentencepiece_model_pb2.ModelProto.SentencePiece.NORMAL
        made = sorted((piece for piece in self._model.pieces if piece.type == normal), key=lambda one: -one.score)
        return [
            [text[:cut], text[cut:]]
            for text in (piece.piece for piece in made)
            for cut in range(1, len(text))
            if text[:cut] in ids and text[cut:] in ids
        ]

    def _characters(self) -> list[dict[str, Any]]:
        """The table of characters, where there is one."""
        table = self._normalizer.precompiled_charsmap
        return [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}] if table else []

    def _as_t5(self) -> dict[str, Any]:
        (table,) = self._characters()
        splits = [{"type": "WhitespaceSplit"}, _METASPACE]
        return {
            "normalizer": table,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
            "decoder": _METASPACE,
        }

    def _step_by_step(self) -> dict[str, Any]:
        steps = self._characters()
        if self._normalizer.remove_extra_whitespaces:
            steps += [
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                # spaces alone: Strip takes other white space, too, which SentencePiece leaves
                {"type": "Replace", "pattern": {"Regex": "\\A +| +\\z"}, "content": ""},
            ]
        if self._normalizer.add_dummy_prefix:
            steps.append({"type": "Prepend", "prepend": SPACE})
        steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
        decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
        decoders += [{"type": "ByteFallback"}] if self._trainer.byte_fallback else []
        decoders.append({"type": "Fuse"})
        if self._normalizer.add_dummy_prefix:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        return {
            "normalizer": {"type": "Sequence", "normalizers": steps},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
        }

    def _cannot(self, why: str) -> UserError:
        return UserError(f"The SentencePiece model {self.path} cannot be written as a tokenizer.json: {why}.")
