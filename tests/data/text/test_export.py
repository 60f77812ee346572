"""Exports: what is kept, how it is split, when it is done again, and that nothing half-written is left."""

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.text import export as export_module
from t5xpg.data.text import package_documents
from t5xpg.data.text.datasets import Dataset, built_in
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.lines import LeftOutRows
from t5xpg.data.text.local_files import parse_files
from t5xpg.data.text.manifest import Manifest, find_manifests, read_manifest
from t5xpg.data.text.sources import LocalFiles, Rows
from tests.refusals import assert_named, refused
from tests.workplace import left_by


def row(i: int) -> str:
    return f'Row {i} "quoted" \\ \t'.ljust(150, "x")


def lines(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_bytes().splitlines()]


def facts(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


class Export:
    """Exports the dataset "mine", keeping what is said."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.said: list[str] = []

    def __call__(self, files: str | None = None, name: str = "mine", **options: Any) -> Manifest:
        chosen = None if files is None else parse_files(files)
        return export_dataset(name, data_dir=self.data_dir, files=chosen, log=self.said.append, **options)


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    monkeypatch.chdir(tmp_path)
    return Export(tmp_path)


def test_keeps_rows_as_they_are_and_counts_those_left_out(export: Export) -> None:
    Path("a.txt").write_text("\n".join([row(0), "é" * 100, "é" * 101, "", " = Heading = "]))
    Path("b.jsonl").write_text(json.dumps({"text": row(1) + "\n\x01\u2028"}))
    Path("v.txt").write_text(row(2))
    files = "train=a.txt b.jsonl validation=v.txt"
    assert export(files, name="all").splits["train"].documents == 5
    assert "1 empty" in export.said[-1]
    manifest = export(files, min_characters=101)
    left_out = {"shorter than 101 characters": 2, "empty": 1}
    assert_named(export.said[-1], ["3 rows", *(f"{count} {reason}" for reason, count in left_out.items())])
    assert manifest.filter["left_out"]["counts"] == left_out
    assert manifest.command().endswith(" MIN_CHARACTERS=101")
    folder = export.data_dir / "mine"
    kept = {"train": [row(0), "é" * 101, row(1) + "\n\x01\u2028"], "validation": [row(2)]}
    assert read_manifest(folder) == manifest
    assert manifest.rows_read == 7
    assert manifest.splits.keys() == kept.keys()
    for split, texts in kept.items():
        path = folder / f"{split}.jsonl"
        assert lines(path) == texts
        assert vars(manifest.splits[split]) == {"documents": len(texts)} | facts(path)
    assert manifest.source["files"]["train"][0] == {"path": "a.txt"} | facts(Path("a.txt"))


def test_splits_files_without_splits_by_content(export: Export) -> None:
    rows = [row(i) for i in range(100)]
    Path("a.txt").write_text("\n".join(rows[:60] + rows[:10]))
    Path("b.txt").write_text("\n".join(rows[60:]))
    manifest = export("a.txt b.txt")
    folder = export.data_dir / "mine"
    splits = {split: lines(folder / f"{split}.jsonl") for split in ("train", "validation", "test")}
    assert sorted(text for texts in splits.values() for text in texts) == sorted(rows + rows[:10])
    assert [len(set(splits[split])) for split in ("validation", "test")] == [4, 4]
    assert not set(splits["train"]) & set(splits["validation"] + splits["test"])
    # the order of the files does not move a text to another split
    assert export("b.txt a.txt", force=True).identity != manifest.identity
    assert all(sorted(lines(folder / f"{split}.jsonl")) == sorted(texts) for split, texts in splits.items())
    assert sum(split.documents for split in export("a.txt", limit=20, force=True).splits.values()) == 20


def test_an_export_that_is_up_to_date_is_not_made_again(export: Export) -> None:
    Path("a.txt").write_text("\n".join(row(i) for i in range(20)))
    train = export.data_dir / "mine" / "train.jsonl"

    def is_made_again(**options: Any) -> bool:
        before = train.stat().st_ino
        export("train=a.txt", **options)
        return train.stat().st_ino != before

    export("train=a.txt")
    assert not is_made_again()
    assert "up to date" in export.said[-1]
    assert is_made_again(force=True)
    assert is_made_again(limit=4, force=True)
    assert not is_made_again(limit=4)
    assert lines(train) == [row(i) for i in range(4)]
    assert is_made_again(force=True)
    train.write_bytes(train.read_bytes()[:-1])
    assert is_made_again()
    whole = train.read_bytes()
    for edited in (whole + b'{"text": "mine"}\n', whole[whole.index(b"\n") + 1 :]):
        train.write_bytes(edited)
        with refused("text of mine", "FORCE=1"):
            is_made_again()
        assert train.read_bytes() == edited
    assert is_made_again(force=True)
    for text in ("{}", '{"name": "my corpus", "version": 3}'):  # somebody else's
        (export.data_dir / "mine" / "manifest.json").write_text(text)
        with refused("FORCE=1"):
            is_made_again()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), UserError("line 3")])
def test_an_interruption_leaves_what_was_there(
    export: Export, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    Path("a.txt").write_text("\n".join(row(i) for i in range(20)))
    before = export("a.txt")

    def texts() -> Iterator[str]:
        yield row(1)
        raise error

    source: Any = SimpleNamespace(describe=lambda: {"kind": "interrupted"}, read=lambda: iter([Rows(None, texts())]))
    monkeypatch.setattr(export_module, "built_in", lambda: {"mine": Dataset(source)})
    # a full disk is explained, the others pass as they are
    with pytest.raises((UserError, type(error)), match="room" if isinstance(error, OSError) else str(error) or None):
        export(force=True)
    assert sorted(path.name for path in export.data_dir.iterdir()) == ["mine"]
    assert read_manifest(export.data_dir / "mine") == before
    assert before.files_are_whole(export.data_dir / "mine")
    assert find_manifests(export.data_dir) == {"mine": export.data_dir / "mine"}


def test_lines_that_cannot_be_used_are_left_out_and_told(export: Export) -> None:
    good = json.dumps({"text": row(0)})
    bad = ["[1]", '{"texts": "a"}', "{", "\0", '{"text": 3}', '{"text": null}']
    Path("a.jsonl").write_text("\n".join([good, *bad, json.dumps({"text": row(1)})]))
    with refused("a.jsonl:2"):
        export("train=a.jsonl")
    assert not any(export.data_dir.iterdir())

    left_out = export("train=a.jsonl", on_bad_line="skip").filter["left_out"]
    assert lines(export.data_dir / "mine" / "train.jsonl") == [row(0), row(1)]
    assert_named(export.said[-1], ["6 malformed", "a.jsonl:2", "a.jsonl:6", "1 more"])
    assert (left_out["counts"], len(left_out["first"])) == ({"malformed": 6}, 5)
    with refused("filter changed"):
        export("train=a.jsonl")
    Path("a.jsonl").write_text("\n".join(bad))
    with refused("0 different documents", "6 malformed"):
        export("a.jsonl", on_bad_line="skip", force=True)


def test_other_files_beside_an_export_stay(export: Export) -> None:
    Path("a.txt").write_text(row(1))
    folder = export.data_dir / "mine"
    folder.mkdir(parents=True)
    (folder / "mine.jsonl").write_text("not exported")
    (folder / "dangling").symlink_to("nowhere")
    export("train=a.txt")
    assert (folder / "mine.jsonl").read_text() == "not exported"
    assert (folder / "dangling").readlink() == Path("nowhere")


def test_an_export_may_be_a_link_to_a_folder(export: Export, tmp_path: Path) -> None:
    Path("a.txt").write_text(row(1))
    elsewhere = tmp_path / "other disk" / "exports"
    export.data_dir.mkdir()
    (export.data_dir / "mine").symlink_to(elsewhere)
    elsewhere.mkdir(parents=True)
    manifest = export("train=a.txt")
    assert (export.data_dir / "mine").readlink() == elsewhere
    assert read_manifest(elsewhere) == manifest
    assert sorted(path.name for path in elsewhere.parent.iterdir()) == ["exports"]


# the latter: all that the packages of the lock have of documentation, parsed once for both, takes some 25 s
@pytest.mark.parametrize("names", [["pycode"], pytest.param(["pydocs", "pypackages"], marks=pytest.mark.process)])
def test_the_digests_are_the_same_everywhere(export: Export, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_documents, "_docstrings", functools.cache(package_documents._docstrings))
    assert [export(name=name).identity for name in names] == [built_in()[name].sha256 for name in names]


def test_another_digest_than_the_expected_one_is_an_error(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.txt").write_text(row(1))
    source = LocalFiles({"train": [Path("a.txt")]}, LeftOutRows(), {"text": "text"})
    monkeypatch.setattr(export_module, "built_in", lambda: {"mine": Dataset(source, sha256={"train": "0" * 64})})
    with refused("text of mine", "every machine"):
        export()
    assert not any(export.data_dir.iterdir())


def test_an_export_of_another_text_is_not_replaced_without_a_word(export: Export) -> None:
    for name in "ab":
        Path(f"{name}.txt").write_text(row(ord(name)))
    export("train=a.txt")
    folder = export.data_dir / "mine"
    (folder / "vocabularies" / "unigram_100").mkdir(parents=True)
    with refused("source changed", 'FILES="train=b.txt" FORCE=1'):
        export("train=b.txt")
    export(f"train={Path('a.txt').absolute()}")  # the same file by another path
    Path("a.txt").write_text(row(1))
    with refused("another content"):
        export("train=a.txt")
    assert lines(folder / "train.jsonl") == [row(ord("a"))]
    export("train=b.txt", force=True)
    assert lines(folder / "train.jsonl") == [row(ord("b"))]
    assert "vocabularies of mine, unchanged: unigram_100" in export.said[-1]


def test_a_linked_export_that_was_being_replaced_is_put_back(export: Export, tmp_path: Path) -> None:
    Path("a.txt").write_text("\n".join(row(i) for i in range(20)))
    export("train=a.txt")
    aside = tmp_path / left_by("mine", ".old")
    aside.mkdir()
    (export.data_dir / "mine").rename(aside / "mine")
    (export.data_dir / "mine").symlink_to(tmp_path / "mine")
    export("train=a.txt")
    assert "up to date" in export.said[-1]
