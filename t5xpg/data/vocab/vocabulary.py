"""Vocabularies without TensorFlow: text to token ids and back, and the numbering of sentinels.

A sentinel, `<extra_id_3>`, stands for a blank in an input and for the head of its filling in a target. A model that was
trained with one numbering of them reads nonsense in another, so the convention is a property of the vocabulary:

- `seqio`: the last id, counting down. What `t5.data.preprocessors.span_corruption` writes. With 125 extra ids the
  first sentinel of the byte vocabulary is 383; with T5's SentencePiece model and 100 extra ids it is 32099.
- `byt5_google`: 258 counting down, as Google's ByT5 checkpoints were trained (a byte vocabulary without extra ids).
  These are the ids of the bytes 0xFF downwards; 0xFF to 0xF5 never occur in UTF-8: eleven sentinels are unambiguous.
- `transformers`: 259 counting up, as its ByT5 tokenizer numbers them; for SentencePiece the same as `seqio`.
- `own`: the tokens of a model that are named `<extra_id_0>` and so on, where it has some.

Other extra ids may have names, such as `[NLU]`: `named_tokens`, in order. They take those that sentinels do not start
from: the first extra id and those behind it in `seqio`, the last one and those before it in `transformers`.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError, kind_of, nearest
from t5xpg.base.files import sha256_of_file
from t5xpg.base.paths import shown
from t5xpg.data.text.lines import SURROGATE
from t5xpg.data.vocab.sentinels import check_names, marks
from t5xpg.data.vocab.tokenizers import HUGGING_FACE, SENTENCEPIECE, TokenModel, load, plain_ids
from t5xpg.data.vocab.tokenizers import KINDS as MODEL_KINDS

BYTES = "bytes"
IDS = "ids"
KINDS = (BYTES, SENTENCEPIECE, HUGGING_FACE, IDS)
WITHOUT_MODEL = (BYTES, IDS)
SEQIO = "seqio"
BYT5_GOOGLE = "byt5_google"
TRANSFORMERS = "transformers"
OWN = "own"
# what each convention numbers
CONVENTIONS: Mapping[str, tuple[str, ...]] = {
    SEQIO: KINDS,
    BYT5_GOOGLE: (BYTES,),
    TRANSFORMERS: (BYTES, SENTENCEPIECE),
    OWN: (SENTENCEPIECE, HUGGING_FACE),
}

# ids of the byte vocabulary: 0 padding, 1 end, 2 unknown, then the 256 bytes
_FIRST_BYTE, _NUM_BYTES = 3, 256
_MOST_EXTRA_IDS = 1_000_000  # no vocabulary in use has more than some thousands
_MOST_IDS = 2**31 - 1  # an id is an int32
# what a record of a vocabulary says in any case
_RECORDED = ("kind", "extra_ids", "sentinels", "pad_id", "eos_id", "unk_id")
_WHERE_NOT_ZERO = ("tokenizer_pad_id", "num_ids")  # and what it says of some
# the bytes that no UTF-8 text holds and that stand together at the end: 0xF5 to 0xFF
_NUM_BYTES_OUTSIDE_UTF8 = 11


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary: `kind`, one of KINDS; `extra_ids` ids behind the tokens; `sentinels`, a convention.

    `model_file`: a SentencePiece model or tokenizer.json; `vocab.files.vocabulary_of_file` reads all of this from it.
    Padding is id 0; `tokenizer_pad_id`, a Hugging Face tokenizer's other one, and 0 change places. `unk_id`: None for
    tokenizers that need none. `named_tokens`: the texts of those extra ids that are no sentinels. `num_ids`: of the
    kind IDS alone, whose ids stand for no text and are written as numbers. Raises UserError for what cannot be.
    """

    kind: str = BYTES
    extra_ids: int = 125
    sentinels: str = SEQIO
    model_file: str | None = None
    pad_id: int = 0
    eos_id: int = 1
    unk_id: int | None = 2
    named_tokens: tuple[str, ...] = ()
    tokenizer_pad_id: int = 0
    num_ids: int = 0

    def __post_init__(self) -> None:
        known = {"vocabulary of the kind": (self.kind, KINDS), "sentinel convention": (self.sentinels, [*CONVENTIONS])}
        for what, (value, values) in known.items():
            if value not in values:
                raise UserError(f"There is no {what} {value!r}.{nearest(value, values)}")
        if self.kind not in CONVENTIONS[self.sentinels]:
            raise UserError(f"The sentinel convention {self.sentinels!r} does not number a {self.kind} vocabulary.")
        if (self.kind in WITHOUT_MODEL) == (self.model_file is not None):
            raise UserError(f"A {self.kind} vocabulary {'needs' if self.model_file is None else 'has no'} model file.")
        if not _is_count(self.extra_ids) or self.extra_ids > _MOST_EXTRA_IDS:
            raise UserError(f"extra_ids is {self.extra_ids!r}: it counts ids, so it is from 0 to {_MOST_EXTRA_IDS}.")
        may_lack = {"unk_id"} if self.kind in (HUGGING_FACE, IDS) else set()
        for name in ("pad_id", "eos_id", "unk_id", "tokenizer_pad_id"):
            value = getattr(self, name)
            if not _is_count(value) and not (value is None and name in may_lack):
                raise UserError(f"{name} is {value!r}: an id is a whole number of at least 0.")
        if self.tokenizer_pad_id and self.kind != HUGGING_FACE:
            raise UserError(f"A {self.kind} vocabulary has no tokenizer_pad_id: that is of Hugging Face tokenizers.")
        if not _is_count(self.num_ids) or self.num_ids > _MOST_IDS or (self.kind == IDS) != (self.num_ids > 0):
            raise UserError(
                f"num_ids is {self.num_ids!r}: it counts the ids of a vocabulary of {IDS}, and of no other."
            )
        if self.kind == IDS and (self.extra_ids or not 0 < self.eos_id < self.num_ids):
            raise UserError(
                f"A vocabulary of {self.num_ids} {IDS} has no extra ids ({self.extra_ids}), and its end is one of its "
                f"own ({self.eos_id}), but for 0, which is padding."
            )
        check_names(self.named_tokens, 0 if self.sentinels == BYT5_GOOGLE else self.extra_ids)

    @property
    def size(self) -> int:
        """Every id is below it."""
        return self._tokens + self.extra_ids

    @property
    def summary(self) -> str:
        """For people: "bytes, 384 ids, sentinels as seqio", or "32 ids that stand for no text"."""
        if self.kind == IDS:
            return f"{self.size:,} ids that stand for no text"
        kind = self.kind if self.model_file is None else f"{MODEL_KINDS[self.kind]} {shown(Path(self.model_file))}"
        return f"{kind}, {self.size:,} ids, sentinels as {self.sentinels}"

    @property
    def _tokens(self) -> int:
        return _FIRST_BYTE + _NUM_BYTES if self.kind == BYTES else self._model.size

    @property
    def _model(self) -> TokenModel:
        if self.kind == IDS:
            return plain_ids(self.num_ids)
        assert self.model_file is not None
        return load(self.kind, self.model_file, self.tokenizer_pad_id, self.eos_id)

    @functools.cached_property
    def end_of_line(self) -> int | None:
        """The id that "\\n" has alone, and no other id contains; None where lines end within tokens, or nowhere."""
        if self.kind not in (BYTES, SENTENCEPIECE) or not (tokens := self.encode_plain("\n")):
            return None
        end = tokens[-1]  # behind the space that most models put before a text
        others = (self.piece(token) for token in range(self.size) if token != end)
        return end if self.decode([end]) == "\n" and not any("\n" in piece for piece in others) else None

    @functools.cached_property
    def _sentinel_ids(self) -> Sequence[int]:
        """The ids of the sentinels, the first one first: those that mean nothing else."""
        count = self.extra_ids - len(self.named_tokens)
        if self.sentinels == OWN:
            return self._model.own_sentinels
        if self.sentinels == BYT5_GOOGLE:
            last = _FIRST_BYTE + _NUM_BYTES - 1
            return range(last, last - _NUM_BYTES_OUTSIDE_UTF8, -1)
        end = self._tokens + count if self._counts_up else self.size - 1 - count
        return range(self._tokens, end) if self._counts_up else range(self.size - 1, end, -1)

    @property
    def _counts_up(self) -> bool:
        return self.sentinels == TRANSFORMERS and self.kind == BYTES

    @property
    def num_sentinels(self) -> int:
        """How many sentinels have an id that means nothing else."""
        return len(self._sentinel_ids)

    @property
    def counts_down_from_last(self) -> bool:
        """Whether the sentinels are the last ids, counting down: where t5's preprocessors put them."""
        last = self.size - 1
        down = range(last, last - self.num_sentinels, -1)
        return self.sentinels == SEQIO or tuple(self._sentinel_ids) == tuple(down)

    def sentinel_id(self, index: int) -> int:
        """The id of `<extra_id_{index}>`. Raises UserError where there are fewer sentinels."""
        if not 0 <= index < self.num_sentinels:
            raise UserError(
                f"<extra_id_{index}> has no id: this vocabulary has {self.num_sentinels} sentinels"
                + (f", <extra_id_0> to <extra_id_{self.num_sentinels - 1}>." if self.num_sentinels else ".")
            )
        return self._sentinel_ids[index]

    def sentinel_index(self, token: int) -> int | None:
        """Which sentinel an id is; None for other tokens."""
        return self._sentinel_ids.index(int(token)) if int(token) in self._sentinel_ids else None

    def named_id(self, name: str) -> int:
        """The id of one of the `named_tokens`. Raises UserError where the vocabulary does not have it."""
        if name not in self.named_tokens:
            raise UserError(f"{name} has no id in this vocabulary.{nearest(name, self.named_tokens)}")
        index = self.named_tokens.index(name)
        return self.size - 1 - index if self._counts_up else self._tokens + index

    @functools.cached_property
    def _marks(self) -> dict[int, str]:
        sentinels = {token: f"<extra_id_{index}>" for index, token in enumerate(self._sentinel_ids)}
        return {self.named_id(name): name for name in self.named_tokens} | sentinels

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without an end token; `<extra_id_N>` and named tokens become their ids. Raises UserError
        for a sentinel that the vocabulary does not have."""
        found = list(marks(self.named_tokens).finditer(text))
        marked = [self.named_id(one[0]) if one[1] is None else self.sentinel_id(int(one[1])) for one in found]
        if self.kind == HUGGING_FACE and self.sentinels == OWN and not self.named_tokens:
            return self.encode_plain(text)  # tokens like any others: what stands around them is the tokenizer's to know
        ids: list[int] = []
        end = 0
        for match, token in zip(found, marked, strict=True):
            ids += [*self.encode_plain(text[end : match.start()]), token]
            end = match.end()
        return ids + self.encode_plain(text[end:])

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text in which `<extra_id_0>` is nothing special, unless it is to the model itself."""
        whole = text if text.isascii() else SURROGATE.sub("\ufffd", text)  # as in exports
        return [byte + _FIRST_BYTE for byte in whole.encode()] if self.kind == BYTES else self._model.encode(whole)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids up to the first end token, with sentinels and named tokens by their names. Padding and
        ids without a text are left out; bytes that are not UTF-8 become U+FFFD."""
        parts: list[str] = []
        run: list[int] = []
        for token in map(int, ids):
            if token == self.eos_id:
                break
            if token in self._marks:
                parts += [self._decode_plain(run, bool(parts)), self._marks[token]]
                run = []
            elif token != self.pad_id:
                run.append(token)
        return "".join([*parts, self._decode_plain(run, bool(parts))])

    def _decode_plain(self, ids: list[int], follows: bool) -> str:
        """The text of a run without sentinels; `follows`: something stands before it."""
        if self.kind == BYTES:
            codes = (token - _FIRST_BYTE for token in ids)
            return bytes(code for code in codes if 0 <= code < _NUM_BYTES).decode("utf-8", errors="replace")
        return self._model.decode(ids, follows)

    def piece(self, token: int) -> str:
        """An id as the vocabulary writes it: "▁the", "<0x41>", "<extra_id_3>"; "" for one that stands for nothing."""
        if token in self._marks:
            return self._marks[token]
        if self.kind == BYTES:
            special = {self.pad_id: "<pad>", self.eos_id: "</s>", self.unk_id: "<unk>"}
            code = token - _FIRST_BYTE
            return special.get(token, f"<0x{code:02X}>" if 0 <= code < _NUM_BYTES else "")
        return self._model.piece(token) if 0 <= token < self._tokens else ""

    def unknown_characters(self, text: str) -> int:
        """How many characters of a text become the unknown token."""
        return 0 if self.kind == BYTES else self._model.unknown_characters(text)

    def word_flags(self) -> tuple[np.ndarray, np.ndarray]:
        """Of every id, whether it is of a word, and whether a word begins with it, whatever stands before it; bool [V].
        A single byte of a longer character is no text by itself, and of a word like a letter."""
        text_of = self.piece if self.kind != BYTES else lambda token: self.decode([token])
        texts = [text_of(token) if count else "" for token, count in enumerate(self.token_bytes())]
        of_word = [any(character.isalnum() or character in "_\ufffd" for character in text) for text in texts]
        return np.array(of_word), np.array([text.startswith(("▁", "Ġ", " ")) for text in texts])

    def token_bytes(self) -> np.ndarray:
        """int32[size]: how many UTF-8 bytes of text each id stands for; 0 for padding, end, unknown and extra ids.

        Their sum is the bytes of the text as its tokens say it: normalised (T5's models make one space of several),
        without unknown characters, and with the space that most models put before the first word. WordPiece (BERT) does
        not say where spaces are.
        """
        counts = np.zeros(self.size, np.int32)
        if self.kind == BYTES:
            counts[_FIRST_BYTE : _FIRST_BYTE + _NUM_BYTES] = 1
        else:
            counts[: self._tokens] = self._model.num_bytes
        counts[list(self._sentinel_ids)] = 0
        return counts

    def to_json(self) -> dict[str, Any]:
        """What `from_json` needs, the size, and the SHA-256 of the model file."""
        recorded = {name: getattr(self, name) for name in _RECORDED}
        value: dict[str, Any] = {"kind": recorded.pop("kind"), "size": self.size, **recorded}
        if self.named_tokens:
            value["named_tokens"] = list(self.named_tokens)
        if self.model_file is not None:
            value |= {"model_file": self.model_file, "model_sha256": sha256_of_file(Path(self.model_file))}
        return value | {name: getattr(self, name) for name in _WHERE_NOT_ZERO if getattr(self, name)}

    @property
    def identity(self) -> dict[str, Any]:
        """Its JSON with the digest of a model file, but without its path."""
        return {name: value for name, value in self.to_json().items() if name != "model_file"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Vocabulary":
        """The vocabulary that `to_json` described. Raises UserError for what describes none, and where the model file
        is gone or another one."""
        if not isinstance(value, Mapping):
            raise UserError(f"What is recorded as the vocabulary is {kind_of(value)}, expected an object.")
        if absent := [name for name in _RECORDED if name not in value]:
            raise UserError(f"What is recorded as the vocabulary has no {', '.join(absent)}.")
        model_file = value.get("model_file")
        if model_file is not None:
            _check_model_file(value["kind"], model_file, value.get("model_sha256"))
        fields = {name: value[name] for name in (*_RECORDED, "named_tokens", *_WHERE_NOT_ZERO) if name in value}
        if isinstance(fields.get("named_tokens"), list):
            fields["named_tokens"] = tuple(fields["named_tokens"])
        vocabulary = cls(model_file=model_file, **fields)
        if value.get("size", vocabulary.size) != vocabulary.size:
            raise UserError(f"The recorded vocabulary has {value['size']!r} ids, and by its kind {vocabulary.size}.")
        return vocabulary


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_model_file(kind: Any, model_file: Any, sha256: Any) -> None:
    what = MODEL_KINDS.get(kind, "model") if isinstance(kind, str) else "model"
    if not isinstance(model_file, str) or "\0" in model_file:
        raise UserError(f"The recorded {what} is {model_file!r}: expected the name of a file.")
    if not Path(model_file).is_file():
        raise UserError(f"The {what} {model_file} is not there.")
    if sha256_of_file(Path(model_file)) != sha256:
        raise UserError(f"{model_file} is not the {what} that was recorded (sha256 {sha256}).")
