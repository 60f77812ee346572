"""T5X's part of `benchmarks.t5x_agreement`, in a Python that has it.

    python t5x_agreement_theirs.py REPOSITORY FOLDER

FOLDER has experiment.gin, as `make train ENGINE=t5x` writes it, a checkpoint of step 0 that it names, and
batches.safetensors ("<step>/<feature>"). T5X builds model and trainer from the gin files, restores the checkpoint, and
updates once for each batch; theirs.safetensors gets the parameters after the last one and `losses` (nats for each
target token, before each update).
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file, save_file
from t5x import checkpoints, gin_utils, partitioning, utils
from t5x import train as t5x_train

import gin


def main(repository: Path, folder: Path) -> None:
    """See above."""
    train = gin.configurable(t5x_train.train)  # noqa: F841  (the fragment imports this module as its train script)
    sys.modules["__main__"].train = t5x_train.train  # type: ignore[attr-defined]
    gin_utils.parse_gin_flags(
        [str(repository)], [str(folder / "experiment.gin"), str(repository / "gin" / "engines" / "t5x.gin")], []
    )
    model = copy.deepcopy(gin.query_parameter("%MODEL"))
    trainer_class = copy.deepcopy(gin.query_parameter("train.trainer_cls"))
    path = gin.query_parameter("%INITIAL_CHECKPOINT_PATH")
    batches = _batches(folder)
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    shapes = {name: array.shape for name, array in batches[0].items()}
    types = dict.fromkeys(shapes, jnp.int32)
    initializer = utils.TrainStateInitializer(
        model.optimizer_def, model.get_initial_variables, shapes, partitioner, types
    )
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
    for batch in batches:
        metrics = trainer.train(iter([batch]), 1).result()
        losses.append(float(np.asarray(metrics["cross_ent_loss"].value)))
    trained = {"/".join(path): np.asarray(leaf) for path, leaf in flatten_dict(trainer.train_state.params).items()}
    save_file({**trained, "losses": np.asarray(losses, np.float64)}, folder / "theirs.safetensors")
    trainer.close()


def _batches(folder: Path) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for name, array in load_file(folder / "batches.safetensors").items():
        step, feature = name.split("/")
        found.setdefault(int(step), {})[feature] = array
    return [found[step] for step in sorted(found)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
