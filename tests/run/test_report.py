import json
import math
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from t5xpg.base import environment
from t5xpg.base.files import read_json
from t5xpg.base.markdown import escape
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import JsonlWriter
from t5xpg.run.report import PAGE, publish, write_report
from t5xpg.run.results import collect, read_results
from t5xpg.run.results_page import pictures
from tests.refusals import assert_named, refused
from tests.workplace import contents
from tests.written_evaluations import write_evaluation
from tests.written_pages import wrong_files

BEGIN, END = PAGE.markers
LOG2 = math.log(2)
SAMPLES = [
    {"input": "The <extra_id_0> sat | on *it*\nand `more`", "prediction": "cat_", "target": "cat"},
    {"input": "a", "prediction": "x" * 1000, "target": ""},
]


def measures(nats: float) -> dict[str, float]:
    return {"loss": nats * 0.9, "nats_per_byte": nats, "bits_per_byte": nats / LOG2, "accuracy": 1 - nats / 8}


def added_by(script: str) -> Any:
    """What a script of the site tells the page of a run."""
    return json.loads(script.removeprefix("t5xpg.add(").removesuffix(");\n"))


def make_run(path: Path, *, steps: int = 600, experiment: str = "tiny", starts: int = 1) -> RunDirectory:
    """A run's records as training writes them, with a known curve."""
    run = RunDirectory(path)
    splits = {
        "train": {"documents": 12000, "bytes": 9_000_000, "sha256": "ab" * 32},
        "validation": {"documents": 400, "bytes": 300_000, "sha256": "cd" * 32},
    }
    source = {"kind": "packages", "revision": 1, "files": {"a": "b"}}
    identity = {
        "seed": 7,
        "data": {"name": "pydocs", "source": source, "splits": splits},
        "settings": {"train_dataset.batch_size": 16, "train_dataset.pack": False},
        "vocabulary": {"kind": "bytes", "size": 384, "extra_ids": 125, "sentinels": "seqio", "model_file": None},
    }
    facts = {"num_params": 1_800_000, "total_steps": 1000}
    for number in range(starts):
        devices = {"platform": "cpu", "kind": "cpu", "count": 1 + number}
        command = "make train EXP=tiny"
        run.start(experiment, identity, step=100 * number, command=command, devices=devices, facts=facts)
    started = run.read()["starts"][0]["time"]
    with JsonlWriter(run.metrics_jsonl) as metrics, JsonlWriter(run.timing_jsonl) as timing:
        for step in range(0, steps + 1, 2):
            if step:
                tokens = {"target_tokens": 500, "target_bytes": 450}
                metrics.write({"step": step, "split": "train", **measures(2 + 80 / (20 + step)), **tokens})
                speed = {"seconds_per_step": 2.0 if step == 2 else 0.25, "tokens_per_second": 16000}
                timing.write({"step": step, "time": started + step, **speed})
            if step % 100 == 0:
                metrics.write({"step": step, "split": "validation", **measures(2.1 + 80 / (20 + step))})
    write_evaluation(run, {"step": steps, "git": environment.git_state()}, samples=SAMPLES)
    return run


def short_run(path: Path, loss: float = 6.25, **identity: Any) -> RunDirectory:
    """A run whose only record is a validation."""
    run = RunDirectory(path)
    run.start("tiny", {"seed": 0, **identity}, step=0, command="t5xpg train")
    with JsonlWriter(run.metrics_jsonl) as metrics:
        metrics.write({"step": 0, "split": "validation", "loss": loss, "accuracy": None})
    return run


def test_a_report_holds_results_block_and_curve(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    text = write_report(run, tmp_path / "a").read_text(encoding="utf-8")
    files = contents(tmp_path / "a")
    assert list(files) == ["README.md", "curve.svg", "results.json"]
    for again in (tmp_path / "a", tmp_path / "b"):
        write_report(run, again)
        assert contents(again) == files
    assert wrong_files(tmp_path / "a") == []
    shown = ["6.100 at step 0", "2.229 at step 600", "600 | 2.229 | 3.216 | 2.006 | 0.721", "600 | 2.129 | 3.072"]
    facts = ["150,000", "12,000 | 9,000,000 | abababab", "1,800,000", "600 of 1,000", "&lt;extra_id_0&gt;"]
    assert_named(text, [BEGIN, *shown, *facts])
    assert "published" not in text
    ElementTree.parse(tmp_path / "a" / "curve.svg")


def test_the_published_run_stands_beside(tmp_path: Path) -> None:
    experiment = tmp_path / "tiny"
    experiment.mkdir()
    publish(make_run(tmp_path / "long"), experiment)
    write_report(make_run(tmp_path / "short", steps=200), tmp_path / "report", experiment / "results.json")
    text = (tmp_path / "report" / "README.md").read_text(encoding="utf-8")
    assert_named(text, ["| 200 | 2.464 | 3.554 | 2.217 | 0.692 |", "published | 600 | 2.229 | 3.216 | 2.006 | 0.721 |"])
    assert "published 2.229 at step 600" in (tmp_path / "report" / "curve.svg").read_text(encoding="utf-8")
    assert wrong_files(tmp_path / "report") == []
    # one that is not there is nothing to compare with
    write_report(make_run(tmp_path / "third", steps=100), tmp_path / "other", tmp_path / "missing" / "results.json")
    assert "published" not in read_json(tmp_path / "other" / "results.json")


def test_publishing_keeps_what_people_wrote(tmp_path: Path) -> None:
    experiment = tmp_path / "tiny"
    experiment.mkdir()
    readme = experiment / "README.md"
    readme.write_text(f"# Tiny\n\nWhy.\n\n{BEGIN}\nold\n{END}\n\n## After\n\nMore.\n", encoding="utf-8")
    publish(make_run(tmp_path / "run"), experiment)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"# Tiny\n\nWhy.\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\n## After\n\nMore.\n")
    assert "\nold\n" not in text
    assert wrong_files(experiment) == []


def test_publishing_refuses_what_does_not_belong(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=100)
    other = tmp_path / "other"
    with refused(str(other)):
        publish(run, other)
    other.mkdir()
    with refused("EXP=tiny"):
        publish(run, other)
    for content, *named in ((f"{END} {BEGIN}".encode(), BEGIN, END), ("# Größe\n".encode("latin-1"), "byte 4")):
        (other / "README.md").write_bytes(content)
        with refused("README.md", *named):
            write_report(run, other)
    assert [entry.name for entry in other.iterdir()] == ["README.md"]  # nothing half-written


def test_several_starts_and_a_best_step_that_is_not_the_last_are_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", starts=3)
    with JsonlWriter(run.metrics_jsonl) as metrics:
        metrics.write({"step": 700, "split": "validation", **measures(4.0)})
    results = collect(run)
    assert results["starts"] == 3
    assert "devices" in results["changed_between_starts"]
    assert results["timing"]["wall_seconds"] is None  # unknown: the pauses count
    assert_named(PAGE.block(results), ["best | 600 | 2.229 |", "3 times", "devices"])


def test_an_evaluation_of_another_step_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "report"
    run = make_run(tmp_path / "mine", steps=400)
    (run.checkpoints / "400").mkdir(parents=True)
    command = f"make eval EXP=tiny RUN={run.path}"
    for step, said in ((400, []), (200, [command]), (None, [command])):
        shutil.rmtree(run.evaluations)
        if step is not None:
            write_evaluation(run, {"step": step}, samples=SAMPLES)
        write_report(run, folder)
        printed = capsys.readouterr().out
        assert_named(printed, [*said, *map(str, folder.iterdir())])
        assert ("make eval" in printed) == bool(said)
        results = read_results(folder / "results.json")
        assert (results["evaluation"] is None) == bool(said)
        assert results["samples"] == (None if said else SAMPLES)
    (run.checkpoints / "400").rename(run.checkpoints / "420")  # stopped between two records
    write_report(run, folder)
    assert f"make train EXP=tiny RUN={run.path}" in capsys.readouterr().out


def test_without_a_validation_loss_there_is_nothing_to_report(tmp_path: Path) -> None:
    run = short_run(tmp_path / "run", math.nan)
    with refused("no finite validation loss"):
        write_report(run, tmp_path / "report")
    assert not (tmp_path / "report").exists()
    run.metrics_jsonl.write_text("")
    with refused("no validation loss", f"make train EXP=tiny RUN={run.path}"):
        collect(run)


def test_little_is_enough_for_a_report(tmp_path: Path) -> None:
    """No training step, no data description, no timing, no devices; a loss per token only."""
    readme = write_report(short_run(tmp_path / "run"), tmp_path / "report")
    assert "| validation, first | 0 | 6.250 |" in readme.read_text(encoding="utf-8")
    assert "loss, nats per target token" in (tmp_path / "report" / "curve.svg").read_text(encoding="utf-8")
    assert wrong_files(tmp_path / "report") == []


def test_predictions_are_escaped() -> None:
    for text, markdown in (
        ("snake_case _em_ __x__", "snake_case &#95;em&#95; &#95;&#95;x&#95;&#95;"),
        ("a|b \\| `c`", "a&#124;b &#92;&#124; &#96;c&#96;"),
        ("<extra_id_0> &amp; <b>", "&lt;extra_id_0&gt; &amp;amp; &lt;b&gt;"),
        ("[x](y) $1$ ~~z~~", "&#91;x&#93;(y) &#36;1&#36; &#126;&#126;z&#126;&#126;"),
        ("http://a.b www.c.d", "http&#58;//a.b www&#46;c.d"),
        ("two\nlines\r\nmore\tx\x00", "two⏎lines⏎more x\N{REPLACEMENT CHARACTER}"),
        ("  a   b ", "&nbsp;&nbsp;a &nbsp;&nbsp;b&nbsp;"),
        ("é 漢, 1.5 (ok)!", "é 漢, 1.5 (ok)!"),
    ):
        assert escape(text) == markdown


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
