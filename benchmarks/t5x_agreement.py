"""How far this program and T5X itself are apart after ten updates, from the same parameters and batches.

    T5X_PYTHON=/path/to/python python -m benchmarks.t5x_agreement [EXPERIMENT] [--gin.NAME=VALUE …]

The experiment (optimizers_tiny) is trained with Adafactor and without dropout. Its first batches are those that
`make train` reads; its first parameters go to T5X as `make export FORMAT=t5x` writes them, the settings as
`make train ENGINE=t5x` does. Prints the rows of the table in docs/interop.md; more than 1e-4 apart is an error.
"""

import dataclasses
import itertools
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file, save_file

from benchmarks.interop_t5x import python_with_t5x, theirs
from t5xpg.base import paths
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.exchange.formats.t5x_files import write_checkpoint
from t5xpg.exchange.t5x.adafactor import new_param_states
from t5xpg.exchange.t5x.engine_gin import experiment_gin
from t5xpg.exchange.t5x.networks import in_t5x
from t5xpg.experiment import assembly, config
from t5xpg.experiment.identity import data_config
from t5xpg.experiment.recipe import Recipe

STEPS, TOLERANCE = 10, 1e-4
USUAL = ["DROPOUT_RATE=0.0"]
CASES: dict[str, list[str]] = {
    "unchanged": [],
    "two examples in each row": ["PACK=True"],
    "two microbatches, loss not normalised": ["NUM_MICROBATCHES=2", "LOSS_NORMALIZING_FACTOR=None"],
    "tied, label smoothing, loss not normalised": [
        "encoder_decoder.T5Config.logits_via_embedding=True", "LABEL_SMOOTHING=0.1", "LOSS_NORMALIZING_FACTOR=None",
    ],
}  # fmt: skip


def compare(experiment: str, overrides: list[str], folder: Path) -> tuple[float, float, float, list[float]]:
    """Largest differences of a loss (nats for each target token), of an array of parameters (relative L2), and of any
    entry of one; our losses.
    """
    loaded = config.load(experiment, [*USUAL, *overrides], ["gin/optimizers/adafactor.gin"])
    given = loaded.experiment
    Recipe.of(given.train_dataset).make()
    built = assembly.assemble(given)
    compiled = built.compile_train_step()
    state = built.new_state()
    params = jax.tree.map(np.asarray, state.params)
    target = in_t5x(given.model, params)
    checkpoint = write_checkpoint(folder, target, 0, new_param_states(target))
    (folder / "experiment.gin").write_text(experiment_gin(given, loaded.name, folder / "model", checkpoint))
    with DataService() as service:
        dataset = data_config(given.train_dataset, given.random_seed)
        vocabulary = service.describe(dataset).vocabulary
        if dataset.pack:
            dataset = in_halves(dataset)
        batches = list(itertools.islice(service.open(dataset), STEPS))
    if given.train_dataset.pack:
        batches = [two_in_each_row(batch) for batch in batches]
    named = {f"{step}/{name}": array for step, batch in enumerate(batches) for name, array in batch.items()}
    save_file(named, folder / "batches.safetensors")
    token_bytes = built.token_bytes(vocabulary)
    is_sum = given.loss.loss_normalizing_factor is None
    tokens: list[float] = []
    losses: list[float] = []
    for batch in batches:
        state, metrics = compiled(state, built.on_devices(batch), token_bytes)
        tokens.append(float(metrics["weights"]))
        loss = float(metrics["loss"]) / (tokens[-1] if is_sum else 1.0)
        losses.append(loss - float(metrics["z_loss"]) / tokens[-1])  # T5X's cross_ent_loss
    theirs("train", str(paths.REPOSITORY), str(folder))
    found = load_file(folder / "theirs.safetensors")
    expected = found.pop("losses") / (np.asarray(tokens) if is_sum else 1.0)
    apart = max(abs(ours - other) for ours, other in zip(losses, expected, strict=True))
    trained = flatten_dict(in_t5x(given.model, state.params), sep="/")
    differences = {name: np.asarray(trained[name]) - other for name, other in found.items()}
    relative = max(float(np.linalg.norm(each) / np.linalg.norm(found[name])) for name, each in differences.items())
    entry = max(float(np.abs(each).max()) for each in differences.values())
    return apart, relative, entry, losses


def in_halves(dataset: DatasetConfig) -> DatasetConfig:
    """Twice as many rows, half as long: examples of span corruption fill a row, so that packing would join none."""
    lengths = {name: length // 2 for name, length in dataset.task_feature_lengths.items()}
    return dataclasses.replace(dataset, pack=False, task_feature_lengths=lengths, batch_size=2 * dataset.batch_size)


def two_in_each_row(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A batch with two rows in each row, as SeqIO packs them."""
    made = {}
    for name, array in batch.items():
        rows, length = array.shape[0] // 2, array.shape[1]
        made[name] = array.reshape(rows, 2 * length)
        side = name.split("_")[0]
        made[f"{side}_segment_ids"] = np.tile(np.repeat(np.asarray([1, 2], np.int32), length), (rows, 1))
        made[f"{side}_positions"] = np.tile(np.arange(length, dtype=np.int32), (rows, 2))
    for side, tokens in (("encoder", "encoder_input_tokens"), ("decoder", "decoder_target_tokens")):
        made[f"{side}_segment_ids"] = made[f"{side}_segment_ids"] * (made[tokens] > 0)
    return made


def main(arguments: list[str]) -> int:
    """Print the rows."""
    python_with_t5x()
    overrides = [one.removeprefix("--gin.") for one in arguments if one.startswith("--gin.")]
    experiment = next((one for one in arguments if not one.startswith("--")), "optimizers_tiny")
    agree = True
    for case, more in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            apart, relative, entry, losses = compare(experiment, [*overrides, *more], Path(scratch))
        agree &= apart < TOLERANCE and relative < TOLERANCE
        print(
            f"| {case} | {losses[0]:.4f} | {losses[-1]:.4f} | {apart:.1e} | {relative:.1e} | {entry:.1e} |", flush=True
        )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
