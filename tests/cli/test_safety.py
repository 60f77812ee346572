"""What the package never does: run what it reads, hand names to a shell, or make files with permissions of its own."""

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from t5xpg.base import files, locks
from t5xpg.data.batch import BatchSpec
from t5xpg.data.recording.format import StreamWriter
from t5xpg.data.text import local_files
from t5xpg.data.text.export import export_dataset
from t5xpg.run.records import JsonlWriter
from tests.workplace import REPOSITORY

SOURCES = [path for name in ("t5xpg", "requirements", "fuzz") for path in sorted((REPOSITORY / name).rglob("*.py"))]

# Modules whose readers can be made to run code by what they read.
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "imp"}
# Calls that run text or hand it to a shell, by their last names and what they are taken from.
UNSAFE_CALLS = {
    ("", "eval"), ("", "exec"), ("", "compile"), ("builtins", "eval"), ("builtins", "exec"),
    ("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput"),
    ("torch", "load"), ("np", "fromregex"),
}  # fmt: skip
# Arguments that no call may be given as true (or as anything but a literal False).
UNSAFE_ARGUMENTS = {"shell", "allow_pickle", "trust_remote_code"}


def unsafe(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and reason of each thing that may not be there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((node.lineno, name) for name in names if name.split(".")[0] in UNSAFE_MODULES)
        if isinstance(node, ast.Call):
            of, _, name = ast.unparse(node.func).rpartition(".")
            if (of, name) in UNSAFE_CALLS:
                yield node.lineno, name
            for argument in node.keywords:
                if argument.arg in UNSAFE_ARGUMENTS and ast.unparse(argument.value) != "False":
                    yield node.lineno, argument.arg


def test_nothing_that_is_read_is_run() -> None:
    for path in SOURCES:
        assert not list(unsafe(ast.parse(path.read_text(encoding="utf-8")))), path


def test_the_search_finds_what_it_searches_for() -> None:
    harmful = (
        "import pickle\nfrom marshal import loads\neval(text)\nos.system(f'rm {name}')\ntorch.load(path)\n"
        "subprocess.run(command, shell=True)\nnp.load(path, allow_pickle=True)\nload(path, trust_remote_code=given)"
    )
    assert [line for line, _ in unsafe(ast.parse(harmful))] == list(range(1, 9))
    harmless = "import json\nre.compile(x)\nnp.load(path, allow_pickle=False)\nsubprocess.run([a], shell=False)"
    assert not list(unsafe(ast.parse(harmless)))


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def permissions(folder: Path) -> dict[str, int]:
    """The permissions of everything below a folder."""
    return {str(path.relative_to(folder)): path.lstat().st_mode & 0o7777 for path in sorted(folder.rglob("*"))}


def test_files_have_the_permissions_that_the_user_set(tmp_path: Path, umask: int) -> None:
    """Of an export, what is written atomically, records, locks and recorded batches: as any other program's."""
    text = tmp_path / "a.jsonl"
    text.write_text(json.dumps({"text": "a" * 150}))
    place = tmp_path / "made"
    export_dataset("mine", data_dir=place, files=local_files.parse_files([f"train={text}"]), log=lambda line: None)
    files.write_json(place / "records" / "run.json", {})
    with files.directory_atomically(place / "folder") as new:
        (new / "file").write_text("")
    with locks.hold(place / ".lock", doing="testing", instead="wait"):
        pass
    with JsonlWriter(place / "metrics.jsonl") as writer:
        writer.write({"step": 1})
    spec = BatchSpec(1, {"inputs": 2, "targets": 2})
    with StreamWriter(place, "train", spec) as stream:
        stream.write({name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.features().items()})
    found = permissions(place)
    folders = {name for name in found if (place / name).is_dir()}
    assert {"mine/manifest.json", "mine/train.jsonl", "records/run.json", "folder/file", "train.npz"} <= set(found)
    assert found == {name: (0o777 if name in folders else 0o666) & ~umask for name in found}
