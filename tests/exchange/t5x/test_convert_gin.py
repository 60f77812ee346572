"""T5X's gin files as experiments: each binding carried over with its value, of no use here, or named."""

import re
from pathlib import Path

import pytest

from t5xpg import cli
from t5xpg.base.errors import UserError
from t5xpg.exchange.t5x.convert_gin import Converted, convert
from t5xpg.experiment import config
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.config import T5Config
from t5xpg.optim.optimizers import Adafactor
from t5xpg.optim.schedules import Constant, InverseSquareRoot

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


def convert_text(tmp_path: Path, text: str) -> Converted:
    (tmp_path / "theirs.gin").write_text(text)
    return convert(tmp_path / "theirs.gin")


def converted(tmp_path: Path, text: str) -> tuple[Converted, Experiment]:
    found = convert_text(tmp_path, text)
    (tmp_path / "ours.gin").write_text(found.text)
    return found, config.load(str(tmp_path / "ours.gin")).experiment


def test_what_t5x_itself_says_is_carried_over(tmp_path: Path) -> None:
    """The defaults of T5X's pretrain.gin and of its models' files, where ours are others."""
    found, experiment = converted(tmp_path, PRETRAINING)
    assert (found.unneeded, found.unsupported) == ([], [])
    model, train, held_out = experiment.model.config, experiment.train_dataset, experiment.eval_dataset
    assert (model.emb_dim, model.num_heads, model.num_encoder_layers, model.vocab_size) == (512, 6, 8, 32128)
    assert (model.dtype, model.dropout_rate) == ("bfloat16", 0.0)
    assert (train.batch_size, train.pack, held_out.pack, held_out.max_batches) == (128, True, True, 20)
    assert (train.mixture_or_task_name, held_out.mixture_or_task_name) == ("pydocs_span_corruption",) * 2
    assert dict(held_out.task_feature_lengths) == {"inputs": 256, "targets": 64}
    assert (experiment.total_steps, experiment.eval_period, experiment.checkpoints.period) == (4000, 1000, 1000)
    assert (experiment.loss.loss_normalizing_factor, experiment.loss.z_loss) == (None, 0.0001)
    assert isinstance(experiment.optimizer, Adafactor)
    assert experiment.optimizer.learning_rate == InverseSquareRoot(1.0, 10000)
    assert (experiment.mesh.model, experiment.random_seed, experiment.infer_eval_period) == (1, 0, None)


def test_every_binding_is_carried_over_or_named(tmp_path: Path) -> None:
    found, experiment = converted(
        tmp_path,
        PRETRAINING
        + """
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
  stats_period = 7
  random_seed = 5
  use_hardware_rng = True
  infer_eval_dataset_cfg = @infer_eval/utils.DatasetConfig()
utils.SaveCheckpointConfig:
  period = 350
  keep = 4
  checkpoint_steps = [3]
trainer.Trainer.num_microbatches = 2
models.EncoderDecoderModel.z_loss = 0.01
models.EncoderDecoderModel.predict_batch_with_aux.num_decodes = 3
network.T5Config.mlp_dim = 77
network.T5Config.remat_policy = 'minimal'
network.T5Config.experts = 8
adafactor.Adafactor.beta1 = 0.9
partitioning.ModelBasedPjitPartitioner.num_partitions = 2
partitioning.standard_logical_axis_rules.parameter_partitioning_dims = 2
NOBODY_READS_THIS = 1
OPTIMIZER = @optimizers.chain()
""",
    )
    train, held_out = experiment.train_dataset, experiment.eval_dataset
    assert (train.batch_size, train.use_cached) == (64, False)
    assert (held_out.batch_size, held_out.split, held_out.use_cached) == (16, "test", True)
    assert (experiment.eval_period, experiment.stats_period, experiment.infer_eval_period) == (700, 7, 700)
    assert (experiment.random_seed, train.seed) == (5, 5)
    assert (experiment.checkpoints.period, experiment.checkpoints.keep) == (350, 4)
    assert (experiment.num_microbatches, experiment.loss.z_loss, experiment.mesh.model) == (2, 0.01, 2)
    assert (experiment.decoding.method, experiment.decoding.num_decodes) == ("beam", 3)
    assert (experiment.model.config.mlp_dim, experiment.model.config.remat_policy) == (77, "dots")
    assert isinstance(experiment.optimizer, Adafactor)
    assert experiment.optimizer.momentum == 0.9
    assert [line.partition(":")[0] for line in found.unneeded] == [
        "train/utils.DatasetConfig.seed = 3",
        "train_script.train.use_hardware_rng = True",
    ]
    assert [line.partition(" (")[0] for line in found.unsupported] == [
        "utils.SaveCheckpointConfig.checkpoint_steps = [3]",
        "network.T5Config.experts = 8",
        "NOBODY_READS_THIS = 1",
        "OPTIMIZER = @optimizers.chain()",
    ]
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
        _, experiment = converted(tmp_path, f"{given}  base_learning_rate = 0.5\n  warmup_steps = 30\n")
        assert experiment.optimizer.learning_rate == schedule


def test_a_network_that_is_spelled_out(tmp_path: Path) -> None:
    sizes = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 32, "vocab_size": 256}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 2}
    said = "".join(f"  {name} = {size}\n" for name, size in sizes.items())
    text = PRETRAINING.replace('include "t5x/examples/t5/t5_1_1/small.gin"\n', "").replace(
        "from t5x import utils\n", "from t5x import utils\nfrom t5x.examples.scalable_t5 import network\n"
    )
    found, experiment = converted(tmp_path, f"{text}network.T5Config:\n{said}  dropout_rate = %DROPOUT_RATE\n")
    assert found.unsupported == []
    assert experiment.model.config == T5Config(**sizes, relpos_bias_in_every_layer=True, scan_layers=True)
    # or by the name of a size
    found, experiment = converted(tmp_path, PRETRAINING.replace("examples/t5/t5_1_1", "examples/scalable_t5/t5_1_1"))
    assert found.unsupported == []
    model = experiment.model.config
    assert (model.relpos_bias_in_every_layer, model.scan_layers, model.emb_dim) == (True, True, 512)


def test_other_files_that_are_included(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "mine.gin").write_text("TRAIN_STEPS = 11\n")
    text = f"{PRETRAINING}include 'mine.gin'\n"
    assert "include 'mine.gin' (theirs.gin, line 13): the file was" in convert_text(tmp_path, text).unsupported[0]
    assert "TRAIN_STEPS = 11\n" in convert(tmp_path / "theirs.gin", [tmp_path / "shared"]).text
    found = convert_text(tmp_path, text.replace("mine.gin", "t5x/examples/t5/mt5/base.gin"))
    assert "make import" in found.unsupported[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A = ", r"gin cannot read .*theirs\.gin, line 1"),
        ("A = 1\n", "says of no model that is known here: expected an include of a file of t5_1_1 or byt5"),
        ("include 'theirs.gin'\n", "includes itself"),
        ("include 't5x/configs/runs/infer.gin'\n", "is no training: here `make infer` does that"),
        ("import __main__ as e\ne.evaluate.output_dir = 'a'\n", "is no training: here `make eval` does that"),
    ],
)
def test_what_cannot_be_converted(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        convert_text(tmp_path, text)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs, ours = tmp_path / "theirs.gin", tmp_path / "ours.gin"
    theirs.write_text(PRETRAINING.replace("TRAIN_STEPS = 4000\n", "NOBODY_READS_THIS = 1\n"))
    assert cli.main(["convert-gin", str(theirs)]) == 0
    printed = capsys.readouterr()
    assert "include 'gin/models/t5_1_1_small.gin'" in printed.out
    assert "not carried over:\n  NOBODY_READS_THIS = 1 (theirs.gin, line 11)" in printed.err
    assert re.search(r"to be mended before it can be trained:\n  .*TRAIN_STEPS", printed.err)
    assert cli.main(["convert-gin", str(theirs), f"--output={ours}"]) == 0
    assert ours.read_text() == printed.out
    assert cli.main(["convert-gin", str(theirs), f"--output={ours}"]) == 1
    assert "--force" in capsys.readouterr().err
    assert cli.main(["convert-gin", str(tmp_path / "nothing.gin")]) == 1
