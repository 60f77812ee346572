"""The definition of a task: which settings, files and modules it names."""

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.base.files import sha256_of_file
from t5xpg.data.cache.definition import definition_of, describe, package_code
from t5xpg.data.cache.record import MissingTextError
from t5xpg.data.preprocessors import parse_jsonl

TASKS = """
import functools
import made_up.steps
import numpy
import seqio

STEPS = [functools.partial(made_up.steps.cut, length=5), seqio.preprocessors.tokenize]
"""
STEPS = """
import seqio
from made_up.words import lower


@seqio.map_over_dataset
def cut(example, length):
    return {"targets": lower(example["targets"])}
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package of three modules: tasks, their steps, and what these import."""
    folder = tmp_path / "made_up"
    folder.mkdir()
    contents = {"__init__": "", "tasks": TASKS, "steps": STEPS, "words": "def lower(text): return text", "more": ""}
    for name, text in contents.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "made_up"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def task(steps: list[Any], text: Path | str) -> seqio.Task:
    features = dict.fromkeys(("inputs", "targets"), seqio.Feature(seqio.ByteVocabulary(), add_eos=True))
    source = seqio.TextLineDataSource({"train": str(text)})
    steps = [*steps, seqio.CacheDatasetPlaceholder(), seqio.preprocessors.append_eos]
    return seqio.Task("made_up", source, features, steps)


def test_has_the_digests_of_the_modules(modules: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    steps = importlib.import_module("made_up.tasks").STEPS
    made = task(steps, tmp_path / "a.txt")
    code = definition_of(made, sha256_of_file, ["made_up.tasks"])["code"]
    files = {f"made_up.{name}": f"{name}.py" for name in ("steps", "tasks", "words")} | {"made_up": "__init__.py"}
    assert code == {name: sha256_of_file(modules / file) for name, file in files.items()}
    # without the module that registers it: those of its steps
    assert definition_of(made, sha256_of_file)["code"].keys() == {"made_up.steps", "made_up.words"}
    assert package_code(made, sha256_of_file) == {}
    ours = package_code(task([parse_jsonl], tmp_path), sha256_of_file)
    assert {"t5xpg/data/preprocessors.py", "t5xpg/data/tasks/steps.py", "t5xpg/data/vocab/vocabulary.py"} <= set(ours)
    assert "t5xpg/data/vocab/making.py" not in ours
    installed = definition_of(task([], tmp_path / "a.txt"), sha256_of_file, ["absl.flags"])["code"]
    assert list(installed) == ["absl-py"]


def _step(dataset: Any, *arguments: Any, **options: Any) -> Any:
    return dataset


def test_describes_preprocessors_by_name_and_arguments() -> None:
    def described(*arguments: Any, **options: Any) -> Any:
        return describe(functools.partial(_step, *arguments, **options))

    first = described(3, b={"y": 1, "x": [2.0, None]}, c=task)
    assert first["function"].endswith("._step")
    number, named = first["arguments"]
    assert (number, named["b"]) == (3, {"x": [2.0, None], "y": 1})
    assert named["c"]["function"].endswith(".task")
    assert first == described(3, c=task, b={"x": [2.0, None], "y": 1})
    assert described(object()) == described(object())
    assert described({"b", "a"})["arguments"][0] == ["a", "b"]


def test_has_the_digests_of_the_text(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one\ntwo\n")
    made = task([_step], tmp_path / "*.txt")
    definition = definition_of(made, sha256_of_file)
    assert definition["source"]["splits"] == {"train": [{"bytes": 8, "sha256": sha256_of_file(text)}]}
    assert [step["function"].rpartition(".")[2] for step in definition["preprocessors"]] == ["_step"]
    bucket = "ram://bucket/a.txt"
    tf.io.gfile.GFile(bucket, "w").write("one\n")
    (found,) = definition_of(task([_step], bucket), sha256_of_file)["source"]["splits"]["train"]
    assert found["bytes"] == 4
    text.unlink()
    with pytest.raises(UserError, match=r"made_up, split train.*\*\.txt") as error:
        definition_of(made, sha256_of_file)
    assert not isinstance(error.value, MissingTextError)
