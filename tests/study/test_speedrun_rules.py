"""The statistics of a speedrun beside SciPy's, what an entry may not change, and the page of made-up records."""

import math
from pathlib import Path
from typing import Any

import pytest

from t5xpg.base import environment, paths
from t5xpg.base.files import sha256_of_file, write_json
from t5xpg.experiment import config
from t5xpg.study import speedrun
from t5xpg.study.plan_file import read
from t5xpg.study.speedrun import P, Speedrun, SpeedrunPlan, margin, objections, rule_violations
from tests.refusals import assert_named, program_refused, refused
from tests.written_pages import wrong_files

PLAN = SpeedrunPlan(target=1.5, deviation=0.01)


@pytest.mark.parametrize("count", [3, 10])
def test_an_entry_counts_where_a_z_test_rejects_a_mean_above_the_target(count: int) -> None:
    """Losses at the edge, and 1e-6 to either side of it."""
    from scipy import stats

    edge = PLAN.target - stats.norm.isf(P) * PLAN.deviation / math.sqrt(count)
    spread = [0.004 * (seed - (count - 1) / 2) for seed in range(count)]
    for off, counts in ((-1e-6, True), (1e-6, False)):
        losses = [edge + off + one for one in spread]
        z = (PLAN.target - sum(losses) / count) / (PLAN.deviation / math.sqrt(count))
        assert bool(stats.norm.sf(z) < P) is counts
        assert margin(losses, PLAN.target) / PLAN.deviation == pytest.approx(z, rel=1e-9)
        assert (list(objections(PLAN, losses)) == []) is counts


def test_why_losses_make_no_record(tmp_path: Path) -> None:
    low = [1.4, 1.41, 1.39]
    assert list(objections(PLAN, low)) == []
    for plan, losses, *named in (
        (PLAN, low[:2], "2 seeds", "at least 3"),
        (PLAN, [*low, None], "1 of 4 runs"),
        (PLAN, [1.5, 1.5, 1.5], "+0.0000", "0.0233"),
        (SpeedrunPlan(target=1.5), low, "deviation", "speedrun.toml"),
    ):
        (said,) = objections(plan, losses)
        assert_named(said, named)
    (tmp_path / "speedrun.toml").write_text("target = -1.0\nseed = 3\n")
    with refused("line 1: target", "line 2: seed", "seeds"):
        read(tmp_path / "speedrun.toml", SpeedrunPlan)


ENTRIES = sorted(Speedrun("speedrun", Path()).entries.values())
RULES = str(paths.EXPERIMENTS / "speedrun" / "speedrun.gin")


@pytest.mark.parametrize("file", ENTRIES, ids=[file.stem for file in ENTRIES])
def test_the_entries_keep_to_the_rules(file: Path) -> None:
    assert list(rule_violations(config.load(str(file)).experiment, config.load(RULES).experiment)) == []


def test_what_an_entry_may_change() -> None:
    rules = config.load(RULES).experiment
    task = "MIXTURE_OR_TASK_NAME=pydocs_prefix_lm"
    spans = ["NOISE_DENSITY=0.5", "MEAN_NOISE_SPAN_LENGTH=3.0"]
    lengths = "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 64}"
    for changed, files, said in (
        ([task, *spans, lengths, "BATCH_SIZE=4", "EMA_DECAY=0.9", "LABEL_SMOOTHING=0.1"], [], ""),
        (["WHOLE_WORDS=True", *spans], [], ""),
        (["train_eval/spec.DatasetConfig.max_batches=1"], [], "eval_dataset.max_batches"),
        (["train_eval/spec.DatasetConfig.split='train'"], [], "eval_dataset.split"),
        (["validation/spec.SpanCorruption.noise_density=0.1"], [], "eval_dataset.objective.noise_density"),
        (["train/spec.DatasetConfig.split='validation'"], [], "validation of pydocs_span_corruption"),
        (["MIXTURE_OR_TASK_NAME=pycode_span_corruption"], [], "train of pydocs"),
        (["EARLY_STOP_PATIENCE=2"], ["gin/runs/select_best.gin"], "ends early"),
        (["INITIAL_CHECKPOINT=small"], ["gin/runs/initial_checkpoint.gin"], "pretrained weights"),
    ):
        found = list(rule_violations(config.load(RULES, changed, files).experiment, rules))
        assert (len(found) > 0) == bool(said)
        assert said in "".join(found)


def test_what_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program_refused(capsys, ["speedrun-check", "2026-11-22_moun"], "2026-11-22_moun", "experiments/speedrun/records")
    monkeypatch.setattr(environment, "usable_cores", lambda: 8)
    with refused("8 are used", "taskset --cpu-list 0-1"):
        Speedrun("speedrun", tmp_path).check("2026-11-23_muon", [0, 1, 2])


def record(home: Path, entry: str, losses: list[float], seconds: float, tokens: int, **changed: Any) -> dict[str, Any]:
    """A record that was made up; written beside an entry's gin file, which is, too."""
    file = home / "records" / entry / "one.gin"
    file.parent.mkdir(parents=True)
    file.touch()
    of_seed = {"steps": 900, "target_tokens": tokens, "used_by_others": 0.01, "encoder_use": 0.4, "curve": {}}
    made = {
        "gin": {f"records/{entry}/one.gin": sha256_of_file(file)},
        "sources": {"training": [{"commit": "0123456789abcdef", "clean": True}], "evaluation": []},
        "versions": environment.versions(),
        "hardware": {"cpu": "A processor", "cores": 2},
        "seeds": [
            {**of_seed, "seed": seed, "seconds": seconds + seed, "nats_per_byte": loss}
            for seed, loss in enumerate(losses)
        ],
    } | changed
    write_json(file.with_name("record.json"), made)
    return made


def test_the_page_ranks_entries_by_time_and_by_tokens(tmp_path: Path) -> None:
    home = tmp_path / "sprint"
    low, other = [1.40, 1.41, 1.42], environment.versions() | {"jax": "0.0.1"}
    for entry, losses, seconds, tokens, more in (
        ("slow", low, 300.0, 2_000, {}),
        ("fast", low, 100.0, 9_000, {}),
        ("old", low, 50.0, 5_000, {"versions": other}),
        ("above", [1.49, 1.50, 1.50], 10.0, 10, {}),
        ("changed", low, 10.0, 10, {}),
    ):
        record(home, entry, losses, seconds, tokens, **more)
    (home / "records" / "later").mkdir()
    for name, text in {
        "sprint.gin": "", "speedrun.toml": "target = 1.5\ndeviation = 0.01\n", "records/changed/one.gin": "A = 1",
        "records/later/one.gin": "",
    }.items():  # fmt: skip
        (home / name).write_text(text, encoding="utf-8")
    text = Speedrun(str(home / "sprint.gin"), tmp_path / "runs").publish().read_text(encoding="utf-8")
    by_time, by_tokens = text.split("By target tokens")
    assert by_time.index("[fast]") < by_time.index("[slow]")
    assert "[old]" not in by_time
    assert by_tokens.index("[slow]") < by_tokens.index("[old]") < by_tokens.index("[fast]")
    row = next(line for line in by_time.splitlines() if line.startswith("| [fast]("))
    shown = {"1 min 41 s", "9,000", "900", "3", "1.4100 (1.4000 to 1.4200)", "0.400", "A processor"}
    assert shown <= set(row.split(" | "))
    assert_named(text, ["`old`", "`above`", "`changed`", "`later`", "0.0233"])
    assert wrong_files(home, Speedrun.page) == []


def test_a_time_is_confirmed_on_the_same_machine_alone(tmp_path: Path) -> None:
    losses = [1.4, 1.4, 1.4]
    claim, slower = record(tmp_path, "a", losses, 100.0, 9), record(tmp_path, "b", losses, 120.0, 9)
    slower["gin"] = claim["gin"]
    (said,) = speedrun._unconfirmed(claim, slower)
    assert_named(said, ["121 s", "101 s"])
    assert list(speedrun._unconfirmed(slower, claim)) == []
    assert list(speedrun._unconfirmed(claim, slower | {"hardware": {"cpu": "Another"}})) == []
    assert "is not the recorded one" in "".join(speedrun._unconfirmed(claim | {"gin": {}}, claim))
