"""Checkpoints of T5X and Mesh-TensorFlow as runs: what they compute, what their ids mean, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest

from t5xpg.exchange.importing import import_checkpoint
from t5xpg.experiment import assembly, config
from t5xpg.run.checkpoint import checkpoint_items
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from t5xpg.run.directory import RunDirectory
from tests.refusals import refused
from tests.small_models import FAMILIES
from tests.small_tokenizers import pieces_beside, sentencepiece_model
from tests.t5x_goldens import unpack


def test_a_checkpoint_of_t5x_becomes_a_run(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = unpack("t5_1_1", tmp_path)
    run = import_checkpoint(str(given), runs)
    assert run == runs / "t5_1_1"
    assert "22,688 parameters" in capsys.readouterr().out
    imported = RunDirectory(run).imported()
    assert imported is not None
    assert (imported["format"], imported["source"]) == ("t5x", str(given / "checkpoint_5"))
    with refused("FORCE=1"):
        import_checkpoint(str(given / "checkpoint_5"), runs)
    with refused("384 ids", "264"):
        import_checkpoint(str(given), runs, sentinels="transformers", name="other")


def test_a_checkpoint_of_mesh_tensorflow_becomes_a_run(runs: Path, tmp_path: Path) -> None:
    given = unpack("mesh_tensorflow", tmp_path / "some model")
    with refused("48 ids", "SentencePiece"):
        import_checkpoint(str(given), runs)
    sentencepiece_model(given / "spiece.model", vocab_size=40)
    with refused("140 ids", "48"):
        import_checkpoint(str(given), runs)
    (given / "tokenizer_config.json").write_text('{"extra_ids": 8}')
    run = import_checkpoint(str(given / "model.ckpt-5"), runs)
    assert run == runs / "mesh_tensorflow"
    said = json.loads((run / "run.json").read_text())["identity"]
    assert (said["vocabulary"]["size"], said["imported"]["format"]) == (48, "mesh_tensorflow")
    assert (run / "tokenizer" / "spiece.model").is_file()
    # as ENGINE=t5x leaves it: the model lies where the task has it
    vocabulary = said["vocabulary"] | {"model_file": str((given / "spiece.model").rename(tmp_path / "my.model"))}
    (given / "t5xpg.json").write_text(json.dumps({"vocabulary": vocabulary}))
    import_checkpoint(str(given / "model.ckpt-5"), runs, force=True)


@pytest.mark.parametrize("part", ["model.ckpt-5.index", "model.ckpt-5.data-00000-of-00001"])
def test_links_of_mesh_tensorflow_out_of_the_folder(part: str, runs: Path, tmp_path: Path) -> None:
    given = unpack("mesh_tensorflow", tmp_path)
    pieces_beside(given)
    (given / part).rename(given / "within")
    (given / part).symlink_to("within")
    import_checkpoint(str(given), runs)
    (given / "within").rename(tmp_path / "elsewhere")
    (given / part).unlink()
    (given / part).symlink_to("../elsewhere")
    with refused(part, str(tmp_path / "elsewhere")):
        import_checkpoint(str(given / "model.ckpt-5"), runs, force=True)


def test_what_gin_files_beside_it_say_of_the_mlp(runs: Path, tmp_path: Path) -> None:
    given = unpack("t5_1_1", tmp_path)
    binding = "network.T5Config.mlp_activations = "
    for text, expected in (
        ("network.T5Config:\n  mlp_activations = ('silu', 'linear')\n", "silu"),
        ("decoder/DenseReluDense.activation = ['relu', 'linear']\n", "relu"),
        (f"ACT = ('silu', 'linear')\n{binding}\\\n    %ACT\n# {binding}'mine'\n", "silu"),
    ):
        (given / "config.gin").write_text(text)
        import_checkpoint(str(given), runs, force=True)
        assert config.load("t5_1_1").experiment.model.config.mlp_activations == (expected, "linear")
    for text in ("('sigmoid', 'linear')", "%ACT", "@mine", f"'relu'\n{binding}'gelu'"):
        (given / "config.gin").write_text(f"# of T5X\n{binding}{text}\n")
        with refused("config.gin, line ", binding.strip(), "gelu, relu"):
            import_checkpoint(str(given), runs, force=True)


def test_records_that_are_damaged(runs: Path, tmp_path: Path) -> None:
    given = unpack("t5_1_1", tmp_path)
    for text, named in (
        ("{", "not JSON"),
        ('{"model": 5}', "no model"),
        ('{"model": {"mlp_activations": 5}}', "no model"),
        ('{"vocabulary": []}', "vocabulary"),
    ):
        (given / "t5xpg.json").write_text(text)
        with refused(named):
            import_checkpoint(str(given), runs)


def test_the_optimiser_goes_on(runs: Path, tmp_path: Path) -> None:
    run = import_checkpoint(str(unpack("t5_1_1", tmp_path)), runs, optimizer=True)
    loaded = config.load("t5_1_1", ["optimizers.Adafactor.min_dim_size_to_factor=16"])
    built = assembly.assemble(loaded.experiment)
    with Checkpointer(run / "checkpoints", CheckpointConfig(), read_only=True) as checkpointer:
        state, _, _ = checkpointer.restore(0, built.abstract_state)
    assert int(state.step) == 5
    optimizer = checkpoint_items.optimizer_tree(state)["state"]
    assert (int(optimizer["0"]["count"]), int(optimizer["2"]["count"])) == (5, 5)


def test_what_is_refused(runs: Path, tmp_path: Path) -> None:
    with refused("gcloud storage cp -r gs://t5-data/pretrained_models/small here"):
        import_checkpoint("gs://t5-data/pretrained_models/small", runs)
    with refused("OPTIMIZER=1"):
        import_checkpoint(str(FAMILIES / "byt5"), runs, optimizer=True)
    both = unpack("t5_1_1", tmp_path)
    for file in (FAMILIES / "byt5").iterdir():  # a folder with a config.json is one of transformers
        shutil.copy(file, both)
    run = import_checkpoint(str(both), runs)
    assert json.loads((run / "run.json").read_text())["identity"]["imported"]["format"] == "huggingface"
