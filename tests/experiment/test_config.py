"""Gin files, overrides, and what is said about mistakes in them."""

import dataclasses
import inspect
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from t5xpg.base import paths
from t5xpg.data.objectives import KINDS, IidDenoising, LanguageModel, MaskedLM, NextLine, Objective, Passkey, PrefixLM
from t5xpg.data.spec import DatasetConfig
from t5xpg.experiment import config, gin_t5x
from t5xpg.experiment.config import ConfigError
from t5xpg.experiment.identity import identity_settings
from t5xpg.models.decoding import DecodingConfig
from t5xpg.models.decoding.config import METHODS
from t5xpg.run.best import BestMetric
from t5xpg.run.checkpoint.initial_checkpoint import InitialCheckpoint
from tests.refusals import refused
from tests.workplace import REPOSITORY

BASE = """
from __gin__ import dynamic_registration
include 'gin/models/{model}.gin'
include 'gin/optimizers/{optimizer}.gin'
include 'gin/partitioning/{partitioning}.gin'
include 'gin/runs/pretrain.gin'
MIXTURE_OR_TASK_NAME = 'some_task'
TASK_FEATURE_LENGTHS = {{'inputs': 64, 'targets': 32}}
TRAIN_STEPS = 1000
RANDOM_SEED = 3
{more}
"""


def write_gin(folder: Path, **options: str) -> str:
    """BASE with other fragments, or more behind it."""
    usual = {"model": "byt5_tiny", "optimizer": "adafactor", "partitioning": "one_device", "more": ""}
    file = folder / "an_experiment.gin"
    file.write_text(BASE.format(**usual | options))
    return str(file)


# Numbers of parameters as published: T5 1.1 by the release notes of the checkpoints (77M, 250M, 800M, 3B, 11B) and ByT5
# by table 1 of arXiv 2105.13626, within 1%; T5Gemma by the tensors in Google's checkpoints on the hub.
SIZES_OF_T5 = ("small", "base", "large", "xl", "xxl")
PUBLISHED = {
    **{f"t5_1_1_{size}": 1e6 * n for size, n in zip(SIZES_OF_T5, (77, 248, 783, 2850, 11135), strict=True)},
    **{f"byt5_{size}": 1e6 * n for size, n in zip(SIZES_OF_T5, (300, 582, 1230, 3740, 12900), strict=True)},
    "t5gemma_s": 312_517_632, "t5gemma_b": 591_490_560, "t5gemma_ml": 2_200_345_344, "t5gemma_xl": 3_766_980_608,
    "t5gemma_9b": 20_333_401_088,
    "t5gemma2_270m": 2 * 268_098_176 - 262_144 * 640,  # two of Gemma 3 270M with one embedding
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, path.stem)
        for kind, folder in (("model", "models"), ("optimizer", "optimizers"), ("partitioning", "partitioning"))
        for path in sorted((paths.GIN / folder).glob("*.gin"))
        if path.stem not in ("t5_1_1", "t5gemma", "t5gemma2")  # what the sizes of a family have in common
    ],
)
def test_every_fragment_builds(tmp_path: Path, kind: str, name: str) -> None:
    experiment = config.load(write_gin(tmp_path, **{kind: name})).experiment
    assert float(experiment.optimizer.learning_rate(100)) > 0
    experiment.optimizer.transformation(experiment.model.logical_axes())
    if (expected := PUBLISHED.get(name)) is not None:
        is_exact = name.startswith("t5gemma")
        assert experiment.model.num_params == (expected if is_exact else pytest.approx(expected, rel=0.01))


def test_longt5_is_as_large_as_transformers(tmp_path: Path) -> None:
    """Counts of transformers 5.23, whose LongT5 always ties the output matrix that the published checkpoints have."""
    file, longt5 = write_gin(tmp_path, model="t5_1_1_base"), ["gin/architectures/longt5.gin"]
    for block, expected in ((None, 222_903_552), (16, 222_913_152)):
        model = config.load(file, [f"GLOBAL_BLOCK={block}"], longt5).experiment.model
        assert model.num_params == expected + 32_128 * 768


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    file = Path(write_gin(tmp_path))
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert config.load(str(file)).experiment.total_steps == 1000


def test_layers_and_meshes_make_no_other_run(tmp_path: Path) -> None:
    """A run goes on, and is evaluated, with scanned layers, another policy and another mesh; its teacher too."""
    file = write_gin(tmp_path, more="include 'gin/runs/distillation.gin'\nTEACHER_CHECKPOINT = 'a_run'")
    plain = config.load(file).experiment
    overrides = ["SCAN_LAYERS=True", "REMAT_POLICY='dots'", "MODEL_PARALLEL=4"]
    other = config.load(file, overrides, ["gin/partitioning/fsdp_tensor.gin"]).experiment
    assert other.teacher is not None
    assert (other.model.config.scan_layers, other.teacher.model.config.scan_layers) == (True, True)
    assert other.model.config.remat_policy == "dots"
    assert other.mesh.model == 4
    assert ("embed", "data") in other.mesh.rules
    assert identity_settings(other) == identity_settings(plain)
    # a fragment behind another one takes its place as a whole
    back = config.load(file, [], ["gin/partitioning/slices.gin", "gin/partitioning/one_device.gin"]).experiment
    assert back.mesh == plain.mesh


def test_fragments_of_decoding(tmp_path: Path) -> None:
    file = write_gin(tmp_path)
    assert config.load(file).experiment.decoding == DecodingConfig()
    beam = config.load(file, gin_files=["gin/decoding/beam.gin"]).experiment
    assert beam.decoding == DecodingConfig("beam", num_decodes=4, length_penalty="t5x", alpha=0.6)
    assert not [name for name in identity_settings(beam) if name.startswith("decoding")]
    overrides = ["decoding.DecodingConfig.seed=5", "decoding.DecodingConfig.topk=40"]
    sample = config.load(file, overrides, ["gin/decoding/sample.gin"]).experiment
    assert sample.decoding == DecodingConfig("sample", num_decodes=1, topk=40, topp=0.95, seed=5)


@pytest.mark.parametrize("method", [*METHODS, "consensus"])
def test_a_fragment_of_decoding_takes_the_place_of_another(tmp_path: Path, method: str) -> None:
    """Whatever the experiment sets of the other method."""
    assert {path.stem for path in (paths.GIN / "decoding").glob("*.gin")} == {*METHODS, "consensus"}
    all_options = {
        "greedy": {},
        "beam": {"num_decodes": 8, "alpha": 1.0, "length_penalty": "transformers", "early_stopping": True},
        "sample": {
            "num_decodes": 3, "temperature": 0.5, "topk": 9, "topp": 0.5, "rescale_log_probs": False, "seed": 1,
            "ranked_by": "consensus",
        },
            "rank": {"num_decodes": 5},
    }  # fmt: skip
    files = [f"gin/decoding/{method}.gin"]
    plain = config.load(write_gin(tmp_path), [], files).experiment.decoding
    for before in METHODS:
        options = all_options[before] | ({"return_all_decodes": False} if before != "greedy" else {})
        assert set(DecodingConfig(before).settings()) == {"method", "max_decode_length", *options}
        lines = [f"decoding.DecodingConfig.{name} = {value!r}" for name, value in options.items()]
        more = "\n".join(["from t5xpg.models import decoding", f"include 'gin/decoding/{before}.gin'", *lines])
        assert config.load(write_gin(tmp_path, more=more), [], files).experiment.decoding == plain, before


def test_fragments_of_loggers(tmp_path: Path) -> None:
    file = write_gin(tmp_path)
    plain = config.load(file).experiment
    assert plain.loggers == ()
    over, files = config.logger_overrides("wandb")
    for overrides, fragments, classes in (
        ([*over, "WANDB_GROUP=tiny"], [*files, "gin/loggers/mlflow.gin"], ["WeightsAndBiases"]),
        (*config.logger_overrides("mlflow"), ["MLflow"]),
        (*config.logger_overrides("wandb, mlflow"), ["WeightsAndBiases", "MLflow"]),
    ):
        experiment = config.load(file, overrides, fragments).experiment
        assert [type(each).__name__ for each in experiment.loggers] == classes
        assert getattr(experiment.loggers[0], "group", None) == ("tiny" if "WANDB_GROUP=tiny" in overrides else None)
        assert identity_settings(experiment) == identity_settings(plain)
    with refused("Did you mean wandb"):
        config.logger_overrides("wandbb")
    with refused("LOGGERS holds 'wandb'"):
        config.load(file, ["LOGGERS=('wandb',)"])


@pytest.mark.parametrize("optimizer", ["adafactor", "adamw", "adamw_scale", "muon", "muon_tiny"])
def test_fine_tuning_has_a_constant_rate_and_a_task_of_its_own(tmp_path: Path, optimizer: str) -> None:
    file = write_fine_tuning(tmp_path, optimizer=optimizer)
    experiment = config.load(file, ["INITIAL_CHECKPOINT=pretrained"]).experiment
    assert experiment.initial == InitialCheckpoint("pretrained")
    assert experiment.selection == BestMetric()
    assert experiment.train_dataset.objective is None
    assert [float(experiment.optimizer.learning_rate(step)) for step in (0, 10**6)] == pytest.approx([1e-3, 1e-3])
    pretraining = config.load(write_gin(tmp_path, optimizer=optimizer)).experiment
    assert (pretraining.initial, pretraining.selection) == (None, None)
    assert float(pretraining.optimizer.learning_rate(10**6)) < float(pretraining.optimizer.learning_rate(500))


def write_fine_tuning(folder: Path, **options: str) -> str:
    file = Path(write_gin(folder, **options))
    file.write_text(file.read_text().replace("runs/pretrain.gin", "runs/finetune.gin"))
    return str(file)


def test_macros_of_fine_tuning(tmp_path: Path) -> None:
    overrides = [
        "INITIAL_CHECKPOINT=runs/a/checkpoints/100", "RESET_OPTIMIZER=False", "SAME_VOCABULARY=False",
        "BEST_METRIC=squad/em", "BEST_MODE=max", "INFER_EVAL_PERIOD=5", "EARLY_STOP_PATIENCE=3",
    ]  # fmt: skip
    experiment = config.load(write_fine_tuning(tmp_path), overrides).experiment
    assert experiment.initial == InitialCheckpoint("runs/a/checkpoints/100", False, False)
    assert experiment.selection == BestMetric("squad/em", "max", True, 3)
    assert experiment.checkpoints.best == experiment.selection
    experiment = config.load(write_fine_tuning(tmp_path), [*overrides, "KEEP_BEST=False"]).experiment
    assert not experiment.checkpoints.best.keep
    # what a run was started from is known by its digest, and what it is selected by decides nothing but its end
    names = {name for name in identity_settings(experiment) if name.startswith(("initial", "selection"))}
    assert names == {"initial", "initial.reset_optimizer"}
    assert not [name for name in identity_settings(config.load(write_gin(tmp_path)).experiment) if "initial" in name]
    # an objective of this repository behind it, another optimizer over it: their own choices hold
    file = write_fine_tuning(tmp_path, more="include 'gin/objectives/prefix_lm.gin'")
    loaded = config.load(file, ["INITIAL_CHECKPOINT=a"], ["gin/optimizers/adamw.gin"])
    assert isinstance(loaded.experiment.train_dataset.objective, PrefixLM)
    assert float(loaded.experiment.optimizer.learning_rate(1000)) == 0.0, "its own cosine"


def test_overrides_need_no_quotes_and_the_last_one_wins(tmp_path: Path) -> None:
    overrides, files = config.split_overrides(
        "--gin.MIXTURE_OR_TASK_NAME=my task --gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 4} --gin.BATCH_SIZE=8"
        " --gin_file=gin/partitioning/tensor_parallel.gin --gin.BATCH_SIZE=4"
    )
    assert files == ["gin/partitioning/tensor_parallel.gin"]
    experiment = config.load(write_gin(tmp_path), overrides, files).experiment
    assert experiment.train_dataset.mixture_or_task_name == "my task"
    assert experiment.train_dataset.task_feature_lengths == {"inputs": 8, "targets": 4}
    assert experiment.train_dataset.batch_size == 4
    assert experiment.eval_dataset.batch_size == 4
    assert experiment.mesh.model == 2
    for text in ("2024_run", "2024-01-01", "0123", "3 little pigs"):
        found = config.load(write_gin(tmp_path), [f"MIXTURE_OR_TASK_NAME={text}"]).experiment
        assert found.train_dataset.mixture_or_task_name == text


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("iid_denoising", ["NOISE_DENSITY=0.2"], IidDenoising(0.2)),
        ("prefix_lm", ["PREDICTED_SHARE=0.25"], PrefixLM(0.25)),
        ("lm", [], LanguageModel()),
        ("mlm", ["NOISE_DENSITY=0.3", "MASK_SHARE=0.5"], MaskedLM(0.3, 0.5, 0.1)),
        ("next_line", ["LINES=2"], NextLine(2)),
        ("passkey", ["DIGITS=3"], Passkey(3)),
        ("ul2", [], None),
        ("none", [], None),
    ],
)
def test_objectives(tmp_path: Path, name: str, values: list[str], expected: Objective | None) -> None:
    assert {path.stem for path in (paths.GIN / "objectives").glob("*.gin")} == {*KINDS, "ul2", "none"} - {
        "span_corruption"
    }
    experiment = config.load(write_gin(tmp_path, more=f"include 'gin/objectives/{name}.gin'"), values).experiment
    for dataset in (experiment.train_dataset, experiment.eval_dataset):
        # gin makes an object of a subclass, which is equal to none of another class
        found = DatasetConfig.from_json(json.loads(json.dumps(dataset.to_json()))).objective
        assert found == expected
    told = config.settings(experiment)["train_dataset.objective"]
    assert told == (None if expected is None else type(expected).__name__)


def test_settings_are_flat_json_and_tell_experiments_apart(tmp_path: Path) -> None:
    loaded = config.load(write_gin(tmp_path))
    first = config.settings(loaded.experiment)
    second = config.settings(config.load(write_gin(tmp_path), ["Z_LOSS=0.1"]).experiment)
    assert json.loads(json.dumps(first)) == first
    assert {name for name in first if first[name] != second[name]} == {"loss.z_loss"}
    assert first["optimizer"] == "Adafactor"
    assert first["optimizer.learning_rate.warmup_steps"] == 10000


def test_settings_of_a_users_class_are_told_apart() -> None:
    @dataclasses.dataclass
    class Layer:
        width: int

    @dataclasses.dataclass
    class Own:
        layers: tuple[Layer, ...]
        by_name: dict[str, Layer]
        schedule: Callable[[int], float]
        rate: np.float32

    found = config.settings(Own((Layer(1), Layer(2)), {"a": Layer(3)}, math.sqrt, np.float32(0.5)))
    layers = [{"class": "Layer", "width": width} for width in (1, 2, 3)]
    assert found == {"layers": layers[:2], "by_name": {"a": layers[2]}, "schedule": "sqrt", "rate": 0.5}


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    more = "from t5xpg.models import losses\nSTPES = 3\nBATCH_SIZE = 'x'\n"
    more += "losses.LossConfig:\n  label_smothing = 0.1\n  z_loss = 'a'"
    with pytest.raises(ConfigError) as caught:
        config.load(write_gin(tmp_path, more=more), ["RANDOM_SEED=%gin.REQUIRED", "TRAIN_STPES=3", "NOISE_DENSITY=1.5"])
    problems = caught.value.problems
    for *named, line in (
        ("'label_smothing'", "Did you mean label_smoothing", "line 15"),
        ("TRAIN_STPES", "Did you mean TRAIN_STEPS"),
        ("RANDOM_SEED", "no value"),
        ("STPES is set", "line 12"),
        ("BATCH_SIZE", "'x'", "line 13"),
        ("LossConfig.z_loss", "'a'", "line 16"),
        ("noise_density is", "1.5"),
    ):
        assert sum(all(word in problem for word in (*named, line)) for problem in problems) == 1, (named, problems)
    assert len(problems) == 7


def test_names_for_type_checkers_alone_are_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "logger_of_mine.py").write_text(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nfrom t5xpg.run.loggers import Logger\n"
        "if TYPE_CHECKING:\n    from pathlib import Path\n"
        "class Mine(Logger):\n    def __init__(self, folder: Path) -> None:\n        self.folder = folder\n"
    )
    more = "import logger_of_mine\nLOGGERS = (@logger_of_mine.Mine(),)\nlogger_of_mine.Mine.folder = 'here'"
    (logger,) = config.load(write_gin(tmp_path, more=more)).experiment.loggers
    assert vars(logger) == {"folder": "here"}


def test_what_another_part_replaced_may_stay(tmp_path: Path) -> None:
    """A whole optimizer laid over, a binding of a fragment that used a macro, datasets with values of their own."""
    more = "from t5xpg.models import losses\nlosses.LossConfig.z_loss = 0.5"
    own = ["train/spec.DatasetConfig.batch_size=4", "train_eval/spec.DatasetConfig.batch_size=8"]
    experiment = config.load(write_gin(tmp_path, more=more), own, ["gin/optimizers/muon.gin"]).experiment
    assert experiment.loss.z_loss == 0.5
    assert (experiment.train_dataset.batch_size, experiment.eval_dataset.batch_size) == (4, 8)


def test_the_embedding_is_rounded_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*overrides: str, files: tuple[str, ...] = ()) -> int:
        loaded = config.load(write_gin(tmp_path, model="t5_1_1_tiny"), overrides, files)
        return loaded.experiment.model.config.vocab_size

    assert rows() == 32128
    assert rows("VOCAB_SIZE=1000") == 1024
    assert rows("VOCAB_SIZE=1000", "VOCAB_SIZE_MULTIPLE=1") == 1000
    with refused("VOCAB_SIZE_MULTIPLE is 0"):
        rows("VOCAB_SIZE_MULTIPLE=0")
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path))
    follows = ("gin/vocabularies/of_task.gin",)
    assert rows("MIXTURE_OR_TASK_NAME=pydocs_span_corruption", files=follows) == 384
    with refused("some_task", "VOCAB_SIZE"):
        rows(files=follows)


# What is laid over an experiment (gin files end in .gin) and what its one message names.
MISTAKES = {
    "losses.LossConfigg.z_loss=1": "Did you mean LossConfig",
    "loses.LossConfig.z_loss=1": "Did you mean losses",
    "OPTIMIZER=@optimizers.Adafacto()": "Did you mean Adafactor",
    "OPTIMIZER=@optimizers.Adafactor": "@optimizers.Adafactor()",
    "BATCH_SIZE=%BATCHSIZE": "Did you mean BATCH_SIZE",
    "DTYPE=bf16": "Did you mean bfloat16",
    "TRAIN_STEPS=0": "total_steps",
    "TRAIN_STEPS=100000000000000000000": "2,147,483,647",
    "TRAIN_STEPS=True": "whole number, not True",
    "TRAIN_STEPS=%TRAIN_STEPS": "TRAIN_STEPS is a part of itself",
    "TRAIN_STEPS=1\0": r"'1\x00'",
    "TASK_FEATURE_LENGTHS={['a']: 1}": "must be a dict",
    "BATCH_SIZE=" + "(" * 3000: "must be a whole number",
    "MODEL=3": "Experiment.model",
    "TASK_FEATURE_LENGTHS=64": "must be a dict, not 64",
    "USE_CACHED_TASKS=yes": "True or False, not 'yes'",
    "=3": "--gin.NAME=value",
    "spec.DatasetConfig.split=other": "spec.DatasetConfig.split is bound",
    "gin/optimizers/adamww.gin": "adamw.gin",
    "MODEL_PARALLEL=2": "--gin_file= can add one that does: gin/partitioning/",
    # names of T5X
    "train.eval_period=100": "--gin.EVAL_PERIOD=…",
    "utils.SaveCheckpointConfig.period=5": "--gin.CHECKPOINT_PERIOD=…",
    "utils.RestoreCheckpointConfig.path=@x.y()": "--gin.INITIAL_CHECKPOINT=…",
    "INITIAL_CHECKPOINT_PATH=x": "--gin.INITIAL_CHECKPOINT=…",
    "MIXTURE_OR_TASK_MODULE=x": "--gin.MODULE_IMPORT=…",
    "optimizers.Adafactor.beta1=0.9": "--gin.optimizers.Adafactor.momentum=…",
    "partitioning.PjitPartitioner.num_partitions=2": "--gin.MODEL_PARALLEL=…",
    "train_eval/utils.DatasetConfig.batch_size=8": "--gin.train_eval/spec.DatasetConfig.batch_size=…",
    "USE_HARDWARE_RNG=True": "is not set here: random numbers",
    "train/spec.DatasetConfig.split=@x.y()": "imports x",
    "t5x/examples/t5/t5_1_1/base.gin": "make convert-gin FILE=",
}
OF_FINE_TUNING = {
    "INITIAL_CHECKPOINT=%gin.REQUIRED": "INITIAL_CHECKPOINT has no value",
    "BEST_METRIC=validation/accurcy": "Did you mean validation/accuracy",
    "RESET_OPTIMIZER=maybe": "RESET_OPTIMIZER",
    "NOISE_DENSITY=0.2": "NOISE_DENSITY is set",
    "optimizers.Adafactor.step_offset=9": "step_offset is 9",
}
# Behind the experiment's own lines. What a file that cannot be read would have said is not missed beside.
OF_FILES = {
    "BATCH_SIZE = (((": "an_experiment.gin, line",
    "include 'gin/models/byt5_tinny.gin'": "byt5_tiny.gin",
    "include '{file}'": "itself",
    "from t5xpg import optimisers\noptimisers.X.a = 1\noptimisers.Y.b = @optimisers.Z()": "optimisers",
    "OPTIMIZER = @nothing.Here()": "imports nothing",
    "from t5x import utils\nutils.SaveCheckpointConfig.period = 5": "make convert-gin FILE=",
    "INITIAL_CHECKPOINT_PATH = 'x'": "INITIAL_CHECKPOINT_PATH of T5X is INITIAL_CHECKPOINT here",
    "trainer.Trainer.num_microbatches = 2": "--gin.NUM_MICROBATCHES=…",
}


def test_what_t5x_calls_otherwise_is_here_by_the_name_that_is_said() -> None:
    """Every name in T5X's examples of encoder-decoders has a meaning here, and what it is here exists."""
    examples = json.loads((REPOSITORY / "tests" / "goldens" / "t5x_gin_values.json").read_text())["examples"]
    known = [one["says"] for one in examples.values() if "EncoderDecoderModel.module" in one["effective"]]
    bound = {one[0] for says in known for one in says if isinstance(one, list)}
    macros = {name for file in paths.GIN.rglob("*.gin") for name in re.findall(r"^([A-Z_]+) =", file.read_text(), re.M)}
    parts = [(*name.rpartition("/")[::2], name) for name in bound - macros]
    said = {name: gin_t5x.translation(scope, *rest.rpartition(".")[::2]) for scope, rest, name in parts}
    assert [name for name in said if not said[name]] == []
    for ours in gin_t5x.OURS.values():
        module, *rest = ours.rpartition("/")[2].split(".")
        if rest:
            exec(gin_t5x.IMPORTS[module], names := {})
            assert rest[1] in inspect.signature(getattr(names[module], rest[0])).parameters, ours
        else:
            assert module in macros


def check_mistake(file: str, overrides: list[str], named: str) -> None:
    files = [each for each in overrides if each.endswith(".gin")]
    with pytest.raises(ConfigError) as caught:
        config.load(file, [each for each in overrides if each not in files], files)
    (problem,) = caught.value.problems
    assert named in problem
    assert len(problem) < 400


def test_mistakes_are_explained(tmp_path: Path) -> None:
    file = write_gin(tmp_path)
    for override, named in MISTAKES.items():
        check_mistake(file, [override], named)
    check_mistake(file, ["optimizers.Adafactor.decay_rate=0.5", "gin/optimizers/adamw.gin"], "decay_rate is bound")
    for more, named in OF_FILES.items():
        check_mistake(write_gin(tmp_path, more=more.format(file=file)), [], named)
    file = write_fine_tuning(tmp_path)
    for override, named in OF_FINE_TUNING.items():
        check_mistake(file, ["INITIAL_CHECKPOINT=a", override], named)
    selected = ["INITIAL_CHECKPOINT=a", "BEST_METRIC=squad/em", "BEST_MODE=max"]
    check_mistake(file, selected, "INFER_EVAL_PERIOD")


@pytest.mark.parametrize("name", ["code_prefix_lm", "norwegian_t5"])
def test_the_values_that_were_used_are_an_experiment_again(tmp_path: Path, name: str) -> None:
    loaded = config.load(name)
    file = tmp_path / "operative.gin"
    file.write_text(loaded.operative, encoding="utf-8")
    assert config.load(str(file)).experiment == loaded.experiment
