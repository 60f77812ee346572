"""Supervised tasks: what they make of records and of TensorFlow Datasets, and how predictions are measured."""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import seqio
import t5.evaluation.metrics
import tensorflow_datasets as tfds

from t5xpg.base.errors import UserError
from t5xpg.data import metrics
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.evaluator import TaskEvaluator
from t5xpg.data.stream.pipeline import without_autograph
from t5xpg.data.tasks import providers, sources
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.tasks.task_names import row_of, tfds_rows
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.labelled import TFDS_TASKS

LENGTHS = {"inputs": 128, "targets": 64}
# Small copies of data sets, made without a network: SQuAD and TriviaQA by TFDS's own builders from files in the
# formats of their publishers; WMT's builder wants corpora of gigabytes, and a small one takes its place.
SENTENCES = {"train": 30, "validation": 6}
CONTEXT = "Tom Baker was born in Liverpool, England. He moved to London in 1956."
ANSWERS = [["Liverpool"], ["London", "to London"], ["1956", "in 1956", "1956"]]
QUESTIONS = ["Where was Tom Baker born?", "Where did he move?", "When did he move?"]
ALIASES = ["Big Smoke", "London (U.K.)", "London"]


def sentence(split: str, number: int) -> dict[str, str]:
    """A pair of the small WMT."""
    return {"en": f"The {split} has sentence {number}.", "de": f"Das ist Satz {number} für {split}."}


def _get(name: str, folder: Path, files: Any) -> None:
    """Let TFDS prepare a data set from files that seem to have been downloaded."""
    source = seqio.TfdsDataSource(name, tfds_data_dir=str(folder), splits=("train", "validation"))
    task = seqio.Task("of_tfds", source, output_features={}, preprocessors=[])
    with mock.patch.object(tfds.download.DownloadManager, "download_and_extract", return_value=files):
        sources.prepare(task, lambda line: None)


def _prepare_squad(folder: Path) -> None:
    def file(split: str, count: int) -> Path:
        answers = [[{"text": text, "answer_start": CONTEXT.find(text)} for text in texts] for texts in ANSWERS]
        questions = [
            {"id": f"{split}{number}", "question": QUESTIONS[number % 3], "answers": answers[number % 3]}
            for number in range(count)
        ]
        path = folder / f"{split}-v1.1.json"
        article = {"title": "Tom_Baker", "paragraphs": [{"context": CONTEXT, "qas": questions}]}
        path.write_text(json.dumps({"version": "1.1", "data": [article]}))
        return path

    _get("squad/v1.1:3.0.0", folder, {"train": file("train", 12), "dev": file("dev", 3)})


def _prepare_trivia_qa(folder: Path) -> None:
    place = folder / "unfiltered"
    (place / "triviaqa-unfiltered").mkdir(parents=True)
    for name, count in (("train", 9), ("dev", 3), ("test-without-answers", 2)):
        rows: list[dict[str, Any]] = []
        for number in range(count):
            row: dict[str, Any] = {"Question": f"Which city is number {number}? ", "QuestionId": f"{name}_{number}"}
            row |= {"QuestionSource": "https://example.org/", "SearchResults": []}
            names = {"Aliases": ALIASES, "NormalizedAliases": [alias.lower() for alias in ALIASES]}
            answer = names | {"NormalizedValue": "london", "Type": "WikipediaEntity", "Value": "London"}
            rows.append(row if "test" in name else row | {"Answer": answer})
        text = json.dumps({"Data": rows, "Domain": "unfiltered-web"}, indent=4)
        (place / "triviaqa-unfiltered" / f"unfiltered-web-{name}.json").write_text(text)
    _get("trivia_qa/unfiltered.nocontext:1.1.0", folder, {"unfiltered": place})


def _prepare_wmt(folder: Path) -> None:
    with tfds.core.registered.skip_registration():

        class Wmt19Translate(tfds.core.GeneratorBasedBuilder):
            BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="de-en", version=tfds.core.Version("1.0.0"))]  # noqa: RUF012

            def _info(self) -> Any:
                features = tfds.features.Translation(languages=("de", "en"))
                return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("de", "en"))

            def _split_generators(self, manager: Any) -> Any:
                return {split: self._generate_examples(split) for split in SENTENCES}

            def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
                yield from enumerate(sentence(split, number) for number in range(SENTENCES[split]))

    Wmt19Translate(config="de-en", data_dir=str(folder)).download_and_prepare()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Exports of records in data/, data sets of TFDS in tfds/, and their tasks."""
    folder = tmp_path_factory.mktemp("supervised")
    (folder / "tfds").mkdir()
    for prepare in (_prepare_squad, _prepare_trivia_qa, _prepare_wmt):
        prepare(folder / "tfds")
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
def test_records_of_tensorflow_datasets() -> None:
    pair = sentence("validation", 3)
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
    return DatasetConfig(
        name, LENGTHS, split=split, use_cached=False, batch_size=2, num_epochs=1, shuffle=False, **values
    )


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


@pytest.mark.usefixtures("folder")
def test_an_answer_is_right_if_it_is_one_of_the_aliases() -> None:
    answers = {"number 0?": "the Big  Smoke!", "number 1?": "london, U.K.", "number 2?": "Berlin smoke"}
    found = measured("trivia_qa_open", answers, "test")
    assert found["em"] == pytest.approx(200 / 3)
    targets = [ALIASES] * 3
    assert found == pytest.approx(t5.evaluation.metrics.trivia_qa(targets, list(answers.values())))


@pytest.mark.usefixtures("folder")
def test_translations_and_classes() -> None:
    found = measured("pairs_translate_en_de", {f"dog {n}.": f"Ein Hund {n} ßo." for n in range(5)})
    assert "tok:intl" in found.pop("bleu_signature")
    assert (found["bleu"], found["chrf"]) == pytest.approx((100.0, 100.0))
    found = measured("classes_classify", {f"number {n}.": "even" for n in range(5)})
    assert found == pytest.approx({"accuracy": 60.0, "macro_f1": 37.5})
    found = measured("quiz_text_to_text", {f"is {n}?": "It is 3." for n in range(5)})
    assert found["exact_match"] == pytest.approx(20.0)
    assert set(found) == {"exact_match", "token_f1", "edit_similarity"}


@pytest.mark.usefixtures("folder")
def test_an_experiment_chooses_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_metrics.py").write_text("def length(targets, predictions):\n    return {'length': len(targets)}\n")
    monkeypatch.syspath_prepend(tmp_path)
    answers = {f"is {n}?": f"It is {n}." for n in range(5)}
    found = measured("quiz_text_to_text", answers, metrics=("bleu_13a", "own_metrics.length"))
    assert "tok:13a" in found.pop("bleu_signature")
    assert found == pytest.approx({"bleu": 100.0, "length": 5})
    for name in ("no_such_module.metric", "own_metrics.width"):
        with pytest.raises(UserError, match=f"METRICS names {name}, which Python does not find"):
            providers.find_provider(config("quiz_text_to_text", metrics=(name,)))
    (tmp_path / "other_metrics.py").write_text("def swapped(predictions, targets):\n    return {}\n\n\nnumber = 3\n")
    for name in ("other_metrics.swapped", "other_metrics.number", "builtins.max"):
        with pytest.raises(UserError, match=rf"METRICS names {name}: expected a function of \(targets, predictions\)"):
            providers.find_provider(config("quiz_text_to_text", metrics=(name,)))


@pytest.mark.usefixtures("folder")
def test_answers_without_a_model() -> None:
    """The inputs without their prompt, and the most frequent target, measured as predictions are."""
    found = {}
    for name in ("pairs_translate_en_de", "classes_classify", "quiz_text_to_text", "trivia_qa_open"):
        settings = config(name, "test" if name == "trivia_qa_open" else "validation")
        found |= TaskEvaluator(providers.find_provider(settings), settings).trivial()
    sources, targets = zip(*((f"A \\ dog {n}.", f"Ein Hund {n} ßo.") for n in range(5)), strict=True)
    assert found["pairs_translate_en_de"]["copy"] == {
        "bleu": metrics.bleu(targets, sources)["bleu"], "chrf": metrics.chrf(targets, sources)["chrf"],
    }  # fmt: skip
    assert found["pairs_translate_en_de"]["majority"]["bleu"] == metrics.bleu(targets, [targets[0]] * 5)["bleu"]
    assert found["classes_classify"] == {
        "copy": {"accuracy": 0.0, "macro_f1": 0.0}, "majority": pytest.approx({"accuracy": 60.0, "macro_f1": 37.5}),
    }  # fmt: skip
    assert found["quiz_text_to_text"]["majority"]["exact_match"] == pytest.approx(20.0)
    assert found["trivia_qa_open"]["majority"] == {"em": 100.0, "f1": 100.0}  # all have the same answers


def test_data_that_is_not_there(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(name: str) -> seqio.Task:
        source = seqio.TfdsDataSource(name, tfds_data_dir=str(tmp_path), splits=("train", "validation"))
        return seqio.TaskRegistry.get("squad").replace(source=source)

    def no_network(*arguments: Any, **options: Any) -> None:
        raise OSError("the name\ncannot be resolved")

    for there in ("squad", "quiz_text_to_text"):
        assert sources.is_prepared(seqio.TaskRegistry.get(there))
    monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", None)
    task = reading("squad/v1.1:3.0.0")
    reads = r"^squad reads squad/v1\.1:3\.0\.0 of TensorFlow Datasets, which "
    with pytest.raises(UserError, match=f"{reads}is not there"):
        providers.check(task, config("squad"))
    said: list[str] = []
    monkeypatch.setattr(type(task.source.tfds_dataset.builder), "download_and_prepare", no_network)
    message = r"cannot be had here: the name cannot be resolved\. Prepare it .*tfds\.load\('squad/v1\.1:3\.0\.0'\)"
    with pytest.raises(UserError, match=message):
        sources.prepare(task, said.append)
    (line,) = said
    assert line.endswith(f"of TensorFlow Datasets: getting it into {tmp_path}/squad/v1.1/3.0.0 …")
    for name in ("squad/v9.9:3.0.0", "squad/v1.1:9.9.9", "no_such_data_set:1.0.0"):
        with pytest.raises(UserError, match=f"squad reads {name} of TensorFlow Datasets: "):
            sources.is_prepared(reading(name))
