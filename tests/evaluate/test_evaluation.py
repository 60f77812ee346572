"""`make eval`: that it measures the run that it says; a user's own task with its cache and its metrics."""

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from t5xpg.base.files import sha256_of_file
from t5xpg.data.batch import ENC_DEC, Batch, layout_of
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate import evaluation, samples, tuning
from t5xpg.evaluate.evaluation import is_up_to_date
from t5xpg.evaluate.trained_model import check_same_vocabulary, checkpoints_in_mean, chosen_step
from t5xpg.experiment import making
from t5xpg.experiment.recipe import DataIdentity, Recipe
from t5xpg.models.decoding import DecodingConfig
from t5xpg.run.best import BestMetric
from t5xpg.run.directory import RunDirectory
from t5xpg.run.evaluations import RECORD, all_of, find
from t5xpg.run.records import read_jsonl
from t5xpg.run.report import PAGE
from t5xpg.run.results import collect
from tests.refusals import refused
from tests.workplace import Workplace, checkpoint_arrays
from tests.written_evaluations import write_evaluation

MODULE = """
import functools
import os
import numpy as np
import seqio
import t5.data
from t5xpg.data import metrics

FOLDER = os.path.dirname(__file__)
FEATURE = seqio.Feature(seqio.ByteVocabulary(extra_ids=125), add_eos=True)


def as_floats(targets, predictions):
    assert all(isinstance(text, str) for text in [*targets, *predictions])
    return {"exact": sum(map(str.__eq__, targets, predictions)) / len(targets), "predicted": len(predictions)}


def as_values(targets, predictions):
    lengths = seqio.metrics.Histogram(np.array([len(text) for text in targets]), bins=2)
    picture = seqio.metrics.Image(np.full((1, 2, 3, 1), 128, np.uint8))
    first = seqio.metrics.Text("| " + targets[0])
    shortest = seqio.metrics.Scalar(min(map(len, targets)))
    return {"shortest": shortest, "first": first, "lengths": lengths, "picture": picture}


seqio.TaskRegistry.add(
    "user_repeat",
    source=seqio.TextLineDataSource({s: os.path.join(FOLDER, "user", s + ".txt") for s in ("train", "validation")}),
    preprocessors=[
        functools.partial(t5.data.preprocessors.parse_tsv, field_names=["inputs", "targets"]),
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos,
    ],
    output_features={"inputs": FEATURE, "targets": FEATURE},
    metric_fns=[as_floats, as_values, metrics.bleu, metrics.perplexity],
)
seqio.TaskRegistry.add(
    "user_held_out",
    source=seqio.TextLineDataSource({"validation": os.path.join(FOLDER, "validation.txt")}),
    preprocessors=[
        functools.partial(t5.data.preprocessors.parse_tsv, field_names=["targets"]),
        seqio.preprocessors.tokenize,
        t5.data.preprocessors.span_corruption,
        seqio.preprocessors.append_eos,
    ],
    output_features={"inputs": FEATURE, "targets": FEATURE},
)
import t5xpg.tasks
seqio.MixtureRegistry.add("user_blend", [("user_repeat", 1), ("small_span_corruption", 1)])
"""
BLEND = [
    "--gin.MIXTURE_OR_TASK_NAME=user_blend", "--gin.MODULE_IMPORT=user_tasks",
    "--gin.spec.DatasetConfig.objective=None", "--gin.TRAIN_STEPS=2", "--gin.WARMUP_STEPS=1",
    "--gin.CHECKPOINT_PERIOD=1", "--gin.EVAL_PERIOD=1", "--gin.INFER_EVAL_PERIOD=1", "--gin.INFER_EVAL_STEPS=2",
    "--gin_file=gin/runs/infer_eval.gin", "--gin.INFER_EVAL_LENGTHS={'inputs': 64, 'targets': 24}",
    "--gin.INFER_EVAL_TASK=user_repeat",
    "--run=blend",
]  # fmt: skip


@pytest.fixture(scope="module")
def blend(workplace: Workplace) -> RunDirectory:
    """A run on a mixture of a user's task, which nobody has cached, and one of the table."""
    (workplace.folder / "user").mkdir()
    (workplace.folder / "user_tasks.py").write_text(MODULE)
    for split, count in (("train", 40), ("validation", 10)):
        lines = (f"line {n} of {split}\tline {n}\n" for n in range(count))
        (workplace.folder / "user" / f"{split}.txt").write_text("".join(lines))
    printed = workplace.run("train", str(workplace.experiment), *BLEND)
    assert "user_repeat is cached\n" in printed
    return RunDirectory(workplace.folder / "runs" / "blend")


@pytest.fixture(scope="module")
def by_beams(workplace: Workplace, blend: RunDirectory) -> str:
    """What the evaluation of that run printed, by the beam search that was tuned on it."""
    blend.data_log.write_text("a training still writes here\n")
    command = [str(workplace.experiment), *BLEND]
    sampling = "--gin_file=gin/decoding/consensus.gin"  # none of whose options are those of beam search
    printed = workplace.run("tune-decoding", *command, sampling, "--alphas=0,1.5", "--beams=2")
    given = re.search(r"make eval EXP='.*/small\.gin' RUN=blend GIN=(.*)$", printed, re.M)
    assert given is not None
    blend.evaluation_log.unlink()
    (gin,) = shlex.split(given[1])  # with what was typed
    return workplace.run("eval", str(workplace.experiment), "--run=blend", f"--gin-overrides={gin}", "--json")


@pytest.mark.process
def test_a_users_task_is_cached_and_identified(workplace: Workplace, blend: RunDirectory) -> None:
    assert (workplace.folder / "cache" / "user_repeat" / "COMPLETED").exists()
    identity = blend.read()["identity"]
    assert set(identity["data"]["sources"]) == set(identity["cache"]) == {"user_repeat", "small_span_corruption"}
    assert set(identity["data"]["sources"]["user_repeat"]["sha256"]) == {"train", "validation"}
    small = json.loads((workplace.folder / "data" / "small" / "manifest.json").read_text())
    assert identity["data"]["sources"]["small_span_corruption"]["sha256"] == {
        split: record["sha256"] for split, record in small["splits"].items()
    }


@pytest.mark.process
def test_the_tasks_own_metrics_are_computed(blend: RunDirectory, by_beams: str) -> None:
    assert "warning" not in by_beams.lower(), by_beams
    found_evaluation = all_of(blend)[0]  # the newest: the decoding that was best
    measured = found_evaluation.record
    assert measured["task"] == "user_blend"
    assert list(measured["parts"]) == ["checkpoint", "split", "decoding"]
    assert measured["step"] == 2
    assert set(measured["metrics"]) == {"user_repeat"}  # the other has none
    found = measured["metrics"]["user_repeat"]
    assert {name: found[name] for name in ("exact", "predicted", "shortest", "first")} == {
        "exact": 0.0, "predicted": 10, "shortest": 6, "first": "| line 7",
    }  # fmt: skip
    assert found["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:intl|")
    assert found["lengths"] == {"histogram": {"counts": [0, 10], "edges": [5.5, 6.0, 6.5]}}
    assert found["picture"]["image"]["shape"] == [1, 2, 3, 1]
    # two ways to the same number: scores that SeqIO hands to a metric, and the loss of the task's own split
    assert set(measured["tasks"]) == {"small_span_corruption", "user_repeat"}
    # the texts have the same bytes as the targets, but for the end token, which stands for none
    assert found["nats_per_byte"] == pytest.approx(measured["tasks"]["user_repeat"]["nats_per_byte"], rel=1e-5)
    trivial = measured["trivial"]["user_repeat"]
    assert trivial["copy"]["exact"] == 0.0
    assert trivial["majority"]["exact"] == pytest.approx(0.1)
    assert trivial["copy"]["bleu"] > trivial["majority"]["bleu"]
    assert "nats_per_byte" not in trivial["copy"]
    lines = found_evaluation.predictions("user_repeat").read_text().split("\n")
    said = [json.loads(line) for line in lines[:-1]]
    assert (said[0]["inputs"], said[0]["target"]) == ("line 7 of validation", "line 7")
    assert len(said) == 10
    assert all(line["score"] < 0 and isinstance(line["prediction"], str) for line in said)
    assert list((blend.tensorboard / "evaluations" / found_evaluation.folder.name).iterdir())
    assert blend.data_log.read_text() == "a training still writes here\n"
    assert blend.evaluation_log.exists()


@pytest.mark.process
def test_a_task_without_training_text_is_measured(workplace: Workplace, blend: RunDirectory) -> None:
    workplace.run("eval", str(workplace.experiment), *BLEND, "--task=user_held_out")
    measured = find(blend, task="user_held_out")
    assert measured is not None
    assert measured.record["loss"] > 0
    assert measured.record["parts"]["task"] == "user_held_out"
    assert "blanks" not in measured.record, "they are compared with the most frequent words of training"


@pytest.mark.process
def test_records_of_a_mixture_while_training(blend: RunDirectory) -> None:
    lines = read_jsonl(blend.metrics_jsonl)
    of_step = ["validation None", "validation small_span_corruption", "validation user_repeat"]
    metrics = ["infer_eval user_repeat"]
    measured = [f"{line['split']} {line.get('task')}" for line in lines]
    assert measured == [*of_step, *of_step, *metrics, "train None", *of_step, *metrics]
    inferred = [line for line in lines if line["split"] == "infer_eval"]
    assert {line["examples"] for line in inferred} == {8}  # two batches of four
    assert {str(line["decoding"]["task_feature_lengths"]) for line in inferred} == {"{'inputs': 64, 'targets': 24}"}
    assert [line["step"] for line in read_jsonl(blend.timing_jsonl) if "infer_eval_seconds" in line] == [1, 2]
    results = collect(blend)
    assert results["curves"]["validation"]["step"] == [0, 1, 2]
    assert results["tasks"]["validation"]["user_repeat"]["step"] == [0, 1, 2]
    assert results["tasks"]["infer_eval"]["user_repeat"]["metrics"]["predicted"] == [8, 8]
    assert "| user_repeat / bleu_signature | 2 | nrefs:1&#124;case:mixed" in PAGE.block(results)
    saved = json.loads((blend.checkpoints / "2" / "metrics" / "metrics").read_text())
    assert saved["validation/loss"] == results["final"]["validation"]["loss"]
    assert saved["user_repeat/predicted"] == 8
    assert saved["validation/user_repeat/loss"] == results["tasks"]["validation"]["user_repeat"]["loss"][-1]


@pytest.mark.process
def test_metrics_change_nothing_else_and_a_recording_has_each_task(workplace: Workplace, blend: RunDirectory) -> None:
    folder = workplace.folder / "recording"
    workplace.run("record", str(workplace.experiment), *BLEND[:-1], "--steps=2", f"--output={folder}")
    command = ["train", str(workplace.experiment), *BLEND[:-1], f"--recorded={folder}"]
    workplace.refused(*command, "--run=refused", words=["INFER_EVAL_PERIOD", "recording"])
    workplace.run(*command, "--gin.INFER_EVAL_PERIOD=None", "--gin.INFER_EVAL_STEPS=None", "--run=by_recording")
    recorded = RunDirectory(workplace.folder / "runs" / "by_recording")
    live = [line for line in blend.metrics_jsonl.read_text().splitlines() if '"infer_eval"' not in line]
    assert recorded.metrics_jsonl.read_text().splitlines() == live
    ours, theirs = (checkpoint_arrays(run.checkpoints, 2) for run in (recorded, blend))
    assert all(array.tobytes() == theirs[name].tobytes() for name, array in ours.items())


@pytest.mark.process
def test_other_settings_do_not_measure_the_run(workplace: Workplace, blend: RunDirectory) -> None:
    """The run is evaluated as it was made, and another model does not predict."""
    other = "--gin.positions.Buckets.max_distance=64"
    workplace.refused("eval", str(workplace.experiment), "--run=blend", other, words=["max_distance"])
    prompt = "--prompt=the <extra_id_0> sees"
    more = ["--run=blend", "--gin.positions.Buckets.max_distance=64"]
    printed = workplace.refused("infer", str(workplace.experiment), prompt, *more)
    assert ("max_distance" in printed, "mixture_or_task_name" in printed) == (True, False)
    # what decides nothing may differ: the dataset, dropout
    printed = workplace.run("infer", str(workplace.experiment), prompt, "--run=blend", "--gin.DROPOUT_RATE=0.0")
    assert "small after step 2" in printed


@pytest.mark.process
def test_allowed_answers_hold_for_prompts_and_metrics(workplace: Workplace, blend: RunDirectory) -> None:
    answers = ["line 1", "line 2", "line 3"]
    (workplace.folder / "answers.txt").write_text("\n".join(answers))
    command = [str(workplace.experiment), *BLEND, f"--allowed={workplace.folder / 'answers.txt'}"]
    printed = workplace.run("infer", *command, "--prompt=the <extra_id_0> sees", "--json")
    assert json.loads(printed)["prediction"] in answers
    printed = workplace.run("infer", *command[:-1], "--prompt=the <extra_id_0> sees", "--pattern=[0-9]{4}", "--json")
    assert re.fullmatch("[0-9]{4}", json.loads(printed)["prediction"])
    before = {one.folder for one in all_of(blend)}
    workplace.run("eval", *command)
    (found,) = (one for one in all_of(blend) if one.folder not in before)
    assert "allowed" in found.record["parts"]["decoding"]
    lines = found.predictions("user_repeat").read_text().splitlines()
    assert {json.loads(line)["prediction"] for line in lines} <= set(answers)


def test_decodings_are_compared_by_what_is_a_number_with_each() -> None:
    found = [{"odd": math.nan, "exact": 1.0, "gone": 2}, {"odd": 3.0, "exact": 0.0}]
    assert tuning.comparable(found) == ["exact"]


def test_decoding_is_tuned_by_the_experiments_selection() -> None:
    names = ["mine / score", "mine / exact", "mine / edits"]
    trials = [
        {
            "metrics": {"mine": {"score": 0.5, "exact": exact, "edits": exact}},
            "predicted": {"mine": {"decoding": {"": 1}}},
        }
        for exact in (1.0, 2.0)
    ]
    assert tuning.criterion(trials, names, BestMetric("mine/edits", "min")) == ("mine / edits", "min")
    # the score is the same whatever is decoded
    for selection in None, BestMetric(), BestMetric("mine/other", "min"):
        assert tuning.criterion(trials, names, selection) == ("mine / exact", "max")
    assert tuning.criterion(trials[:1], names, None) == ("mine / score", "max")
    assert tuning.criterion(trials[:1] * 2, names, BestMetric("mine/edits", "min")) == ("mine / edits", "min")


def test_tuned_decoding_is_typed_with_what_was_measured() -> None:
    best = DecodingConfig("beam", num_decodes=2, alpha=0.2, extra_length=50).settings()
    overrides = ["METRICS=('exact_match',)", "decoding.DecodingConfig.topk=3", "DecodingConfig.num_decodes=8"]
    assert tuning.gin_of(best, overrides, ["gin/decoding/sample.gin"]) == (
        "--gin_file=gin/decoding/sample.gin --gin_file=gin/decoding/beam.gin --gin.METRICS=('exact_match',) "
        "--gin.DecodingConfig.num_decodes=8 --gin.decoding.DecodingConfig.num_decodes=2 "
        "--gin.decoding.DecodingConfig.alpha=0.2 --gin.decoding.DecodingConfig.extra_length=50"
    )


@pytest.mark.process
def test_beam_search_is_tuned_on_validation(workplace: Workplace, blend: RunDirectory, by_beams: str) -> None:
    command = [str(workplace.experiment), *BLEND]
    workplace.refused("tune-decoding", *command, "--split=test_2016", "--alphas=0.2", words=["'test_2016'"])
    for alphas in ("0.2,x", "0.2,inf"):
        assert alphas in workplace.run("tune-decoding", *command, f"--alphas={alphas}", code=2)
    beams = [one for one in all_of(blend) if one.record["decoding"]["method"] == "beam"]
    tried = {(one.record["decoding"]["num_decodes"], one.record["decoding"]["alpha"]): one for one in beams}
    assert set(tried) == {(2, 0.0), (2, 1.5)}  # side by side
    exact = {pair: one.record["metrics"]["user_repeat"]["exact"] for pair, one in tried.items()}
    best = tried[max(exact, key=lambda pair: exact[pair])]
    measured = json.loads((best.folder / RECORD).read_text())
    assert json.loads(by_beams[by_beams.index("\n{\n") :]) == measured
    decoding = dict(measured["predicted"]["user_repeat"]["decoding"])
    assert decoding.pop("task_feature_lengths") == {"inputs": 64, "targets": 32}
    assert decoding == dict(best.record["decoding"]) | {"max_decode_length": 32}


@pytest.mark.process
def test_a_cache_that_others_made_is_left_as_it_is(
    workplace: Workplace, blend: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workplace.enter(monkeypatch)
    folder = workplace.folder / "cache" / "user_repeat"
    text = workplace.folder / "user" / "train.txt"
    identity, content = (folder / "t5xpg_identity.json").read_bytes(), text.read_bytes()
    (folder / "t5xpg_identity.json").unlink()  # as SeqIO's own script leaves it
    text.unlink()
    before = {path.name: path.stat().st_size for path in folder.iterdir()}
    try:
        source = Recipe.of(DatasetConfig("user_repeat", {}, module_import=("user_tasks",))).make()
    finally:
        text.write_bytes(content)
        after = {path.name: path.stat().st_size for path in folder.iterdir()}
        files = {name: sha256_of_file(folder / name) for name in before if not name.startswith(".")}
        (folder / "t5xpg_identity.json").write_bytes(identity)
    assert after == before
    assert source == DataIdentity({"task": "user_repeat"}, {"task": "user_repeat", "files": files})
    assert "is not compared with its text" in capsys.readouterr().out


def test_text_that_a_mixture_lacks_is_exported_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path))
    missing = making.caching.MissingTextError("The text is not there.", ["pydocs", "wikitext"])
    export = Mock(return_value=Mock(identity={}))
    monkeypatch.setattr(making.caching, "cache_task", Mock(side_effect=[missing, {"task": "blend"}, missing, missing]))
    monkeypatch.setattr(making.export, "export_dataset", export)
    assert making.cache("blend", log=lambda line: None) == {"task": "blend"}
    assert [call.args[0] for call in export.call_args_list] == ["pydocs", "wikitext"]
    with refused("The text is not there."):
        making.cache("never", log=lambda line: None)


def test_another_vocabulary_is_refused(own_place: Path) -> None:
    run = RunDirectory(own_place / "mine")
    check_same_vocabulary(Vocabulary(), Vocabulary(), run)
    with refused("sentinels transformers in the run", "TOKENIZER="):
        check_same_vocabulary(Vocabulary(), Vocabulary(sentinels="transformers"), run)


def test_steps_that_cannot_be() -> None:
    for step in ("last", "mean:0", "mean:x", "mean:", "mean:2 "):
        assert checkpoints_in_mean(step) == 0
        with refused(f"'{step}'", "mean:N"):
            chosen_step(Mock(), Mock(), step)


def test_an_evaluation_of_a_mean_is_none_of_its_last_checkpoint(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert not is_up_to_date(run, 8)
    write_evaluation(run, {"step": 8, "split": "test"})  # without samples
    assert not is_up_to_date(run, 8)
    write_evaluation(run, {"step": 8, "mean_of_checkpoints": 3})
    found = [is_up_to_date(run, step, count) is not None for step in (8, 4) for count in (None, 3)]
    assert found == [False, True, False, False]


class Batches(list[Batch]):
    """Batches in memory in place of a `Stream`."""

    spec = Mock(layout=layout_of(ENC_DEC))

    def rewind(self) -> None:
        pass


@pytest.mark.parametrize(
    ("count", "expected"),
    [(100, [1, 2, 3, 4, 5, 6, 7]), (7, [1, 2, 3, 4, 5, 6, 7]), (4, [1, 3, 5, 7]), (2, [1, 7])],
)
def test_sample_rows_are_spread_from_the_first_to_the_last_that_has_targets(count: int, expected: list[int]) -> None:
    tokens = ([[1], [2], [3]], [[4], [5], [6]], [[7], [0], [0]])
    batches: Any = Batches({"decoder_target_tokens": np.array(rows)} for rows in tokens)
    sample_rows = samples.spread_rows(batches, count)
    assert sample_rows["decoder_target_tokens"].ravel().tolist() == expected


def test_an_evaluation_holds_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunDirectory, "read", Mock())
    monkeypatch.setattr(evaluation, "_evaluate", lambda loaded, directory, *_: directory.is_locked())
    assert evaluation.evaluate(Mock(), tmp_path)
    assert not RunDirectory(tmp_path).is_locked()
