"""Run by test_checkpoints.py: writes a checkpoint, begins another, and is killed by SIGKILL in the middle of it.

Usage: killed_save.py <folder>
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer


def state(step: int, size: int) -> TrainState:
    weights = jnp.asarray(np.random.default_rng(step).normal(size=size).astype(np.float32))
    return TrainState(step=jnp.int32(step), params={"layer": {"kernel": weights}}, opt_state=(jnp.zeros(3),))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    checkpoints = Checkpointer(folder, CheckpointConfig(keep=1, keep_best=None))
    checkpoints.save(1, state(1, 100), {"position": np.arange(3)}, {"at": 1})
    checkpoints.wait()
    checkpoints.save(2, state(2, 30_000_000), {"position": np.arange(4)}, {"at": 2})
    while not any(path.name.startswith("2.") for path in folder.iterdir()):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
