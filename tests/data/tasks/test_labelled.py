"""Supervised tasks: what they make of records and of TensorFlow Datasets, and how predictions are measured."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import seqio
import t5.evaluation.metrics

from t5xpg.data import metrics
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.evaluator import TaskEvaluator
from t5xpg.data.stream.pipeline import without_autograph
from t5xpg.data.tasks import providers, sources
from t5xpg.data.tasks.table import ROWS, register_tasks
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.labelled import TFDS_TASKS
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("folder")

LENGTHS = {"inputs": 128, "targets": 64}
CONTEXT = "Tom Baker was born in Liverpool, England. He moved to London in 1956."
ANSWERS = [["Liverpool"], ["London", "to London"], ["1956", "in 1956", "1956"]]
QUESTIONS = ["Where was Tom Baker born?", "Where did he move?", "When did he move?"]
ALIASES = ["Big Smoke", "London (U.K.)", "London"]


def sentence(number: int) -> dict[str, str]:
    """A pair of WMT."""
    return {"en": f"This is sentence {number}.", "de": f"Das ist Satz {number}."}


def prepare(name: str, folder: Path, rows: Mapping[str, list[dict[str, Any]]]) -> None:
    """Let a builder of TFDS write these rows of each split, as if it had read them of its publisher's files."""
    source = seqio.TfdsDataSource(name, tfds_data_dir=str(folder), splits=("train", "validation"))
    task = seqio.Task("of_tfds", source, output_features={}, preprocessors=[])
    generators = {split: list(enumerate(given)) for split, given in rows.items()}
    with mock.patch.object(type(source.tfds_dataset.builder), "_split_generators", return_value=generators):
        sources.prepare(task, lambda line: None)


def question(number: int) -> dict[str, Any]:
    """An example of SQuAD."""
    texts = ANSWERS[number % 3]
    answers = {"text": texts, "answer_start": [CONTEXT.find(text) for text in texts]}
    asked = {"id": str(number), "question": QUESTIONS[number % 3], "answers": answers}
    return {"title": "Tom_Baker", "context": CONTEXT, **asked}


def trivia(number: int) -> dict[str, Any]:
    """An example of TriviaQA."""
    answer = {"aliases": ALIASES, "normalized_aliases": [alias.lower() for alias in ALIASES], "value": "London"}
    empty = ("type", "normalized_value", "matched_wiki_entity_name", "normalized_matched_wiki_entity_name")
    asked = {"question": f"Which city is number {number}?", "question_id": str(number), "question_source": ""}
    return {**asked, "answer": answer | dict.fromkeys(empty, ""), "entity_pages": [], "search_results": []}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Exports of records in data/, data sets of TFDS in tfds/, and their tasks."""
    folder = tmp_path_factory.mktemp("supervised")
    (folder / "tfds").mkdir()
    for name, row, train, validation in (
        ("squad/v1.1:3.0.0", question, 12, 3),
        ("trivia_qa/unfiltered.nocontext:1.1.0", trivia, 9, 3),
        ("wmt19_translate/de-en:1.0.0", sentence, 30, 6),
    ):
        prepare(
            name, folder / "tfds", {"train": [*map(row, range(train))], "validation": [*map(row, range(validation))]}
        )
    rows = {
        "pairs": ({"en": "en", "de": "de"}, "A \\ dog {n}.\tEin Hund {n} ßo."),
        "classes": ({"label": "label", "text": "text"}, "{kind}\tThis is text number {n}."),
        "quiz": ({"inputs": "inputs", "targets": "targets"}, "What is {n}?\tIt is {n}."),
    }
    for name, (fields, line) in rows.items():
        files = {split: [folder / f"{name}-{split}.tsv"] for split in ("train", "validation")}
        for (path,), count in zip(files.values(), (8, 5), strict=True):
            lines = [line.format(n=n, kind="even" if n % 2 == 0 else "odd") for n in range(count)]
            path.write_text("\n".join(lines), "utf-8")
        export_dataset(name, data_dir=folder / "data", files=files, fields=fields, log=lambda line: None)
    (folder / "several.jsonl").write_text('{"q": "Two?", "a": ["2", "\\"two\\"", " "]}\n{"q": "Three?", "a": 3}\n')
    files = {split: [folder / "several.jsonl"] for split in ("train", "validation")}
    fields = {"inputs": "q", "targets": "a"}
    export_dataset("several", data_dir=folder / "data", files=files, fields=fields, log=lambda line: None)
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


@functools.cache
def texts(name: str, split: str = "validation") -> list[tuple[str, str]]:
    """Inputs and targets, as the model gets them."""
    task = seqio.TaskRegistry.get(name)
    dataset = without_autograph(lambda: task.get_dataset(LENGTHS, split, use_cached=False, shuffle=False))
    examples = list(dataset.as_numpy_iterator())
    for example in examples:
        assert example["inputs"][-1] == example["targets"][-1] == 1
        assert example["inputs_pretokenized"] == decoded(task, example["inputs"]).encode()
    return [(decoded(task, one["inputs"]), decoded(task, one["targets"])) for one in examples]


def test_the_prompts_of_tasks_are_known_without_their_text() -> None:
    for name in ("pairs_translate_de_en", "classes_classify", "wmt19_ende", "trivia_qa_open"):
        row = ROWS[name]
        assert row.prompt.endswith(": ")
        assert all(inputs.startswith(row.prompt) for inputs, _ in texts(row.name))
    assert ROWS["quiz_text_to_text"].prompt == ""


def decoded(task: seqio.Task, ids: np.ndarray) -> str:
    return str(task.output_features["inputs"].vocabulary.decode(ids.tolist()))


def test_records() -> None:
    assert texts("pairs_translate_en_de")[1] == ("translate English to German: A \\ dog 1.", "Ein Hund 1 ßo.")
    assert texts("pairs_translate_de_en_bytes640")[1] == ("translate German to English: Ein Hund 1 ßo.", "A \\ dog 1.")
    assert texts("classes_classify")[1] == ("classify classes: This is text number 1.", "odd")
    assert texts("quiz_text_to_text")[1] == ("What is 1?", "It is 1.")
    assert "pairs_span_corruption" not in seqio.TaskRegistry.names()
    assert seqio.TaskRegistry.get("quiz_text_to_text").num_input_examples("train") == 8


def test_records_of_tensorflow_datasets() -> None:
    pair = sentence(3)
    assert (f"translate English to German: {pair['en']}", pair["de"]) in texts("wmt19_ende")
    task = seqio.TaskRegistry.get("wmt19_ende")
    assert set(task.splits) == {"train", "validation"}
    assert task.num_input_examples("train") == 30
    of_training = texts("trivia_qa_open", "train") + texts("trivia_qa_open", "validation")
    asked = [(f"trivia_qa question: Which city is number {number}?", "London") for number in range(9)]
    assert sorted(of_training) == asked
    assert len(texts("trivia_qa_open", "test")) == 3  # the public validation questions
    question, answer = sorted(texts("squad"))[0]
    # T5 puts spaces around punctuation
    assert question.startswith("question: When did he move ? context: Tom Baker was born in Liverpool , England . ")
    assert answer == "1956"


def config(name: str, split: str = "validation", **values: Any) -> DatasetConfig:
    once = {"use_cached": False, "batch_size": 2, "num_epochs": 1, "shuffle": False}
    return DatasetConfig(name, LENGTHS, split=split, **once, **values)


def measured(name: str, predictions: Mapping[str, str], split: str = "validation", **values: Any) -> dict[str, Any]:
    """The metrics of a task for a model that answers inputs in which these texts stand."""
    settings = config(name, split, **values)
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


def test_an_answer_is_right_if_it_is_one_of_the_aliases() -> None:
    answers = {"number 0?": "the Big  Smoke!", "number 1?": "london, U.K.", "number 2?": "Berlin smoke"}
    found = measured("trivia_qa_open", answers, "test")
    assert found["em"] == pytest.approx(200 / 3)
    targets = [ALIASES] * 3
    assert found == pytest.approx(t5.evaluation.metrics.trivia_qa(targets, list(answers.values())))


def test_translations_and_classes() -> None:
    found = measured("pairs_translate_en_de", {f"dog {n}.": f"Ein Hund {n} ßo." for n in range(5)})
    assert "tok:intl" in found.pop("bleu_signature")
    assert (found["bleu"], found["chrf"]) == pytest.approx((100.0, 100.0))
    found = measured("classes_classify", {f"number {n}.": "even" for n in range(5)})
    assert found == pytest.approx({"accuracy": 60.0, "macro_f1": 37.5})
    found = measured("quiz_text_to_text", {f"is {n}?": "It is 3." for n in range(5)})
    assert found["exact_match"] == pytest.approx(20.0)
    assert set(found) == {"exact_match", "token_f1", "edit_similarity"}


def test_an_experiment_chooses_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_metrics.py").write_text(
        "def length(targets, predictions):\n    return {'length': len(targets)}\n"
        "def swapped(predictions, targets):\n    return {}\nnumber = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    answers = {f"is {n}?": f"It is {n}." for n in range(5)}
    found = measured("quiz_text_to_text", answers, metrics=("bleu_13a", "own_metrics.length"))
    assert "tok:13a" in found.pop("bleu_signature")
    assert found == pytest.approx({"bleu": 100.0, "length": 5})
    no_functions = ("own_metrics.swapped", "own_metrics.number", "builtins.max")
    for name in ("no_such_module.metric", "own_metrics.width", *no_functions):
        with refused("METRICS", name, "(targets, predictions)" if name in no_functions else "Python does not find"):
            providers.find_provider(config("quiz_text_to_text", metrics=(name,)))


def test_answers_without_a_model() -> None:
    """The inputs without their prompt, and the most frequent target, measured as predictions are."""
    found = {}
    for name in ("pairs_translate_en_de", "classes_classify", "quiz_text_to_text", "trivia_qa_open"):
        settings = config(name, "test" if name == "trivia_qa_open" else "validation")
        found |= TaskEvaluator(providers.find_provider(settings), settings).trivial()
    sources, targets = zip(*((f"A \\ dog {n}.", f"Ein Hund {n} ßo.") for n in range(5)), strict=True)
    copied = {"bleu": metrics.bleu(targets, sources)["bleu"], "chrf": metrics.chrf(targets, sources)["chrf"]}
    assert found["pairs_translate_en_de"]["copy"] == copied
    assert found["pairs_translate_en_de"]["majority"]["bleu"] == metrics.bleu(targets, [targets[0]] * 5)["bleu"]
    assert found["classes_classify"]["copy"] == {"accuracy": 0.0, "macro_f1": 0.0}
    assert found["classes_classify"]["majority"] == pytest.approx({"accuracy": 60.0, "macro_f1": 37.5})
    assert found["quiz_text_to_text"]["majority"]["exact_match"] == pytest.approx(20.0)
    assert found["trivia_qa_open"]["majority"] == {"em": 100.0, "f1": 100.0}  # all have the same answers


def test_data_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(name: str) -> seqio.Task:
        source = seqio.TfdsDataSource(name, tfds_data_dir=str(tmp_path), splits=("train", "validation"))
        return seqio.TaskRegistry.get("squad").replace(source=source)

    for there in ("squad", "quiz_text_to_text"):
        assert sources.is_prepared(seqio.TaskRegistry.get(there))
    monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", None)
    task = reading("squad/v1.1:3.0.0")
    with refused("squad/v1.1:3.0.0", "not there"):
        providers.check(task, config("squad"))
    no_network = mock.Mock(side_effect=OSError("the name\ncannot be resolved"))
    monkeypatch.setattr(type(task.source.tfds_dataset.builder), "download_and_prepare", no_network)
    said: list[str] = []
    with refused("the name cannot be resolved", "tfds.load('squad/v1.1:3.0.0')"):
        sources.prepare(task, said.append)
    assert f"{tmp_path}/squad/v1.1/3.0.0" in said[0]
    for name in ("squad/v9.9:3.0.0", "squad/v1.1:9.9.9", "no_such_data_set:1.0.0"):
        with refused(name):
            sources.is_prepared(reading(name))


def test_several_answers_are_equally_right() -> None:
    """A model is trained on the first; the metrics take them all, and a single one as a text."""
    assert texts("several_text_to_text") == [("Two?", "2"), ("Three?", "3")]
    task = seqio.TaskRegistry.get("several_text_to_text")
    dataset = without_autograph(lambda: task.get_dataset(LENGTHS, "validation", use_cached=False, shuffle=False))
    targets = [task.postprocess_fn("", example=one, is_target=True) for one in dataset.as_numpy_iterator()]
    assert targets == [["2", '"two"'], "3"]
    answer = task.postprocess_fn('"two"', example=None, is_target=False)
    assert metrics.exact_match(targets, [answer, "3"]) == {"exact_match": 100.0}
    assert seqio.TaskRegistry.get("quiz_text_to_text").postprocess_fn("a", example=None, is_target=True) == "a"
