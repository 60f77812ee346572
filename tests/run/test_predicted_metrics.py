"""Predicted metrics say how they were predicted, from the record of an evaluation to the page of a report."""

from pathlib import Path
from typing import Any

from t5xpg.run.records import JsonlWriter
from t5xpg.run.report import PAGE
from t5xpg.run.results import collect
from t5xpg.run.results_page import pictures
from tests.refusals import assert_named
from tests.run.test_report import make_run
from tests.written_evaluations import write_evaluation

LENGTHS = {"inputs": 128, "targets": 80}
GREEDY = {"method": "greedy", "max_decode_length": 80, "task_feature_lengths": LENGTHS}
BEAM = {"method": "beam", "max_decode_length": 80, "num_decodes": 4, "alpha": 0.6, "task_feature_lengths": LENGTHS}


def evaluation(decoding: dict[str, object], bleu: float, examples: int = 1014) -> dict[str, Any]:
    predicted = {"en_de": {"examples": examples, "decoding": decoding}}
    return {"step": 600, "predicted": predicted, "metrics": {"en_de": {"bleu": bleu}}}


def test_figures_of_two_decodings_stand_side_by_side(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_evaluation(run, evaluation(BEAM, 40.73), decoding="beam 4")
    write_evaluation(run, evaluation(BEAM, 39.5, 1000) | {"split": "test"}, decoding="beam 4")
    page = PAGE.block(collect(run))
    how = "beam, max_decode_length 80, num_decodes 4, alpha 0.6, inputs 128, targets 80"
    assert_named(page, ["| bleu | validation | 40.73 | 1,014 |\n", "| bleu | test | 39.5 | 1,000 |\n", how])
    assert page.count(how) == 1
    write_evaluation(run, evaluation(GREEDY, 38.44), decoding="greedy")
    page = PAGE.block(collect(run))
    assert "| bleu | validation | 38.44 | 1,014 | greedy" in page  # the newest comes first
    for split, value, count in (("validation", 40.73, "1,014"), ("test", 39.5, "1,000")):
        assert f"| bleu | {split}, beam 4 | {value} | {count} | {how} |" in page


def test_a_curve_is_of_one_way_of_decoding(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with JsonlWriter(run.metrics_jsonl) as metrics:
        for step, decoding in ((100, BEAM), (200, GREEDY), (300, GREEDY)):
            facts = {"step": step, "split": "infer_eval", "task": "en_de", "examples": 8, "decoding": decoding}
            metrics.write({**facts, "metrics": {"bleu": step / 10}})
    results = collect(run)
    curve = results["tasks"]["infer_eval"]["en_de"]
    assert (curve["step"], curve["metrics"], curve["decoding"]) == ([200, 300], {"bleu": [20.0, 30.0]}, GREEDY)
    assert curve["left_out"] == 1
    assert list(pictures(results)) == ["metric.svg", "curve.svg"]
    assert "| 300 | greedy, max_decode_length 80, inputs 128, targets 80 |" in PAGE.block(results)
