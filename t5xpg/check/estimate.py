"""`make estimate`: the time and memory of a whole run, from a few timed steps."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5xpg.base import files, paths
from t5xpg.base.progress import duration
from t5xpg.data.spec import DatasetConfig
from t5xpg.distributed import hardware
from t5xpg.experiment.assembly import Assembly, assemble
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint.checkpointer import Checkpointer

PROBE_SECONDS = 10.0  # of timed updates, after those that warm up
_WARM_UP, _FEWEST, _MOST = 2, 5, 200  # updates


def estimate(loaded: LoadedConfig, price_per_hour: float | None, *, as_json: bool = False) -> None:
    """Print parameters, operations, memory, time and cost of the whole run of `loaded` on this machine, or as JSON.

    Nothing is read or kept: the timed steps are on made-up batches. price_per_hour: of the machine, in any currency.
    Raises UserError as training does.
    """
    experiment, began = loaded.experiment, time.perf_counter()
    assembly = assemble(experiment)
    train_step, eval_step = assembly.compile_train_step(), assembly.compile_eval_step()
    state = assembly.state_to_time()
    jax.block_until_ready(state)
    start = time.perf_counter() - began
    update, state = _time_updates(assembly, train_step, state)
    batches, updates = experiment.eval_dataset.max_batches, experiment.total_steps
    evaluation = _time_evaluation(assembly, eval_step, state) * (batches or 0)
    parts = {
        "updates": {"count": updates, "each": update},
        "evaluations": {"count": 1 - (-updates // experiment.eval_period), "each": evaluation},
        "checkpoints": {"count": -(-updates // experiment.checkpoints.period), "each": _time_save(experiment, state)},
    }
    memory = train_step.memory_analysis()
    total = start + sum(part["count"] * part["each"] for part in parts.values())
    facts: dict[str, Any] = {
        "experiment": loaded.name,
        "device": {"count": assembly.devices["count"], "kind": assembly.devices["kind"]},
        "parameters": experiment.model.num_params,
        "flops_per_update": experiment.train_dataset.batch_size * experiment.flops_per_example(experiment.lengths),
        "memory_bytes": None if memory is None else memory.argument_size_in_bytes + memory.temp_size_in_bytes,
        "seconds": {"start": start, **parts},
        "total_seconds": total,
        "cost": None if price_per_hour is None else total / 3600 * price_per_hour,
    }
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    print(f"{loaded.name} on {facts['device']['count']} x {facts['device']['kind']}")
    for label, text in _lines(facts, assembly, price_per_hour):
        print(f"{label:<13}{text}")


def _lines(facts: Mapping[str, Any], assembly: Assembly, price_per_hour: float | None) -> Iterator[tuple[str, str]]:
    experiment, seconds, flops = assembly.experiment, facts["seconds"], facts["flops_per_update"]
    peak = hardware.peak_flops_of_mesh(assembly.mesh, experiment.model.config.dtype)
    share = hardware.share_of_peak(flops / seconds["updates"]["each"], peak)
    of_peak = f", {share:.0%} of the peak" if share is not None else ""
    yield "parameters", f"{facts['parameters']:,}"
    yield "operations", f"{flops / 1e9:,.1f} GFLOP an update, {flops * experiment.total_steps:.3g} in all{of_peak}"
    if facts["memory_bytes"] is not None:
        yield "memory", f"{facts['memory_bytes'] / 2**20:,.0f} MiB a device"
    yield "start", f"{duration(seconds['start'])}, without the data process"
    for label in ("updates", "evaluations", "checkpoints"):
        count, each = seconds[label]["count"], seconds[label]["each"]
        yield label, f"{count:,} x {each:.3f} s = {duration(count * each)}"
    if experiment.eval_dataset.max_batches is None:
        yield "", "without evaluations, as they read a whole split (EVAL_STEPS=None)"
    if experiment.infer_eval_period is not None:
        yield "", "without metrics of tasks (INFER_EVAL_PERIOD)"
    yield "in all", f"{duration(facts['total_seconds'])} ({facts['total_seconds']:,.0f} s)"
    if price_per_hour is not None:
        yield "cost", f"{facts['cost']:,.2f} at {price_per_hour:g} an hour"


def _time_updates(assembly: Assembly, step: Callable[..., Any], state: TrainState) -> tuple[float, TrainState]:
    """The median seconds of an update. As in the training loop, each one waits for the metrics of the one before."""
    token_bytes = jnp.ones(assembly.experiment.model.config.vocab_size, jnp.int32)
    batches = made_up_batches(assembly.experiment, assembly.experiment.train_dataset)
    seconds: list[float] = []
    pending: Any = None
    end = float("inf")
    while len(seconds) < _WARM_UP + _FEWEST or (time.perf_counter() < end and len(seconds) < _MOST):
        began = time.perf_counter()
        state, metrics = step(state, assembly.on_devices(next(batches)), token_bytes)
        if pending is not None:
            jax.device_get(pending)
        pending = metrics
        seconds.append(time.perf_counter() - began)
        if len(seconds) == _WARM_UP:
            end = time.perf_counter() + PROBE_SECONDS
    jax.block_until_ready(state)
    return statistics.median(seconds[_WARM_UP:]), state


def _time_evaluation(assembly: Assembly, step: Callable[..., Any], state: TrainState) -> float:
    """The median seconds of one batch of an evaluation."""
    token_bytes = jnp.ones(assembly.experiment.model.config.vocab_size, jnp.int32)
    batches = made_up_batches(assembly.experiment, assembly.experiment.eval_dataset)
    seconds, params = [], assembly.model_params(state.params, state.frozen)
    for _ in range(_WARM_UP + _FEWEST):
        began = time.perf_counter()
        jax.device_get(step(params, assembly.on_devices(next(batches)), token_bytes))
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[_WARM_UP:])


def _time_save(experiment: Experiment, state: TrainState) -> float:
    """The seconds to write a checkpoint beside the runs. Training goes on meanwhile, but more slowly."""
    runs = paths.runs_directory()
    runs.mkdir(parents=True, exist_ok=True)
    files.remove_abandoned(runs)
    with tempfile.TemporaryDirectory(".tmp", files.temporary_prefix("estimate"), runs) as folder:
        with Checkpointer(Path(folder) / "checkpoints", experiment.checkpoints) as checkpointer:
            seconds = []
            for step in (1, 2):
                began = time.perf_counter()
                checkpointer.save(step, state, {"position": np.zeros(0, np.uint8)}, {})
                checkpointer.wait()
                seconds.append(time.perf_counter() - began)
        return seconds[-1]


def made_up_batches(experiment: Experiment, dataset: DatasetConfig) -> Iterator[dict[str, np.ndarray]]:
    """Batches of the right shapes without padding: random ids, one document a row."""
    draw = np.random.default_rng(0)
    features = dataset.batch_spec().features()
    high = experiment.model.config.vocab_size
    while True:
        yield {
            name: draw.integers(1, high, shape, dtype)
            if name.endswith("_tokens")
            else np.broadcast_to(np.arange(shape[-1], dtype=dtype), shape)
            if name.endswith("_positions")
            else np.ones(shape, dtype)
            for name, (shape, dtype) in features.items()
        }
