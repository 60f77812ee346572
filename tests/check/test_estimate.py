"""What a run is estimated to take: its parts and how they add up; the numbers themselves are the machine's."""

import json
import re
from pathlib import Path

import pytest

from t5xpg.check import estimate
from t5xpg.experiment import config
from tests.workplace import FINE_TUNING, left_by


def test_without_text(own_place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Made-up batches do: nothing is exported, cached or left behind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_place / "user"))
    monkeypatch.setattr(estimate, "PROBE_SECONDS", 0.0)
    (own_place / "runs" / left_by("estimate")).mkdir(parents=True)
    gin = own_place / "small.gin"
    gin.write_text(FINE_TUNING)  # whose checkpoint is not needed
    overrides = ["MIXTURE_OR_TASK_NAME=wikitext_span_corruption", "PACK=True", "EARLY_STOP_PATIENCE=3"]
    estimate.estimate(config.load(str(gin), [*overrides, "EVAL_STEPS=2"]), price_per_hour=3600.0)
    printed = capsys.readouterr().out
    seconds = int(re.search(r"^in all +.* \(([\d,]+) s\)$", printed, re.MULTILINE)[1].replace(",", ""))
    parts = re.findall(r"^(\w+) +(\d+) x ([\d.]+) s", printed, re.MULTILINE)
    assert [part[:2] for part in parts] == [("updates", "12"), ("evaluations", "3"), ("checkpoints", "3")]
    assert sum(int(number) * float(each) for _, number, each in parts) <= seconds + 0.6  # and the start
    cost = float(re.search(r"^cost +([\d,.]+) at 3600 an hour$", printed, re.MULTILINE)[1].replace(",", ""))
    assert cost == pytest.approx(seconds, abs=0.51)
    assert all(re.search(rf"^{what} +\d", printed, re.MULTILINE) for what in ("parameters", "memory"))
    estimate.estimate(config.load(str(gin), [*overrides, "EVAL_STEPS=None"]), price_per_hour=None, as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["parameters"], facts["seconds"]["updates"]["count"], facts["cost"]) == (49_504, 12, None)
    assert facts["seconds"]["evaluations"] == {"count": 3, "each": 0.0}
    assert list((own_place / "runs").iterdir()) == []
    assert not (own_place / "data").exists()
