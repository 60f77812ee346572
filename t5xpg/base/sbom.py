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
    licences = {(canonicalize_name(one.name), one.version): _licences(one) for one in distributions()}
    components = []
    for entry in re.split(r"\n(?=[A-Za-z0-9])", lock.strip()):
        wanted = Requirement(entry.splitlines()[0].rstrip(" \\"))
        if wanted.marker is None or wanted.marker.evaluate(environment):
            name, version = canonicalize_name(wanted.name), str(wanted.specifier).removeprefix("==")
            purl = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
            facts = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
            # the lock takes any of the files of a version, which are for different machines
            hashes = [{"alg": "SHA-256", "content": one} for one in re.findall(r"sha256:([0-9a-f]{64})", entry)]
            found = {"externalReferences": [{"type": "distribution", "url": purl, "hashes": hashes}]}
            named = licences.get((name, version))
            components.append({**facts, **({"licenses": named} if named else {}), **found})
    program = {"type": "application", "bom-ref": "t5xpg", "name": "t5xpg", "version": versions["t5xpg"]}
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "metadata": {"component": program}}
    return json.dumps({**document, "components": components}, ensure_ascii=False, separators=(",", ":"))


def _licences(package: Distribution) -> list[dict[str, Any]]:
    """The licences: an SPDX expression if there is one, else names. Full licence texts are left out."""
    named = {name: package.metadata.get_all(name) or [] for name in ("License-Expression", "License", "Classifier")}
    if named["License-Expression"]:
        return [{"expression": named["License-Expression"][0]}]
    names = [one.split(" :: ")[-1] for one in named["Classifier"] if one.startswith("License :: ")]
    names = names or [one for one in named["License"] if one and len(one) < 60 and "\n" not in one]
    return [{"license": {"name": name}} for name in names]
