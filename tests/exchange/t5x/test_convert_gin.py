"""T5X's gin files as experiments: each binding carried over with its value, of no use here, or named."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t5xpg import cli
from t5xpg.exchange.t5x.convert_gin import Converted, convert
from t5xpg.experiment import config
from t5xpg.experiment import gin_t5x as tables
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.gin_statements import GinReference
from t5xpg.models.config import T5Config
from t5xpg.models.positions import Buckets
from t5xpg.optim.optimizers import Adafactor
from t5xpg.optim.schedules import Constant, InverseSquareRoot
from tests.refusals import program_refused, refused

PRETRAINING = """
from __gin__ import dynamic_registration
import __main__ as train_script
from t5x import models
from t5x import partitioning
from t5x import utils
include "t5x/examples/t5/t5_1_1/small.gin"
include "t5x/configs/runs/pretrain.gin"
MIXTURE_OR_TASK_NAME = "pydocs_span_corruption"
TASK_FEATURE_LENGTHS = {"inputs": 256, "targets": 64}
TRAIN_STEPS = 4000
DROPOUT_RATE = 0.0
"""
# What the examples of T5X do not say.
OTHERWISE = """
ROWS = 64
train/utils.DatasetConfig:
  batch_size = %ROWS
  use_cached = False
  seed = 3
train_eval/utils.DatasetConfig:
  batch_size = 16
  split = 'test'
train_script.train:
  eval_period = 700
  random_seed = 5
  use_hardware_rng = True
  infer_eval_dataset_cfg = @infer_eval/utils.DatasetConfig()
utils.SaveCheckpointConfig.checkpoint_steps = [3]
models.EncoderDecoderModel.predict_batch_with_aux.num_decodes = 3
network.T5Config.remat_policy = 'minimal'
network.T5Config.experts = 8
adafactor.Adafactor.beta1 = 0.9
partitioning.ModelBasedPjitPartitioner.num_partitions = 2
partitioning.standard_logical_axis_rules.parameter_partitioning_dims = 2
NOBODY_READS_THIS = 1
OPTIMIZER = @optimizers.chain()
"""
FINE_TUNING = """
from __gin__ import dynamic_registration
import my_tasks
include 't5x/examples/t5/byt5/small.gin'
include 't5x/configs/runs/finetune.gin'
MIXTURE_OR_TASK_NAME = 'my_task'
TASK_FEATURE_LENGTHS = {'inputs': 512, 'targets': 62}
TRAIN_STEPS = 1_020_000
INITIAL_CHECKPOINT_PATH = "somewhere/byt5_small/checkpoint_1000000"
"""


VALUES = json.loads((Path(__file__).parents[2] / "goldens" / "t5x_gin_values.json").read_text(encoding="utf-8"))


def convert_text(tmp_path: Path, text: str) -> Converted:
    (tmp_path / "theirs.gin").write_text(text)
    return convert(tmp_path / "theirs.gin")


def converted(tmp_path: Path, text: str) -> tuple[Converted, Experiment]:
    found = convert_text(tmp_path, text)
    (tmp_path / "ours.gin").write_text(found.text)
    return found, config.load(str(tmp_path / "ours.gin")).experiment


def test_every_binding_is_carried_over_or_named(tmp_path: Path) -> None:
    found, experiment = converted(tmp_path, PRETRAINING)
    assert (found.unneeded, found.unsupported) == ([], [])
    assert (experiment.train_dataset.objective, experiment.eval_dataset.objective) == (None, None)  # of the tasks
    found, experiment = converted(tmp_path, PRETRAINING + OTHERWISE)
    train, held_out = experiment.train_dataset, experiment.eval_dataset
    assert (train.batch_size, train.seed, train.use_cached) == (64, 5, False)
    assert (held_out.batch_size, held_out.split, held_out.use_cached) == (16, "test", True)
    assert (experiment.infer_eval_period, experiment.mesh.model) == (700, 2)
    assert (experiment.decoding.method, experiment.decoding.num_decodes) == ("beam", 3)
    assert experiment.model.config.remat_policy == "dots"
    assert isinstance(experiment.optimizer, Adafactor)
    assert experiment.optimizer.momentum == 0.9
    assert [line.partition(":")[0] for line in found.unneeded] == [
        "train/utils.DatasetConfig.seed = 3", "train_script.train.use_hardware_rng = True", "NOBODY_READS_THIS = 1",
    ]  # fmt: skip
    assert [line.partition(" (")[0] for line in found.unsupported] == [
        "OPTIMIZER = @optimizers.chain()", "utils.SaveCheckpointConfig.checkpoint_steps = [3]",
        "network.T5Config.experts = 8",
    ]  # fmt: skip
    assert all(f"# Not carried over: {line}" in found.text for line in found.unsupported)
    assert "distributed.standard_logical_axis_rules.parameter_partitioning_dims = 2\n" in found.text


def test_fine_tuning_counts_its_own_updates(tmp_path: Path) -> None:
    found, experiment = converted(tmp_path, FINE_TUNING)
    assert found.unsupported == []
    assert experiment.initial is not None
    assert (experiment.initial.checkpoint, experiment.total_steps) == ("byt5_small", 20_000)
    assert "# make import CHECKPOINT=somewhere/byt5_small/checkpoint_1000000 NAME=byt5_small\n" in found.text
    assert experiment.train_dataset.module_import == ("my_tasks",)
    assert (experiment.model.config.dropout_rate, experiment.model.config.vocab_size) == (0.1, 384)
    assert (experiment.checkpoints.period, experiment.infer_eval_period) == (5000, 1000)
    assert experiment.optimizer.learning_rate == Constant(0.001)
    unknown = FINE_TUNING.replace("/checkpoint_1000000", "")
    assert convert_text(tmp_path, unknown).unsupported[0].startswith("TRAIN_STEPS = 1020000 (")


def test_metrics_keep_a_dataset_of_their_own(tmp_path: Path) -> None:
    own = """
infer_eval/utils.DatasetConfig:
  mixture_or_task_name = 'my_task'
  split = 'test'
  task_feature_lengths = {'inputs': 1024, 'targets': 128}
"""
    found, experiment = converted(tmp_path, FINE_TUNING + "from t5x import utils" + own)
    dataset = experiment.infer_eval_dataset
    assert dataset is not None
    assert (dataset.split, experiment.eval_dataset.split) == ("test", "validation")
    assert dataset.task_feature_lengths == {"inputs": 1024, "targets": 128}
    assert experiment.of_metrics.eval_dataset == dataset
    assert experiment.datasets[2] == dataset
    assert found.unsupported == []
    (line,) = found.unneeded
    assert line.startswith("infer_eval/utils.DatasetConfig.mixture_or_task_name = 'my_task'")
    _, plain = converted(tmp_path, FINE_TUNING)
    assert (plain.infer_eval_dataset, len(plain.datasets)) == (None, 2)


def test_a_parameter_counts_and_not_a_macro_that_it_no_longer_names(tmp_path: Path) -> None:
    said = """
EVAL_PERIOD = 5
BATCH_SIZE = 8
train_script.train:
  eval_period = 100
  eval_steps = 7
train/utils.DatasetConfig.batch_size = 16
"""
    imports = "import __main__ as train_script\nfrom t5x import utils"
    found, experiment = converted(tmp_path, FINE_TUNING + imports + said)
    assert (experiment.eval_period, experiment.eval_dataset.max_batches) == (100, 7)
    assert (experiment.train_dataset.batch_size, experiment.eval_dataset.batch_size) == (16, 8)
    assert (found.unneeded, found.unsupported) == (["EVAL_PERIOD = 5: nothing reads this macro"], [])
    unread = f"{FINE_TUNING}EVALUATOR_NUM_EXAMPLES = 3\n"
    assert "INFER_EVAL_STEPS" in convert_text(tmp_path, unread).unsupported[0]
    # what is said before a file that says it, too, counts no more
    found, experiment = converted(tmp_path, FINE_TUNING.replace("include", "BATCH_SIZE = 8\ninclude", 1))
    assert (experiment.train_dataset.batch_size, experiment.eval_dataset.batch_size) == (128, 128)
    # both datasets of a pretraining have the batch size of the macro
    _, experiment = converted(tmp_path, PRETRAINING + "BATCH_SIZE = 256\n")
    assert (experiment.train_dataset.batch_size, experiment.eval_dataset.batch_size) == (256, 256)


def test_a_start_from_a_checkpoint(tmp_path: Path) -> None:
    imports = "from t5x import adafactor\nfrom t5x import utils\n"
    offset = f"{FINE_TUNING}{imports}adafactor.Adafactor.step_offset = 1_000_000\n"
    assert converted(tmp_path, offset)[1].optimizer == Adafactor(Constant(0.001))
    # fine-tuning without a checkpoint starts from scratch, with what finetune.gin says
    for start in ("INITIAL_CHECKPOINT_PATH = None\n", f"{imports}utils.CheckpointConfig.restore = None\n"):
        found, experiment = converted(tmp_path, FINE_TUNING + start)
        assert (experiment.initial, experiment.total_steps, found.unsupported) == (None, 1_020_000, [])
        assert experiment.optimizer.learning_rate == Constant(0.001)
    relative = FINE_TUNING.replace("TRAIN_STEPS =", "TRAIN_STEPS_RELATIVE =")
    assert converted(tmp_path, relative)[1].total_steps == 1_020_000
    listed = convert_text(tmp_path, f"{FINE_TUNING}INITIAL_CHECKPOINT_PATH = ['x/byt5/checkpoint_1000000']\n")
    assert "INITIAL_CHECKPOINT = 'byt5'" in listed.text
    assert "TRAIN_STEPS = 20000" in listed.text
    for more, named in (
        ("INITIAL_CHECKPOINT_PATH = ('x/checkpoint_1', 'y/checkpoint_1')\n", "one checkpoint"),
        ("TRAIN_STEPS = 1_000_000\n", "1,000,000"),  # of which the pretraining had all
        (f"{imports}utils.CheckpointConfig.save = None\n", "save"),
    ):
        assert named in convert_text(tmp_path, FINE_TUNING + more).unsupported[0]


@pytest.mark.parametrize(
    ("factors", "schedule"),
    [
        ("constant", Constant(0.5)),
        ("constant * linear_warmup", Constant(0.5, 30)),
        ("constant*rsqrt_decay", InverseSquareRoot(0.5, 30)),
        ("constant * linear_warmup * rsqrt_decay", InverseSquareRoot(0.5, 30, linear_warmup=True)),
    ],
)
def test_schedules(tmp_path: Path, factors: str, schedule: object) -> None:
    for text in (PRETRAINING, FINE_TUNING):
        given = f"{text}from t5x import utils\nutils.create_learning_rate_scheduler:\n  factors = '{factors}'\n"
        found, experiment = converted(tmp_path, f"{given}  base_learning_rate = 0.5\n  warmup_steps = 30\n")
        expected = schedule
        if text == FINE_TUNING:  # T5X is at update 1,000,000 there
            assert bool(found.unsupported) == ("rsqrt" in factors)
            expected = Constant(0.5) if "rsqrt" not in factors else schedule
        assert experiment.optimizer.learning_rate == expected
    unnamed = given.replace("/checkpoint_1000000", "").replace("TRAIN_STEPS =", "TRAIN_STEPS_RELATIVE =")
    found = convert_text(tmp_path, f"{unnamed}  base_learning_rate = 0.5\n  warmup_steps = 30\n")
    assert bool(found.unsupported) == (factors != "constant")  # nobody knows whether the warmup is over
    found = convert_text(tmp_path, f"{given}  base_learning_rate = 0.5\n  warmup_steps = %WARM\n")
    assert "warmup_steps" in " ".join(found.unsupported)
    alone = 'include "t5x/examples/t5/t5_1_1/small.gin"\n'
    alone += "from t5x import utils\nutils.create_learning_rate_scheduler.base_learning_rate = 0.5\n"
    assert "base_learning_rate" in " ".join(convert_text(tmp_path, alone).unsupported)


def test_a_network_that_is_spelled_out(tmp_path: Path) -> None:
    sizes = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 32, "vocab_size": 256}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 2}
    said = "".join(f"  {name} = {size}\n" for name, size in sizes.items())
    text = PRETRAINING.replace('include "t5x/examples/t5/t5_1_1/small.gin"\n', "").replace(
        "from t5x import utils\n", "from t5x import utils\nfrom t5x.examples.scalable_t5 import network\n"
    )
    found, experiment = converted(tmp_path, f"{text}network.T5Config:\n{said}  dropout_rate = %DROPOUT_RATE\n")
    assert found.unsupported == []
    assert experiment.model.config == T5Config(**sizes, positions=Buckets(in_every_layer=True), scan_layers=True)
    # or by the name of a size
    found, experiment = converted(tmp_path, PRETRAINING.replace("examples/t5/t5_1_1", "examples/scalable_t5/t5_1_1"))
    assert found.unsupported == []
    model = experiment.model.config
    assert (model.has_table_in_every_layer, model.scan_layers, model.emb_dim) == (True, True, 512)
    assert model.remat_policy == "dots"
    # whatever the name says: T5X's byt5/tiny includes t5_1_1/base
    model = converted(tmp_path, PRETRAINING.replace("t5_1_1/small", "byt5/tiny"))[1].model.config
    assert (model.emb_dim, model.num_decoder_layers, model.vocab_size) == (8, 2, 32128)


def test_other_files_that_are_included(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "mine.gin").write_text("TRAIN_STEPS = 11\n")
    text = f"{PRETRAINING}include 'mine.gin'\n"
    assert "include 'mine.gin'" in convert_text(tmp_path, text).unsupported[0]
    assert "TRAIN_STEPS = 11\n" in convert(tmp_path / "theirs.gin", [tmp_path / "shared"]).text


def written(value: Any) -> str:
    """A value of the fixture as gin writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if not isinstance(value, dict):
        return repr(value)
    ((kind, inner),) = value.items()
    return str(inner) if kind == "reference" else repr(tuple(inner) if kind == "tuple" else inner)


def said_by(example: Mapping[str, Any]) -> str:
    lines = []
    for one in example["says"]:
        if isinstance(one, list):
            lines.append(f"{one[0]} = {written(one[1])}")
        else:
            ((statement, name),) = one.items()
            lines.append(f"{statement} '{name}'" if statement == "include" else f"{statement} {name}")
    return "\n".join(lines).replace("import __gin__.", "from __gin__ import ") + "\n"


def carried_over(experiment: Experiment) -> dict[str, Any]:
    """What an experiment has of T5X's parameters."""
    model = vars(experiment.model.config)
    data = ("mixture_or_task_name", "batch_size", "split", "use_cached", "pack", "task_feature_lengths")
    of_class = {
        "train/DatasetConfig": (experiment.train_dataset, (*data, "shuffle")),
        "train_eval/DatasetConfig": (experiment.eval_dataset, data),
        "EncoderDecoderModel": (experiment.loss, ("z_loss", "label_smoothing", "loss_normalizing_factor")),
        "EncoderDecoderModel.predict_batch_with_aux": (experiment.decoding, ("num_decodes",)),
        "Adafactor": (experiment.optimizer, ("decay_rate", "step_offset")),
        "train": (experiment, ("eval_period", "stats_period", "random_seed", "total_steps")),
        "SaveCheckpointConfig": (experiment.checkpoints, ("period", "keep")),
        "Trainer": (experiment, ("num_microbatches",)),
    }
    found = {f"{kind}.{name}": getattr(own, name) for kind, (own, names) in of_class.items() for name in names}
    found |= {f"T5Config.{name}": value for name, value in model.items()}
    found["T5Config.remat_policy"] = {"dots": "minimal"}.get(model["remat_policy"], model["remat_policy"])
    return {**found, "train.eval_steps": experiment.eval_dataset.max_batches}


def learning_rate(effective: Mapping[str, Any], step: int) -> float:
    """t5x.utils.create_learning_rate_scheduler."""
    of = {name: effective[f"create_learning_rate_scheduler.{name}"] for name in ("factors", "warmup_steps")}
    rate = effective["create_learning_rate_scheduler.base_learning_rate"]
    for factor in map(str.strip, of["factors"].split("*")):
        if factor == "linear_warmup":
            rate *= min(1.0, step / of["warmup_steps"])
        elif factor == "rsqrt_decay":
            rate /= max(step, of["warmup_steps"]) ** 0.5
        else:
            assert factor == "constant"
    return rate


@pytest.mark.parametrize("name", VALUES["examples"])
def test_examples_of_t5x_mean_what_gin_says_that_they_mean(tmp_path: Path, name: str) -> None:
    example, effective = VALUES["examples"][name], VALUES["examples"][name]["effective"]
    if "EncoderDecoderModel.module" not in effective:  # a decoder alone, and a part of an experiment
        with refused("t5_1_1 or byt5"):
            convert_text(tmp_path, said_by(example))
        return
    found, experiment = converted(tmp_path, said_by(example))
    named = [line.partition(" = ")[0] for line in (*found.unsupported, *found.unneeded)]
    ours, before = carried_over(experiment), 0
    if effective.get("RestoreCheckpointConfig.path"):
        before = 0 if effective.get("CheckpointConfig.restore", True) is None else 1_000_000
        assert (experiment.initial is not None) == bool(before)
    for step in (0, 1, 7, 1000, 20_000):
        rate = experiment.optimizer.learning_rate(np.int32(step))
        assert float(rate) == pytest.approx(learning_rate(effective, before + step), rel=1e-6)
    submesh = effective["PjitPartitioner.model_parallel_submesh"]
    devices = math.prod(submesh["tuple"]) if submesh else effective["PjitPartitioner.num_partitions"]
    assert experiment.mesh.model == devices
    assert (experiment.infer_eval_period is None) == (effective["train.infer_eval_dataset_cfg"] is None)
    checked = {"Adafactor.logical_factor_rules", "EncoderDecoderModel.optimizer_def", "train.infer_eval_dataset_cfg"}
    checked |= {"RestoreCheckpointConfig.path", "PjitPartitioner.num_partitions"}
    assert found.unsupported == []
    for key, value in effective.items():
        scope, _, rest = key.rpartition("/")
        if key.startswith("create_learning_rate_scheduler.") or any(
            line.endswith(rest) and line.startswith(scope) for line in named
        ):
            continue
        if rest.endswith(".module") and rest.startswith("DatasetConfig."):
            assert value is None or value in experiment.train_dataset.module_import
            continue
        if key == "train.relative_steps":
            assert value is None
            continue
        if key not in ours:  # of no meaning here, or checked above
            every = f"{key.rpartition('.')[0]}.*"
            assert key in checked or key in tables.UNNEEDED or every in tables.UNNEEDED, key
            if key in tables.STANDARD:
                assert written(value).endswith(tables.STANDARD[key])
            continue
        theirs = value.get("dict", value.get("tuple")) if isinstance(value, dict) else value
        theirs = {"train.random_seed": theirs or 0, "Trainer.num_microbatches": theirs or 1}.get(key, theirs)
        theirs = theirs - before if key == "train.total_steps" else theirs
        mine = list(ours[key]) if isinstance(ours[key], tuple) else ours[key]
        assert mine == theirs, key


def test_models_of_t5x_are_those_of_the_table() -> None:
    replaced = {"T5Config.dropout_rate": {"reference": "%gin.REQUIRED"}}
    for name, values in VALUES["models"].items():
        folder, family, size = name.removesuffix(".gin").split("/")
        found = tables.model(family, size, scalable=folder == "scalable_t5")
        assert found is not None
        assert found[1]["T5Config.dropout_rate"] == GinReference("%DROPOUT_RATE")
        said = {key: value for key, value in found[1].items() if key.startswith("T5Config.")} | replaced
        theirs = {key: tuple(value["tuple"]) if key == "mlp_activations" else value for key, value in values.items()}
        assert said == {f"T5Config.{key}": value for key, value in theirs.items()}, name


def test_what_is_a_users_own_and_values_of_other_types_are_named(tmp_path: Path) -> None:
    own = (
        "from mine import network\nfrom mine import rates\nmodels.EncoderDecoderModel.module = @network.Transformer()\n"
    )
    found = convert_text(tmp_path, f"{PRETRAINING}{own}trainer.Trainer.learning_rate_fn = @rates.cosine()\n")
    assert [line.partition(" = ")[0] for line in found.unsupported] == [
        "models.EncoderDecoderModel.module", "trainer.Trainer.learning_rate_fn",
    ]  # fmt: skip
    for setting in (
        "partitioning.PjitPartitioner.model_parallel_submesh = (2, 1, 1, None)",
        "partitioning.PjitPartitioner.num_partitions = 'x'",
        "network.T5Config.remat_policy = ['a']",
    ):
        (line,) = convert_text(tmp_path, f"{PRETRAINING}{setting}\n").unsupported
        assert line.startswith(setting)
    for name in ("t5_1_1/mine.gin", "configs/runs/finetune.gin"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("DROPOUT_RATE = 0.25\n")
    included = "include 't5_1_1/mine.gin'\ninclude 'configs/runs/finetune.gin'\n"
    assert (
        converted(tmp_path, PRETRAINING.replace("DROPOUT_RATE = 0.0\n", included))[1].model.config.dropout_rate == 0.25
    )


def test_what_cannot_be_converted(tmp_path: Path) -> None:
    for text, named in (
        ("A = ", "theirs.gin, line 1"),
        ("include 'theirs.gin'\n", "itself"),
        ("include 't5x/configs/runs/infer.gin'\n", "make infer"),
        ("import __main__ as e\ne.evaluate.output_dir = 'a'\n", "make eval"),
    ):
        with refused(named):
            convert_text(tmp_path, text)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs, ours = tmp_path / "theirs.gin", tmp_path / "ours.gin"
    theirs.write_text(PRETRAINING.replace("TRAIN_STEPS = 4000\n", "a.A.unknown = 1\n"))
    program_refused(capsys, ["convert-gin", str(theirs)], "a.A.unknown = 1", "line 11", "PARTIAL=1")
    assert cli.main(["convert-gin", str(theirs), "--partial"]) == 0
    printed = capsys.readouterr()
    assert "include 'gin/models/t5_1_1_small.gin'" in printed.out
    assert "a.A.unknown = 1" in printed.err
    assert "TRAIN_STEPS" in printed.err  # has to be set
    assert cli.main(["convert-gin", str(theirs), "--partial", f"--output={ours}"]) == 0
    assert ours.read_text() == printed.out
    program_refused(capsys, ["convert-gin", str(theirs), f"--output={ours}"], "FORCE=1")
    program_refused(capsys, ["convert-gin", str(tmp_path / "nothing.gin")], "nothing.gin")
