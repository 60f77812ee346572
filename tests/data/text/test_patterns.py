"""Pieces of a corpus, chosen by the names of its files."""

import hashlib
import json
import shlex
import zipfile
from pathlib import Path

import pytest

from t5xpg.data.text import export as export_module
from t5xpg.data.text.datasets import Dataset
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.local_files import parse_files
from t5xpg.data.text.manifest import SPLITS, Manifest
from t5xpg.data.text.package_documents import code_documents
from t5xpg.data.text.sources import PackageText, Selection
from t5xpg.data.text.wheels import Wheel
from tests.refusals import refused


def lines(folder: Path, split: str) -> list[str]:
    return [json.loads(line)["text"] for line in (folder / f"{split}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("given", "names", "suffix"),
    [
        ("a*", ["absl/app.py", "a.py"], "a"),
        ("absl/flags/*", ["absl/flags/_flag.py", "absl/flags/x/y.py"], "absl_flags_bae30622"),
        ("b?r.py 'with space.py'", ["bar.py", "with space.py"], "b_r_py_with_space_py_6a886028"),
    ],
)
def test_patterns(given: str, names: list[str], suffix: str) -> None:
    selection = Selection.parse(given)
    assert all(selection.matches(name) for name in names)
    assert not selection.matches("other.py")
    assert not selection.matches("lib/absl/app.py")
    assert Selection.parse(str(selection)) == selection
    assert selection.suffix == suffix


def test_no_two_selections_have_one_name() -> None:
    given = ["a*", "A*", "*a", "a", "a* b*", "ab*", "a_b*", "a/b*", "a-b*", "[a]*", "?", "*"]
    suffixes = [Selection.parse(one).suffix.lower() for one in given]
    assert len(set(suffixes)) == len(given)
    assert Selection.parse("b* a*") == Selection.parse("a* b* a*")


def make_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Wheel:
    """A wheel of version 1.0 in a folder of wheels."""
    file = folder / f"{name}-1.0.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return Wheel(name, "1.0", hashlib.sha256(file.read_bytes()).hexdigest())


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The dataset "code" of two packages of a hundred files; where exports go."""

    def module(package: str, number: int) -> bytes:
        body = "".join(f"    value_{package} = compute(value_{package}, other={number})\n" for _ in range(4))
        return f"def function_{number}(value_{package}):\n{body}    return value_{package}\n".encode()

    wheels = {}
    for package in ("alpha", "beta"):
        names = {f"{package}/module_{number:03}.py": module(package, number) for number in range(99)}
        # what one has is not taken again of the other
        names[f"{package}/same.py"] = module("shared", 0)
        wheels[package] = make_wheel(tmp_path, package, names)
    source = PackageText(wheels, code_documents, extraction=1, folder=tmp_path)
    monkeypatch.setattr(export_module, "built_in", lambda: {"code": Dataset(source)})
    return tmp_path / "data"


def test_a_selection_is_what_the_whole_has_of_it(corpus: Path) -> None:
    said: list[str] = []

    def export(pattern: str | None = None) -> Manifest:
        select = None if pattern is None else Selection.parse(pattern)
        return export_dataset("code", data_dir=corpus, select=select, log=said.append)

    export()
    whole = {split: lines(corpus / "code", split) for split in SPLITS}
    assert sum(map(len, whole.values())) == 199
    for pattern, name, marks in (("a*", "code_a", ("_alpha", "_shared")), ("beta/*", "code_beta_bca526b1", ("_beta",))):
        manifest = export(pattern)
        assert (manifest.name, manifest.source["of"], manifest.source["select"]) == (name, "code", pattern)
        assert shlex.split(manifest.command()) == ["make", "data", "DATASET=code", f"SELECT={pattern}"]
        for split in SPLITS:
            expected = [text for text in whole[split] if any(mark in text for mark in marks)]
            assert lines(corpus / name, split) == expected
            assert expected
        export(pattern)
        assert said[-1].startswith(f"{name} is up to date")
    assert {split: lines(corpus / "code", split) for split in SPLITS} == whole


def test_what_cannot_be_selected_is_said(corpus: Path) -> None:
    for pattern, *names in (
        ("alhpa/*", "'alhpa/*'", "Did you mean alpha/*?"),
        ("alpha/* zzz", "'zzz'", "alpha, beta"),
        ("beta/module_000.py", "1 documents"),
    ):
        with refused("of code", *names):
            export_dataset("code", data_dir=corpus, select=Selection.parse(pattern))
    with refused("'code_b'", "make data DATASET=code SELECT='b*'"):
        export_dataset("code_b", data_dir=corpus)
    assert not list(corpus.iterdir())


def test_files_are_selected_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a1.txt", "a2.txt", "b.txt"):
        Path(name).write_text(f"{name} {'word ' * 30}\n")
    files = parse_files("train=a1.txt b.txt validation=a2.txt")
    manifest = export_dataset("mine", data_dir=tmp_path / "data", files=files, select=Selection.parse("a*"))
    assert manifest.name == "mine_a"
    typed = shlex.split(manifest.command(force=True))
    assert typed == ["make", "data", "DATASET=mine", "FILES=train=a1.txt validation=a2.txt", "SELECT=a*", "FORCE=1"]
    with refused("FILES", "'c*'"):
        export_dataset("mine", data_dir=tmp_path / "data", files=files, select=Selection.parse("c*"))
