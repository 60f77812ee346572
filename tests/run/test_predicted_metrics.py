"""Predicted metrics say how they were predicted, from the record of an evaluation to the page of a report."""

from pathlib import Path
from typing import Any

import pytest

from t5xpg.run.records import JsonlWriter
from t5xpg.run.report import PAGE, write_report
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


def test_a_figure_is_not_replaced_by_one_made_otherwise_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = make_run(tmp_path / "run"), tmp_path / "report"
    folder.mkdir()
    write_evaluation(run, evaluation(BEAM, 40.73))
    write_evaluation(run, evaluation(BEAM, 39.5, 1000) | {"split": "test"})
    readme = write_report(run, folder).read_text()
    how = "beam, max_decode_length 80, num_decodes 4, alpha 0.6, inputs 128, targets 80"
    assert_named(readme, ["| validation | 40.73 | 1,014 |\n", "| test | 39.5 | 1,000 |\n", how])
    assert readme.count(how) == 1
    assert "->" not in capsys.readouterr().out
    write_evaluation(run, evaluation(GREEDY, 38.44))
    readme = write_report(run, folder).read_text()
    printed = capsys.readouterr().out
    assert_named(printed, ["bleu 40.73 -> 38.44", "decoding.method beam -> greedy"])
    assert "on test" not in printed
    assert f"| test | 39.5 | 1,000 | {how} |" in readme  # not as the other one


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
