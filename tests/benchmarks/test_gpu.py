"""`make gpu`: its file and page, what it does without memory or time; and each part in small."""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import gpu, gpu_device, gpu_speed, page
from benchmarks.gpu_device import Conditions, row
from benchmarks.harness import REPOSITORY, NotMeasuredError, Row
from benchmarks.jobs import JOBS
from benchmarks.step import COMPILED
from t5xpg.base.files import json_object_if_any
from t5xpg.exchange.huggingface.config import config_from_transformers
from t5xpg.experiment import config
from tests.refusals import assert_named

H100 = {
    "platform": "gpu", "kind": "NVIDIA H100 80GB HBM3", "count": 1, "memory_bytes": 78 << 30,
    "published_flops": {"float32": 5e14, "bfloat16": 1e15}, "measured_flops": {"float32": 4e14, "bfloat16": 7e14},
}  # fmt: skip
GIVEN = Conditions(H100, small=False, ends=float("inf"), found={})


def test_the_page_shows_the_file() -> None:
    block = page.gpu_block(json_object_if_any(page.GPU_RESULTS))
    assert f"\n{block}\n" in page.PAGE.read_text(encoding="utf-8")


def test_a_part_that_fails_keeps_its_rows_and_the_other_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, file = tmp_path / "page.md", tmp_path / "gpu.json"
    shown.write_text("before\n<!-- gpu:begin -->\nold\n<!-- gpu:end -->\nafter\n")
    monkeypatch.setattr(page, "REPOSITORY", tmp_path)
    monkeypatch.setattr(page, "GPU_RESULTS", file)
    monkeypatch.setattr(page, "PAGE", shown)

    def good(given: Conditions) -> Iterator[Row]:
        yield row("step", "a step", "s", 2.0, fixed="bfloat16")
        assert json.loads(file.read_text())[H100["kind"]]["parts"]["step"]["missing"] == gpu.CUT
        yield row("step", "a step", "s", 1.0, fixed="bfloat16")  # takes the place of the first

    def bad(given: Conditions) -> Iterator[Row]:
        yield row("plan", "a plan", "% off", 3.0, fixed="whole")
        raise ValueError("no plan\nat all")

    def late(given: Conditions) -> Iterator[Row]:
        yield row("train", "a loss", "nats", dataclasses.replace(given, ends=time.monotonic()).left, fixed="")

    for name, part in (("step", good), ("plan", bad), ("train", late)):
        gpu.Results(file, H100).measure(name, GIVEN, part)  # each reads the file that the one before it wrote
    gpu.Results(file, H100 | {"kind": "NVIDIA H200"}).measure("plan", GIVEN, good)
    results = json.loads(file.read_text())
    assert list(results) == [H100["kind"], "NVIDIA H200"]
    parts = results[H100["kind"]]["parts"]
    assert [part["missing"] for part in parts.values()] == [
        None, "failed: ValueError: no plan", "not begun: the time of this part was over"
    ]  # fmt: skip
    assert [page.rows_of(part)[0].median("t5xpg") for part in parts.values() if part["rows"]] == [1.0, 3.0]
    assert shown.read_text() == f"before\n{page.gpu_block(results)}\nafter\n"
    assert "ValueError: no plan" in capsys.readouterr().err


def test_parts_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for argument, named in (("unit", "Did you mean units?"), ("--seconds=0", "PART_SECONDS=0")):
        monkeypatch.setattr(sys, "argv", ["gpu", argument])
        assert gpu.main() == 1
        assert_named(capsys.readouterr().err, [named])


def test_a_step_that_does_not_fit_is_tried_in_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Conditions, *arguments: str, python: object = None) -> dict[str, Any]:
        module, _, _, job, *_ = arguments
        microbatches = int(arguments[-1])
        if module.endswith("transformers"):
            raise NotMeasuredError("failed: RuntimeError: torch finds no CUDA device")
        if job == "t5_1_1_base" and microbatches < 4:
            raise NotMeasuredError("failed: jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory")
        seconds = 0.1 if job == "t5_1_1_base" else 0.05
        return {"ms": 1000 * seconds, "each_ms": [1000 * seconds], "device_memory": 5 * 10**10, "compile_seconds": 9.0}

    monkeypatch.setattr(Conditions, "run", run)
    last = {one.what: one for one in gpu_speed.step(GIVEN)}
    seconds, mfu, tokens = list(last.values())[:3]
    assert seconds.contestants == ["t5xpg"]
    assert (seconds.median("t5xpg"), seconds.reached()) == (0.1, True)
    assert_named(seconds.facts["note"], ["4 microbatches", "50.0 GB", "9 s"])
    base = JOBS["t5_1_1_base"]
    assert mfu.median("t5xpg") == pytest.approx(100 * base.flops() / 0.1 / 1e15)
    assert tokens.median("t5xpg") == pytest.approx(128 * (512 + 114) / 0.1)
    assert tokens.reached() is None
    assert list(tokens.found.missing) == [COMPILED]
    assert len(last) == 9, "three rows of each size"

    def planned(given: Conditions, experiment: str, microbatches: int) -> Mapping[str, Any]:
        assert (experiment, microbatches) == ("t5_1_1_base_c4", 4)
        return {"time": {"step": 0.088}, "memory": {"total": 60e9}}

    monkeypatch.setattr(gpu_speed, "_planned", planned)
    given = dataclasses.replace(GIVEN, found={"step": list(last.values())})
    assert [one.median("t5xpg") for one in gpu_speed.plan(given)] == [pytest.approx(12.0), pytest.approx(20.0)]
    with pytest.raises(NotMeasuredError, match="PARTS=step"):
        list(gpu_speed.plan(GIVEN))


def test_what_has_no_time_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_device, "time", SimpleNamespace(monotonic=lambda: 100.0))
    assert dataclasses.replace(GIVEN, ends=190.0).share(3).left == 30.0
    with pytest.raises(NotMeasuredError, match="not begun"):
        next(gpu_speed.step(dataclasses.replace(GIVEN, ends=100.0)))


def test_devices_without_figures_are_not_planned() -> None:
    given = dataclasses.replace(GIVEN, device=H100 | {"kind": "NVIDIA GeForce RTX 4090"})
    with pytest.raises(NotMeasuredError, match="no figures of a NVIDIA GeForce RTX 4090"):
        gpu_speed._planned(given, "t5_1_1_base_c4", 1)


@pytest.mark.parametrize("size", ["small", "base", "large"])
def test_the_jobs_are_the_sizes_of_gin(size: str) -> None:
    overrides = [f"gin/models/t5_1_1_{size}.gin"]
    expected = config.load("t5_1_1_base_c4", ["DTYPE='float32'"], overrides).experiment.model.config
    assert config_from_transformers(JOBS[f"t5_1_1_{size}"].settings()) == expected


def measured(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments, "--small", f"--results={tmp_path / 'gpu.json'}"]
    done = subprocess.run(command, cwd=REPOSITORY, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    (device,) = json.loads((tmp_path / "gpu.json").read_text()).values()
    return dict(device["parts"])


@pytest.mark.process
def test_parts_that_need_no_data(tmp_path: Path) -> None:
    parts = measured(tmp_path, "units", "parity", "step", "plan", "decoding")
    assert list(parts) == ["units", "parity", "step", "plan", "decoding"]
    assert [one.reached() for name in ("units", "parity") for one in page.rows_of(parts[name])].count(False) == 0
    assert all(one.median(one.contestants[0]) for name in ("step", "decoding") for one in page.rows_of(parts[name]))
