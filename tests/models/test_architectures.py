"""Every architecture as its users type it: train, evaluate, predict for a prompt and for a split."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.workplace import Workplace

pytestmark = pytest.mark.process

# A name, what is included behind the common experiment, and what is bound.
ARCHITECTURES = {
    "shared": ("include 'gin/architectures/shared_encoder_decoder.gin'", "small_span_corruption", {}, {}),
    "lm": (
        "include 'gin/architectures/decoder_only.gin'\ninclude 'gin/objectives/lm.gin'", "small_lm",
        {"TASK_FEATURE_LENGTHS": {"targets": 48}}, {},
    ),
    "prefix_lm": (
        "include 'gin/architectures/decoder_only.gin'\ninclude 'gin/objectives/prefix_lm.gin'", "small_prefix_lm",
        {"TASK_FEATURE_LENGTHS": {"inputs": 32, "targets": 32}, "FEATURE_CONVERTER": "PrefixLMFeatureConverter"}, {},
    ),
    "mlm": (
        "include 'gin/architectures/encoder_only.gin'\ninclude 'gin/objectives/mlm.gin'", "small_mlm",
        {"TASK_FEATURE_LENGTHS": {"inputs": 48, "targets": 48}, "VOCAB_SIZE": 640}, {"prompt": "the [MASK]og sees"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=ARCHITECTURES)
def trained(request: pytest.FixtureRequest, workplace: Workplace) -> tuple[str, Path, Path]:
    """Its name, its gin file, its run."""
    includes, task, bound, _ = ARCHITECTURES[request.param]
    lines = workplace.experiment.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("MIXTURE_OR_TASK_NAME", "TASK_FEATURE_LENGTHS"))]
    last = max(index for index, line in enumerate(kept) if line.startswith("include "))
    values = {"MIXTURE_OR_TASK_NAME": task, "TASK_FEATURE_LENGTHS": {"inputs": 64, "targets": 32}, **bound}
    bindings = [f"{name} = {value!r}" for name, value in values.items()]
    file = workplace.folder / f"{request.param}.gin"
    file.write_text("\n".join([*kept[: last + 1], includes, *bindings, *kept[last + 1 :]]) + "\n")
    printed = workplace.run("train", str(file), "--gin.TRAIN_STEPS=6", "--gin.EVAL_PERIOD=3")
    assert "step 0: validation loss" in printed, printed
    return request.param, file, workplace.folder / "runs" / request.param


def test_it_learns_and_is_measured(workplace: Workplace, trained: tuple[str, Path, Path]) -> None:
    _, file, run = trained
    overrides = ("--gin.TRAIN_STEPS=6", "--gin.EVAL_PERIOD=3")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["split"] == "validation"]
    assert losses[-1] < losses[0]
    printed = workplace.run("eval", str(file), *overrides)
    assert "nats per target token" in printed
    assert "  the frequencies of tokens alone: loss " in printed
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert 0 < evaluation["unigram"]["loss"] < math.log(640)
    assert set(evaluation["unigram"]) == {"loss", "accuracy", "nats_per_byte"}
    samples = json.loads((run / "samples.json").read_text())
    assert samples
    assert all(sample["input"] and set(sample) <= {"input", "target", "prediction", "filled"} for sample in samples)


def test_it_is_exported(workplace: Workplace, trained: tuple[str, Path, Path]) -> None:
    """Or says why not; compared with transformers where that is installed."""
    name, file, run = trained
    overrides = ("--gin.TRAIN_STEPS=6", "--gin.EVAL_PERIOD=3")
    if name == "prefix_lm":
        said = workplace.run("export", str(file), *overrides, code=1)
        assert "transformers has no architecture that is equal to this one" in said
        assert not (run / "huggingface").exists()
        return
    kind = "T5ForTokenClassification" if name == "mlm" else "T5ForConditionalGeneration"
    assert f"{name} after step 6 as {kind}: " in workplace.run("export", str(file), *overrides)
    card = (run / "huggingface" / "README.md").read_text()
    assert "## Results" in card
    assert "model-index" in card
    results = json.loads((run / "huggingface" / "results.json").read_text())
    assert results["steps"] == 6
    assert (run / "huggingface" / "curve.svg").exists()


def test_it_answers(workplace: Workplace, trained: tuple[str, Path, Path]) -> None:
    name, file, _ = trained
    overrides = ("--gin.TRAIN_STEPS=6", "--gin.EVAL_PERIOD=3")
    prompt = ARCHITECTURES[name][3].get("prompt", "the <extra_id_0> sees" if name == "shared" else "the dog sees")
    lines = workplace.run("infer", str(file), f"--prompt={prompt}", *overrides).splitlines()
    assert f"input       {prompt}" in lines
    (prediction,) = [line for line in lines if line.startswith("prediction")]
    if name == "mlm":
        assert "[MASK]" not in prediction
        assert "og sees" in prediction


def test_it_predicts_for_a_split(workplace: Workplace, trained: tuple[str, Path, Path]) -> None:
    name, file, _ = trained
    out = workplace.folder / f"{name}.jsonl"
    workplace.run(
        "infer", str(file), "--split=validation", f"--output={out}", "--gin.TRAIN_STEPS=6", "--gin.EVAL_PERIOD=3"
    )
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(records) > 8
    assert all({"inputs", "targets", "prediction"} <= record.keys() for record in records)
    # a prefix may be empty, and so may what follows it
    assert sum(bool(record["inputs"] and record["targets"]) for record in records) > len(records) / 2
