"""Small copies of data sets of TensorFlow Datasets as TFDS lays them out, made without a network.

SQuAD and TriviaQA are made by TFDS's own builders from files in the formats of their publishers; WMT's builder wants
corpora of gigabytes, and a small one with its name, version and features takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import seqio
import tensorflow_datasets as tfds

from t5xpg.data.tasks import sources

SENTENCES = {"train": 30, "validation": 6}
CONTEXT = "Tom Baker was born in Liverpool, England. He moved to London in 1956."
ANSWERS = [["Liverpool"], ["London", "to London"], ["1956", "in 1956", "1956"]]
QUESTIONS = ["Where was Tom Baker born?", "Where did he move?", "When did he move?"]
ALIASES = ["Big Smoke", "London (U.K.)", "London"]


def prepare(folder: Path) -> None:
    """Prepare all data sets below `folder`."""
    _prepare_squad(folder)
    _prepare_trivia_qa(folder)
    _prepare_wmt(folder)


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
