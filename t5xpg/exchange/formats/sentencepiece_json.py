"""A SentencePiece model as a tokenizer.json of Hugging Face, with the same ids.

SentencePiece changes a text before it looks for pieces (by a table of characters, in its spaces, with a space before
the first word); each change becomes one step of the tokenizer. Models like T5's are written as T5Tokenizer of
transformers writes them, because it rebuilds its tokenizer from the file's pieces and table alone.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.tokenizers import SPACE

_UNIGRAM, _BPE = 1, 2  # TrainerSpec.ModelType
_SPECIAL = ["<pad>", "</s>", "<unk>"]  # the first pieces of T5's models
_METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}


def definition_of(path: Path, names: Mapping[int, str], size: int) -> tuple[dict[str, Any], bool]:
    """The tokenizer.json without its post-processor, and True if transformers' T5Tokenizer gives the same ids.

    names: {id: text} where the text differs from the model's piece. size: the number of ids, including those of
    `names` behind the pieces. Raises UserError for a model that a tokenizer.json cannot express.
    """
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(path.read_bytes())
    reason = None
    if model.trainer_spec.model_type not in (_UNIGRAM, _BPE):
        reason = "it is of words or characters, and pieces by unigram or BPE can be"
    elif model.trainer_spec.treat_whitespace_as_suffix or not model.normalizer_spec.escape_whitespaces:
        reason = "it does not write spaces before words"
    elif model.trainer_spec.model_type == _BPE:
        defined = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
        symbols = [one.piece for token, one in enumerate(model.pieces) if one.type == defined and token not in names]
        if long := [symbol for symbol in symbols if len(symbol) > 1]:
            reason = (
                f"its BPE has user-defined symbols of several characters, such as {long[0]!r}, which no merge makes"
            )
    if reason is not None:
        raise UserError(f"The SentencePiece model {path} cannot be written as a tokenizer.json: {reason}.")
    like_t5 = _is_like_t5(model)
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        **(_as_t5(model) if like_t5 else _step_by_step(model)),
        "post_processor": None,
        "model": _tokens(model, names, size),
    }
    return definition, like_t5


def _is_like_t5(model: Any) -> bool:
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    return bool(
        trainer.model_type == _UNIGRAM
        and not trainer.byte_fallback
        and trainer.split_by_whitespace
        and normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and [piece.piece for piece in model.pieces[: len(_SPECIAL)]] == _SPECIAL
        # T5Tokenizer splits at every white space, SentencePiece at spaces alone: the model has to make spaces of all
        and processor.Normalize("a\tb\nc\u3000d") == f"{SPACE}a{SPACE}b{SPACE}c{SPACE}d"
    )


def _tokens(model: Any, names: Mapping[int, str], size: int) -> dict[str, Any]:
    pieces, trainer = [(piece.piece, piece.score) for piece in model.pieces], model.trainer_spec
    pieces += [("", 0.0)] * (size - len(pieces))
    vocab = [[names.get(token, text), score] for token, (text, score) in enumerate(pieces[:size])]
    fallback = {"byte_fallback": trainer.byte_fallback}
    if trainer.model_type == _UNIGRAM:
        return {"type": "Unigram", "unk_id": trainer.unk_id, "vocab": vocab, **fallback}
    ids = {text: token for token, (text, _) in enumerate(vocab)}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": vocab[trainer.unk_id][0],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        **fallback,
        "ignore_merges": False,
        "vocab": ids,
        "merges": _merges(model, ids),
    }


def _merges(model: Any, ids: Mapping[str, int]) -> list[list[str]]:
    """BPE's merges in their order, which SentencePiece keeps in the scores of the pieces that they make."""
    normal = sentencepiece_model_pb2.ModelProto.SentencePiece.NORMAL
    pieces = sorted((piece for piece in model.pieces if piece.type == normal), key=lambda one: -one.score)
    return [
        [text[:cut], text[cut:]]
        for text in (piece.piece for piece in pieces)
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]


def _characters(model: Any) -> list[dict[str, Any]]:
    """The table of characters, where there is one."""
    table = model.normalizer_spec.precompiled_charsmap
    return [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}] if table else []


def _as_t5(model: Any) -> dict[str, Any]:
    (table,) = _characters(model)
    splits = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, _METASPACE]}
    return {"normalizer": table, "pre_tokenizer": splits, "decoder": _METASPACE}


def _replace(kind: str, pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def _step_by_step(model: Any) -> dict[str, Any]:
    steps, decoders = _characters(model), [_replace("String", SPACE, " ")]
    if model.normalizer_spec.remove_extra_whitespaces:
        # spaces alone: Strip would also remove other white space, which SentencePiece keeps
        steps += [_replace("Regex", " {2,}", " "), _replace("Regex", "\\A +| +\\z", "")]
    decoders += [{"type": "ByteFallback"}] if model.trainer_spec.byte_fallback else []
    decoders.append({"type": "Fuse"})
    if model.normalizer_spec.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    steps.append(_replace("String", " ", SPACE))
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }
