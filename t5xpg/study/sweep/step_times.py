"""The time of a step of each recipe, measured in one process in which the recipes take turns.

The runs of a sweep share the machine with each other and with other programs, so their own times say little.
"""

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from t5xpg.base import environment
from t5xpg.base.progress import Progress
from t5xpg.check.estimate import made_up_batches
from t5xpg.experiment import assembly
from t5xpg.experiment.experiment import Experiment
from t5xpg.study.runs import StudyRun

ROUNDS, STEPS = 7, 6  # turns of each recipe, and updates in a turn of which the first warms up


def measure(runs: Mapping[str, StudyRun]) -> dict[str, Any]:
    """{"seconds": {recipe: median seconds of an update}, "fastest": …, "rounds", "steps", "host", "versions"}.

    runs: one run of each recipe. The updates are on made-up batches; nothing else should run meanwhile.
    """
    with Progress("times of a step", ROUNDS * len(runs), "turns") as progress:
        turns = {name: _turns(run.experiment) for name, run in runs.items()}
        seconds: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(ROUNDS):
            for name, turn in turns.items():
                seconds[name] += next(turn)
                progress.advance(1, name)
    return {
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "fastest": {name: min(values) for name, values in seconds.items()},
        "rounds": ROUNDS,
        "steps": STEPS - 1,
        "host": environment.host(),
        "versions": environment.versions(),
    }


def _turns(experiment: Experiment) -> Iterator[list[float]]:
    """Yields, turn by turn of a recipe's compiled step with a state of its own, the seconds of each update but the
    first."""
    built = assembly.assemble(experiment)
    step, state = built.compile_train_step(), built.state_to_time()
    batch = built.on_devices(next(made_up_batches(experiment, experiment.train_dataset)))
    token_bytes = jax.numpy.ones((experiment.model.config.vocab_size,), np.int32)
    while True:
        seconds = []
        for _ in range(STEPS):
            start = time.perf_counter()
            state, metrics = step(state, batch, token_bytes)
            jax.block_until_ready((state, metrics))
            seconds.append(time.perf_counter() - start)
        yield seconds[1:]
