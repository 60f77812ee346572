"""Hugging Face tokenizers as SeqIO's vocabularies: the same ids in Python and in graphs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.data.tasks.seqio_vocabularies import HuggingFaceVocabulary, from_seqio, model_file_of, to_seqio
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.vocabulary import Vocabulary
from tests.small_tokenizers import byte_level


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """One whose padding changed places."""
    folder = tmp_path_factory.mktemp("tokenizer")
    return vocabulary_of_file(byte_level(folder, special=("</s>",)), extra_ids=20)


def test_ids_are_the_same_in_python_and_in_graphs(vocabulary: Vocabulary) -> None:
    theirs = to_seqio(vocabulary)
    assert isinstance(theirs, HuggingFaceVocabulary)
    assert from_seqio(theirs) == vocabulary
    assert (theirs.vocab_size, theirs.extra_ids) == (vocabulary.size, 20)
    assert (theirs.pad_id, theirs.eos_id, theirs.unk_id) == (0, vocabulary.eos_id, None)
    for text in ("bag dem", "Zürich 日本", "", "<extra_id_0>"):
        ids = vocabulary.encode_plain(text)
        assert list(theirs.encode(text)) == ids
        assert theirs.encode_tf(tf.constant(text)).numpy().tolist() == ids
    ids = [*vocabulary.encode("bag <extra_id_0> dem"), vocabulary.eos_id, 0, 0]
    assert theirs.decode(ids) == "bag <extra_id_0> dem"
    rows = tf.constant([ids, ids[::-1]], tf.int32)
    assert [text.decode() for text in theirs.decode_tf(rows).numpy()] == [theirs.decode(row) for row in rows.numpy()]
    assert theirs.decode_tf(rows[0]).numpy().decode() == "bag <extra_id_0> dem"


def test_is_a_value(vocabulary: Vocabulary) -> None:
    """Tasks compare the vocabularies of their features, and Beam sends them to other processes."""
    theirs = to_seqio(vocabulary)
    assert pickle.loads(pickle.dumps(theirs)) == theirs == to_seqio(vocabulary)
    assert len({theirs, to_seqio(vocabulary)}) == 1
    assert theirs != seqio.ByteVocabulary()
    assert model_file_of(theirs) == Path(str(vocabulary.model_file))
    assert model_file_of(seqio.ByteVocabulary()) is None
    with pytest.raises(UserError, match="not of bytes"):
        HuggingFaceVocabulary(Vocabulary())
