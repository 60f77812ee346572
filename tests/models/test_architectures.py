"""Every architecture as its users type it: train, evaluate, predict for a prompt."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t5xpg.run.records import read_jsonl
from tests.workplace import Workplace, checkpoint_arrays
from tests.written_evaluations import newest

pytestmark = pytest.mark.process

OPTIONS = ("--gin.TRAIN_STEPS=6", "--gin.EVAL_PERIOD=3")


def write_gin(workplace: Workplace, name: str, includes: list[str], run: str = "pretrain", **bound: Any) -> Path:
    """The common experiment with other macros and more files behind it."""
    lines = workplace.experiment.read_text().splitlines()
    kept = [line for line in lines if line.partition(" = ")[0] not in bound]
    kept = [line.replace("gin/runs/pretrain.gin", f"gin/runs/{run}.gin") for line in kept]
    last = max(index for index, line in enumerate(kept) if line.startswith("include "))
    more = [f"include 'gin/{each}.gin'" for each in includes] + [f"{key} = {value!r}" for key, value in bound.items()]
    file = workplace.folder / f"{name}.gin"
    file.write_text("\n".join([*kept[: last + 1], *more, *kept[last + 1 :]]) + "\n")
    return file


def losses(run: Path) -> list[float]:
    return [one["loss"] for one in read_jsonl(run / "metrics.jsonl") if one["split"] == "validation"]


def assert_learns_and_is_measured(workplace: Workplace, gin: Path, *options: str) -> None:
    """options: of `eval`."""
    workplace.run("train", str(gin), *OPTIONS)
    run = workplace.folder / "runs" / gin.stem
    assert losses(run)[-1] < losses(run)[0]
    workplace.run("eval", str(gin), *OPTIONS, *options)
    measured = newest(run)
    evaluation = measured.record
    assert 0 < evaluation["unigram"]["loss"] < math.log(640)
    assert set(evaluation["unigram"]) == {"loss", "accuracy", "nats_per_byte"}
    samples = json.loads(measured.samples_json.read_text())
    assert samples
    assert all(
        sample["input"] and set(sample) <= {"input", "target", "prediction", "filled", "earlier"} for sample in samples
    )


def answer(workplace: Workplace, gin: Path, prompt: str) -> str:
    lines = workplace.run("infer", str(gin), f"--prompt={prompt}", *OPTIONS).splitlines()
    assert f"input       {prompt}" in lines
    (prediction,) = [line for line in lines if line.startswith("prediction")]
    return prediction


def test_one_set_of_parameters_for_encoder_and_decoder(workplace: Workplace) -> None:
    bound = {"DTYPE": "bfloat16", "EMA_DECAY": 0.5}
    gin = write_gin(workplace, "shared", ["architectures/shared_encoder_decoder"], **bound)
    assert_learns_and_is_measured(workplace, gin, "--step=mean:2")
    evaluation = newest(workplace.folder / "runs" / "shared").record
    assert (evaluation["step"], evaluation["mean_of_checkpoints"]) == (6, 2)
    workplace.refused("eval", str(gin), *OPTIONS, "--step=mean:9", words=["STEP=mean:9", "[4, 6]"])


def test_an_encoder_alone_fills_masks(workplace: Workplace) -> None:
    lengths = {"inputs": 48, "targets": 48}
    includes = ["architectures/encoder_only", "objectives/mlm"]
    task = {"MIXTURE_OR_TASK_NAME": "small_mlm", "TASK_FEATURE_LENGTHS": lengths, "VOCAB_SIZE": 640}
    gin = write_gin(workplace, "mlm", includes, **task)
    assert_learns_and_is_measured(workplace, gin)
    prediction = answer(workplace, gin, "the [MASK]og sees")
    assert "[MASK]" not in prediction
    assert "og sees" in prediction


def test_a_language_model_becomes_a_prefix_lm(workplace: Workplace) -> None:
    """From one checkpoint: the same parameters, whose inputs see all of themselves now."""
    task: dict[str, Any] = {"MIXTURE_OR_TASK_NAME": "small_lm", "TASK_FEATURE_LENGTHS": {"targets": 48}}
    lm = write_gin(workplace, "lm", ["architectures/decoder_only", "objectives/lm"], **task)
    assert_learns_and_is_measured(workplace, lm)
    answer(workplace, lm, "the dog sees")
    task = {
        "MIXTURE_OR_TASK_NAME": "small_prefix_lm",
        "TASK_FEATURE_LENGTHS": {"inputs": 32, "targets": 32},
        "FEATURE_CONVERTER": "PrefixLMFeatureConverter",
        "INITIAL_CHECKPOINT": "lm",
    }
    tuned = write_gin(workplace, "prefix_lm", ["architectures/decoder_only"], "finetune", **task)
    assert "start: lm after step 6, lm" in workplace.run("train", str(tuned), *OPTIONS)
    runs = [workplace.folder / "runs" / name for name in ("lm", "prefix_lm")]
    before, after = map(losses, runs)
    assert after[-1] < after[0] < before[0], "it begins with what the language model has learned"
    arrays, tuned_arrays = (checkpoint_arrays(run / "checkpoints", 6) for run in runs)
    params = [name for name in arrays if name.startswith("params")]
    assert params == [name for name in tuned_arrays if name.startswith("params")]
    assert all(np.abs(arrays[name] - tuned_arrays[name]).max() < 0.1 for name in params if "scale" in name)
    workplace.refused("export", str(tuned), *OPTIONS, words=["no architecture"])
