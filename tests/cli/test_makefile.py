"""What Make hands to programs, and what it deletes, in a folder whose programs only say how they were called."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.cli.test_commands import VARIABLES
from tests.refusals import assert_named
from tests.workplace import REPOSITORY, program_of

process = pytest.mark.process
PROGRAM = f"""import json, os, sys
arguments = sys.argv[1:]
if arguments[:3] == ["-m", "t5xpg", "--from-make"]:
    sys.path.insert(0, {str(REPOSITORY)!r})
    from t5xpg.commands import from_make
    arguments = from_make(arguments[-1], os.environ)
print(json.dumps([arguments, dict(os.environ)]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The Makefile with lists of packages that count as installed and a Python that says how it was called."""
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    for name in ("find_python", "machine"):
        shutil.copy(REPOSITORY / "requirements" / name, tmp_path / "requirements")
    lists = [f"{kind}.txt" for kind in ("bootstrap", "apple", "cpu", "cuda", "dev", "tpu")]
    for name in ("pyproject.toml", *(f"requirements/{each}" for each in ("install.py", *lists))):
        (tmp_path / name).write_text(PROGRAM if name.endswith("install.py") else "")
        os.utime(tmp_path / name, (0, 0))
    program(tmp_path / ".venv" / "bin" / "python")
    for mark in ("cpu", "dev"):
        (tmp_path / ".venv" / f".installed-{mark}").touch()
    return tmp_path


def program(path: Path) -> None:
    """A program that says how it was called; by way of a shell, as a #! line ends at the first space of a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "${{0%/*}}/said.py" "$@"\n')
    path.with_name("said.py").write_text(PROGRAM)
    path.chmod(0o755)


def make(folder: Path, *arguments: str, code: int = 0, typed: str = "", **variables: str) -> str:
    """What make printed. `code` is the exit status that is expected, `typed` what a user answers."""
    dropped = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "TIER", "TESTS", *VARIABLES}
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    done = subprocess.run(
        ["make", *arguments], cwd=folder, env=environment | variables, text=True, input=typed,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


def called(folder: Path, *arguments: str, **variables: str) -> list[str]:
    """The arguments of the program that make called."""
    return json.loads(make(folder, *arguments, **variables))[0]


@process
@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $(shell touch touched) $(touch touched) `touch touched` ; touch touched",
        "\"double\" and 'single' \\ # and more, * too\nand a line",
        "${EXP} $EXP $$EXP $",
    ],
)
def test_values_arrive_as_they_were_typed(folder: Path, text: str) -> None:
    """Of every variable, on the command line and in the environment."""
    values = dict.fromkeys(VARIABLES - {"MACHINE"}, text)
    arguments = ["infer", "demo", f"--prompt={text}"]
    assert called(folder, "infer", f"PROMPT={text}") == called(folder, "infer", PROMPT=text) == arguments
    _, environment = json.loads(make(folder, "lock", *(f"{name}={value}" for name, value in values.items())))
    assert {name: environment.get(name) for name in values} == values
    arguments, environment = json.loads(make(folder, "check", **values))
    # some systems call the machine so
    assert {name: environment.get(name) for name in values} == values | {"NAME": None}
    assert arguments[:4] == ["check", text, f"--gin-overrides={text}", f"--run={text}"]
    for given in ({"MACHINE": text}, {}):
        said = make(folder, "check", *([] if given else [f"MACHINE={text}"]), code=2, **given)
        assert "is none of: apple cpu cuda tpu" in said
    assert not list(folder.rglob("touched"))


@process
def test_a_variable_that_the_target_has_not_is_refused(folder: Path) -> None:
    assert "make check has no RUNN. Did you mean RUN?" in make(folder, "check", "EXP=mine", "RUNN=x", code=2)
    assert called(folder, "check", "EXP=mine", RUNN="x") == ["check", "mine"]
    said = make(folder, "cache", "check", "TASK=mine", "EXP=mine").splitlines()
    assert [json.loads(line)[0][:2] for line in said] == [["cache", "mine"], ["check", "mine"]]


@process
def test_tests_are_words(folder: Path) -> None:
    every = called(folder, "test")
    assert (every[:3], every[-1]) == (["-m", "pytest", "-n"], "--tier=units")
    for target, tests, expected in (
        ("test-all", "tests/a* tests/b.py::c[1]", ["--tier=processes", "tests/a*", "tests/b.py::c[1]"]),
        ("prove", "tests/study", ["--tier=proofs", "tests/study"]),
    ):
        assert called(folder, target, f"TESTS={tests}") == [*every[:-1], *expected]
    assert called(folder, "lock", "UPGRADE=1") == ["requirements/lock.py", "--upgrade"]
    (folder / ".venv" / ".installed-dev").unlink()
    said = [json.loads(line)[0] for line in make(folder, "test").splitlines()]
    assert said == [["requirements/install.py", "cpu", "--part", "tools"], every]


@process
def test_help_needs_no_environment(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    shutil.copytree(REPOSITORY / "requirements", tmp_path / "requirements")
    for stem in ("__init__", "commands", "help_page", "base/__init__", "base/errors", "base/option_values"):
        name = f"{stem}.py"
        (tmp_path / "t5xpg" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / "t5xpg" / name, tmp_path / "t5xpg" / name)
    assert "  make train " in make(tmp_path)
    assert_named(make(tmp_path, "help", "train", "data"), ["make train: ", "  FILES=TEXT "])
    assert make(tmp_path, "train", "help").startswith("make train: ")
    assert "Did you mean train?" in make(tmp_path, "help", "trian", code=2)


@process
def test_the_kind_of_machine_that_was_installed_stays(folder: Path) -> None:
    python, venv = f"PYTHON={sys.executable}", folder / ".venv"
    (venv / ".installed-cpu").rename(venv / ".installed-tpu")
    assert "Nothing to be done" in make(folder, "install")
    assert called(folder, "check") == ["check", "demo"]
    assert called(folder, "install", "MACHINE=cuda", python) == ["cuda"]
    (venv / ".installed-tpu").rename(venv / ".installing-tpu")
    assert called(folder, "install", python) == ["tpu"]
    (venv / ".installing-tpu").unlink()
    program(folder / "tools" / "nvidia-smi")
    path = f"{folder}/tools{os.pathsep}{os.environ['PATH']}"
    assert called(folder, "install", python, PATH=path) == ["apple" if sys.platform == "darwin" else "cuda"]


@process
def test_unknown_machines_and_missing_pythons_are_said(folder: Path) -> None:
    for machine in ("gpu", "cpu tpu", "%"):
        assert f"MACHINE={machine} " in make(folder, "install", f"MACHINE={machine}", code=2)
    for python in ("", "/nonexistent", "/tmp"):
        assert "PYTHON=/path/to/python3" in make(folder, "install", "MACHINE=tpu", f"PYTHON={python}", code=2)


@process
def test_clean_deletes_what_was_made_and_nothing_else(folder: Path) -> None:
    assert make(folder, "clean-data") == "data/ has no exported text\n"
    kept = ["data/raw/articles.jsonl", "data/raw/train.jsonl", "data/raw/manifest.json", "runs/a/metrics.jsonl"]
    kept += ["data/my text/notes.jsonl", "data/my text/vocabularies/bpe_90/vocabulary.json", "t5xpg/module.py"]
    exported = ["data/my text/train.jsonl", "data/my text/manifest.json", "data/pydocs/test_2016.jsonl"]
    exported += ["data/pydocs/manifest.json", "data/pydocs/.t5xpg_digests.json"]
    every = [*kept, *exported, "cache/task/COMPLETED", "t5xpg/__pycache__/module.pyc"]
    for name in every:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        manifest = '{"splits": {"train": {"sha256": "…"}, "test_2016": {}}}'
        (folder / name).write_text("{}" if "raw" in name else manifest)

    def left() -> list[str]:
        return [name for name in every if (folder / name).exists()]

    assert make(folder, "clean") == ""
    assert left() == kept + exported
    assert_named(make(folder, "clean-data", typed="y\n", code=2), ["data/my text\n", "data/pydocs\n", "DATASET="])
    assert "of this name: raw" in make(folder, "clean-data", "DATASET=raw")
    for answer in ("", "\n", "n\n"):
        assert_named(make(folder, "clean-data", "DATASET=pydocs", typed=answer, code=2), ["data/pydocs\n"])
        assert left() == kept + exported
    make(folder, "clean-data", "DATASET=pydocs", typed="y\n")
    assert left() == kept + [name for name in exported if "my text" in name]
    make(folder, "clean-data", "DATASET=pydocs my text", typed="y\n")
    assert left() == kept
    assert not (folder / "data" / "pydocs").exists()
    assert (folder / ".venv" / "bin" / "python").exists()


@pytest.fixture
def installer() -> ModuleType:
    return program_of("requirements/install.py")


def test_an_environment_is_marked_with_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installer: ModuleType
) -> None:
    """What is begun is not installed, and an interruption does not forget what was chosen."""
    (tmp_path / ".venv").mkdir()
    marks: list[list[str]] = []

    def marked(*_: object) -> list[str]:
        marks.append(sorted(path.name for path in (tmp_path / ".venv").iterdir()))
        return marks[-1]

    monkeypatch.setattr(installer, "REPOSITORY", tmp_path)
    monkeypatch.setattr(installer, "make_environment", lambda folder: folder / "bin" / "python")
    monkeypatch.setattr(installer, "install", marked)
    for name in ("cuda", "cpu", "cpu"):
        monkeypatch.setattr(sys, "argv", ["install.py", name])
        installer.main()
        assert marked() == [f".installed-{name}"]
        assert marks[-2] == [f".installing-{name}"]


def test_a_version_with_other_hashes_is_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installer: ModuleType
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(installer, "run", lambda command, environment: commands.append(command) or True)
    packages = {"a==1": 1, "b==2 ; python_version < '3.13'": 2, "c==3": 3}
    before = "".join(f"{name} \\\n    --hash=sha256:{number}\n" for name, number in packages.items())
    (lock := tmp_path / "cpu.txt").write_text(before.replace("sha256:2", "sha256:9").replace("c==3", "c==4"))
    for command in (["python", "-m", "uv"], ["python", "-m", "pip"]):
        installer.install_lock(command, {}, lock, before)
        installer.install_lock(command, {}, lock, "")  # as earlier versions left it
        installer.install_lock(command, {}, lock, lock.read_text())
    again = [[word for word in command if word.startswith(("--reinstall", "--force"))] for command in commands]
    assert again == [["--reinstall-package=b"], [], [], ["--force-reinstall"], [], []]


@process
def test_two_installs_at_once_follow_each_other(tmp_path: Path, installer: ModuleType) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / ".venv").symlink_to(tmp_path / "real")
    program = f"""
import runpy
from pathlib import Path
alone = runpy.run_path({str(REPOSITORY / "requirements/install.py")!r})["alone"]
with alone(Path({str(tmp_path / "real")!r})):
    print("second", flush=True)
"""
    with installer.alone(tmp_path / ".venv"):
        second = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert second.stdout is not None
        assert "waiting" in second.stdout.readline()
        assert second.poll() is None
    assert second.communicate(timeout=20)[0] == "second\n"


@process
def test_an_install_that_did_not_end_begins_anew(tmp_path: Path, installer: ModuleType) -> None:
    python = installer.make_environment(tmp_path)
    (tmp_path / ".installed-cpu").touch()
    package = tmp_path / "lib" / "numpy.dist-info"
    package.touch()
    assert installer.make_environment(tmp_path) == python
    assert package.exists()
    (tmp_path / ".installed-cpu").rename(tmp_path / ".installing-cpu")
    assert installer.make_environment(tmp_path) == python
    assert not package.exists()


@process
@pytest.mark.parametrize(("machine", "gpus"), [("", ["--gpus", "all"]), ("cpu", [])])
def test_images_are_built_and_run_as_the_user(folder: Path, machine: str, gpus: list[str]) -> None:
    program(folder / "programs" / "docker")
    given = ["EXP=mine", 'GIN=--gin.A=1 --gin.B="x y"', *([f"MACHINE={machine}"] if machine else [])]
    paths = f"{folder / 'programs'}{os.pathsep}{os.environ['PATH']}"
    typed = {each.partition("=")[0] for each in given}
    said = make(folder, "docker-train", *given, PIP_CONF="p.conf", PATH=paths)
    (build, _), (arguments, environment) = (json.loads(line) for line in said.splitlines())
    image = f"t5xpg:{machine or 'cuda'}"
    assert (build[0], build[-3:]) == ("build", ["--tag", image, "."])
    assert {f"MACHINE={machine or 'cuda'}", "REVISION=", "id=pip,src=p.conf"} < set(build)
    assert arguments[:3] == ["run", "--rm", "--init"]
    assert arguments[3 : 3 + len(gpus)] == gpus
    assert arguments[-3:] == [image, "--from-make", "train"]
    for option, values in (
        ("--user", {f"{os.getuid()}:{os.getgid()}"}),
        ("--volume", {f"{folder}/{name}:/{name}" for name in ("data", "cache", "runs")}),
        ("--env", typed | {"RUN", "TYPED_TARGETS", "TYPED_VARIABLES"}),
    ):
        assert {value for name, value in itertools.pairwise(arguments) if name == option} == values
    assert (environment["EXP"], environment["GIN"]) == ("mine", '--gin.A=1 --gin.B="x y"')
    assert (environment["TYPED_TARGETS"], {*environment["TYPED_VARIABLES"].split()}) == ("docker-train", typed)
    assert all((folder / name).is_dir() for name in ("data", "cache", "runs"))
