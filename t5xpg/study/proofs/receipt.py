"""The receipt of a proof of exact resume, as JSON and as text: the kills, the comparisons and the conditions."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5xpg.base.files import write_json, write_text
from t5xpg.base.progress import duration

JSON_NAME, TEXT_NAME = "receipt.json", "receipt.txt"


def write(folder: Path, receipt: Mapping[str, Any]) -> str:
    """Keep a receipt, a JSON value, in both forms in `folder`; returns the text."""
    shown = text(receipt)
    write_json(folder / JSON_NAME, receipt)
    write_text(folder / TEXT_NAME, shown)
    return shown


def text(receipt: Mapping[str, Any]) -> str:
    """The receipt as the text that is printed."""
    kills, host, devices = receipt["kills"], receipt["host"], receipt["devices"]
    counts = ", ".join(f"{name} {count}" for name, count in kills["by_phase"].items())
    rounds = f"{receipt['rounds']} killed run{'s' if receipt['rounds'] > 1 else ''} in {receipt['starts']} starts"
    kind = f"; {devices['count']} x {devices['kind']}" if devices else ""
    versions = ", ".join(f"{name} {version}" for name, version in receipt["versions"].items() if version)
    lines = [
        ("proof", "every resume was exact" if receipt["proven"] else "NOT the same run"),
        ("run", f"{shlex.join([receipt['experiment'], *receipt['overrides']])}: {receipt['steps']:,} steps"),
        ("kills", f"{kills['dealt']} by SIGKILL (seed {kills['seed']}): {counts}"),
        ("rounds", f"{rounds}, each compared with one that nothing interrupted"),
        *(("equal", _equal(what, facts)) for what, facts in receipt["equal"].items()),
        *(("DIFFERENT", difference) for difference in receipt["differences"]),
        ("machine", f"{host['cpu'] or 'unknown processor'}, {host['cores']} cores, {host['platform']}{kind}"),
        ("versions", versions),
        ("source", _source(receipt)),
        ("took", duration(receipt["seconds"])),
    ]
    width = max(len(label) for label, _ in lines)
    labels = [label for label, _ in lines]
    return "".join(
        f"{'' if label == before else label:<{width}}  {shown}\n"
        for before, (label, shown) in zip(["", *labels], lines, strict=False)
    )


def _source(receipt: Mapping[str, Any]) -> str:
    source = receipt["source"]
    if source is None:
        return "no checkout"
    changes = "" if source["clean"] else ", with changes"
    later = "; it was changed while this was proven" if receipt["source_changed"] else ""
    return f"commit {source['commit'][:12]}{changes}{later}"


def _equal(label: str, facts: Mapping[str, Any]) -> str:
    values = (f"{value:,} {name}" if isinstance(value, int) else str(value) for name, value in facts.items())
    details = ", ".join(shown for name, shown in zip(facts, values, strict=True) if name != "sha256")
    digest = facts.get("sha256")
    return f"{label}{f' ({details})' if details else ''}{f': sha256 {digest}' if digest else ''}"
