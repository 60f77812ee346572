"""The Dockerfile and what uses it, by simple reading. No test builds the image."""

import json
import re

import yaml

from tests.workplace import REPOSITORY

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
    kept = re.findall(r"^!(.*)", (REPOSITORY / ".dockerignore").read_text(), re.MULTILINE)
    assert {"requirements", "t5xpg", "gin", "experiments", "pyproject.toml"} <= {*kept}
    assert all((REPOSITORY / name).exists() for name in kept)


def test_the_image_runs_as_a_user_who_writes_in_three_folders() -> None:
    training = "\n".join(STAGES["training"][1])
    assert "USER t5xpg" in training
    for name, folder in (("DATA", "/data"), ("CACHE", "/cache"), ("RUNS", "/runs")):
        assert f"T5XPG_{name}_DIR={folder} " in training
    assert "chmod 1777 /data /cache /runs /home/t5xpg" in training
    assert re.search(r"^HEALTHCHECK .*= cuda \]; then nvidia-smi --query-gpu=name,", training, re.MULTILINE)
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in training, "utility is what brings nvidia-smi"


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
