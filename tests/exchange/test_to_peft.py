"""LoRA as files of peft: names, shapes, numbers, what has none there, and what such a run is read with."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from t5xpg.evaluate.trained_model import ADAPTER, INITIAL, parameters_and_vocabulary
from t5xpg.exchange import to_peft, to_transformers
from t5xpg.exchange.huggingface.model_card import MARK
from t5xpg.exchange.huggingface.params import module_names
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.experiment import assembly, config
from t5xpg.experiment.config import LoadedConfig, settings
from t5xpg.experiment.identity import identity_settings
from t5xpg.models.config import T5Config
from t5xpg.models.positions import Rotary
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from t5xpg.run.directory import RunDirectory
from t5xpg.train import initial_state
from tests.refusals import assert_named, refused
from tests.small_models import FAMILIES

EXPERIMENT = """
include '{model}'
include 'gin/optimizers/adamw.gin'
include 'gin/partitioning/one_device.gin'
include 'gin/runs/finetune.gin'
include 'gin/adapters/lora.gin'
INITIAL_CHECKPOINT = '{name}'
MIXTURE_OR_TASK_NAME = 'some_task'
TASK_FEATURE_LENGTHS = {{'inputs': 64, 'targets': 32}}
TRAIN_STEPS = 3
RANDOM_SEED = 7
LORA_RANK = 4
"""


def lora_run(runs: Path, name: str, *overrides: str) -> tuple[LoadedConfig, Path]:
    """A run with LoRA beside an import of a family's golden, as after an update that changed all it trains."""
    if not (runs / name).exists():
        import_checkpoint(str(FAMILIES / name), runs, name=name)
    gin = runs.parent / f"{name}_lora.gin"
    gin.write_text(EXPERIMENT.format(model=runs / name / "model.gin", name=name))
    loaded = config.load(str(gin), overrides)
    built = assembly.assemble(loaded.experiment)
    start = initial_state.begin(built)
    draw = np.random.default_rng(5)
    drawn = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape) / 10, jnp.float32), start.state.params)
    directory = RunDirectory(runs / f"{name}_lora")
    directory.start(loaded.name, {"settings": identity_settings(loaded.experiment)}, step=0, command="")
    model = settings(loaded.experiment.model)
    vocabulary = start.vocabularies[INITIAL]
    meta = {"experiment": loaded.name, "vocabulary": vocabulary, "settings": model, **start.origins}
    state = dataclasses.replace(start.state, step=jnp.int32(1), params=drawn)
    with Checkpointer(directory.checkpoints, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, state, {}, {**meta, ADAPTER: "Lora"})
    return loaded, directory.path


@pytest.fixture
def run(runs: Path) -> Any:
    return lora_run(runs, "byt5")


def test_peft_finds_each_module_with_its_matrices(run: Any) -> None:
    loaded, path = run
    folder = to_peft.export(loaded, path)
    found = json.loads((folder / "adapter_config.json").read_text())
    of_layers = [
        f"{stack}.block.{layer}.layer.{number}.{attention}.{matrix}"
        for stack, attentions in (("decoder", ("SelfAttention", "EncDecAttention")), ("encoder", ("SelfAttention",)))
        for number, attention in enumerate(attentions)
        for layer in range(loaded.experiment.model.config.num_encoder_layers if stack == "encoder" else 1)
        for matrix in "qv"
    ]
    assert set(of_layers) == set(found.pop("target_modules"))
    assert found == {
        "peft_type": "LORA", "task_type": "SEQ_2_SEQ_LM", "base_model_name_or_path": str(FAMILIES / "byt5"),
        "revision": None, "r": 4, "lora_alpha": 16.0, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False,
        "inference_mode": True,
    }  # fmt: skip
    tensors = load_file(folder / "adapter_model.safetensors")
    assert set(tensors) == {
        f"base_model.model.{module}.lora_{part}.weight" for module in of_layers for part in ("A", "B")
    }
    # peft's definition: x W^T + alpha / r x A^T B^T; transformers' matrices are [outputs, inputs]
    base = load_file(FAMILIES / "byt5" / "model.safetensors")
    merged = load_file(to_transformers.export(loaded, path)[0] / "model.safetensors")
    for module in of_layers:
        a, b = (tensors[f"base_model.model.{module}.lora_{part}.weight"].astype(np.float64) for part in "AB")
        expected = base[f"{module}.weight"] + 4.0 * b @ a
        np.testing.assert_allclose(merged[f"{module}.weight"], expected, rtol=1e-5, atol=1e-5)
    for name, value in base.items():
        assert name.removesuffix(".weight") in of_layers or np.array_equal(merged[name], value)


def test_what_peft_has_nothing_for(run: Any, runs: Path) -> None:
    loaded, path = run
    with refused("FORMAT=peft", "gin/adapters/lora.gin"):
        to_peft.export(config.load("byt5"), runs / "byt5")
    with refused("other settings"):
        to_peft.export(config.load(str(loaded.gin_file), ["LORA_RANK=2"]), path)
    (path / "peft").mkdir()
    (path / "peft" / to_transformers.CARD).write_text(MARK)
    for export in (to_peft.export, to_transformers.export):
        with refused("no folder that an export wrote"):
            export(loaded, path, path / "peft")
    gemma = T5Config(vocab_size=99, positions=Rotary(), layer_norms="both")
    with refused("transformers' T5 has no "):
        module_names(gemma)


def test_the_base_is_what_transformers_loads(
    run: Any, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(to_peft, "python_with_torch", lambda: Path("/a/python"))
    monkeypatch.setattr(to_peft, "_check", lambda *_: None)
    for kind, source, base, revision in (
        ("huggingface", "google/byt5-small@0123", "google/byt5-small", "0123"),
        ("t5x", "/models/byt5/checkpoint_5", str(runs / "byt5" / "huggingface"), None),
    ):
        imported = {"format": kind, "source": source}
        monkeypatch.setattr(RunDirectory, "imported", lambda _, imported=imported: imported)
        folder = to_peft.export(*run)
        found = json.loads((folder / "adapter_config.json").read_text())
        assert (found["base_model_name_or_path"], found["revision"]) == (base, revision)
        assert_named((folder / "README.md").read_text(), [f'from_pretrained("{base}"', revision or ""])
        assert "/a/python -m pip install peft" in capsys.readouterr().out


def test_a_base_that_was_trained_on_is_another(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunDirectory, "imported", lambda _: None)
    monkeypatch.setattr(to_peft, "saved_steps", lambda _: [0, 9])
    with refused("step 0", "9"):
        to_peft.export(*run)


def test_tables_cannot_be_adapted_in_peft(runs: Path) -> None:
    loaded, path = lora_run(runs, "byt5", "LORA_KERNELS=('token_embedder/embedding',)")
    with refused("token_embedder/embedding", "FORMAT=hf"):
        to_peft.export(loaded, path)
    assert not (path / "peft").exists()


def test_a_moved_base_is_found_where_it_is_named(run: Any, runs: Path) -> None:
    loaded, path = run
    built = assembly.assemble(loaded.experiment)
    parameters_and_vocabulary(RunDirectory(path), loaded.experiment, built)
    moved = config.load(str(loaded.gin_file), ["INITIAL_CHECKPOINT=moved"]).experiment
    again = assembly.assemble(config.load(str(loaded.gin_file), ["INITIAL_CHECKPOINT=byt5_lora"]).experiment)
    (runs / "byt5").rename(runs / "moved")
    with refused("INITIAL_CHECKPOINT", "byt5"):
        parameters_and_vocabulary(RunDirectory(path), loaded.experiment, built)
    parameters_and_vocabulary(RunDirectory(path), moved, assembly.assemble(moved))
    with refused("`make export`"):
        initial_state.begin(again)
