"""Makes small checkpoints as T5X itself writes them, with what T5X computes with them.

    /path/to/python tests/goldens/make_t5x_goldens.py             writes tests/goldens/t5x/
    /path/to/python tests/goldens/make_t5x_goldens.py --check     computes the answers again and compares

Needs a Python that has T5X (see docs/interop.md). Each case is a folder of T5X's, packed as <case>.zip, and
<case>.safetensors with `inputs` [B, S], `targets` [B, T] and the `logits` that T5X's network computes with what T5X
restores. contents.json lists the arrays of each with their shapes and digests, as T5X reads them back. The arrays of
`mesh_tensorflow` are under the names of Mesh-TensorFlow, written by TensorFlow, read by T5X's importer.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import re
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import seqio
import tensorflow as tf
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file, save_file
from t5x import adafactor, checkpoints, models, partitioning, utils
from t5x.examples.scalable_t5 import network as scalable
from t5x.examples.t5 import network as minimal

FOLDER = Path(__file__).resolve().parent / "t5x"
B, S, T, STEP = 3, 20, 9, 5
SIZES = {
    "vocab_size": 264, "emb_dim": 16, "num_heads": 3, "head_dim": 6, "mlp_dim": 24, "num_encoder_layers": 3,
    "num_decoder_layers": 2, "mlp_activations": ("gelu", "linear"), "dropout_rate": 0.0, "dtype": jnp.float32,
}  # fmt: skip
RELU = {**SIZES, "mlp_activations": ("relu",), "logits_via_embedding": True, "vocab_size": 48}
SMALL = {**SIZES, "vocab_size": 48}
# network, its sizes, how it is saved, type of the parameters on disk
CASES: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "t5_1_1": (minimal, SIZES, "tensorstore", "float32"),
    "t5_tied_bfloat16": (minimal, RELU, "tensorstore", "bfloat16"),
    "t5_1_1_orbax": (minimal, SMALL, "orbax", "float32"),
    "scalable_scanned": (scalable, {**SMALL, "scan_layers": True}, "tensorstore", "float32"),
    "scalable_scanned_first_axis": (scalable, {**SMALL, "scan_layers": True, "param_scan_axis": 0}, "orbax", "float32"),
    "scalable_unscanned": (scalable, {**SMALL, "scan_layers": False}, "tensorstore", "float32"),
    "mesh_tensorflow": (minimal, SMALL, "tensorflow", "float32"),
}


def t5x_model(network: Any, sizes: dict[str, Any]) -> models.EncoderDecoderModel:
    """T5X's model with its Adafactor, which here factors small arrays, too."""
    settings = {"logical_factor_rules": adafactor.standard_logical_factor_rules(), "min_dim_size_to_factor": 16}
    optimizer = adafactor.Adafactor(decay_rate=0.8, step_offset=0, **settings)
    vocabulary = seqio.ByteVocabulary()
    module = network.Transformer(config=network.T5Config(**sizes))
    return models.EncoderDecoderModel(module, vocabulary, vocabulary, optimizer)


def initializer_of(model: Any, partitioner: Any) -> utils.TrainStateInitializer:
    decoder = dict.fromkeys(("decoder_input_tokens", "decoder_target_tokens"), (B, T))
    shapes = {"encoder_input_tokens": (B, S), **decoder}
    types = dict.fromkeys(shapes, jnp.int32)
    return utils.TrainStateInitializer(model.optimizer_def, model.get_initial_variables, shapes, partitioner, types)


def a_state(initializer: utils.TrainStateInitializer, seed: int) -> Any:
    """A train state with random parameters and accumulators of an optimiser at STEP."""
    state = initializer.from_scratch(jax.random.PRNGKey(seed))
    draw = np.random.default_rng(seed)

    def some(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        if "step" in name:
            return jnp.asarray(STEP, leaf.dtype)
        if "param_states" in name:  # what is not used is one zero
            return jnp.asarray(draw.uniform(1e-4, 1e-2, leaf.shape) if leaf.shape != (1,) else leaf, leaf.dtype)
        scale = 1.0 if "embedding" in name or "scale" in name else 0.3
        shift = 1.0 if "scale" in name else 0.0
        return jnp.asarray(shift + scale * (0.2 if "scale" in name else 1.0) * draw.normal(size=leaf.shape), leaf.dtype)

    return state.restore_state(jax.tree_util.tree_map_with_path(some, state.state_dict()))


def save(folder: Path, state: Any, partitioner: Any, how: str, dtype: str) -> None:
    """By T5X's own writers; as Mesh-TensorFlow by TensorFlow."""
    if how == "tensorstore":
        checkpoints.Checkpointer(state, partitioner, str(folder), save_dtype=jnp.dtype(dtype)).save(state)
    elif how == "orbax":
        kind, options = checkpoints.OrbaxCheckpointManagerInterface, {"save_dtype": jnp.dtype(dtype)}
        manager = kind(str(folder), state, partitioner, **options)
        manager.save(state)
        manager.wait_until_finished()
        manager.close()
    else:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            named = mesh_tensorflow_names(state.state_dict())
            variables = [tf.compat.v1.Variable(value, name=name) for name, value in named.items()]
            session.run([variable.initializer for variable in variables])
            target = str(folder / f"model.ckpt-{STEP}")
            tf.compat.v1.train.Saver(variables).save(session, target, write_meta_graph=False)


def mesh_tensorflow_names(state: dict[str, Any]) -> dict[str, np.ndarray]:
    """The inverse of `t5x.checkpoint_importer`'s rules, which `check_restored` holds it to."""
    slots = {"v_col": "_slot_vc", "v_row": "_slot_vr", "v": "_slot_v"}
    rules = {
        r"^token_embedder/": "shared/", r"/logits_dense/": "/logits/", r"/(en|de)coder_norm/": "/final_layer_norm/",
        r"/relpos_bias/rel_embedding$": "/block_000/layer_000/SelfAttention/relative_attention_bias",
        r"/layers_(\d)/": r"/block_00\1/", r"/pre_(self_)?attention_layer_norm/": "/layer_000/layer_norm/",
        r"/pre_cross_attention_layer_norm/": "/layer_001/layer_norm/",
        r"^(encoder.*)/pre_mlp_layer_norm/": r"\1/layer_001/layer_norm/",
        r"^(decoder.*)/pre_mlp_layer_norm/": r"\1/layer_002/layer_norm/",
        r"^(encoder.*)/mlp/": r"\1/layer_001/DenseReluDense/", r"^(decoder.*)/mlp/": r"\1/layer_002/DenseReluDense/",
        r"/(self_)?attention/(\w)\w*/kernel$": r"/layer_000/SelfAttention/\2",
        r"/encoder_decoder_attention/(\w)\w*/kernel$": r"/layer_001/EncDecAttention/\1",
    }  # fmt: skip

    def named(path: tuple[str, ...]) -> str:
        name = "/".join(path)
        for pattern, replacement in rules.items():
            name = re.sub(pattern, replacement, name)
        return name

    values: dict[str, np.ndarray] = {"global_step": np.asarray(STEP, np.int64)}
    for path, value in flatten_dict(state["target"]).items():
        values[named(path)] = np.asarray(value)
    for path, value in flatten_dict(state["state"]["param_states"]).items():
        if path[-1] in slots and value.shape != (1,):
            values[named(path[:-1]) + slots[path[-1]]] = np.asarray(value)
    return values


def restored(folder: Path, initializer: Any, partitioner: Any, how: str) -> Any:
    """What T5X reads of the folder, by the class that wrote it."""
    shape = initializer.global_train_state_shape
    if how == "orbax":
        manager = checkpoints.OrbaxCheckpointManagerInterface(str(folder), shape, partitioner)
        return manager.restore(STEP)
    checkpointer = checkpoints.Checkpointer(shape, partitioner, str(folder))
    if how == "tensorflow":
        return checkpointer.restore_from_tf_checkpoint(str(folder))
    return checkpointer.restore(STEP)


def contents(state: Any) -> dict[str, str]:
    """{"target/…": the shape and the beginning of the SHA-256 of the numbers as float32} of all that is used."""
    listed = {}
    for path, value in sorted(flatten_dict(state.state_dict()).items()):
        array = np.asarray(value)
        digest = hashlib.sha256(np.ascontiguousarray(array.astype(np.float32)).tobytes()).hexdigest()
        if array.shape != (1,):
            listed["/".join(path)] = f"{'x'.join(map(str, array.shape))} {digest[:16]}"
    return listed


def answers(model: Any, state: Any, vocab_size: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    inputs, targets = (draw.integers(2, vocab_size, size=(B, n)).astype(np.int32) for n in (S, T))
    inputs[1, S // 2 - 1], inputs[1, S // 2 :] = 1, 0
    targets[2, T // 2], targets[2, T // 2 + 1 :] = 1, 0
    shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    apply = functools.partial(model.module.apply, enable_dropout=False)
    logits = jax.jit(apply)({"params": state.params}, inputs, shifted, targets)
    return {"inputs": inputs, "targets": targets, "logits": np.asarray(logits, np.float32)}


def make(case: str, check: bool) -> dict[str, str]:
    network, sizes, how, dtype = CASES[case]
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    model = t5x_model(network, sizes)
    initializer = initializer_of(model, partitioner)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / case
        folder.mkdir()
        if check:
            with zipfile.ZipFile(FOLDER / f"{case}.zip") as packed:
                packed.extractall(folder)
        else:
            save(folder, a_state(initializer, list(CASES).index(case)), partitioner, how, dtype)
            pack(folder, FOLDER / f"{case}.zip")
        state = restored(folder, initializer, partitioner, how)
    found = answers(model, state, sizes["vocab_size"])
    if check:
        recorded = load_file(FOLDER / f"{case}.safetensors")
        print(f"{case}: logits differ by {np.abs(recorded['logits'] - found['logits']).max():.1e}")
    else:
        save_file(found, FOLDER / f"{case}.safetensors")
    return contents(state)


def pack(folder: Path, target: Path) -> None:
    """The folder's files, with a fixed date."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not re.search(r"events\.out|\.tmp", file.name):
                name = zipfile.ZipInfo(str(file.relative_to(folder)), (2026, 1, 1, 0, 0, 0))
                packed.writestr(name, file.read_bytes(), zipfile.ZIP_DEFLATED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    FOLDER.mkdir(exist_ok=True)
    listed = {case: make(case, check) for case in CASES}
    file = FOLDER / "contents.json"
    if check:
        same = json.loads(file.read_text(encoding="utf-8")) == listed
        print("contents.json:", "the same" if same else "DIFFERENT")
        return 0 if same else 1
    file.write_text(json.dumps(listed, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
