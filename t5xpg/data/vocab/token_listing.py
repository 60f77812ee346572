"""What `t5xpg tokens` prints: the special ids of a vocabulary, and a text or ids token by token."""

import dataclasses
from collections.abc import Iterator, Sequence

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.vocabulary import BYT5_GOOGLE, BYTES, OWN, TRANSFORMERS, Vocabulary

_DIGITS = 12  # of an id


def listing(vocabulary: Vocabulary, text: str | None, ids: str | None) -> Iterator[str]:
    """The special ids, then the tokens of `text`, or of `ids` ("383,105"). UserError for ids that there are not."""
    tokens = None if text is None else vocabulary.encode(text)
    if ids is not None:
        words = ids.replace(",", " ").split()
        if not all(word.isascii() and word.isdecimal() and len(word) <= _DIGITS for word in words):
            raise UserError(f"IDS={ids}: expected whole numbers, 383,105,1.")
        tokens = [int(word) for word in words]
        if max(tokens, default=0) >= vocabulary.size:
            raise UserError(f"IDS={ids}: the vocabulary has ids below {vocabulary.size:,}.")
    unknown = "" if vocabulary.unk_id is None else f", unknown {vocabulary.unk_id}"
    yield f"{vocabulary.kind}, {vocabulary.size:,} ids: padding {vocabulary.pad_id}, end {vocabulary.eos_id}{unknown}"
    last = vocabulary.num_sentinels - 1
    if last >= 0:
        named = "tokens of its own" if vocabulary.sentinels == OWN else f"as {vocabulary.sentinels} numbers them"
        ends = f"<extra_id_0> {vocabulary.sentinel_id(0)} to <extra_id_{last}> {vocabulary.sentinel_id(last)}"
        yield f"sentinels, {named}: {ends}"
    if tokens is not None:
        yield from _token_lines(vocabulary, tokens)


def _token_lines(vocabulary: Vocabulary, tokens: Sequence[int]) -> Iterator[str]:
    """A line a token: its id, here and in other numberings, its bytes, the token."""
    others = _other_numberings(vocabulary)
    counts = vocabulary.token_bytes()
    yield "  ".join(["      id", *(f"{name:>{max(8, len(name))}}" for name in others), "bytes", "token"])
    for token in tokens:
        index = vocabulary.sentinel_index(token)
        cells = [f"{token:8}"]
        for name, other in others.items():
            number: int | None = token
            if isinstance(other, int):  # the tokenizer's padding, which changes its place with id 0
                number = {0: other, other: 0}.get(token, token)
            elif index is not None:
                number = other.sentinel_id(index) if index < other.num_sentinels else None
            cells.append(f"{'-' if number is None else number:>{max(8, len(name))}}")
        yield "  ".join([*cells, f"{counts[token]:5}", printable(vocabulary.piece(token))])
    yield f"{len(tokens):,} tokens for {counts[list(tokens)].sum():,} bytes; as text: {vocabulary.decode(tokens)!r}"


def printable(piece: str) -> str:
    """A token with escapes for characters that cannot be shown."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in piece)


def _other_numberings(vocabulary: Vocabulary) -> dict[str, Vocabulary | int]:
    """Conventions that number the same sentinels otherwise, or the tokenizer itself, by the id of its padding."""
    if vocabulary.tokenizer_pad_id:
        return {"tokenizer": vocabulary.tokenizer_pad_id}
    if vocabulary.kind != BYTES or vocabulary.named_tokens:  # which no other convention has
        return {}
    return {
        TRANSFORMERS: dataclasses.replace(vocabulary, sentinels=TRANSFORMERS),
        BYT5_GOOGLE: dataclasses.replace(vocabulary, extra_ids=0, sentinels=BYT5_GOOGLE),
    }
