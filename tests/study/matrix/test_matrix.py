"""A whole matrix of a few steps: checked, trained, compared with its baselines, published."""

import json
import math
from typing import Any

import pytest

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
    "encoder_decoder,span_corruption,bytes",
    "decoder_prefix_lm,prefix_lm,bytes",
    "encoder_decoder,span_corruption,bpe",
    "decoder_prefix_lm,prefix_lm,bpe",
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


def records(place: Workplace, cell: str) -> list[dict[str, Any]]:
    return read_jsonl(place.folder / "runs" / place.experiment.stem / cell / "metrics.jsonl")


def test_check_says_what_is_there_and_what_is_made_first(place: Workplace, done: dict[str, str]) -> None:
    assert_named(done["before"], ["4 cells", "make vocab DATASET=small SIZE=80 MODEL=bpe", *CELLS])
    assert_named(done["after"], [*CELLS, "it can be trained"])
    assert "make vocab" not in done["after"]
    assert (done["before"].count(", new"), done["after"].count("trained for 6 steps")) == (4, 4)


def test_every_cell_is_trained_once_and_compared(place: Workplace, done: dict[str, str]) -> None:
    folder = place.folder / "runs" / place.experiment.stem
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == sorted(CELLS)
    for cell in CELLS:
        assert f"{cell}: " in done["sweep"]
        train, held_out = (records_of_split(records(place, cell), split) for split in ("train", "validation"))
        assert held_out[-1]["step"] == 6
        compared = json.loads((folder / f"{cell}.comparison.json").read_text(encoding="utf-8"))
        # of the same targets: as many in training as on the held-out batches
        assert compared["training_tokens"] == sum(line["target_tokens"] for line in train) > 0
        assert compared["unigram"]["target_tokens"] == held_out[-1]["target_tokens"] > 0
        assert 1.0 < compared["unigram"]["loss"] < math.log(640)
        of_text = compared["of_text"]
        assert of_text["unigram"]["target_tokens"] == of_text["model"]["target_tokens"] < held_out[-1]["target_tokens"]
        # what is left out is the difference between the sums
        assert of_text["model"]["loss"] * of_text["model"]["target_tokens"] < (
            held_out[-1]["loss"] * held_out[-1]["target_tokens"]
        )
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.suffix in (".jsonl", ".json")}
    printed = place.run("sweep", str(place.experiment), "--cells=*,bytes")  # nothing is left to do
    assert [cell for cell in CELLS if f"{cell}: " in printed] == CELLS[:2]
    after = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.suffix in (".jsonl", ".json")}
    assert after == before


def test_the_page_is_made_from_the_records(place: Workplace, done: dict[str, str]) -> None:
    place.run("report", str(place.experiment))
    folder = place.experiment.parent
    found = json.loads((folder / BOARD_FILE).read_text(encoding="utf-8"))
    assert (found["runs"], found["runs_done"]) == (4, 4)
    for cell in found["cells"]:
        name = ",".join(cell[axis] for axis in ("architecture", "objective", "vocabulary"))
        last = records_of_split(records(place, name), "validation")[-1]
        assert cell["loss"] == pytest.approx(last["loss"], abs=1e-6)
        assert cell["bits_per_byte"] == pytest.approx(last["bits_per_byte"], abs=1e-6)
        lower = [one["loss"] < one["unigram"]["loss"] for one in (cell, cell["of_text"])]
        assert cell["learned"] == all(lower)
        assert cell["packed"] == (cell["architecture"] == "decoder_prefix_lm")
        assert cell["ids"] == (384 if cell["vocabulary"] == "bytes" else 180)
    assert [one["ids"] for one in found["vocabularies"]] == [[384], [180]]
    assert wrong_files(folder, Matrix.page) == []


def test_a_cell_that_was_not_trained_here_stays_as_published(place: Workplace, done: dict[str, str]) -> None:
    place.run("report", str(place.experiment))
    file = place.experiment.parent / BOARD_FILE
    published = file.read_text(encoding="utf-8")
    folder = place.folder / "runs" / place.experiment.stem
    away = folder.with_name("away")
    # every cell with pieces, so that no run says which vocabulary it was
    gone = [path for path in folder.iterdir() if path.name.partition(".")[0].endswith(",bpe")]
    away.mkdir()
    try:
        for path in gone:
            path.rename(away / path.name)
        place.run("report", str(place.experiment))
        assert file.read_text(encoding="utf-8") == published
        # of a cell with other settings it says nothing about what they give
        other = json.loads(published)
        other["cells"][-1]["settings"] = "0" * 64
        file.write_text(json.dumps(other), encoding="utf-8")
        place.run("report", str(place.experiment))
        found = json.loads(file.read_text(encoding="utf-8"))
    finally:
        for path in gone:
            (away / path.name).rename(path)
    assert [cell["done"] for cell in found["cells"]] == [True, True, True, False]
    assert found["runs_done"] == 3
    assert [entry["model_sha256"] for entry in found["vocabularies"]] == [
        entry["model_sha256"] for entry in json.loads(published)["vocabularies"]
    ]


def test_a_baseline_of_other_batches_does_not_count(place: Workplace, done: dict[str, str]) -> None:
    trail = place.folder / "runs" / place.experiment.stem / CELLS[0] / "batches.sha256"
    kept = trail.read_bytes()
    trail.write_bytes(kept[LINE:] + kept[:LINE])
    try:
        printed = place.refused("sweep", str(place.experiment))
        place.run("report", str(place.experiment))
        text = (place.experiment.parent / "README.md").read_text(encoding="utf-8")
    finally:
        trail.write_bytes(kept)
    assert "small_span_corruption" in printed
    assert "3 of 4 cells are done" in text


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
    for option, named in {
        "--gin.TRAIN_STEPS=2": "matrix.toml",
        "--times": "TIMES=1",
        "--cells=*,pieces": "CELLS=",
    }.items():
        place.refused("sweep", str(place.experiment), option, words=[named])
