"""Supervised tasks: what they make of records and of TensorFlow Datasets, and how predictions are measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import t5.evaluation.metrics
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.data.preprocessors import parse_records
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.evaluator import TaskEvaluator
from t5xpg.data.tasks import providers, sources
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.tasks.task_names import row_of, tfds_rows
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.labelled import TFDS_TASKS
from t5xpg.data.text.manifest import canonical_record
from tests.data.tasks import tfds_samples

LENGTHS = {"inputs": 128, "targets": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Exports of records in data/, data sets of TFDS in tfds/, and their tasks."""
    folder = tmp_path_factory.mktemp("supervised")
    (folder / "tfds").mkdir()
    tfds_samples.prepare(folder / "tfds")
    rows = {
        "pairs": (("en", "de"), "A \\ dog {n}.\tEin Hund {n} ßo."),
        "classes": (("label", "text"), "{kind}\tThis is text number {n}."),
        "quiz": (("inputs", "targets"), "What is {n}?\tIt is {n}."),
    }
    for name, (fields, line) in rows.items():
        for split, count in (("train", 8), ("validation", 5)):
            lines = [line.format(n=n, kind="even" if n % 2 == 0 else "odd") for n in range(count)]
            (folder / f"{name}-{split}.tsv").write_text("\n".join(lines), "utf-8")
        files = {split: [folder / f"{name}-{split}.tsv"] for split in ("train", "validation")}
        export_dataset(
            name, data_dir=folder / "data", files=files, fields={one: one for one in fields}, log=lambda line: None
        )
    seqio.set_tfds_data_dir_override(str(folder / "tfds"))
    with pytest.MonkeyPatch.context() as patch:
        # TFDS takes no slices beyond what there is
        small = {"train": "train[:7]", "validation": "train[7:]", "test": "validation"}
        small_task = dataclasses.replace(TFDS_TASKS["trivia_qa_open"], splits=small)
        patch.setitem(TFDS_TASKS, "trivia_qa_open", small_task)  # type: ignore[arg-type]
        register_tasks(folder / "data")
    yield folder
    seqio.set_tfds_data_dir_override(None)
    register_tasks(folder / "nothing")


def texts(name: str, split: str = "validation") -> list[tuple[str, str]]:
    """Inputs and targets, as the model gets them."""
    task = seqio.TaskRegistry.get(name)
    dataset = task.get_dataset(LENGTHS, split, use_cached=False, shuffle=False)
    examples = list(dataset.as_numpy_iterator())
    for example in examples:
        assert example["inputs"][-1] == example["targets"][-1] == 1
        assert example["inputs_pretokenized"] == decoded(task, example["inputs"]).encode()
    return [(decoded(task, one["inputs"]), decoded(task, one["targets"])) for one in examples]


@pytest.mark.usefixtures("folder")
def test_the_prompts_of_tasks_are_known_without_their_text() -> None:
    rows = [row_of(name, name.partition("_")[0]) for name in ("pairs_translate_de_en", "classes_classify")]
    for row in [*rows, *(row for row in tfds_rows() if row.name in ("wmt19_ende", "trivia_qa_open"))]:
        assert row.prompt.endswith(": ")
        assert all(inputs.startswith(row.prompt) for inputs, _ in texts(row.name))
    assert row_of("quiz_text_to_text", "quiz").prompt == ""


def decoded(task: seqio.Task, ids: np.ndarray) -> str:
    return str(task.output_features["inputs"].vocabulary.decode(ids.tolist()))


@pytest.mark.usefixtures("folder")
def test_records() -> None:
    assert texts("pairs_translate_en_de")[1] == ("translate English to German: A \\ dog 1.", "Ein Hund 1 ßo.")
    assert texts("pairs_translate_de_en_bytes640")[1] == ("translate German to English: Ein Hund 1 ßo.", "A \\ dog 1.")
    assert texts("classes_classify")[1] == ("classify classes: This is text number 1.", "odd")
    assert texts("quiz_text_to_text")[1] == ("What is 1?", "It is 1.")
    assert "pairs_span_corruption" not in seqio.TaskRegistry.names()
    assert seqio.TaskRegistry.get("quiz_text_to_text").num_input_examples("train") == 8


@pytest.mark.usefixtures("folder")
def test_translations_of_tfds() -> None:
    pair = tfds_samples.sentence("validation", 3)
    assert (f"translate English to German: {pair['en']}", pair["de"]) in texts("wmt19_ende")
    task = seqio.TaskRegistry.get("wmt19_ende")
    assert set(task.splits) == {"train", "validation"}
    assert task.num_input_examples("train") == 30


@pytest.mark.usefixtures("folder")
def test_questions_without_a_context() -> None:
    of_training = texts("trivia_qa_open", "train") + texts("trivia_qa_open", "validation")
    assert len(of_training) == 9
    assert set(of_training) == {
        (f"trivia_qa question: Which city is number {number}?", "London") for number in range(9)
    }
    assert len(texts("trivia_qa_open", "test")) == 3  # the public validation questions


@pytest.mark.usefixtures("folder")
def test_questions_with_a_context() -> None:
    question, answer = sorted(texts("squad"))[0]
    # T5 puts spaces around punctuation
    assert question.startswith("question: When did he move ? context: Tom Baker was born in Liverpool , England . ")
    assert answer == "1956"


def config(name: str, split: str = "validation") -> DatasetConfig:
    return DatasetConfig(name, LENGTHS, split=split, use_cached=False, batch_size=2, num_epochs=1, shuffle=False)


def measured(name: str, predictions: Mapping[str, str], split: str = "validation") -> dict[str, Any]:
    """The metrics of a task for a model that answers inputs in which these texts stand."""
    settings = config(name, split)
    evaluator = TaskEvaluator(providers.find_provider(settings), settings)
    task = seqio.TaskRegistry.get(name)
    vocabulary = task.output_features["targets"].vocabulary
    answers = []
    evaluator.begin(name)
    while (batch := evaluator.next()) is not None:
        for row in batch["encoder_input_tokens"]:
            asked = decoded(task, row)
            (answer,) = [text for text_of_input, text in predictions.items() if text_of_input in asked]
            answers.append(np.pad(np.array([*vocabulary.encode(answer), 1], np.int32), (0, 64))[:64])
    return evaluator.measure({name: {"prediction": np.stack(answers)}}, step=1)[name]


@pytest.mark.usefixtures("folder")
def test_an_answer_is_right_if_it_is_one_of_the_aliases() -> None:
    answers = {"number 0?": "the Big  Smoke!", "number 1?": "london, U.K.", "number 2?": "Berlin smoke"}
    found = measured("trivia_qa_open", answers, "test")
    assert found["em"] == pytest.approx(200 / 3)
    targets = [tfds_samples.ALIASES] * 3
    assert found == pytest.approx(t5.evaluation.metrics.trivia_qa(targets, list(answers.values())))


@pytest.mark.usefixtures("folder")
def test_translations_and_classes() -> None:
    right = {f"dog {n}.": f"Ein Hund {n} ßo." for n in range(5)}
    found = measured("pairs_translate_en_de", right)
    assert found["bleu"] == pytest.approx(100.0)
    assert found["chrf"] == pytest.approx(100.0)
    assert "tok:intl" in found["bleu_signature"]
    found = measured("classes_classify", {f"number {n}.": "even" for n in range(5)})
    assert found == pytest.approx({"accuracy": 60.0, "majority": 60.0, "macro_f1": 37.5})
    found = measured("quiz_text_to_text", {f"is {n}?": "It is 3." for n in range(5)})
    assert found["exact_match"] == pytest.approx(20.0)
    assert set(found) == {"exact_match", "token_f1", "edit_similarity"}


def test_every_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    values = [('"\\', "\\n\n"), ("\x01a\x01", "\t\\u0001"), ("é\u2028", "\b\f\r\x1f\\\\"), ("}", '", "b": "')]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(canonical_record(one, ("a", "b")) for one in values))
    dataset = parse_records(tf.data.TextLineDataset(str(path)), ("a", "b"))
    assert [(one["a"].decode(), one["b"].decode()) for one in dataset.as_numpy_iterator()] == values
    path.write_text('{"a": "x", "b": "y", "c": "z"}\n')
    with pytest.raises(tf.errors.InvalidArgumentError, match="as `make data` writes it; export the"):
        list(parse_records(tf.data.TextLineDataset(str(path)), ("a", "b")))


def test_data_that_is_not_there(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for there in ("squad", "quiz_text_to_text"):
        assert sources.is_prepared(seqio.TaskRegistry.get(there))
    seqio.set_tfds_data_dir_override(None)
    source = seqio.TfdsDataSource("squad/v1.1:3.0.0", tfds_data_dir=str(tmp_path), splits=("train", "validation"))
    task = seqio.TaskRegistry.get("squad").replace(source=source)
    assert not sources.is_prepared(task)
    assert sources.number_of_examples(task, "train") is None
    with pytest.raises(
        UserError, match=r"^squad reads squad/v1\.1:3\.0\.0 of TensorFlow Datasets, which is not there\."
    ):
        providers.check(task, config("squad"))

    def no_network(*arguments: Any, **options: Any) -> None:
        raise OSError("the name\ncannot be resolved")

    said: list[str] = []
    monkeypatch.setattr(type(task.source.tfds_dataset.builder), "download_and_prepare", no_network)
    with pytest.raises(
        UserError, match=r"cannot be had here: the name cannot be resolved\. Prepare it on a machine"
    ) as e:
        sources.prepare(task, said.append)
    assert "tfds.load('squad/v1.1:3.0.0')" in str(e.value)
    assert said == [
        f"squad reads squad/v1.1:3.0.0 of TensorFlow Datasets: getting it into {tmp_path}/squad/v1.1/3.0.0 …"
    ]
    for name in ("squad/v9.9:3.0.0", "squad/v1.1:9.9.9", "no_such_data_set:1.0.0"):
        other = task.replace(source=seqio.TfdsDataSource(name, tfds_data_dir=str(tmp_path), splits=("train",)))
        with pytest.raises(UserError, match=f"squad reads {name} of TensorFlow Datasets: "):
            sources.is_prepared(other)
