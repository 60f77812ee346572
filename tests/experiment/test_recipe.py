"""What has to be there before training: made where it is missing, refused where it is another, by the real programs."""

import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from t5xpg.base import paths, stores
from t5xpg.base.errors import UserError
from t5xpg.data.cache import digest_memory
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.text.datasets import built_in
from t5xpg.data.text.manifest import read_manifest, write_manifest
from t5xpg.experiment import making, recipe
from t5xpg.experiment.recipe import DataIdentity, Recipe, make_all
from tests.refusals import assert_named, refused
from tests.workplace import sentences

SMALL = DatasetConfig("small_span_corruption", {})
MODULE = """
import functools, json, os, pathlib
import seqio

HERE = pathlib.Path(__file__).parent
SETTINGS = json.loads((HERE / "settings.json").read_text())
ASKED_FOR = os.environ.get("MADE_UP")
FEATURE = seqio.Feature(seqio.ByteVocabulary(extra_ids=SETTINGS["extra_ids"]))


def cut(dataset, length):
    return dataset.map(lambda line: {"targets": line if length is None else seqio.tf.strings.substr(line, 0, length)})


if "prepared_own" not in seqio.TaskRegistry.names():
    seqio.TaskRegistry.add(
        "prepared_own",
        source=seqio.TextLineDataSource({split: str(HERE / f"{split}*.txt") for split in ("train", "validation")}),
        preprocessors=[
            functools.partial(cut, length=SETTINGS["length"]),
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
        ],
        output_features={"inputs": FEATURE, "targets": FEATURE},
    )
    seqio.MixtureRegistry.add("prepared_mix", [("prepared_own", 1.0), ("small_span_corruption", 2.0)])
"""
MIX = DatasetConfig("prepared_mix", {}, module_import=("prepared_tasks",))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, an export of it and the module of a user."""
    folder = tmp_path_factory.mktemp("to prepare")
    for split, count in (("train", 60), ("validation", 10)):
        (folder / f"{split}.txt").write_text(sentences(count, seed=count))
    (folder / "settings.json").write_text(json.dumps({"length": 50, "extra_ids": 125}))
    (folder / "prepared_tasks.py").write_text(MODULE)
    return folder


def set_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5XPG_DATA_DIR", str(place / "data"))
    monkeypatch.setenv("T5XPG_CACHE_DIR", str(place / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(place))
    monkeypatch.syspath_prepend(str(place))


@pytest.fixture(autouse=True)
def exported(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The export `small`, as it is made from the text."""
    set_environment(place, monkeypatch)
    export(place)
    return place / "data" / "small"


def export(place: Path, **options: Any) -> None:
    given: dict[str | None, list[Path]] = {split: [place / f"{split}.txt"] for split in ("train", "validation")}
    making.export_dataset("small", files=given, log=lambda line: None, force=True, **options)


@pytest.fixture(scope="module")
def cached(place: Path) -> Iterator[DataIdentity]:
    """What `prepare` gives for the mixture, whose tasks nobody had cached."""
    with pytest.MonkeyPatch.context() as patch:
        set_environment(place, patch)
        export(place)
        yield Recipe.of(MIX).make()


@pytest.mark.process
def test_what_is_missing_is_made_once(
    place: Path, cached: DataIdentity, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "Popen", started := Mock(wraps=subprocess.Popen))
    assert cached.cache is not None
    assert set(cached.cache) == set(cached.data["sources"]) == {"prepared_own", "small_span_corruption"}
    capsys.readouterr()
    assert Recipe.of(MIX).make() == cached
    assert (started.call_count, capsys.readouterr().out) == (1, "")  # which knows the user's tasks
    # what the mixture has cached of the table is not cached again
    source = Recipe.of(SMALL).make()
    assert source.cache == cached.cache["small_span_corruption"]
    assert make_all([SMALL, SMALL]) == source
    # nor is the cache looked at again for another objective over it
    lm = DatasetConfig("small_lm", {})
    assert Recipe.of(lm).make().cache == {"small_span_corruption": source.cache}
    assert Recipe.of(lm).ready
    assert started.call_count == 1  # tasks of the table are known without
    assert Recipe.of(SMALL).ready
    assert {path.name for path in (place / "cache").iterdir()} == {
        digest_memory.FOLDER, "prepared_own", "small_span_corruption", "prepared_mix.log",
    }  # fmt: skip


@pytest.mark.process
def test_a_cache_of_something_else_is_refused(place: Path, exported: Path, cached: DataIdentity) -> None:
    settings = place / "settings.json"
    kept = settings.read_text()
    settings.write_text(json.dumps({"length": 51, "extra_ids": 125}))
    write_manifest(exported, read_manifest(exported))
    (place / "train.txt").write_text(sentences(61, seed=61))
    try:
        export(place)
        assert len(Recipe.of(SMALL).problems) == 1
        commands = [f"make cache TASK={task} MODULE" for task in ("prepared_own", "small_span_corruption")]
        with refused("length", "50", "51", "the split train", *commands):
            Recipe.of(MIX).make()
    finally:
        settings.write_text(kept)
        (place / "train.txt").write_text(sentences(60, seed=60))
        export(place)
    assert Recipe.of(MIX).make() == cached


@pytest.mark.parametrize("change", ["edited", "cut off", "gone"])
def test_a_text_that_was_changed_is_refused(exported: Path, change: str) -> None:
    path = exported / "train.jsonl"
    content = path.read_bytes()
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if change == "cut off" else content.replace(b"dog", b"cow"))
    with pytest.raises(UserError) as error:
        Recipe.of(DatasetConfig("small_span_corruption", {}, use_cached=False)).make()
    assert_named(str(error.value), ["train.jsonl", "make data DATASET=small FILES="])
    assert Recipe.of(SMALL).problems == (str(error.value),)
    with refused(str(error.value)):
        making.cache("small_span_corruption")
    export(exported.parents[1])
    assert path.read_bytes() == content


def test_a_part_of_a_text_is_used_and_said(
    place: Path, exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> str:
        capsys.readouterr()
        Recipe.of(DatasetConfig("small_span_corruption", {}, use_cached=False)).make()
        return capsys.readouterr().out

    assert said() == ""
    export(place, limit=5)
    assert_named(said(), ["LIMIT=5", "make data DATASET=small FILES="])
    export(place)
    # a name of the table
    monkeypatch.setattr(recipe, "built_in", lambda: {**built_in(), "small": built_in()["wikitext"]})
    manifest = read_manifest(exported)
    assert "files that were given" in said()
    write_manifest(exported, dataclasses.replace(manifest, source={"kind": "hugging face"}))
    assert "earlier definition" in said()
    write_manifest(exported, dataclasses.replace(manifest, max_bytes=2_500_000, source={"streamed": True}))
    assert "MAX_MB=2.5" in said()
    write_manifest(exported, manifest)


def test_a_runner_that_is_none_is_said_before_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path))
    with refused("Did you mean SparkRunner"):
        making.cache("pydocs_span_corruption", runner="SparkRuner")
    assert not list(tmp_path.iterdir())


def test_tasks_of_users_may_read_any_text_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: list[Path] = []
    monkeypatch.setattr(stores, "pull_all", lambda folder, wanted=None: pulled.append(folder))
    making.pull_for_task(None)
    assert pulled == [paths.cache_directory(), paths.data_directory()]
