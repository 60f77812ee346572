"""The Dockerfile and what uses it, by simple reading, and the health check. No test builds the image."""

import ctypes
import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from tests.workplace import REPOSITORY, program_of

FOLDER = REPOSITORY / "docker"


def stages() -> dict[str, tuple[str, list[str]]]:
    """{stage: (its base, its instructions)}; continued lines are joined, comments left out."""
    lines = (FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    found: dict[str, tuple[str, list[str]]] = {}
    for instruction in re.sub(r"\\\n\s*", "", text).splitlines():
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", instruction):
            found[match[2]] = (match[1], [])
        elif instruction and found:
            found[next(reversed(found))][1].append(instruction)
    return found


STAGES = stages()


def test_stages_copy_what_is_there() -> None:
    assert [(name, base) for name, (base, _) in STAGES.items()] == [
        ("python", "${BASE}"), ("packages", "python"), ("development", "packages"), ("training", "python"),
    ]  # fmt: skip
    assert re.search(r"^ARG BASE=[\w./-]+:(?!latest)[\w.-]+$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    copies = [line.split() for _, lines in STAGES.values() for line in lines if line.startswith("COPY ")]
    for _, *flags, source, _target in copies:
        origin = [flag.removeprefix("--from=") for flag in flags if flag.startswith("--from=")]
        assert origin == ["packages"] or (REPOSITORY / source).exists(), source
    assert len(copies) == 3


def test_the_context_is_what_the_image_needs_and_no_more() -> None:
    first, *rest = [
        line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    kept = {line.removeprefix("!") for line in rest if line.startswith("!")}
    assert (first, rest[-1]) == ("*", "**/__pycache__")
    assert kept == {
        "requirements", "t5xpg", "gin", "experiments", "docker/health.py", "pyproject.toml", "README.md", "LICENSE",
    }  # fmt: skip
    assert all((REPOSITORY / name).exists() for name in kept)


def test_the_image_runs_as_a_user_who_writes_in_three_folders() -> None:
    training = "\n".join(STAGES["training"][1])
    assert "USER t5xpg" in training
    for name, folder in (("DATA", "/data"), ("CACHE", "/cache"), ("RUNS", "/runs")):
        assert f"T5XPG_{name}_DIR={folder} " in training
    assert "chmod 1777 /data /cache /runs /home/t5xpg" in training
    assert 'CMD ["python", "/opt/t5xpg/docker/health.py"]' in training


def test_compose_and_the_development_container_use_the_file() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for name, machine in (("train", "cuda"), ("train-cpu", "cpu")):
        arguments = {"MACHINE": machine, "REVISION": "${REVISION:-unknown}"}
        build = {"context": "..", "dockerfile": "docker/Dockerfile", "args": arguments}
        assert (services[name]["build"], services[name]["image"]) == (build, f"t5xpg:{machine}")
        assert services[name]["volumes"] == ["../data:/data", "../cache:/cache", "../runs:/runs"]
        assert (REPOSITORY / "requirements" / f"{machine}.txt").is_file()
    settings = json.loads((REPOSITORY / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert (REPOSITORY / ".devcontainer" / settings["build"]["dockerfile"]).resolve() == FOLDER / "Dockerfile"
    assert f"USER {settings['remoteUser']}" in STAGES[settings["build"]["target"]][1]


def driver(count: int, status: int = 0) -> Any:
    """libcuda with so many devices."""

    def gives(place: int, value: Any) -> Any:
        return lambda *arguments: setattr(arguments[place]._obj, "value", value) or 0

    def name(text: Any, size: int, device: Any) -> int:
        text.value = f"A GPU {device.value}".encode()
        return 0

    return SimpleNamespace(
        cuInit=lambda flags: status,
        cuDeviceGetCount=gives(0, count),
        cuDeviceGet=lambda device, number: setattr(device._obj, "value", number) or 0,
        cuDeviceGetName=name,
        cuDeviceTotalMem_v2=gives(0, 80 * 2**30),
    )


@pytest.fixture
def health() -> ModuleType:
    return program_of("docker/health.py")


@pytest.mark.parametrize(
    ("found", "code", "printed"),
    [
        (driver(2), 0, "cuda: A GPU 0, 80 GiB\ncuda: A GPU 1, 80 GiB\n"),
        (driver(0), 1, "cuda: the NVIDIA driver has no device\n"),
        (driver(1, status=100), 1, "cuda: the NVIDIA driver does not start (cuInit returned 100)\n"),
        (None, 1, "cuda: no NVIDIA driver in this container: start it with --gpus all (NVIDIA's container toolkit)\n"),
    ],
)
def test_the_health_check_names_gpus(
    found: Any, code: int, printed: str, health: ModuleType, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    library = Mock(return_value=found, side_effect=OSError("cannot open shared object file") if found is None else None)
    monkeypatch.setattr(health, "ctypes", SimpleNamespace(**{**vars(ctypes), "CDLL": library}))
    monkeypatch.setenv("T5XPG_MACHINE", "cuda")
    assert health.main() == code
    assert capsys.readouterr().out == printed


def test_the_health_check_names_the_processor(
    health: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: A CPU\n")
    assert re.fullmatch(r"A CPU, \d+ cores", health.processor(tmp_path / "cpuinfo"))
    monkeypatch.setenv("T5XPG_MACHINE", "cpu")
    assert health.main() == 0
    assert capsys.readouterr().out.startswith("cpu: ")
