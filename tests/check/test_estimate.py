"""What a run is estimated to take: its parts and how they add up; the numbers themselves are the machine's."""

import json
import re
from pathlib import Path

import pytest

from t5xpg.base import files
from t5xpg.check import estimate
from t5xpg.experiment import config
from tests.workplace import FINE_TUNING


def test_without_text(own_place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Made-up batches do: nothing is exported, cached or left behind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_place / "user"))
    monkeypatch.setattr(estimate, "PROBE_SECONDS", 0.0)
    monkeypatch.setattr(estimate, "DataService", None)
    (own_place / "runs" / f".estimate.{files._host()}-{10**8}.killed.tmp").mkdir(parents=True)
    gin = own_place / "small.gin"
    gin.write_text(FINE_TUNING)  # whose checkpoint is not needed
    overrides = ["MIXTURE_OR_TASK_NAME=wikitext_span_corruption", "PACK=True", "EVAL_STEPS=None"]
    overrides.append("EARLY_STOP_PATIENCE=3")
    assert estimate.estimate(config.load(str(gin), overrides), price_per_hour=3600.0) == 0
    printed = capsys.readouterr().out
    seconds = int(re.search(r"^in all +.* \(([\d,]+) s\)$", printed, re.MULTILINE)[1].replace(",", ""))
    parts = re.findall(r"^\w+ +(\d+) x ([\d.]+) s", printed, re.MULTILINE)
    assert len(parts) == 2
    assert sum(int(number) * float(each) for number, each in parts) <= seconds + 0.6  # and the start
    cost = float(re.search(r"^cost +([\d,.]+) at 3600 an hour$", printed, re.MULTILINE)[1].replace(",", ""))
    assert cost == pytest.approx(seconds, abs=0.51)
    for line in (
        r"^parameters +49,504$",
        r"^memory +\d+ MiB a device$",
        r"^updates +12 x ",
        r"^evaluations +3 over a whole split of unknown length: not counted$",
        r"^checkpoints +3 x ",
        r"^ +and [\d.]+ s for each evaluation that is the best so far, out of their turn$",
        r"^early stop +as soon as validation/loss has not been better for 3 evaluations$",
    ):
        assert re.search(line, printed, re.MULTILINE), (line, printed)
    assert estimate.estimate(config.load(str(gin), overrides), price_per_hour=None, as_json=True) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["parameters"], facts["seconds"]["updates"]["count"], facts["cost"]) == (49_504, 12, None)
    assert estimate.estimate(config.load(str(gin), [*overrides, "EVAL_STEPS=2"]), price_per_hour=None) == 0
    counted = r"^evaluations +3 x [\d.]+ s \(2 batches, without encoder_use and losses by task\) = "
    assert re.search(counted, capsys.readouterr().out, re.MULTILINE)
    assert list((own_place / "runs").iterdir()) == []
    assert not (own_place / "data").exists()
