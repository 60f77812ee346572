"""A speedrun of a few steps: an entry is refused, recorded, shown, and checked anew with a target that it misses."""

from pathlib import Path

import pytest

from t5xpg.base import environment
from t5xpg.base.files import read_json
from t5xpg.study.speedrun import Speedrun
from tests.refusals import assert_named, refused
from tests.workplace import EXPERIMENT, make_workplace

pytestmark = pytest.mark.process

VALIDATION = """
from t5xpg.data import spec

train_eval/spec.DatasetConfig:
  objective = @validation/spec.SpanCorruption()
  max_batches = None

validation/spec.SpanCorruption.noise_density = 0.15
"""


def test_an_entry_is_recorded_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make_workplace(tmp_path)
    place.enter(monkeypatch)
    place.experiment.write_text(EXPERIMENT + VALIDATION)
    plan = f"seeds = 2\ncores = {environment.usable_cores()}\ntarget = "
    (place.folder / "speedrun.toml").write_text(f"{plan}9.0\n", encoding="utf-8")
    file = place.folder / "records" / "one" / "quick.gin"
    file.parent.mkdir(parents=True)
    file.write_text(
        f"include '{place.experiment}'\nTRAIN_STEPS = 6\nNOISE_DENSITY = 0.1\nEVAL_PERIOD = 3\nSTATS_PERIOD = 3\n"
    )

    def speedrun() -> Speedrun:
        return Speedrun(str(place.experiment), place.folder / "runs" / "speedrun")

    assert speedrun().check("one", [3, 4]) == 1
    said = capsys.readouterr().out
    assert "deviation" in said
    deviation = said.rpartition("the standard deviation over 2 seeds ")[2].split()[0]
    runs = sorted((place.folder / "runs" / "speedrun").glob("one,seed=*/run.json"))
    assert [run.parent.name for run in runs] == ["one,seed=3", "one,seed=4"]
    written = runs[0].stat().st_mtime_ns
    settings = read_json(runs[0])["identity"]["settings"]
    densities = [settings[f"{one}_dataset.objective.noise_density"] for one in ("train", "eval")]
    assert densities == [0.1, 0.15], "training is masked as the entry likes"

    (place.folder / "speedrun.toml").write_text(f"{plan}9.0\ndeviation = {deviation}\n", encoding="utf-8")
    assert speedrun().check("one", [3, 4], record=True) == 0
    assert "one is accepted" in capsys.readouterr().out
    assert runs[0].stat().st_mtime_ns == written, "what the first check left was recorded"
    record = read_json(file.with_name("record.json"))
    for seed, one in zip((3, 4), record["seeds"], strict=True):
        curve = one["curve"]
        assert (one["seed"], one["steps"], curve["step"]) == (seed, 6, [0, 3, 6])
        assert 0 == curve["target_tokens"][0] < curve["target_tokens"][1] < curve["target_tokens"][2]
        assert one["target_tokens"] == curve["target_tokens"][-1] <= 6 * 4 * 32
        assert 0 == curve["seconds"][0] < curve["seconds"][1] < curve["seconds"][2] == one["seconds"]
        assert one["nats_per_byte"] == curve["nats_per_byte"][-1] < 9.0
        assert abs(one["encoder_use"]) < 1.0
    assert record["sources"]["training"][0]["clean"]
    assert "| [one](records/one/quick.gin) |" in speedrun().publish().read_text(encoding="utf-8")

    (place.folder / "speedrun.toml").write_text(f"{plan}1.0\ndeviation = {deviation}\n", encoding="utf-8")
    capsys.readouterr()
    assert speedrun().check("one", [3]) == 1
    said = capsys.readouterr().out
    assert_named(said, ["1 seeds", "at least 2"])
    assert runs[0].stat().st_mtime_ns > written, "it was trained anew"
    assert said.count(str(record["seeds"][0]["nats_per_byte"])) == 2, "here and recorded, the same to the bit"
    file.with_name("record.json").write_text("<<<<<<< HEAD\n", encoding="utf-8")
    with refused("record.json"):
        speedrun().publish()
