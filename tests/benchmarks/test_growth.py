"""How growth is told and drawn; that the sizes can be had."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import growth
from benchmarks.harness import NotMeasuredError


def test_rows_files_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(arguments: list[str], **_: object) -> dict[str, float]:
        if '"inputs": 8192' in arguments[2] and "--chunk" not in arguments:
            raise NotMeasuredError("no memory")
        return {"seconds": 2.0, "flops": 4e9, "memory": 10**9}

    monkeypatch.setattr(growth, "report_of", measure)
    monkeypatch.setattr(growth, "POINTS", tmp_path / "growth.json")
    monkeypatch.setattr(growth, "PICTURE", tmp_path / "growth.svg")
    rows = growth.rows(2)
    assert len(rows) == len(growth.AXES) + 1
    assert all(row.found.values == {"t5xpg": (1.0, 1.0)} for row in rows[:-1])
    assert rows[-1].reached()
    assert len(rows[0].facts["points"]) == len(growth.AXES[0].sizes) - 1
    assert (tmp_path / "growth.json").exists()
    ElementTree.fromstring((tmp_path / "growth.svg").read_text())
