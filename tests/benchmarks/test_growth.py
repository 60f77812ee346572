"""How growth is told and drawn; that the sizes can be had."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import growth
from benchmarks.growth_picture import Panel, draw
from benchmarks.harness import NotMeasuredError
from benchmarks.jobs import TEXT
from t5xpg.models.encoder_decoder import EncoderDecoderModel, T5Config


def made_up(axis: growth.Axis) -> list[growth.Point]:
    return [
        {"size": size, "seconds": axis.job(size).flops() / 1e11, "flops": axis.job(size).flops(), "memory": 1e8 + size}
        for size in axis.sizes
    ]


def test_the_steepest_growth_of_all_pairs() -> None:
    points = [{"t": 1.0, "f": 10.0}, {"t": 3.0, "f": 20.0}, {"t": 4.0, "f": 40.0}]
    assert growth.steepest(points, "t", "f") == 1.5
    assert growth.steepest(points[::2], "t", "f") == 1.0
    assert growth.steepest(points[:1], "t", "f") is None


@pytest.mark.parametrize("axis", growth.AXES, ids=lambda axis: f"{axis.name}-{axis.chunk}")
def test_sizes_can_be_had(axis: growth.Axis) -> None:
    for size in axis.sizes:
        job = axis.job(size)
        assert job.inputs + job.targets < len(TEXT.read_bytes())
        config = T5Config(
            vocab_size=job.vocabulary, emb_dim=job.emb, num_heads=job.heads, head_dim=job.head_dim, mlp_dim=job.mlp,
            num_encoder_layers=job.encoder_layers, num_decoder_layers=job.decoder_layers,
        )  # fmt: skip
        lengths = {"inputs": job.inputs, "targets": job.targets}
        assert job.flops() == job.batch * EncoderDecoderModel(config).flops_per_example(lengths)


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
    measured = [made_up(axis) for axis in growth.AXES]
    svg = growth.picture(measured)
    assert svg == growth.picture(measured)
    marks = [one for one in ElementTree.fromstring(svg).iter() if one.tag.endswith("circle")]
    assert len(marks) == 2 * sum(len(axis.sizes) for axis in growth.AXES)
    assert all(label in svg for label in ("input bytes", "width", "encoder layers", "rows", "vocabulary", "by chunks"))
    with pytest.raises(ValueError, match="no panel"):
        draw("nothing", [Panel("width", [])])
