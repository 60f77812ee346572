"""The paired bootstrap of two runs' predictions, beside sacrebleu's own."""

import random
from pathlib import Path
from typing import Any

import pytest

from t5xpg.base.files import write_json
from t5xpg.data import metrics
from t5xpg.evaluate import significance
from t5xpg.run.directory import RunDirectory
from t5xpg.run.evaluations import RECORD, all_of
from t5xpg.run.report import PAGE
from t5xpg.run.results import collect
from tests.refusals import refused
from tests.run.test_report import make_run
from tests.written_evaluations import write_evaluation

WORDS = ["a", "dog", "and", "two", "cat@@", "s", "run", "over", "the", "green", "field", "in", "May", "."]


def sentences(count: int, seed: int, like: list[str] | None = None, share: float = 0.0) -> list[str]:
    """Made-up ones; of those of `like` a share of the words, and some of them whole."""
    draw = random.Random(seed)
    if like is None:
        return [" ".join(draw.choices(WORDS, k=draw.randrange(3, 12))) for _ in range(count)]
    kept = [[word if draw.random() < share else draw.choice(WORDS) for word in text.split()] for text in like]
    return [text if draw.random() < share / 2 else " ".join(words) for text, words in zip(like, kept, strict=True)]


TARGETS = sentences(60, 1)
SAID, OTHERS = sentences(60, 2, TARGETS, 0.9), sentences(60, 3, TARGETS, 0.75)


def evaluated(path: Path, said: list[str], targets: list[str] = TARGETS, **parts: str) -> RunDirectory:
    """A run with such predictions of its test split, and the metrics of these."""
    from sacrebleu.metrics import BLEU, CHRF

    run = RunDirectory(path) if path.exists() else make_run(path)
    values: dict[str, Any] = {**metrics.codexglue(targets, said), **metrics.exact_match(targets, said)}
    tokens = BLEU(tokenize="none", smooth_method="none", force=True)  # not by metrics.token_bleu, which loads SeqIO
    for name, metric in (("bleu", BLEU(tokenize="intl", force=True)), ("chrf", CHRF()), ("token_bleu", tokens)):
        text = metrics.join_bpe if name == "token_bleu" else str
        values[name] = metric.corpus_score(list(map(text, said)), [list(map(text, targets))]).score
        values[f"{name}_signature"] = str(metric.get_signature())
    facts = {"step": 600, "split": "test", "metrics": {"en_de": values | {"nats_per_byte": 1.0}}}
    predicted = {"en_de": {"examples": len(said), "decoding": {"method": "greedy"}}}
    lines = [{"inputs": "x", "target": one, "prediction": its} for one, its in zip(targets, said, strict=True)]
    write_evaluation(run, {**facts, "predicted": predicted}, predictions={"en_de": lines}, **parts)
    return run


def test_runs_are_compared_as_sacrebleu_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sacrebleu.metrics import BLEU, CHRF
    from sacrebleu.significance import PairedTest

    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    run, other = evaluated(tmp_path / "ours", SAID), evaluated(tmp_path / "theirs", OTHERS)
    found = significance.compare_predictions(run, other, "test")["tasks"]["en_de"]
    assert list(found) == [
        "codexglue_bleu", "codexglue_exact_match", "exact_match", "bleu", "chrf", "token_bleu",
    ]  # fmt: skip
    for name, metric in (("bleu", BLEU(tokenize="intl", force=True)), ("chrf", CHRF())):
        named = [("theirs", OTHERS), ("ours", SAID)]
        _, results = PairedTest(named, {name: metric}, [TARGETS], "bs", significance.SAMPLES)()
        (theirs, ours) = next(values for key, values in results.items() if key != "System")
        one = found[name]
        assert [one["score"], one["other_score"]] == pytest.approx([ours.score, theirs.score])
        assert [one["mean"][0], one["other_mean"][0]] == pytest.approx([ours.mean, theirs.mean])
        assert (one["mean"][2] - one["mean"][1]) / 2 == pytest.approx(ours.ci)
        assert one["p"] == pytest.approx(ours.p_value)
    exact = found["exact_match"]
    assert exact["difference"][0] == pytest.approx(exact["mean"][0] - exact["other_mean"][0])
    assert exact["mean"][0] == pytest.approx(exact["score"], abs=1.0)
    assert exact["p"] < 0.05
    assert "1,000 samples, seed 12345" in capsys.readouterr().out
    shown = f"{exact['mean'][0]:.2f} [{exact['mean'][1]:.2f}, {exact['mean'][2]:.2f}]"
    assert shown in PAGE.block(collect(run))


def test_runs_that_do_not_differ(tmp_path: Path) -> None:
    run, same = evaluated(tmp_path / "ours", SAID), evaluated(tmp_path / "a|b", SAID)
    found = significance.compare_predictions(run, same, "test")["tasks"]["en_de"]
    assert {name: one["p"] for name, one in found.items()} == dict.fromkeys(found, 1.0)
    assert "a&#124;b" in PAGE.block(collect(run))


def test_another_metric_of_a_known_name_is_left_out(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path / name, SAID) for name in ("ours", "theirs")]
    for one in (all_of(run)[0] for run in runs):
        metrics_of_run = {"mine": {"accuracy": 1.0}, **one.record["metrics"]}
        write_json(one.folder / RECORD, {**one.record, "metrics": metrics_of_run})
        one.predictions("mine").write_text('{"inputs": "x", "target": [1], "prediction": [1]}\n')
    assert list(significance.compare_predictions(*runs, "test")["tasks"]) == ["en_de"]


def test_runs_that_cannot_be_compared(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "ours", SAID)
    with refused("dev", "make eval EXP=tiny RUN=", "SPLIT=dev"):
        significance.compare_predictions(run, run, "dev")
    with refused("itself", "OTHER=", "EVALUATION="):
        significance.compare_predictions(run, run, "test")
    with refused("step_600-tset", "step_600-test"):
        significance.compare_predictions(run, run, name="step_600-tset")
    interrupted = evaluated(tmp_path / "interrupted", OTHERS)  # after its predictions, before their metrics
    (one,) = (one for one in all_of(interrupted) if one.record["split"] == "test")
    write_json(one.folder / RECORD, {**one.record, "metrics": {"en_de": {"bleu": 1.0}}})
    for other, named in (
        (make_run(tmp_path / "unmeasured"), "make eval"),
        (interrupted, "no metric that can be resampled"),
        (evaluated(tmp_path / "theirs", OTHERS, [*TARGETS[1:], TARGETS[0]]), "other inputs or targets"),
    ):
        with refused(named):
            significance.compare_predictions(run, other, "test")


def test_what_differs_in_more_than_the_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And an evaluation that was made in the same way is chosen before a newer one."""
    run = evaluated(tmp_path / "ours", SAID, decoding="beam 4")
    other = evaluated(tmp_path / "theirs", OTHERS, decoding="beam 4")
    evaluated(tmp_path / "theirs", SAID, decoding="greedy")
    assert significance.compare_predictions(run, other, "test")["other"] == "theirs"
    assert "differ in more" not in capsys.readouterr().out
    found = significance.compare_predictions(run, other, "test", other_name="step_600-test-greedy")
    assert (found["run"], found["other"]) == ("ours, beam 4", "theirs, greedy")
    assert "decoding" in capsys.readouterr().out
    evaluated(tmp_path / "ours", OTHERS, decoding="greedy")
    names = "step_600-test-beam_4", "step_600-test-greedy"
    assert significance.compare_predictions(run, run, None, *names)["tasks"]["en_de"]["bleu"]["p"] < 0.05
