"""A SentencePiece model as a tokenizer.json of Hugging Face, with the same ids.

SentencePiece changes a text before it looks for pieces (by a table of characters, in its spaces, with a space before
the first word); each change becomes a step of the tokenizer.
"""

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, normalizers
from tokenizers.models import BPE, Unigram
from tokenizers.normalizers import Replace

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.tokenizers import SPACE

_UNIGRAM, _BPE = 1, 2  # TrainerSpec.ModelType
_NORMAL = sentencepiece_model_pb2.ModelProto.SentencePiece.NORMAL
_SYMBOL = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
# `Precompiled` takes the shortest match for a whole grapheme: accents behind a replaced character vanish. What follows
# in a grapheme is therefore held apart by characters that no text has: by the first where a model may compose it with
# what stands before, by the second where none does.
_APART, _NEVER_ONE = "\ufff0", "\ufff1"
_FOLLOWING = r"[\p{M}\p{Cf}\uFF9E\uFF9F\n\x{1F3FB}-\x{1F3FF}]"
_FIRST_STAND_IN = 0xF0000  # the first of the private characters that stand for symbols


def definition_of(path: Path, names: Mapping[int, str], size: int) -> dict[str, Any]:
    """The tokenizer.json without its post-processor.

    names: {id: text} where the text differs from the model's piece. size: the number of ids, including those of
    `names` behind the pieces. Raises UserError for a model that a tokenizer.json cannot express.
    """
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(path.read_bytes())
    symbols = [one.piece for token, one in enumerate(model.pieces) if one.type == _SYMBOL and token not in names]
    symbols.sort(key=len, reverse=True)
    reason = None
    if model.trainer_spec.model_type not in (_UNIGRAM, _BPE):
        reason = "it is of words or characters, and pieces by unigram or BPE can be"
    elif model.trainer_spec.treat_whitespace_as_suffix or not model.normalizer_spec.escape_whitespaces:
        reason = "it does not write spaces before words"
    elif model.trainer_spec.model_type == _BPE and len((*symbols, "")[0]) > 1:
        reason = f"its BPE has user-defined symbols of several characters, such as {symbols[0]!r}, which no merge makes"
    if reason is not None:
        raise UserError(f"The SentencePiece model {path} cannot be written as a tokenizer.json: {reason}.")
    tokenizer = Tokenizer(_pieces(model, names, size))
    steps, decoding = _steps(model, symbols)
    tokenizer.normalizer, tokenizer.decoder = normalizers.Sequence(steps), decoders.Sequence(decoding)
    return json.loads(tokenizer.to_str())


def _pieces(model: Any, names: Mapping[int, str], size: int) -> Unigram | BPE:
    trainer = model.trainer_spec
    best = max((piece.score for piece in model.pieces if piece.type == _NORMAL), default=0.0)
    # SentencePiece scores user-defined symbols so, and not by the scores in its file
    scores = [len(one.piece.encode()) * best - 0.1 if one.type == _SYMBOL else one.score for one in model.pieces]
    texts = [names.get(token, one.piece) for token, one in enumerate(model.pieces)]
    texts += [names.get(token, "") for token in range(len(texts), size)]
    scores += [0.0] * (size - len(scores))
    if trainer.model_type == _UNIGRAM:
        return Unigram(
            list(zip(texts, scores, strict=True)), unk_id=trainer.unk_id, byte_fallback=trainer.byte_fallback
        )
    ids = {text: token for token, text in enumerate(texts)}
    unknown = texts[trainer.unk_id]
    return BPE(ids, _merges(model, ids), unk_token=unknown, fuse_unk=True, byte_fallback=trainer.byte_fallback)


def _merges(model: Any, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """BPE's merges in their order, which SentencePiece keeps in the scores of the pieces that they make."""
    pieces = sorted((piece for piece in model.pieces if piece.type == _NORMAL), key=lambda one: -one.score)
    return [
        (text[:cut], text[cut:])
        for text in (piece.piece for piece in pieces)
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]


def _characters(model: Any, symbols: Iterable[str]) -> list[normalizers.Normalizer]:
    """The table of characters, where there is one, and around it what Hugging Face's reading of it lacks: symbols stay
    as they are, and accents in characters of their own (NFD) are composed where SentencePiece composes them."""
    table = model.normalizer_spec.precompiled_charsmap
    if not table:
        return []
    # by the table alone, without its spaces
    changed = sentencepiece.SentencePieceNormalizer(model_proto=model.SerializeToString()).Normalize
    kept = [(symbol, chr(_FIRST_STAND_IN + n)) for n, symbol in enumerate(symbols) if changed(symbol) != symbol]
    folded = filter(lambda one: unicodedata.normalize("NFKC", one).casefold() != one, map(chr, range(0x110000)))
    several = f"[{_NEVER_ONE}{''.join(one for one in folded if len(changed(one)) > 1)}]"
    return [
        *(Replace(symbol, stand_in) for symbol, stand_in in kept),
        Replace(Regex(rf"(?!\A)(?:(?={several})|(?<={several}))(?={_FOLLOWING})"), _NEVER_ONE),
        Replace(Regex(rf"(?!\A)(?<!{_NEVER_ONE})(?={_FOLLOWING})"), _APART),
        normalizers.Precompiled(table),
        *_composing(changed),
        Replace(Regex(f"[{_APART}{_NEVER_ONE}]"), ""),
        *(Replace(stand_in, symbol) for symbol, stand_in in kept),
    ]


def _composing(changed: Callable[[str], str]) -> list[normalizers.Normalizer]:
    """The steps that make one character of those that a table of characters does."""
    befores: dict[str, set[str]] = {}  # by the last accent
    for composed in map(chr, range(0x110000)):
        for before, accent in _spellings(composed):
            if changed(before + accent) == changed(composed):
                befores.setdefault(accent, set()).add(_APART.join(before) + _APART)
    cases = [f"(?={accent})(?<={'|'.join(sorted(texts))})" for accent, texts in befores.items()]
    return [Replace(Regex(f"{_APART}(?:{'|'.join(cases)})"), ""), normalizers.NFC()] if cases else []


def _spellings(composed: str) -> Iterator[tuple[str, str]]:
    """What a character is composed of in Unicode, as what stands before the last accent, and that accent."""
    parts = unicodedata.decomposition(composed).split()
    if len(parts) == 2 and not parts[0].startswith("<") and unicodedata.is_normalized("NFC", composed):
        base, accent = (chr(int(part, 16)) for part in parts)
        yield from ((before, accent) for before in [base, *map("".join, _spellings(base))])


def _steps(model: Any, symbols: Iterable[str]) -> tuple[list[normalizers.Normalizer], list[decoders.Decoder]]:
    """What is done to a text before pieces are looked for, and to what is joined of pieces."""
    steps = _characters(model, symbols)
    decoding: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if model.normalizer_spec.remove_extra_whitespaces:
        # spaces alone: Strip would also remove other white space, which SentencePiece keeps
        steps += [Replace(Regex(" {2,}"), " "), Replace(Regex("\\A +| +\\z"), "")]
    decoding += [decoders.ByteFallback()] if model.trainer_spec.byte_fallback else []
    decoding.append(decoders.Fuse())
    if model.normalizer_spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
        decoding.append(decoders.Strip(" ", 1, 0))
    return [*steps, Replace(" ", SPACE)], decoding
