"""The packages of a lock as CycloneDX: which, in which version, with which files and licences."""

import json
from importlib.metadata import version
from typing import Any

from t5xpg.base import sbom
from tests.workplace import REPOSITORY

LINUX = {"platform": "Linux x86_64", "devices": {"platform": "cpu"}}
MAC = {"platform": "Darwin arm64", "devices": {"platform": "cpu"}}


def listed(lock: str, hardware: dict[str, Any], python: str = "3.12.1") -> dict[str, dict[str, Any]]:
    """The components by their names."""
    found = json.loads(sbom.text(lock, hardware, {"python": python, "t5xpg": "0.1.0"}))
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert len({one["bom-ref"] for one in found["components"]}) == len(found["components"])
    return {one["name"]: one for one in found["components"]}


def test_a_machine_has_what_the_markers_of_the_lock_choose() -> None:
    lock = (REPOSITORY / "requirements" / "cpu.txt").read_text()
    here = listed(lock, LINUX)
    names = {line.split("==")[0] for line in lock.splitlines() if "==" in line}
    assert names - here.keys() >= {"tensorflow", "rapidfuzz", "nest-asyncio"}
    assert here.keys() <= names
    assert {"tensorflow"} == set(listed(lock, MAC)) & {"tensorflow", "tensorflow-cpu"}
    assert "rapidfuzz" in listed(lock, LINUX, "3.13.1")
    assert listed(lock, LINUX, "3.11.7")["jax"]["version"] == "0.10.2"
    (files,) = here["jax"]["externalReferences"]
    assert all(f"--hash=sha256:{one['content']}" in lock for one in files["hashes"])
    assert sum(len(one["externalReferences"][0]["hashes"]) for one in here.values()) <= lock.count("--hash")
    assert here["gin-config"]["purl"] == f"pkg:pypi/gin-config@{version('gin-config')}"
    assert here["jax"]["licenses"] == [{"license": {"name": "Apache-2.0"}}]
    assert here["attrs"]["licenses"] == [{"expression": "MIT"}]


def test_a_licence_is_that_of_the_version() -> None:
    lock = "jax==0.0.1 \\\n    --hash=sha256:" + "ab" * 32 + "\nof_mine==1.0+local\n"
    found = listed(lock, LINUX)
    assert [one.get("licenses") for one in found.values()] == [None, None]
    assert found["of-mine"]["purl"] == "pkg:pypi/of-mine@1.0%2Blocal"


def test_the_lock_is_that_of_the_machine() -> None:
    gpu, tpu = ({**LINUX, "devices": {"platform": platform}} for platform in ("gpu", "tpu"))
    assert [sbom.lock_name(hardware) for hardware in (LINUX, MAC, gpu, tpu)] == ["cpu", "apple", "cuda", "tpu"]
