"""The record of a cache: which part of what it was made from is said to be another."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from t5xpg.data.cache import record as cache_record
from t5xpg.data.cache.record import Record, differences, other_versions, read
from tests.refusals import assert_named, refused

ONE, TWO = "1" * 64, "2" * 64
VERSIONS = {"seqio": "0.0.20", "t5": "0.9.4", "tensorflow": "2.21.0", "beam": "2.77.0"}
VOCABULARY = {"kind": "bytes", "extra_ids": 125}
DEFINITION: dict[str, Any] = {
    "task": "mine",
    "source": {
        "kind": "TextLineDataSource",
        "splits": {
            "train": [{"bytes": 5, "sha256": ONE}],
            "test": [{"bytes": 5, "sha256": ONE}, {"bytes": 6, "sha256": TWO}],
            "other": "wiki/en:1.0 split=train",
        },
    },
    "preprocessors": [
        {"function": "mine.parse"},
        {"function": "seqio.preprocessors.tokenize", "arguments": [{"copy": False}]},
        {"function": "mine.cut", "arguments": [512, {"by": {"function": "mine.words"}}]},
    ],
    "features": {"targets": {"vocabulary": VOCABULARY, "add_eos": True, "dtype": "int32"}},
    "code": {"mine": ONE, "more": ONE},
}
PACKAGE = {"t5xpg/data/tasks/steps.py": ONE}
RECORD = Record(DEFINITION, PACKAGE, VERSIONS, {"COMPLETED": ONE})


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    definition = copy.deepcopy(DEFINITION)
    place: Any = definition
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return definition


@pytest.mark.parametrize(
    ("path", "value", "names"),
    [
        (("task",), "yours", "the task|mine|yours"),
        (("source", "splits", "train", 0), {"bytes": 7, "sha256": TWO}, "split train|111111111111…|222222222222…"),
        (("source", "splits", "test", 1, "sha256"), ONE, "split test, file 2|222222222222…|111111111111…"),
        (("source", "splits", "other"), "wiki/en:2.0 split=train", "split other|wiki/en:1.0|wiki/en:2.0"),
        (("source", "splits", "new"), [], "split new|none|[]"),
        (("preprocessors", 1, "arguments", 0, "copy"), True, "copy of|seqio.preprocessors.tokenize|false|true"),
        (("preprocessors", 2, "arguments", 1, "by", "function"), "mine.abc", "2.by|mine.cut: mine.words, now mine.abc"),
        (("preprocessors", 2), None, "mine.parse, seqio.preprocessors.tokenize, mine.cut|now mine.parse"),
        (("features", "targets", "vocabulary", "extra_ids"), 100, "targets (vocabulary.extra_ids)|125|100"),
        (("features", "targets", "add_eos"), False, "targets (add_eos)|true|false"),
        (("code", "mine"), TWO, "the code mine|111111111111…|222222222222…"),
    ],
)
def test_says_which_part_is_another(path: tuple[str | int, ...], value: Any, names: str) -> None:
    (said,) = differences(RECORD, changed(path, value), PACKAGE)
    assert_named(said, names.split("|"))


def test_compares_the_modules_that_both_sides_know() -> None:
    fewer, other = (DEFINITION | {"code": code} for code in ({"mine": ONE}, {"other": ONE}))
    assert differences(RECORD, fewer, PACKAGE) == []
    assert differences(replace(RECORD, definition=fewer), DEFINITION, PACKAGE) == []
    gone, new = "the code mine: 111111111111…, now none", "the code other: none, now 111111111111…"
    assert differences(replace(RECORD, definition=fewer), other, PACKAGE) == [gone, new]
    (new,) = differences(RECORD, DEFINITION, PACKAGE | {"t5xpg/data/tasks/more.py": TWO})
    assert new == "the code t5xpg/data/tasks/more.py: none, now 222222222222…"


def test_names_libraries_of_other_versions() -> None:
    assert other_versions(RECORD, VERSIONS | {"seqio": "0.0.21", "beam": "3.0"}) == ["seqio 0.0.20, now 0.0.21"]
    assert set(cache_record.versions()) == set(VERSIONS)


def test_is_written_and_read(tmp_path: Path) -> None:
    RECORD.write(tmp_path)
    assert read(tmp_path) is None  # not completed
    (tmp_path / "COMPLETED").touch()
    assert read(tmp_path) == RECORD
    (tmp_path / cache_record.IDENTITY).unlink()
    assert read(tmp_path) is None  # SeqIO's own
    (tmp_path / cache_record.IDENTITY).write_text(json.dumps({"format": 1, **vars(RECORD)}))
    with refused("another version of t5xpg", "make cache TASK=mine FORCE=1"):
        read(tmp_path, "make cache TASK=mine FORCE=1")


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"format": 2}', "[" * 100_000,
     *(json.dumps({"format": 2, **vars(RECORD), **wrong}) for wrong in ({"definition": {}}, {"package": {"a": 1}}))],
)  # fmt: skip
def test_says_that_a_record_cannot_be_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "COMPLETED").touch()
    (tmp_path / cache_record.IDENTITY).write_text(content)
    with refused("t5xpg_identity.json", "make cache TASK=", "FORCE=1"):
        read(tmp_path)
