"""What T5X does for `benchmarks.interop_t5x` and `benchmarks.t5x_agreement`, in a Python that has it.

    python in_t5x.py make NETWORK SIZES tensorstore|orbax FOLDER   a checkpoint with random parameters, and answers
    python in_t5x.py answer FOLDER                                 restores what was exported there, and answers
    python in_t5x.py train REPOSITORY FOLDER                       updates once for each batch

NETWORK is one of NETWORKS, SIZES are the settings of its T5Config as a Python dict.

answers.safetensors has `inputs` [B, S] (not for a decoder alone), `targets` [B, T] and `logits`. `answer` builds the
model of FOLDER/model.gin, restores the whole train state by both of the classes for checkpoints, and writes answers to
tokens.safetensors.

`train` finds in FOLDER experiment.gin, as `make train ENGINE=t5x` writes it, a checkpoint of step 0 that it names, and
batches.safetensors ("<step>/<feature>"). theirs.safetensors gets the parameters after the last batch and `losses` (nats
for each target token, before each update).
"""

from __future__ import annotations

import ast
import copy
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import seqio
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file, save_file
from t5x import adafactor, checkpoints, gin_utils, models, partitioning, utils
from t5x.examples.scalable_t5 import network as scalable
from t5x.examples.t5 import network as minimal

import gin

B, S, T, STEP = 2, 48, 16, 1
NETWORKS = {"minimal": minimal, "scalable": scalable}


def _model(network: Any, sizes: dict[str, Any]) -> models.EncoderDecoderModel:
    module = network.Transformer(config=network.T5Config(**sizes, dropout_rate=0.0, dtype=jnp.float32))
    rules = adafactor.standard_logical_factor_rules()
    optimizer = adafactor.Adafactor(decay_rate=0.8, step_offset=0, logical_factor_rules=rules)
    vocabulary = seqio.ByteVocabulary()
    return models.EncoderDecoderModel(module, vocabulary, vocabulary, optimizer)


def _state(model: Any, shapes: dict[str, tuple[int, ...]] | None = None) -> tuple[utils.TrainStateInitializer, Any]:
    if shapes is None:
        shapes = {"decoder_input_tokens": (B, T), "decoder_target_tokens": (B, T)}
        if isinstance(model, models.EncoderDecoderModel):
            shapes["encoder_input_tokens"] = (B, S)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    types = dict.fromkeys(shapes, jnp.int32)
    init = model.get_initial_variables
    return utils.TrainStateInitializer(model.optimizer_def, init, shapes, partitioner, types), partitioner


def _logits(model: Any, params: Any, tokens: dict[str, np.ndarray]) -> np.ndarray:
    targets = tokens["targets"]
    given = [tokens["inputs"]] if "inputs" in tokens else []
    given += [np.pad(targets[:, :-1], ((0, 0), (1, 0))), targets]
    apply = jax.jit(lambda params: model.module.apply({"params": params}, *given, enable_dropout=False))
    return np.asarray(apply(params), np.float32)


def make(network: str, sizes: str, layout: str, folder: Path) -> None:
    """A checkpoint of step 1 in `folder`, and answers.safetensors."""
    model = _model(NETWORKS[network], ast.literal_eval(sizes))
    initializer, partitioner = _state(model)
    state = initializer.from_scratch(jax.random.PRNGKey(0))
    # norms of ones would hide that two are exchanged
    draw = np.random.default_rng(0)
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: (
            leaf * draw.uniform(0.5, 1.5, leaf.shape).astype(np.float32)
            if "scale" in jax.tree_util.keystr(path)
            else leaf
        ),
        state.params,
    )
    state = state.replace_params(params).replace_step(jnp.asarray(STEP, jnp.int32))
    if layout == "tensorstore":
        checkpoints.Checkpointer(state, partitioner, str(folder)).save(state)
    else:
        manager = checkpoints.OrbaxCheckpointManagerInterface(str(folder), state, partitioner)
        manager.save(state)
        manager.close()
    tokens = {name: draw.integers(2, 384, size=(B, n)).astype(np.int32) for name, n in (("inputs", S), ("targets", T))}
    tokens["inputs"][1, S // 2 - 1], tokens["inputs"][1, S // 2 :] = 1, 0
    save_file({**tokens, "logits": _logits(model, state.params, tokens)}, folder / "answers.safetensors")


def answer(folder: Path) -> None:
    """What T5X computes with the export in `folder`: logits in tokens.safetensors, of what each class restores."""
    gin_utils.parse_gin_flags([str(folder)], [str(folder / "model.gin")], ["DROPOUT_RATE = 0.0"])
    model = copy.deepcopy(gin.query_parameter("%MODEL"))
    initializer, partitioner = _state(model)
    shape = initializer.global_train_state_shape
    (checkpoint,) = folder.glob("checkpoint_*")
    step = int(checkpoint.name.removeprefix("checkpoint_"))
    own = checkpoints.Checkpointer(shape, partitioner, str(folder)).restore(path=str(checkpoint))
    manager = checkpoints.OrbaxCheckpointManagerInterface(str(folder), shape, partitioner)
    other = manager.restore(path=str(checkpoint))
    for state in (own, other):
        assert int(state.step) == step
    expected = {path: leaf.shape for path, leaf in flatten_dict(shape.state_dict()).items()}
    restored = {path: np.shape(leaf) for path, leaf in flatten_dict(own.state_dict()).items()}
    assert restored == expected, [path for path in expected if restored.get(path) != expected[path]]
    same = jax.tree.map(np.array_equal, own.state_dict(), other.state_dict())
    assert all(jax.tree.leaves(same))
    tokens = load_file(folder / "tokens.safetensors")
    save_file({"logits": _logits(model, own.params, tokens)}, folder / "logits.safetensors")


def train(repository: Path, folder: Path) -> None:
    """T5X builds model and trainer from the gin files, restores the checkpoint, and updates once for each batch."""
    from t5x import train as t5x_train

    sys.path.insert(0, str(repository))
    gin.configurable(t5x_train.train)
    # the fragment imports this module as its train script
    sys.modules["__main__"].train = t5x_train.train  # type: ignore[attr-defined]
    gin_utils.parse_gin_flags(
        [str(repository)], [str(folder / "experiment.gin"), str(repository / "gin" / "engines" / "t5x.gin")], []
    )
    model = copy.deepcopy(gin.query_parameter("%MODEL"))
    trainer_class = copy.deepcopy(gin.query_parameter("train.trainer_cls"))
    path = gin.query_parameter("%INITIAL_CHECKPOINT_PATH")
    batches: dict[int, dict[str, Any]] = {}
    for name, array in load_file(folder / "batches.safetensors").items():
        step, feature = name.split("/")
        batches.setdefault(int(step), {})[feature] = array
    initializer, partitioner = _state(model, {name: array.shape for name, array in batches[0].items()})
    state = checkpoints.Checkpointer(initializer.global_train_state_shape, partitioner, "").restore(path=path)
    trainer = trainer_class(
        model=model,
        train_state=state,
        partitioner=partitioner,
        eval_names=[],
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(0),
    )
    losses = []
    for step in sorted(batches):
        metrics = trainer.train(iter([batches[step]]), 1).result()
        losses.append(float(np.asarray(metrics["cross_ent_loss"].value)))
    trained = {"/".join(path): np.asarray(leaf) for path, leaf in flatten_dict(trainer.train_state.params).items()}
    save_file({**trained, "losses": np.asarray(losses, np.float64)}, folder / "theirs.safetensors")
    trainer.close()


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "make":
        make(*arguments[:3], Path(arguments[3]))
    else:
        {"answer": answer, "train": train}[command](*map(Path, arguments))
