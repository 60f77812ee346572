"""Where the runs of a plan come from: what differs between them is said, what they share is said once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t5xpg.base.page import escape
from t5xpg.run.directory import RunDirectory


def sources(folders: Iterable[Path]) -> dict[str, list[Any]]:
    """{"commit", "versions", "cpu", "cores"}: each with all values that it had at a start of one of the runs."""
    facts: dict[str, list[Any]] = {"commit": [], "versions": [], "cpu": [], "cores": []}
    for folder in folders:
        directory = RunDirectory(folder)
        for start in directory.read()["starts"] if directory.exists() else []:
            git = start["git"]
            values = {
                "commit": None if git is None else git["commit"][:12] + ("" if git["clean"] else ", changed"),
                "versions": start["versions"],
                "cpu": start["host"]["cpu"],
                "cores": start["host"]["cores"],
            }
            for name, value in values.items():
                if value is not None and value not in facts[name]:
                    facts[name].append(value)
    return facts


def commits(found: Mapping[str, list[Any]]) -> str:
    """What `sources` says of the source, as Markdown."""
    return escape(", ".join(f"commit {commit}" for commit in found["commit"])) or "no git checkout"


def hardware(found: Mapping[str, list[Any]]) -> str:
    """What it says of the machines."""
    cores = " or ".join(map(str, found["cores"])) + (" core" if found["cores"] == [1] else " cores")
    return escape(f"{', '.join(found['cpu'])}; {cores} each")


def libraries(found: Mapping[str, list[Any]]) -> list[str]:
    """What it says of versions, a line for each set of them."""
    every = found["versions"]
    return [escape(", ".join(f"{name} {version}" for name, version in one.items() if version)) for one in every]
