"""The packages of a lock as a software bill of materials (CycloneDX 1.6, https://cyclonedx.org/docs/1.6/json/)."""

import json
import re
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def lock_name(hardware: Mapping[str, Any]) -> str:
    """The name of the lock file that `make install` uses on a machine. hardware: as in results.json."""
    kinds = {"gpu": "cuda", "cuda": "cuda", "tpu": "tpu"}
    return kinds.get(hardware["devices"]["platform"]) or ("apple" if hardware["platform"] == "Darwin arm64" else "cpu")


def text(lock: str, hardware: Mapping[str, Any], versions: Mapping[str, str | None]) -> str:
    """The document as JSON: the packages that a lock, given as its text, installs on a machine.

    hardware, versions: as in results.json. Licences are known for packages installed here in the locked version.
    """
    system, _, machine = hardware["platform"].partition(" ")
    python = str(versions["python"])
    environment = {
        "sys_platform": system.lower(),
        "platform_system": system,
        "platform_machine": machine,
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
    }
    licences = {(canonicalize_name(package.name), package.version): _licences(package) for package in distributions()}
    components = []
    for entry in re.split(r"\n(?=[A-Za-z0-9])", lock.strip()):
        requirement = Requirement(entry.splitlines()[0].rstrip(" \\"))
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name, version = canonicalize_name(requirement.name), str(requirement.specifier).removeprefix("==")
            purl = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
            component: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name}
            component |= {"version": version, "purl": purl}
            # the lock takes any of the files of a version, which are for different machines
            hashes = [{"alg": "SHA-256", "content": digest} for digest in re.findall(r"sha256:([0-9a-f]{64})", entry)]
            if package_licences := licences.get((name, version)):
                component["licenses"] = package_licences
            component["externalReferences"] = [{"type": "distribution", "url": purl, "hashes": hashes}]
            components.append(component)
    program = {"type": "application", "bom-ref": "t5xpg", "name": "t5xpg", "version": versions["t5xpg"]}
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "metadata": {"component": program}}
    return json.dumps({**document, "components": components}, ensure_ascii=False, separators=(",", ":"))


def _licences(package: Distribution) -> list[dict[str, Any]]:
    """The licences: an SPDX expression if there is one, else names. Full licence texts are left out."""
    fields = {name: package.metadata.get_all(name) or [] for name in ("License-Expression", "License", "Classifier")}
    if fields["License-Expression"]:
        return [{"expression": fields["License-Expression"][0]}]
    names = [name.split(" :: ")[-1] for name in fields["Classifier"] if name.startswith("License :: ")]
    names = names or [name for name in fields["License"] if name and len(name) < 60 and "\n" not in name]
    return [{"license": {"name": name}} for name in names]
