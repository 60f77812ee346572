"""How long training stands still for a checkpoint of a model of 250 million parameters.

The time counts the check that all parameters are finite, and `Checkpointer.save`, until the next update may take the
arrays. In the synchronous save, training also waits until all is written, hashed, and on the disk under its name. The
arrays hold random numbers, which are as hard to compress as weights are. `python -m benchmarks.checkpointing SAVES` is
the process that saves.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Found, Goal, Row, report_of
from t5xpg.base.xla_flags import set_xla_flags

PAUSE, WHOLE = "asynchronous", "synchronous"
WHILE, OTHERWISE = "while it is written", "otherwise"
SAVES = 3
SIZE = 2048
BEFORE = 3  # updates that are timed before every save
MOST = 1000  # updates that are timed while one state is written


def rows(repeats: int | None) -> list[Row]:
    """Seconds for which a save stops training; milliseconds of an update while a save is written, and otherwise."""
    report = report_of(["-m", "benchmarks.checkpointing", str(repeats or SAVES)])
    facts = {name: report[name] for name in ("parameters", "bytes", "arrays", "check_seconds")}
    fixed = (
        f"T5 1.1 base, {report['parameters'] / 1e6:.0f}M parameters, Adafactor, {report['bytes'] / 1e9:.2f} GB in "
        f"{report['arrays']} arrays of random numbers; SHA-256 of every file; the update takes the saved arrays"
    )
    return [
        Row(
            name="checkpointing", what="training stands still for a checkpoint", unit="s", fixed=fixed, facts=facts,
            found=Found({PAUSE: tuple(report["pauses"]), WHOLE: tuple(report["whole"])}),
            goal=Goal(at_least=10.0, against=WHOLE),
        ),
        Row(
            name="checkpointing", what="a small update beside the writing", unit="ms",
            fixed=f"{fixed}; an update is a matrix product of {report['size']} and a new state",
            found=Found({WHILE: tuple(report["updates_while"]), OTHERWISE: tuple(report["updates"])}),
        ),
    ]  # fmt: skip


def save(saves: int) -> dict[str, Any]:
    """Save a state of the size of T5 1.1 base, by turns waited for and not. saves: of each kind that are timed."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from t5xpg.experiment import config
    from t5xpg.optim import state
    from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer
    from t5xpg.train import nonfinite

    files = ["gin/models/t5_1_1_base.gin", "gin/optimizers/adafactor.gin"]
    experiment = config.load("byt5_tiny", [], files).experiment
    rng = np.random.default_rng(0)

    def filled(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.array(rng.standard_normal(leaf.shape, np.float32).astype(leaf.dtype), copy=True)

    arrays = jax.tree.map(filled, state.abstract(experiment.model, experiment.optimizer))

    def update(arrays: state.TrainState, matrix: jax.Array) -> tuple[state.TrainState, jax.Array]:
        return jax.tree.map(lambda leaf: leaf + 1, arrays), matrix @ matrix

    step = jax.jit(update, donate_argnums=0)
    matrix = jnp.asarray(rng.standard_normal((SIZE, SIZE)), jnp.float32)

    def updated() -> float:
        nonlocal arrays
        began = time.perf_counter()
        arrays, product = step(arrays, matrix)
        jax.block_until_ready((arrays, product))
        return time.perf_counter() - began

    for _ in range(BEFORE):
        updated()
    found: dict[str, list[float]] = {name: [] for name in ("pauses", "whole", "checks", "updates", "updates_while")}
    position = {"iterator": rng.integers(0, 256, 2_000_000).astype(np.uint8)}
    with (
        tempfile.TemporaryDirectory() as folder,
        Checkpointer(Path(folder, "beside"), CheckpointConfig(keep=1)) as beside,
        Checkpointer(Path(folder, "waiting"), CheckpointConfig(keep=1, asynchronous=False)) as waiting,
    ):
        for number in range(1, saves + 2):
            for checkpointer in (beside, waiting):
                updates = [updated() for _ in range(BEFORE)]
                began = time.perf_counter()
                nonfinite.nonfinite_parameters(arrays.params)
                checked = time.perf_counter()
                checkpointer.save(number, arrays, position, {"step": number}, {"validation/loss": 1.0})
                saved = time.perf_counter()
                updates_while: list[float] = []
                finished = Path(folder, "beside", str(number))
                while checkpointer is beside and not finished.is_dir() and len(updates_while) < MOST:
                    updates_while.append(updated())
                checkpointer.wait()
                if number == 1:  # compiles, imports, starts threads
                    continue
                found["checks"].append(checked - began)
                found["pauses" if checkpointer is beside else "whole"].append(saved - began)
                found["updates"] += [1000 * seconds for seconds in updates]
                found["updates_while"] += [1000 * seconds for seconds in updates_while[:-1]]
    leaves = jax.tree.leaves(arrays)
    return {
        **found,
        "parameters": experiment.model.num_params,
        "bytes": sum(leaf.nbytes for leaf in leaves),
        "arrays": len(leaves),
        "check_seconds": float(np.median(found["checks"])),
        "size": SIZE,
    }


if __name__ == "__main__":
    set_xla_flags()  # before jax is imported
    print(json.dumps(save(int(sys.argv[1]))))
