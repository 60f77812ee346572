"""Vocabularies of this package as SeqIO's, and back. Imports TensorFlow."""

from __future__ import annotations

import seqio

from t5xpg.errors import UserError
from t5xpg.vocabularies import BYT5_GOOGLE, SEQIO, Vocabulary


def to_seqio(vocabulary: Vocabulary) -> seqio.Vocabulary:
    """The SeqIO vocabulary with the same ids, whose last id is the first sentinel (what t5's preprocessors rely on).

    Raises UserError for a convention that SeqIO's vocabularies cannot number: train with `seqio` and translate.
    """
    if vocabulary.kind == "sentencepiece":
        return seqio.SentencePieceVocabulary(vocabulary.model_file, extra_ids=vocabulary.extra_ids)
    if vocabulary.sentinels == SEQIO or (vocabulary.sentinels == BYT5_GOOGLE and vocabulary.extra_ids == 0):
        return seqio.ByteVocabulary(extra_ids=vocabulary.extra_ids)
    raise UserError(
        f"SeqIO has no byte vocabulary with {vocabulary.extra_ids} extra ids and the sentinels of "
        f"{vocabulary.sentinels!r}. Use the convention 'seqio' in the task and translate ids at the edges."
    )


def from_seqio(vocabulary: seqio.Vocabulary) -> Vocabulary:
    """The vocabulary of this package with the same ids and sentinels. Raises UserError for other kinds."""
    # exact types: a subclass may encode differently
    if type(vocabulary) is seqio.ByteVocabulary:
        extra_ids = vocabulary.extra_ids
        return Vocabulary("bytes", extra_ids, SEQIO if extra_ids else BYT5_GOOGLE)
    if type(vocabulary) is seqio.SentencePieceVocabulary:
        if not vocabulary._reverse_extra_ids:
            raise UserError(
                "A SentencePieceVocabulary with reverse_extra_ids=False numbers sentinels upwards: not known."
            )
        return Vocabulary(
            "sentencepiece",
            vocabulary.extra_ids,
            SEQIO,
            str(vocabulary.sentencepiece_model_file),
            eos_id=vocabulary.eos_id,
            unk_id=vocabulary.unk_id,
        )
    raise UserError(
        f"The vocabulary {type(vocabulary).__name__} is not known here: use seqio.ByteVocabulary or "
        "seqio.SentencePieceVocabulary."
    )
