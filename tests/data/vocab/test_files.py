"""Vocabularies whose models have moved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.files import vocabulary_of_file, vocabulary_of_record
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.run.directory import RunDirectory
from tests.small_tokenizers import byte_level, sentencepiece_model


def test_a_run_keeps_the_model_of_its_vocabulary(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    model = Path(sentencepiece_model(tmp_path / "a.model"))
    vocabulary = vocabulary_of_file(model)
    record = vocabulary.to_json()
    run.keep_model(vocabulary.model_file)
    run.keep_model(None)
    run.check("any", {})  # it is one of a run's own files
    assert vocabulary_of_record(record, run.vocabulary_model) == vocabulary
    model.write_bytes(b"another model")
    run.keep_model(vocabulary.model_file)  # what is kept stays
    kept = vocabulary_of_record(record, run.vocabulary_model)
    assert kept.model_file == str(run.vocabulary_model)
    assert kept.to_json() | {"model_file": None} == record | {"model_file": None}
    run.vocabulary_model.unlink()
    with pytest.raises(UserError, match=r"a\.model is not the SentencePiece model that was recorded"):
        vocabulary_of_record(record, run.vocabulary_model)
    assert vocabulary_of_record(Vocabulary().to_json(), run.vocabulary_model) == Vocabulary()


def test_a_tokenizer_needs_nothing_beside_it_once_it_is_known(tmp_path: Path) -> None:
    file = byte_level(tmp_path / "there", special=("<stop>",), eos_token="<stop>")
    record = vocabulary_of_file(file).to_json()
    copy = tmp_path / "vocabulary.model"
    shutil.copy(file, copy)
    shutil.rmtree(file.parent)
    vocabulary = vocabulary_of_record(record, copy)
    assert vocabulary.decode([*vocabulary.encode("bag dem"), vocabulary.eos_id, 5]) == "bag dem"
