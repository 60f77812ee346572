"""`make reproduce` as its users type it: published, repeated, killed, tampered with, refused."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from t5xpg.base.files import read_json, sha256_of_file, write_json
from t5xpg.base.paths import shown
from t5xpg.evaluate.predictor import decoding_settings
from t5xpg.experiment import config
from t5xpg.study.reproduce import reproduce
from t5xpg.study.reproduce.comparison import DIFFERENT, NOT_COMPARED, SAME, compare
from tests.refusals import refused
from tests.study.reproduce.test_comparison import Results, changed, results
from tests.workplace import EXPERIMENT, Workplace, wait_until
from tests.written_evaluations import newest


@pytest.fixture(scope="module")
def published(workplace: Workplace, evaluated: tuple[Path, str]) -> Path:
    """The gin file of an experiment in a folder of its own, with the results of that run beside it."""
    folder = workplace.folder / "published" / "small"
    folder.mkdir(parents=True)
    experiment = folder / "small.gin"
    experiment.write_text(EXPERIMENT)
    workplace.run("report", str(experiment), "--run=evaluated")
    return experiment


@pytest.mark.process
def test_a_killed_reproduction_goes_on_and_is_bit_for_bit(
    workplace: Workplace, evaluated: tuple[Path, str], published: Path, tmp_path: Path
) -> None:
    folder, again = workplace.folder / "runs" / "again", ("reproduce", str(published), "--run=again")
    with workplace.start(*again, held_at=4) as process:
        wait_until(process, (folder / "checkpoints" / "4").is_dir)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    workplace.refused(*again, "--steps=5", words=["unfinished reproduction of small", "12 steps"])
    assert "continues after step 4\n" in workplace.run(*again)
    outcome = read_json(folder / "reproduction.json")
    assert outcome["same"] is outcome["exact"] is True
    assert [row["verdict"] for row in outcome["numbers"]] == [SAME] * 8
    blanks, as_published = ((newest(run).folder / "blanks.json").read_bytes() for run in (folder, evaluated[0]))
    assert blanks == as_published
    # once more, in the same place, a part of it, against results of before batches were recorded and of another number
    experiment = _copied(published, tmp_path)
    _tamper(experiment, lambda found: found.pop("batches"))
    _tamper(experiment, lambda found: found["curves"]["validation"]["loss"].__setitem__(0, 6.0))
    workplace.refused("reproduce", str(experiment), "--run=again", "--steps=7")
    outcome = read_json(folder / "reproduction.json")
    assert (outcome["steps"], outcome["same"]) == (7, False)
    assert [row["verdict"] for row in outcome["numbers"]][:2] == [NOT_COMPARED, DIFFERENT]
    assert (folder / "checkpoints" / "7").is_dir()


@pytest.mark.process
def test_a_mean_of_checkpoints_is_evaluated_as_one(
    workplace: Workplace, evaluated: tuple[Path, str], published: Path, tmp_path: Path
) -> None:
    experiment = _copied(published, tmp_path)
    run = shutil.copytree(evaluated[0], evaluated[0].with_name("averaged"))
    workplace.run("eval", str(experiment), "--run=averaged", "--step=mean:2")
    workplace.run("report", str(experiment), "--run=averaged")
    shutil.rmtree(run / "evaluations")
    of = sha256_of_file(experiment.parent / "results.json")
    write_json(run / reproduce.MARK_FILE, {"experiment": "small", "of": of, "steps": 12})
    workplace.run("reproduce", str(experiment), "--run=averaged")
    assert newest(run).record["mean_of_checkpoints"] == 2


@pytest.mark.process
def test_other_data_are_told_before_anything_is_trained(workplace: Workplace, published: Path, tmp_path: Path) -> None:
    experiment = _copied(published, tmp_path)
    _tamper(experiment, lambda found: found["identity"]["data"]["sha256"].update(train="ab" * 32))
    workplace.refused("reproduce", str(experiment), "--run=other_data", words=["data: sha256.train"])
    assert not (workplace.folder / "runs" / "other_data").exists()


def _copied(experiment: Path, folder: Path) -> Path:
    target = folder / "small"
    shutil.copytree(experiment.parent, target)
    return target / experiment.name


def _tamper(experiment: Path, change: Callable[[Results], Any]) -> None:
    found = read_json(experiment.parent / "results.json")
    change(found)
    write_json(experiment.parent / "results.json", found)


@pytest.fixture
def experiment(own_place: Path) -> Path:
    """An experiment with made-up results, for what is refused before anything is made."""
    write_json(own_place / "results.json", {**results(12), "experiment": "small", "total_steps": 12})
    return own_place / "small.gin"


def test_results_that_cannot_be_compared_are_refused(experiment: Path) -> None:
    file, loaded, run = experiment.parent / "results.json", config.load(str(experiment)), experiment.parent / "run"
    found = read_json(file)
    for change, *named in (
        ({"experiment": "large"}, "of large"),
        ({"curves": None, "hardware": None}, "hardware, curves", "make report EXP="),
    ):
        write_json(file, {name: one for name, one in {**found, **change}.items() if one is not None})
        with refused(*named):
            reproduce.reproduce(loaded, run)
    write_json(file, found)
    for steps in (0, 13):
        with refused(f"STEPS={steps}", "12 steps"):
            reproduce.reproduce(loaded, run, steps=steps)
    with refused("leave out GIN="):
        reproduce.reproduce(config.load(str(experiment), ["BATCH_SIZE=8"]), run)
    file.unlink()
    with refused("no results", "make report EXP="):
        reproduce.reproduce(loaded, run)
    assert not run.exists()


def test_a_commit_that_is_none_is_no_option_of_git(experiment: Path) -> None:
    for commit in ("--output=x", None, "HEAD", "ab" * 20):
        assert reproduce._changed_files({"commit": commit, "clean": True}, config.load(str(experiment))) is None


def test_predictions_are_decoded_as_the_published_ones(experiment: Path) -> None:
    beams = config.load(
        str(experiment), ["decoding.DecodingConfig.alpha=1.0", "decoding.DecodingConfig.extra_length=5"],
        ["gin/decoding/beam.gin"],
    )  # fmt: skip
    measured = {"predicted": {"t": {"examples": 1, "decoding": decoding_settings(beams.experiment)}}}
    greedy = config.load(str(experiment))
    as_published = reproduce._with_decoding(measured, greedy)
    assert decoding_settings(as_published.experiment) == decoding_settings(beams.experiment)
    masks = {"predicted": {"t": {"examples": 1, "decoding": {"method": "fill_masks"}}, "scored": {"decoding": {}}}}
    for without in ({}, masks):
        assert reproduce._with_decoding(without, greedy) == greedy


def test_its_record_has_the_overrides_of_the_published_run(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = read_json(experiment.parent / "results.json")
    write_json(experiment.parent / "results.json", {**published, "command": "t5xpg train x --gin.BATCH_SIZE=8 --run=y"})
    train = Mock(return_value=1)
    monkeypatch.setattr(reproduce, "train", train)
    monkeypatch.setattr(reproduce, "_identity", lambda *_: published["identity"])
    assert reproduce.reproduce(config.load(str(experiment)), Path("runs", "again")) == 1
    expected = f"t5xpg train {shown(experiment)} --gin-overrides=--gin.BATCH_SIZE=8 --run=runs/again"
    assert train.call_args.kwargs.get("command") == expected


def test_a_folder_that_holds_something_else_is_refused(experiment: Path) -> None:
    earlier = '{"experiment": "small", "of": "x", "steps": 12}'
    for number, (named, files) in enumerate(
        (
            ("notes.txt", {"notes.txt": ""}),
            ("another run", {"run.json": "{}", "metrics.jsonl": ""}),
            ("unfinished reproduction", {".reproduction.json": "{}", "run.json": "{}"}),
            ("published before", {".reproduction.json": earlier}),
        )
    ):
        folder = experiment.parent / f"run_{number}"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        with refused(named):
            reproduce.reproduce(config.load(str(experiment)), folder)
        assert {path.name: path.read_text() for path in folder.iterdir()} == files


def test_an_outcome_is_json() -> None:
    """An infinite difference too."""
    comparison = compare(changed("num_params", 1), results(), steps=4)
    assert json.loads(json.dumps(reproduce._as_json(comparison), allow_nan=False))["largest_difference"] is None
