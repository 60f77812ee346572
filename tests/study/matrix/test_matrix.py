"""A whole matrix of a few steps: checked, trained, compared with its baselines, published."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from t5xpg.base.files import read_json, write_json
from t5xpg.run.batch_trail import LINE
from t5xpg.run.records import read_jsonl, records_of_split
from t5xpg.study.matrix.matrix import Matrix
from tests.refusals import assert_named
from tests.workplace import Workplace, make_workplace
from tests.written_pages import wrong_files

pytestmark = pytest.mark.process

PLAN = """
dataset = "small"

[architectures.encoder_decoder]
title = "encoder-decoder"

[architectures.decoder_prefix_lm]
title = "prefix LM"
gin_files = ["gin/architectures/decoder_only.gin"]
bindings = ["FEATURE_CONVERTER=PrefixLMFeatureConverter", "PACK=True"]

[objectives.span_corruption]
title = "span corruption"

[objectives.prefix_lm]
title = "prefix LM"
gin_files = ["gin/objectives/prefix_lm.gin"]
bindings = ["TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 32}"]

[vocabularies.bytes]
title = "bytes"

[vocabularies.bpe]
title = "BPE"
gin_files = ["gin/vocabularies/pieces.gin"]
train = { model = "bpe", size = 80 }

[trained]
encoder_decoder = ["span_corruption"]
decoder_prefix_lm = ["prefix_lm"]

[[left_out]]
architectures = ["encoder_decoder"]
objectives = ["prefix_lm"]
reason = "It could."

[[left_out]]
architectures = ["decoder_prefix_lm"]
objectives = ["span_corruption"]
reason = "So could this."
"""
BOARD_FILE = Matrix.page.board_file
CELLS = [
    f"{cell},{vocabulary}"
    for vocabulary in ("bytes", "bpe")
    for cell in ("encoder_decoder,span_corruption", "decoder_prefix_lm,prefix_lm")
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    made = make_workplace(tmp_path_factory.mktemp("matrix"))
    text = made.experiment.read_text(encoding="utf-8")
    made.experiment.write_text(text.replace("TRAIN_STEPS = 12", "TRAIN_STEPS = 6"), encoding="utf-8")
    (made.folder / Matrix.plan_file).write_text(PLAN, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def done(place: Workplace) -> dict[str, str]:
    """What the commands printed."""
    check, sweep = ("check", str(place.experiment)), ("sweep", str(place.experiment), "--jobs=2")
    return {"before": place.run(*check), "sweep": place.run(*sweep), "after": place.run(*check)}


def runs_of(place: Workplace) -> Path:
    return place.folder / "runs" / place.experiment.stem


def records(place: Workplace, cell: str, split: str) -> list[dict[str, Any]]:
    return records_of_split(read_jsonl(runs_of(place) / cell / "metrics.jsonl"), split)


def reported(place: Workplace) -> dict[str, Any]:
    """The board that `make report` writes."""
    place.run("report", str(place.experiment))
    return read_json(place.folder / BOARD_FILE)


def test_check_says_what_is_there_and_what_is_made_first(place: Workplace, done: dict[str, str]) -> None:
    assert_named(done["before"], ["4 cells", "make vocab DATASET=small SIZE=80 MODEL=bpe", *CELLS])
    assert_named(done["after"], [*CELLS, "it can be trained"])
    assert "make vocab" not in done["after"]
    assert (done["before"].count(", new"), done["after"].count("trained for 6 steps")) == (4, 4)


def test_every_cell_is_trained_once_and_compared(place: Workplace, done: dict[str, str]) -> None:
    folder = runs_of(place)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == sorted(CELLS)
    for cell in CELLS:
        assert f"{cell}: " in done["sweep"]
        *_, last = records(place, cell, "validation")
        assert last["step"] == 6
        compared = read_json(folder / f"{cell}.comparison.json")
        # of the same targets: as many in training as on the held-out batches
        tokens = sum(line["target_tokens"] for line in records(place, cell, "train"))
        assert compared["training_tokens"] == tokens > 0
        assert compared["unigram"]["target_tokens"] == last["target_tokens"] > 0
        assert 1.0 < compared["unigram"]["loss"] < math.log(640)
        unigram, model = (compared["of_text"][name] for name in ("unigram", "model"))
        assert unigram["target_tokens"] == model["target_tokens"] < last["target_tokens"]
        # what is left out is the difference between the sums
        assert model["loss"] * model["target_tokens"] < last["loss"] * last["target_tokens"]
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*.json*")}
    printed = place.run("sweep", str(place.experiment), "--cells=*,bytes")  # nothing is left to do
    assert [cell for cell in CELLS if f"{cell}: " in printed] == CELLS[:2]
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*.json*")} == before


def test_the_page_is_made_from_the_records(place: Workplace, done: dict[str, str]) -> None:
    found = reported(place)
    assert (found["runs"], found["runs_done"]) == (4, 4)
    for cell in found["cells"]:
        name = ",".join(cell[axis] for axis in ("architecture", "objective", "vocabulary"))
        *_, last = records(place, name, "validation")
        for measure in ("loss", "bits_per_byte"):
            assert cell[measure] == pytest.approx(last[measure], abs=1e-6)
        assert cell["learned"] == all(one["loss"] < one["unigram"]["loss"] for one in (cell, cell["of_text"]))
        assert cell["packed"] == (cell["architecture"] == "decoder_prefix_lm")
        assert cell["ids"] == (384 if cell["vocabulary"] == "bytes" else 180)
    assert [one["ids"] for one in found["vocabularies"]] == [[384], [180]]
    assert wrong_files(place.folder, Matrix.page) == []


def test_a_cell_that_was_not_trained_here_stays_as_published(place: Workplace, done: dict[str, str]) -> None:
    published = reported(place)
    # every cell with pieces, so that no run says which vocabulary it was
    gone = [path for path in runs_of(place).iterdir() if path.name.partition(".")[0].endswith(",bpe")]
    away = place.folder / "away"
    away.mkdir()
    try:
        for path in gone:
            path.rename(away / path.name)
        assert reported(place) == published
        # of a cell with other settings it says nothing about what they give
        other = copy.deepcopy(published)
        other["cells"][-1]["settings"] = "0" * 64
        write_json(place.folder / BOARD_FILE, other)
        found = reported(place)
    finally:
        for path in gone:
            (away / path.name).rename(path)
    assert [cell["done"] for cell in found["cells"]] == [True, True, True, False]
    assert found["runs_done"] == 3
    assert found["vocabularies"] == published["vocabularies"]


def test_a_baseline_of_other_batches_does_not_count(place: Workplace, done: dict[str, str]) -> None:
    trail = runs_of(place) / CELLS[0] / "batches.sha256"
    kept = trail.read_bytes()
    trail.write_bytes(kept[LINE:] + kept[:LINE])
    try:
        place.refused("sweep", str(place.experiment), words=["small_span_corruption"])
        assert reported(place)["runs_done"] == 3
    finally:
        trail.write_bytes(kept)


def test_mistakes_in_cells_are_said(place: Workplace, done: dict[str, str]) -> None:
    file = place.experiment.parent / Matrix.plan_file
    try:
        file.write_text(PLAN.replace('"PACK=True"', '"PCAK=True"'), encoding="utf-8")
        for command in ("check", "sweep"):
            cells = "decoder_prefix_lm,prefix_lm,bytes decoder_prefix_lm,prefix_lm,bpe"
            place.refused(command, str(place.experiment), words=["Did you mean PACK?", cells])
        file.write_text(PLAN.replace("'targets': 32}", "'targets': 16}"), encoding="utf-8")
        place.refused("check", str(place.experiment), words=["16 tokens", "it cannot be trained so"])
    finally:
        file.write_text(PLAN, encoding="utf-8")
    options = {"--gin.TRAIN_STEPS=2": "matrix.toml", "--times": "TIMES=1", "--cells=*,pieces": "CELLS="}
    for option, named in options.items():
        place.refused("sweep", str(place.experiment), option, words=[named])
