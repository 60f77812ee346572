"""The definition of a task: what of its code and arguments it notices."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import seqio

from t5xpg.base.errors import UserError
from t5xpg.base.files import sha256_of_file
from t5xpg.data.cache.definition import code_of, definition_of, describe, patterns_of, watching
from t5xpg.data.cache.record import MissingTextError
from tests.workplace import REPOSITORY

MODULE = """
import re
import seqio

LOWER = True
KNOWN = {"b", "a", "c"}
PATTERN = re.compile("[a-z]+")


class Marker:
    def mark(self, text):
        return text


def helper(text):
    return inner(text) if LOWER else text


def inner(text):
    return text + Marker().mark(str(len(KNOWN)))


def unused(text):
    return text


def make(number, text="x"):
    def step(dataset, extra=3):
        return dataset.map(lambda line: {"targets": helper(line) + str(number)})
    return step


@seqio.map_over_dataset
def wrapped(example):
    return {"targets": helper(example["targets"]), "pattern": PATTERN.pattern}
"""


def load(folder: Path, text: str) -> ModuleType:
    path = folder / "made_up_steps.py"
    path.write_text(text)
    # compiled code is taken for that of a file of the same size and second
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    spec = importlib.util.spec_from_file_location("made_up_steps", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["made_up_steps"] = module
    spec.loader.exec_module(module)
    return module


def task(steps: list[Any], text: Path | None = None, **source: Any) -> seqio.Task:
    feature = seqio.Feature(seqio.ByteVocabulary(), add_eos=True)
    return seqio.Task(
        "made_up",
        seqio.TextLineDataSource({"train": str(text or "/nowhere/*.txt")}, **source),
        {"inputs": feature, "targets": feature},
        [*steps, seqio.CacheDatasetPlaceholder(), seqio.preprocessors.append_eos],
    )


@pytest.mark.parametrize(
    ("old", "new", "noticed"),
    [
        ("return inner(text) if", "return inner(text + text) if", "made_up_steps.helper"),
        ("text + Marker()", "Marker()", "made_up_steps.inner"),
        ("        return text\n\n\ndef helper", "        return '.'\n\n\ndef helper", "made_up_steps.Marker.mark"),
        ("LOWER = True", "LOWER = False", "made_up_steps.LOWER"),
        ('"c"}', '"d"}', "made_up_steps.KNOWN"),
        ("[a-z]+", "[a-z]*", "made_up_steps.PATTERN"),
        ("extra=3", "extra=4", "made_up_steps.make.<locals>.step"),
        ('"pattern": PATTERN', '"other": PATTERN', "made_up_steps.wrapped"),
        ("make(5)", "make(6)", "made_up_steps.make.<locals>.step.number"),
        ("def unused(text):\n    return text", "def unused(text):\n    return text + text", None),
        ("    return step\n", "    return step  # a remark\n", None),
    ],
)
def test_notices_the_code_behind_the_preprocessors(tmp_path: Path, old: str, new: str, noticed: str | None) -> None:
    whole = MODULE + "\nSTEPS = [make(5), wrapped]\n"
    assert old in whole
    before, after = (code_of(task(load(tmp_path, text).STEPS)) for text in (whole, whole.replace(old, new)))
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    # a method's class and a function's default are noticed by themselves, too
    assert changed - {"made_up_steps.Marker", "made_up_steps.make.<locals>.step.default 0"} == {noticed} - {None}


def test_libraries_stand_by_their_versions(tmp_path: Path) -> None:
    steps = [functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}), seqio.preprocessors.tokenize]
    assert code_of(task(steps)) == {}


@pytest.mark.process
def test_the_same_in_every_process(tmp_path: Path) -> None:
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.data.cache.test_definition import load, task, MODULE\n"
        "from t5xpg.data.cache.definition import code_of\n"
        "from pathlib import Path\n"
        "print(json.dumps(code_of(task([load(Path(sys.argv[2]), MODULE).make(5)]))))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, str(REPOSITORY), str(tmp_path)],
            env={"PYTHONHASHSEED": seed, "TF_CPP_MIN_LOG_LEVEL": "3"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def _step(dataset: Any, *arguments: Any, **options: Any) -> Any:
    return dataset


def _other(dataset: Any) -> Any:
    return dataset


def test_describes_preprocessors_by_name_source_and_arguments() -> None:
    def described(*arguments: Any, **options: Any) -> Any:
        return describe(functools.partial(_step, *arguments, **options))

    first = described(3, b={"y": 1, "x": [2.0, None]}, c=_other)
    assert first["function"].endswith("._step")
    assert first["arguments"][0] == 3
    assert first["arguments"][1]["b"] == {"x": [2.0, None], "y": 1}
    assert first["arguments"][1]["c"]["function"].endswith("._other")
    assert first == described(3, c=_other, b={"x": [2.0, None], "y": 1})
    assert first != described(4, b={"y": 1, "x": [2.0, None]}, c=_other)
    assert described(object()) == described(object())
    assert described({"b", "a"})["arguments"][0] == ["a", "b"]
    assert describe(_step)["source_sha256"] != describe(_other)["source_sha256"]


def test_the_definition_has_the_digests_of_the_text(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one\ntwo\n")
    made = task([_step], tmp_path / "*.txt")
    definition = definition_of(made, sha256_of_file)
    assert definition["source"] == {
        "kind": "TextLineDataSource",
        "splits": {"train": [{"bytes": 8, "sha256": sha256_of_file(text)}]},
    }
    assert [step["function"].rpartition(".")[2] for step in definition["preprocessors"]] == ["_step"]
    assert patterns_of(made) == [str(tmp_path / "*.txt")]
    text.unlink()
    with pytest.raises(UserError, match=r"The text of made_up, split train, is not there \(.*\*\.txt\)") as error:
        definition_of(made, sha256_of_file)
    assert not isinstance(error.value, MissingTextError)


def test_watches_what_is_read_on_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADE_UP_LENGTH", "5")
    monkeypatch.delenv("MADE_UP_OTHER", raising=False)
    settings = tmp_path / "settings.json"
    settings.write_text("{}")
    with watching() as watched:
        load(
            tmp_path,
            "import json, os, pathlib\n"
            "folder = pathlib.Path(__file__).parent\n"
            "settings = json.loads((folder / 'settings.json').read_text())\n"
            "(folder / 'written').write_text('')\n"
            "length = os.environ['MADE_UP_LENGTH'] + os.environ.get('MADE_UP_OTHER', '')\n",
        )
    assert {"MADE_UP_LENGTH": "5", "MADE_UP_OTHER": None}.items() <= watched.variables.items()
    assert {settings, tmp_path / "made_up_steps.py"} <= watched.files
    assert tmp_path / "written" not in watched.files
    with watching() as watched:
        pass
    assert (watched.files, watched.variables) == (set(), {})
