"""What Make hands to the program, and what it deletes, in a folder whose programs only say how they were called."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workplace import REPOSITORY

MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
PROGRAM = """import sys
print(*sys.argv[1:], sep="\\n")
"""
# by way of a shell, because a #! line ends at the first space of a path
PYTHON = f"""#!/bin/sh
exec "{sys.executable}" -c '{PROGRAM}' "$@"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The Makefile with lists of packages that count as installed and a Python that prints its arguments."""
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    names = ["pyproject.toml", *(f"requirements/{name}" for name in ("bootstrap.txt", "install.py"))]
    for name in [*names, *(f"requirements/{kind}.txt" for kind in ("apple", "cpu", "cuda", "tpu"))]:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / "requirements" / "install.py").write_text(PROGRAM)
    os.utime(tmp_path / "requirements" / "install.py", (0, 0))
    shutil.copy(REPOSITORY / "requirements" / "machine", tmp_path / "requirements")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").write_text(PYTHON)
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    (tmp_path / ".venv" / ".installed-cpu").touch()
    return tmp_path


def make(folder: Path, *arguments: str, code: int = 0, **variables: str) -> list[str]:
    """The lines that make printed. `code` is the exit status that is expected."""
    values = " ".join(re.findall(r"^VALUES [:+]= (.*)$", MAKEFILE, re.MULTILINE)).split()
    dropped = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MACHINE", "PYTHON", *values}
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    done = subprocess.run(
        ["make", *arguments], cwd=folder, env=environment | variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout.splitlines()


@pytest.mark.process
@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $(shell touch touched)",
        "$(touch touched) `touch touched` ; touch touched",
        "\"double\" and 'single' \\ # and more, * too",
        "${EXP} $EXP $$EXP $",
    ],
)
def test_values_arrive_as_they_were_typed(folder: Path, text: str) -> None:
    expected = ["-m", "t5xpg", "infer", "byt5_tiny_demo", f"--prompt={text}"]
    assert make(folder, "infer", f"PROMPT={text}") == expected
    assert make(folder, "infer", PROMPT=text) == expected
    assert make(folder, "train", f"EXP={text}", f"GIN={text}", f"RUN={text}")[2:] == [
        "train", text, f"--gin-overrides={text}", f"--run={text}",
    ]  # fmt: skip
    assert not (folder / "touched").exists()


@pytest.mark.process
def test_options_of_a_vocabulary_arrive(folder: Path) -> None:
    assert make(folder, "vocab")[2:] == ["vocab", "wikitext"]
    options = ["SIZE=500", "EXTRA_IDS=0", "MODEL=bpe", "SAMPLE=20 MB", "SEED=3", "BYTE_FALLBACK=1", "VOCAB=small"]
    assert make(folder, "vocab", "DATASET=mine", *options)[2:] == [
        "vocab", "mine", "--size=500", "--extra-ids=0", "--model=bpe", "--sample=20 MB", "--seed=3", "--name=small",
        "--byte-fallback",
    ]  # fmt: skip
    given = make(folder, "vocab", "TOKENIZER=a b/tokenizer.json", "EOS_TOKEN=</s>", "BYTE_FALLBACK=0", "FORCE=1")
    assert given[3:] == ["wikitext", "--tokenizer=a b/tokenizer.json", "--eos-token=</s>", "--force"]
    assert make(folder, "tokens", "TASK=a_task", "TEXT=a <extra_id_0>")[2:] == [
        "tokens",
        "a_task",
        "--text=a <extra_id_0>",
    ]
    assert make(folder, "tokens", "TOKENIZER=a.model", "IDS=1,2")[2:] == ["tokens", "a.model", "--ids=1,2"]


@pytest.mark.process
def test_options_of_a_sweep_arrive(folder: Path) -> None:
    assert make(folder, "sweep", "EXP=many", "JOBS=2", "CELLS=*,a b,*")[2:] == [
        "sweep", "many", "--jobs=2", "--cells=*,a b,*",
    ]  # fmt: skip


@pytest.mark.process
def test_options_of_an_export_arrive(folder: Path) -> None:
    assert make(folder, "data", "DATASET=pycode", "SELECT=a* 'b c/*'")[2:] == ["data", "pycode", "--select=a* 'b c/*'"]
    hub = ["HUB=some/where", "CONFIG=nob_Latn", "REVISION=v1.0", "MAX_MB=0.5"]
    assert make(folder, "data", "DATASET=mine", *hub)[3:] == [
        "mine", "--hub=some/where", "--config=nob_Latn", "--revision=v1.0", "--max-mb=0.5",
    ]  # fmt: skip


@pytest.mark.process
def test_options_of_checkpoints_arrive(folder: Path) -> None:
    assert make(folder, "export", "OUTPUT=a b", "FORMAT=hf", "RUN=mine")[2:] == [
        "export", "byt5_tiny_demo", "--run=mine", "--format=hf", "--output=a b",
    ]  # fmt: skip
    given = ["CHECKPOINT=a b/c", "NAME=mine", "TOKENIZER=bytes", "SENTINELS=seqio", "FORCE=1"]
    assert make(folder, "import", *given)[2:] == [
        "import", "a b/c", "--name=mine", "--tokenizer=bytes", "--sentinels=seqio", "--force",
    ]  # fmt: skip
    # some systems call the machine so
    assert make(folder, "import", "CHECKPOINT=a", NAME="desktop")[2:] == ["import", "a"]


@pytest.mark.process
def test_options_of_a_plan_arrive(folder: Path) -> None:
    given = ["MESH=data=8,model=4", "DEVICE=a100 80GB", "DEVICES=32", "OUTPUT=a b.json", "JSON=1"]
    assert make(folder, "plan", *given)[2:] == [
        "plan", "byt5_tiny_demo", "--mesh=data=8,model=4", "--device=a100 80GB", "--devices=32", "--output=a b.json",
        "--json",
    ]  # fmt: skip
    assert make(folder, "plan", "JSON=0")[2:] == ["plan", "byt5_tiny_demo"]


@pytest.mark.process
def test_empty_values_are_not_handed_on(folder: Path) -> None:
    assert make(folder, "data", "FILES=", "LIMIT=", "FORCE=") == ["-m", "t5xpg", "data", "wikitext"]
    assert make(folder, "cache")[2:] == ["cache", "wikitext_span_corruption"]


@pytest.mark.process
@pytest.mark.parametrize(("value", "forced"), [("1", True), ("yes", True), ("0", False), ("no", False), ("", False)])
def test_force(folder: Path, value: str, forced: bool) -> None:
    assert ("--force" in make(folder, "cache", f"FORCE={value}")) == forced


@pytest.mark.process
def test_tests_are_words(folder: Path) -> None:
    every = ["-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder"]
    assert make(folder, "test") == every
    assert make(folder, "test", "TESTS=tests/a* tests/b.py::c[1]") == [*every, "tests/a*", "tests/b.py::c[1]"]


@pytest.mark.process
def test_help_lists_every_target_with_one_line(folder: Path) -> None:
    joined = MAKEFILE.replace("\\\n", " ")
    phony = set(re.search(r"^\.PHONY: (.*)$", joined, re.MULTILINE)[1].split())  # type: ignore[index]
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    listed = [line.split()[1] for line in make(folder, "help")]
    assert sorted(listed) == sorted(phony) == sorted(targets)


@pytest.mark.process
def test_the_kind_of_machine_that_was_installed_stays(folder: Path) -> None:
    (folder / ".venv" / ".installed-cpu").rename(folder / ".venv" / ".installed-tpu")
    assert make(folder, "install") == ["make: Nothing to be done for 'install'."]
    assert make(folder, "check")[2:] == ["check", "byt5_tiny_demo"]
    assert make(folder, "install", "MACHINE=cuda", f"PYTHON={sys.executable}") == ["cuda"]
    (folder / ".venv" / ".installed-tpu").unlink()
    tools = folder / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\n")
    (tools / "nvidia-smi").chmod(0o755)
    found = make(folder, "install", f"PYTHON={sys.executable}", PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")
    assert found == ["apple" if sys.platform == "darwin" else "cuda"]


@pytest.mark.process
def test_unknown_machines_and_missing_pythons_are_said(folder: Path) -> None:
    said = make(folder, "install", "MACHINE=gpu", code=2)
    assert said[0].endswith("MACHINE=gpu is none of: apple cpu cuda tpu.  Stop.")
    said = make(folder, "install", "MACHINE=tpu", "PYTHON=", code=2)
    assert "name one with PYTHON=/path/to/python3" in said[0]


@pytest.mark.process
def test_clean_deletes_what_was_made_and_nothing_else(folder: Path) -> None:
    assert make(folder, "clean") == []  # there is no data/ yet
    kept = ["data/raw/articles.jsonl", "data/raw/train.jsonl", "data/raw/manifest.json", "runs/a/metrics.jsonl"]
    kept += ["data/my text/notes.jsonl", "data/my text/vocabularies/bpe_90/vocabulary.json", "t5xpg/module.py"]
    made = ["data/my text/train.jsonl", "data/my text/manifest.json", "data/pydocs/validation.jsonl"]
    made += ["data/pydocs/manifest.json", "cache/task/COMPLETED", "t5xpg/__pycache__/module.pyc"]
    for name in kept + made:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"splits": {"train": {"sha256": "…"}}}' if "raw" not in name else "{}")
    assert make(folder, "clean") == []
    assert [name for name in kept + made if (folder / name).exists()] == kept
    assert not (folder / "data" / "pydocs").exists()
    assert (folder / ".venv" / "bin" / "python").exists()


def test_an_environment_is_marked_with_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("install", REPOSITORY / "requirements" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    installer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(installer)
    monkeypatch.setattr(installer, "REPOSITORY", tmp_path)
    monkeypatch.setattr(installer, "make_environment", lambda folder: folder / "bin" / "python")
    (tmp_path / ".venv").mkdir()
    marks: list[list[str]] = []

    def installed(*_: object) -> None:
        marks.append(sorted(path.name for path in (tmp_path / ".venv").iterdir()))

    monkeypatch.setattr(installer, "install", installed)
    for name in ("cuda", "cpu", "cpu"):
        monkeypatch.setattr(sys, "argv", ["install.py", name])
        installer.main()
    # while another kind is being installed, none is there; a repetition does not forget what was chosen
    assert marks == [[], [], [".installed-cpu"]]
    assert [path.name for path in (tmp_path / ".venv").iterdir()] == [".installed-cpu"]


@pytest.mark.process
@pytest.mark.parametrize(("machine", "gpus"), [("", ["--gpus", "all"]), ("cpu", [])])
def test_images_are_built_and_run_as_the_user(folder: Path, tmp_path: Path, machine: str, gpus: list[str]) -> None:
    """A docker that says how it was called."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "docker").write_text(PYTHON)
    (programs / "docker").chmod(0o755)
    given = [f"MACHINE={machine}"] if machine else []
    paths = f"{programs}{os.pathsep}{os.environ['PATH']}"
    said = make(
        folder, "docker-train", "EXP=mine", 'GIN=--gin.A=1 --gin.B="x y"', *given, PIP_CONF="p.conf", PATH=paths
    )
    kind = machine or "cuda"
    begin = said.index("run")
    assert said[: said.index("--secret")] == [
        "build", "--file", "docker/Dockerfile", "--build-arg", f"MACHINE={kind}", "--build-arg", "REVISION=",
    ]  # fmt: skip
    assert said[said.index("--secret") : begin] == ["--secret", "id=pip,src=p.conf", "--tag", f"t5xpg:{kind}", "."]
    assert said[begin:] == [
        "run", "--rm", "--init", *gpus, "--shm-size", "2g", "--user", f"{os.getuid()}:{os.getgid()}",
        *(part for name in ("data", "cache", "runs") for part in ("--volume", f"{folder}/{name}:/{name}")),
        f"t5xpg:{kind}", "train", "mine", '--gin-overrides=--gin.A=1 --gin.B="x y"',
    ]  # fmt: skip
    assert all((folder / name).is_dir() for name in ("data", "cache", "runs"))
