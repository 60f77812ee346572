"""Vocabularies of this package as SeqIO's, and back. Imports TensorFlow."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.vocabulary import BYT5_GOOGLE, HUGGING_FACE, IDS, OWN, SEQIO, Vocabulary


class HuggingFaceVocabulary(seqio.Vocabulary):
    """A Hugging Face tokenizer for SeqIO. Graphs call Python for every text, one at a time: that is for caching. The
    call counts as stateless, so that the position of a stream that is not cached can be saved all the same."""

    bos_id = None  # decoders start with padding, as T5's do

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.kind != HUGGING_FACE:
            raise UserError(f"A HuggingFaceVocabulary is made of a tokenizer.json, not of {vocabulary.kind}.")
        super().__init__(extra_ids=vocabulary.extra_ids)
        self.vocabulary = vocabulary

    @property
    def eos_id(self) -> int | None:
        return self.vocabulary.eos_id

    @property
    def unk_id(self) -> int | None:
        return self.vocabulary.unk_id

    @property
    def _base_vocab_size(self) -> int:
        return self.vocabulary.size - self.vocabulary.extra_ids

    def _encode(self, s: str) -> Sequence[int]:
        return self.vocabulary.encode_plain(s)

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first end token; sentinels, which SeqIO takes for unknown tokens, stay what they are."""
        return self.vocabulary.decode(ids)

    _decode = decode

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        def ids_of_bytes(text: Any) -> np.ndarray:
            code: bytes = text.item() if isinstance(text, np.ndarray) else text  # an array outside of graphs
            return np.array(self._encode(code.decode("utf-8", errors="replace")), np.int32)

        ids = tf.numpy_function(ids_of_bytes, [s], tf.int32, stateful=False)
        ids.set_shape([None])
        return ids

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        def texts_of_rows(ids: np.ndarray) -> Any:
            if ids.ndim == 1:
                return self.decode(ids).encode("utf-8")
            return np.array([self.decode(row).encode("utf-8") for row in ids], object)

        texts = tf.numpy_function(texts_of_rows, [ids], tf.string, stateful=False)
        texts.set_shape(ids.shape[:-1])
        return texts

    _decode_tf = decode_tf

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HuggingFaceVocabulary) and self.vocabulary == other.vocabulary

    def __hash__(self) -> int:
        return hash(self.vocabulary)

    def __str__(self) -> str:
        return f"HuggingFaceVocabulary(file={self.vocabulary.model_file}, extra_ids={self.extra_ids})"


class _Named:
    """Before a vocabulary of SeqIO: the first of its extra ids have names (`t5xpg.data.vocab.sentinels`)."""

    def __init__(self, *arguments: Any, named_tokens: tuple[str, ...], **options: Any) -> None:
        self.named_tokens = named_tokens
        super().__init__(*arguments, **options)

    def __eq__(self, other: object) -> bool:
        return self.named_tokens == getattr(other, "named_tokens", ()) and super().__eq__(other)


class NamedByteVocabulary(_Named, seqio.ByteVocabulary):
    """SeqIO's bytes with named tokens."""


class NamedSentencePieceVocabulary(_Named, seqio.SentencePieceVocabulary):
    """SeqIO's SentencePiece vocabulary with named tokens."""


def to_seqio(vocabulary: Vocabulary) -> seqio.Vocabulary:
    """The SeqIO vocabulary with the same ids; t5's preprocessors take its last ones, counting down, for sentinels.
    Raises UserError for a convention that SeqIO cannot number: train with `seqio` and translate."""
    if vocabulary.kind == HUGGING_FACE:
        return HuggingFaceVocabulary(vocabulary)
    if vocabulary.kind == IDS:
        return seqio.PassThroughVocabulary(vocabulary.num_ids, eos_id=vocabulary.eos_id)
    extra_ids, names = vocabulary.extra_ids, vocabulary.named_tokens
    if vocabulary.kind == "sentencepiece":
        file = vocabulary.model_file
        if names:
            return NamedSentencePieceVocabulary(file, extra_ids, named_tokens=names)
        return seqio.SentencePieceVocabulary(file, extra_ids=extra_ids)
    if vocabulary.sentinels == SEQIO and names:
        return NamedByteVocabulary(extra_ids=extra_ids, named_tokens=names)
    if vocabulary.sentinels == SEQIO or (vocabulary.sentinels == BYT5_GOOGLE and extra_ids == 0):
        return seqio.ByteVocabulary(extra_ids=extra_ids)
    raise UserError(
        f"SeqIO has no byte vocabulary with {extra_ids} extra ids and the sentinels of "
        f"{vocabulary.sentinels!r}. Use the convention 'seqio' in the task and translate ids at the edges."
    )


def from_seqio(vocabulary: seqio.Vocabulary) -> Vocabulary:
    """The vocabulary of this package with the same ids and sentinels. Raises UserError for other kinds."""
    # exact types: a subclass may encode differently
    if type(vocabulary) is HuggingFaceVocabulary:
        return vocabulary.vocabulary
    names = getattr(vocabulary, "named_tokens", ())
    if type(vocabulary) in (seqio.ByteVocabulary, NamedByteVocabulary):
        extra_ids = vocabulary.extra_ids
        return Vocabulary("bytes", extra_ids, SEQIO if extra_ids else BYT5_GOOGLE, named_tokens=names)
    if type(vocabulary) in (seqio.SentencePieceVocabulary, NamedSentencePieceVocabulary):
        if not vocabulary._reverse_extra_ids:
            raise UserError(
                "A SentencePieceVocabulary with reverse_extra_ids=False numbers sentinels upwards: not known."
            )
        found = Vocabulary(
            "sentencepiece",
            vocabulary.extra_ids,
            SEQIO,
            str(vocabulary.sentencepiece_model_file),
            eos_id=vocabulary.eos_id,
            unk_id=vocabulary.unk_id,
            named_tokens=names,
        )
        own = dataclasses.replace(found, sentinels=OWN)
        return own if not found.extra_ids and own.num_sentinels else found
    if type(vocabulary) is seqio.PassThroughVocabulary:
        if vocabulary.eos_id is None:
            raise UserError(
                f"PassThroughVocabulary(size={vocabulary.size}) has no end, at which predictions stop: give it an "
                "eos_id, and the feature add_eos=True."
            )
        return Vocabulary(IDS, 0, SEQIO, eos_id=vocabulary.eos_id, unk_id=None, num_ids=vocabulary.size)
    raise UserError(
        f"The vocabulary {type(vocabulary).__name__} is not known here: use seqio.ByteVocabulary, "
        "seqio.SentencePieceVocabulary, t5xpg.data.vocab.seqio_vocabularies.HuggingFaceVocabulary or, for ids that are "
        "no text, seqio.PassThroughVocabulary."
    )
