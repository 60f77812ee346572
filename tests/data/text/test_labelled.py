"""The fields of records and the names of their tasks, without TensorFlow."""

import pytest

from t5xpg.data.spec import SpanCorruption
from t5xpg.data.tasks import task_names
from t5xpg.data.text import labelled
from t5xpg.data.vocab.vocabulary import Vocabulary
from tests.refusals import refused

SUFFIXES = ("", "_bytes640", "_byt5", "_mine_unigram_90")
PIECES = task_names.NamedVocabulary("mine_unigram_90", Vocabulary("bytes", extra_ids=7), SpanCorruption())


def test_fields_say_which_tasks_there_are() -> None:
    translations = labelled.supervised_tasks(("en", "de"))
    assert list(translations) == ["translate_en_de", "translate_de_en"]
    translation = translations["translate_en_de"]
    assert (translation.inputs, translation.targets, translation.metrics) == ("en", "de", ("bleu", "chrf"))
    assert len(labelled.supervised_tasks(("en", "de", "fr"))) == 6
    assert list(labelled.supervised_tasks(("label", "text"))) == [labelled.CLASSIFY]
    assert list(labelled.supervised_tasks(("targets", "inputs"))) == [labelled.TEXT_TO_TEXT]
    for none in (labelled.TEXT, ("en",), ("text", "de"), ()):
        assert labelled.supervised_tasks(none) == {}


def test_fields_as_they_are_typed() -> None:
    assert labelled.parse_fields("de en") == {"de": "de", "en": "en"}
    # in the order of the columns
    assert list(labelled.parse_fields("label=class, text=body").items()) == [("label", "class"), ("text", "body")]
    fields = [("label", "text"), ("targets", "inputs"), ("de", "en")]
    assert list(map(labelled.question_of, fields)) == ["text", "inputs", "de"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("en", "FIELDS=en|FIELDS=en,de"),
        ("question,answer", "FIELDS=inputs=question,targets=answer"),
        ("en,en", "en is given twice"),
        ("inputs=a,targets=a", "one field"),
        ("en,qq", "qq|ISO 639-1"),
    ],
)
def test_fields_without_a_task_are_refused(given: str, names: str) -> None:
    with refused(*names.split("|")):
        labelled.parse_fields(given)


def test_names_of_tasks_of_records() -> None:
    entries = (*task_names.VOCABULARIES, PIECES)
    rows = task_names.rows("mine", entries, ("en", "de"))
    names = [row.name for row in rows]
    assert names == [f"mine_translate_{pair}{suffix}" for pair in ("en_de", "de_en") for suffix in SUFFIXES]
    for row in rows:
        assert (row.tasks, row.objective, row.dataset) == ((row.name,), None, "mine")
    # bytes are the same tokens whatever the number of sentinels
    assert {row.name: row.cached_as for row in rows}["mine_translate_de_en_bytes640"] == "mine_translate_de_en"


def test_names_of_tasks_of_tensorflow_datasets() -> None:
    found = {row.name: row for row in task_names.tfds_rows((*task_names.VOCABULARIES, PIECES))}
    assert set(found) == {f"{name}{suffix}" for name in labelled.TFDS_TASKS for suffix in SUFFIXES}
    assert (found["squad_bytes640"].cached_as, found["squad_bytes640"].vocabulary.size) == ("squad", 640)
    # the numbers of Lee et al. 2019 (ORQA), which T5's closed-book work takes
    splits = {"train": "train[:78785]", "validation": "train[78785:]", "test": "validation"}
    assert labelled.TFDS_TASKS["trivia_qa_open"].splits == splits
