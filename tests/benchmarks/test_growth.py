"""How growth is told and drawn; that the sizes can be had."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import growth
from benchmarks.growth_picture import Panel, draw
from benchmarks.harness import NotMeasuredError


def test_rows_files_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(arguments: list[str], **_: object) -> dict[str, float]:
        if '"inputs": 8192' in arguments[2] and "--chunk" not in arguments:
            raise NotMeasuredError("no memory")
        return {"seconds": 2.0, "flops": 4e9, "memory": 10**9}

    monkeypatch.setattr(growth, "in_process", measure)
    monkeypatch.setattr(growth, "POINTS", tmp_path / "growth.json")
    monkeypatch.setattr(growth, "PICTURE", tmp_path / "growth.svg")
    rows = growth.rows(2)
    assert len(rows) == len(growth.AXES) + 1
    assert all(row.found.values == {"t5xpg": (1.0, 1.0)} for row in rows[:-1])
    assert rows[-1].reached()
    assert len(rows[0].facts["points"]) == 5
    assert (tmp_path / "growth.json").exists()
    ElementTree.fromstring((tmp_path / "growth.svg").read_text())


def test_a_picture_has_a_panel_for_each_size_and_a_mark_for_each_point() -> None:
    points = [[(size, axis.job(size).flops()) for size in axis.sizes] for axis in growth.AXES]
    measured = [[{"size": n, "seconds": f / 1e11, "flops": f, "memory": 1e8 + n} for n, f in axis] for axis in points]
    svg = growth.picture(measured)
    assert svg == growth.picture(measured)
    marks = [one for one in ElementTree.fromstring(svg).iter() if one.tag.endswith("circle")]
    assert len(marks) == 2 * sum(len(axis.sizes) for axis in growth.AXES)
    assert all(label in svg for label in ("input bytes", "width", "encoder layers", "rows", "vocabulary", "by chunks"))
    with pytest.raises(ValueError, match="no panel"):
        draw("nothing", [Panel("width", [])])
