"""Experiments as macros of gin/engines/t5x.gin, and what is said of those that T5X cannot train."""

import re
from pathlib import Path

import pytest

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.exchange.t5x.engine_gin import experiment_gin, macros_of
from t5xpg.experiment import config
from t5xpg.experiment.experiment import Experiment
from tests.refusals import refused

FRAGMENT = (paths.GIN / "engines" / "t5x.gin").read_text(encoding="utf-8")
ADAFACTOR = ["gin/optimizers/adafactor.gin"]


def experiment(*overrides: str, adafactor: bool = True) -> Experiment:
    return config.load("byt5_tiny", ["EMA_DECAY=None", *overrides], ADAFACTOR if adafactor else []).experiment


def test_every_macro_of_the_fragment_is_said_and_no_other() -> None:
    text = experiment_gin(experiment(), "demo", Path("/runs/demo_t5x"), None)
    said = set(re.findall(r"^([A-Z_\d]+) = ", text, re.MULTILINE))
    own = set(re.findall(r"^([A-Z_\d]+) = ", FRAGMENT, re.MULTILINE))
    used = set(re.findall(r"%([A-Z_\d]+)", FRAGMENT + text))
    assert used == said | own
    assert not said & own


def test_the_experiment_is_said_in_its_own_words() -> None:
    given = experiment("TRAIN_STEPS=33", "PACK=True", "NUM_MICROBATCHES=2", "WARMUP_STEPS=50", "DROPOUT_RATE=0.1")
    macros = macros_of(given)
    expected = {
        "MIXTURE_OR_TASK_NAME": "pydocs_span_corruption", "TASK_FEATURE_LENGTHS": {"inputs": 64, "targets": 22},
        "TRAIN_STEPS": 33, "PACK": True, "NUM_MICROBATCHES": 2, "BATCH_SIZE": 64, "RANDOM_SEED": 0, "DROPOUT_RATE": 0.1,
        "EVAL_STEPS": 20, "EVAL_PERIOD": 200, "FACTORS": "constant * rsqrt_decay", "LEARNING_RATE": 1.0,
        "WARMUP_STEPS": 50, "DECAY_RATE": 0.8, "MOMENTUM": None, "MODEL_PARALLEL": 1,
        "LOSS_NORMALIZING_FACTOR": "NUM_REAL_TARGET_TOKENS",
    }  # fmt: skip
    assert {name: macros[name] for name in expected} == expected
    text = experiment_gin(given, "demo", Path("/runs/x"), Path("/a/checkpoint_5"))
    for line in ("from t5x.examples.t5 import network", "  emb_dim = 128", "  num_decoder_layers = 2",
                 "MODEL_DIR = '/runs/x'", "INITIAL_CHECKPOINT_PATH = '/a/checkpoint_5'"):  # fmt: skip
        assert line in text.splitlines()


CONSTANT = ["SCHEDULE=@schedules.Constant()", "schedules.Constant.value=0.002"]


def test_schedules() -> None:
    for schedule, expected in (
        (CONSTANT, ("constant", 0.002, 1)),
        ([*CONSTANT, "schedules.Constant.warmup_steps=7"], ("constant * linear_warmup", 0.002, 7)),
        (
            ["schedules.InverseSquareRoot.linear_warmup=True", "WARMUP_STEPS=9"],
            ("constant * linear_warmup * rsqrt_decay", 1.0, 9),
        ),
    ):
        macros = macros_of(experiment(*schedule))
        assert (macros["FACTORS"], macros["LEARNING_RATE"], macros["WARMUP_STEPS"]) == expected


def test_everything_that_t5x_has_not_is_named_at_once() -> None:
    given = experiment(
        "SKIP_NONFINITE=2", "EMA_DECAY=0.9", "NUM_VIRTUAL_SHARDS=4", "CHECKPOINT_PERIOD=250",
        "train_eval/spec.DatasetConfig.pack=True", adafactor=False,
    )  # fmt: skip
    with pytest.raises(UserError) as error:
        experiment_gin(given, "demo", Path("x"), None)
    said = str(error.value).splitlines()
    assert [line.split(":")[0].split("=")[0].strip() for line in said[1:]] == [
        "Muon", "SKIP_NONFINITE", "EMA_DECAY", "train_eval/spec.DatasetConfig.pack", "NUM_VIRTUAL_SHARDS",
        "CHECKPOINT_PERIOD",
    ]  # fmt: skip
    assert "--gin_file=gin/optimizers/adafactor.gin" in said[1]
    for files, overrides, message in (
        (ADAFACTOR, ["LENGTH_BUCKETS=(256, 512)", "TASK_FEATURE_LENGTHS={'inputs': 512, 'targets': 114}"],
         "LENGTH_BUCKETS"),
        (["gin/loggers/wandb.gin", *ADAFACTOR], [], "LOGGERS"),
        (["gin/architectures/decoder_only.gin", "gin/objectives/lm.gin", *ADAFACTOR],
         ["TASK_FEATURE_LENGTHS={'targets': 64}", "MIXTURE_OR_TASK_NAME=pydocs_lm"], "DecoderOnlyModel"),
        (ADAFACTOR, ["SCHEDULE=@schedules.Cosine()", "schedules.Cosine.peak=1.0", "schedules.Cosine.total_steps=9",
          "schedules.Cosine.warmup_steps=0"], "Cosine"),
        ([*ADAFACTOR, "gin/runs/select_best.gin"], [], "select_best.gin"),
        (ADAFACTOR, ["train_eval/spec.DatasetConfig.batch_size=8"], "batch_size"),
        (ADAFACTOR, ["train_eval/spec.DatasetConfig.objective=None"], "objective"),
        (["gin/partitioning/fsdp.gin", *ADAFACTOR], [], "data_parallel.gin"),
    ):  # fmt: skip
        given = config.load("byt5_tiny", overrides, files).experiment
        with refused(message):
            experiment_gin(given, "demo", Path("x"), None)
