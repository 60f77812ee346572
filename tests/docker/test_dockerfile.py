"""The Dockerfile and what belongs to it: rules of good images, read by a parser of our own, and the health check."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.workplace import REPOSITORY

FOLDER = REPOSITORY / "docker"


def load(name: str) -> ModuleType:
    """A program of docker/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docker_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


dockerfile, health = load("dockerfile"), load("health")
TEXT = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
ARGUMENTS, STAGES = dockerfile.parse(TEXT)
BY_NAME = {stage.name: stage for stage in STAGES}
LAST = STAGES[-1]
IGNORED = dockerfile.Ignored.of((REPOSITORY / ".dockerignore").read_text(encoding="utf-8"))


def test_the_parser_reads_what_a_shell_would(tmp_path: Path) -> None:
    text = "ARG A=b\nFROM ${A}:1 AS x\n# a comment\nRUN --mount=type=secret,id=s one \\\n  # another\n  && two\n"
    text += 'CMD ["c"]\n'
    arguments, (stage,) = dockerfile.parse(text)
    assert arguments == {"A": "b"}
    assert (stage.name, stage.base) == ("x", "b:1")
    run, command = stage.instructions
    assert (run.flags, run.value.split(), run.line) == ({"mount": ["type=secret,id=s"]}, ["one", "&&", "two"], 4)
    assert (command.words, command.is_json) == (["c"], True)
    for wrong, said in (
        ("RUN x\n", "before the first FROM"),
        ("FROM a\nRUNN x\n", "RUNN is no"),
        ("FROM a\nRUN \\\n", "middle"),
    ):
        with pytest.raises(ValueError, match=said):
            dockerfile.parse(wrong)


def test_what_the_context_leaves_out() -> None:
    rules = dockerfile.Ignored.of("# all but\n*\n!a\n!b/c.py\n**/__pycache__\n")
    kept = ["a/x.py", "a/b/y", "b/c.py"]
    assert [name for name in [*kept, "b/d.py", "a/__pycache__/x", "z", ".git/config"] if not rules(name)] == kept


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_rules_of_good_images(stage: Any) -> None:
    """As hadolint has them, by its numbers."""
    if stage.base not in BY_NAME:
        assert re.fullmatch(r"[\w./-]+:(?!latest)[\w.-]+", stage.base), "DL3006, DL3007: a base with its version"
    assert not stage.all("ADD"), "DL3020: COPY"
    assert not stage.all("VOLUME"), "folders are mounted by name"
    for one in stage.all("WORKDIR"):
        assert one.value.startswith("/"), "DL3000: an absolute folder"
    for one in (*stage.all("ENTRYPOINT"), *stage.all("CMD")):
        assert one.is_json, "DL3025: the JSON form, so that signals arrive"
    for one in stage.all("RUN"):
        assert not re.search(r"\b(sudo|apt|curl|wget|ssh)\s", one.value), "DL3004, DL3027"
        assert "://" not in one.value, "no addresses"
        if "apt-get install" in one.value:
            assert one.value.startswith("apt-get update "), "DL3009: lists and packages in one layer"
            assert "--yes --no-install-recommends" in one.value, "DL3014, DL3015"
            assert one.value.endswith("rm -rf /var/lib/apt/lists/*"), "DL3009"
            packages = re.findall(r"--no-install-recommends (.*?) &&", one.value)[0].split()
            assert packages == sorted(packages), "in order"
        assert "pip install" not in one.value, "the lock's installer alone"
    for one in stage.all("COPY"):
        assert set(one.flags) <= {"from", "chown"}
        assert one.flags.get("from", ["packages"])[0] in BY_NAME, "DL3022"


def test_packages_stay_when_only_code_changes() -> None:
    packages = BY_NAME["packages"]
    (copied,) = packages.all("COPY")
    assert copied.words == ["requirements/", "requirements/"]
    names = [one.name for one in LAST.instructions]
    assert "python3 requirements/install.py" in packages.instructions[-1].value
    assert [one.words for one in LAST.all("COPY")] == [["/opt/t5xpg/.venv", ".venv"], [".", "."]]
    assert "apt-get" not in " ".join(one.value for one in LAST.all("RUN")), "nothing is fetched behind the code"
    assert names.index("COPY") < names.index("RUN")


def test_the_context_is_what_the_image_needs_and_no_more() -> None:
    files = IGNORED.files(REPOSITORY)
    top = {name.split("/")[0] for name in files}
    assert top == {"requirements", "t5xpg", "gin", "experiments", "docker", "pyproject.toml", "README.md", "LICENSE"}
    assert [name for name in files if name.startswith("docker/")] == ["docker/health.py"]
    assert not [name for name in files if "__pycache__" in name]
    assert "t5xpg/__main__.py" in files


def test_the_image_runs_as_a_user_who_writes_in_three_folders() -> None:
    assert LAST.all("USER")[-1].value == "t5xpg"
    (environment,) = LAST.all("ENV")
    folders = [environment.pairs()[f"T5XPG_{name}_DIR"] for name in ("DATA", "CACHE", "RUNS")]
    assert folders == ["/data", "/cache", "/runs"]
    assert f"chmod 1777 {' '.join(folders)} /home/t5xpg" in LAST.all("RUN")[-1].value
    assert environment.pairs()["HOME"] == "/home/t5xpg", "there for any user, in no list of users or not"
    assert LAST.all("HEALTHCHECK")[0].value.split()[-1] == '"/opt/t5xpg/docker/health.py"]'
    assert all(one.name not in {"COPY", "RUN"} for one in LAST.instructions[LAST.instructions.index(environment) :])


def test_compose_uses_the_file_as_it_is() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    for name, machine in (("train", "cuda"), ("train-cpu", "cpu")):
        service = compose["services"][name]
        assert service["build"] == {
            "context": "..", "dockerfile": "docker/Dockerfile", "args": {"MACHINE": machine},
        }  # fmt: skip
        assert service["image"] == f"t5xpg:{machine}"
        assert (REPOSITORY / "requirements" / f"{machine}.txt").is_file()
        assert service["volumes"] == ["../data:/data", "../cache:/cache", "../runs:/runs"]
        assert service["init"]
        assert service["shm_size"]
        assert service["user"] == "${USER_ID:-1000}:${GROUP_ID:-1000}"
        assert ("deploy" in service) == (machine == "cuda")


def test_the_development_container_uses_the_file() -> None:
    settings = json.loads((REPOSITORY / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    build = settings["build"]
    assert (REPOSITORY / ".devcontainer" / build["dockerfile"]).resolve() == FOLDER / "Dockerfile"
    assert BY_NAME[build["target"]].base == "packages"
    assert BY_NAME[build["target"]].all("USER")[-1].value == settings["remoteUser"]


class Driver:
    """libcuda with so many devices."""

    def __init__(self, count: int, status: int = 0) -> None:
        self._count, self._status = count, status

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self._status

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self._count
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = number
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = f"A GPU {device.value}".encode()
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, device: Any) -> int:  # noqa: N802
        size._obj.value = 80 * 2**30
        return 0


@pytest.mark.parametrize(
    ("driver", "code", "said"),
    [
        (Driver(2), 0, "cuda: A GPU 0, 80 GiB\ncuda: A GPU 1, 80 GiB\n"),
        (Driver(0), 1, "cuda: the NVIDIA driver has no device\n"),
        (Driver(1, status=100), 1, "cuda: the NVIDIA driver does not start (cuInit returned 100)\n"),
        (None, 1, "cuda: no NVIDIA driver in this container: start it with --gpus all (NVIDIA's container toolkit)\n"),
    ],
)
def test_the_health_check_names_gpus(
    driver: Driver | None, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def library(name: str) -> Driver:
        assert name == "libcuda.so.1"
        if driver is None:
            raise OSError("cannot open shared object file")
        return driver

    monkeypatch.setattr(health, "ctypes", SimpleNamespace(**{**vars(ctypes), "CDLL": library}))
    monkeypatch.setenv("T5XPG_MACHINE", "cuda")
    assert health.main() == code
    assert capsys.readouterr().out == said


def test_the_health_check_names_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: A CPU\n")
    assert re.fullmatch(r"A CPU, \d+ cores", health.processor(tmp_path / "cpuinfo"))
    monkeypatch.setenv("T5XPG_MACHINE", "cpu")
    assert health.main() == 0
    assert capsys.readouterr().out.startswith("cpu: ")
