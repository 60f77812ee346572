"""`make estimate`: the time and memory of a whole run, from a timed start and a few timed steps."""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5xpg.base import environment, files, paths
from t5xpg.base.progress import duration
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService
from t5xpg.distributed import hardware
from t5xpg.experiment import data_state
from t5xpg.experiment.assembly import Assembly, assemble, check_vocabulary
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import data_config
from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint.checkpointer import Checkpointer

PROBE_SECONDS = 10.0  # of timed updates, after those that warm up
_WARM_UP, _FEWEST, _MOST = 2, 5, 200  # updates


def estimate(loaded: LoadedConfig, price_per_hour: float | None, *, as_json: bool = False) -> None:
    """Print parameters, operations, memory, time and cost of the whole run of `loaded` on this machine, or as JSON.

    Nothing is kept. If the text exists, the data process starts at the same time, as in training; the timed steps are
    on made-up batches. price_per_hour: of the machine, in any currency. Raises UserError as training does.
    """
    experiment = loaded.experiment
    before_main = _seconds_since_program_start()
    began = time.perf_counter()
    assembly = assemble(experiment)
    batches, (train_step, eval_step) = _start_as_training(assembly)
    state = assembly.state_to_time()
    jax.block_until_ready(state)
    start = before_main + time.perf_counter() - began

    update, state = _time_updates(assembly, train_step, state)
    save = _time_save(experiment, state)
    evaluation = _time_evaluation(assembly, eval_step, state)
    updates = experiment.total_steps
    evaluations, saves = (-(-updates // each) for each in (experiment.eval_period, experiment.checkpoints.period))
    times = {  # the number and the seconds of each part of the run
        "updates": (updates, update),
        "evaluations": (1 + evaluations, evaluation * (batches or 0)),
        "checkpoints": (saves, save),
    }
    memory, examples = train_step.memory_analysis(), experiment.train_dataset.batch_size
    total = start + sum(number * seconds for number, seconds in times.values())
    facts: dict[str, Any] = {
        "experiment": loaded.name,
        "device": {"count": assembly.devices["count"], "kind": assembly.devices["kind"]},
        "parameters": experiment.model.num_params,
        "flops_per_update": examples * experiment.flops_per_example(experiment.lengths),
        "memory_bytes": None if memory is None else memory.argument_size_in_bytes + memory.temp_size_in_bytes,
        "seconds": {"start": start, **{name: {"count": each[0], "each": each[1]} for name, each in times.items()}},
        "total_seconds": total,
        "cost": None if price_per_hour is None else total / 3600 * price_per_hour,
    }
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        _print(facts, loaded, assembly, times, batches, price_per_hour)


def _start_as_training(assembly: Assembly) -> tuple[int | None, tuple[Any, Any]]:
    """The number of batches of an evaluation (None: unknown), and the compiled steps, made as in training."""
    experiment = assembly.experiment
    configs = [
        data_config(each, experiment.random_seed) for each in (experiment.train_dataset, experiment.eval_dataset)
    ]
    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(lambda: (assembly.compile_train_step(), assembly.compile_eval_step()))
        batches = experiment.eval_dataset.max_batches
        if all(_is_ready(each) for each in configs):
            with DataService() as service:
                check_vocabulary(service.describe(configs[0]).vocabulary, experiment)
                stream, eval_stream = map(service.open, configs)
                next(stream)
                batches = sum(1 for _ in eval_stream)  # EVAL_STEPS at most
        return batches, compiling.result()


def _is_ready(dataset: DatasetConfig) -> bool:
    """True if a stream is of a task of the table over an export, and can be read without making data first."""
    state = data_state.state_of(dataset)
    return state.row is not None and state.row.dataset is not None and state.ready


def _time_updates(assembly: Assembly, step: Callable[..., Any], state: TrainState) -> tuple[float, TrainState]:
    """The median seconds of an update. As in the training loop, each one waits for the metrics of the one before."""
    token_bytes = _token_bytes(assembly)
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
    token_bytes = _token_bytes(assembly)
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


def _token_bytes(assembly: Assembly) -> jax.Array:
    counts = np.ones(assembly.experiment.model.config.vocab_size, np.int32)
    return jax.device_put(counts, jax.sharding.NamedSharding(assembly.mesh, jax.sharding.PartitionSpec()))


def _seconds_since_program_start() -> float:
    """The seconds since the program was started; 0 on systems other than Linux."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, AttributeError, IndexError):  # not Linux
        return 0.0


def _print(
    facts: dict[str, Any],
    loaded: LoadedConfig,
    assembly: Assembly,
    times: dict[str, tuple[int, float]],
    batches: int | None,
    price_per_hour: float | None,
) -> None:
    experiment, devices, selection = loaded.experiment, assembly.devices, loaded.experiment.selection
    updates, update_seconds = times["updates"]
    total, flops = facts["total_seconds"], facts["flops_per_update"]
    peak = hardware.peak_flops_of_mesh(assembly.mesh, experiment.model.config.dtype)
    share = hardware.share_of_peak(flops / update_seconds, peak)
    of_peak = f", {share:.0%} of the peak" if share is not None else ""
    cpu = f" ({environment.cpu_model()})" if devices["platform"] == "cpu" else ""
    print(f"{loaded.name} on {devices['count']} x {devices['kind']}{cpu}")

    def line(label: str, text: str) -> None:
        print(f"{label:<13}{text}")

    def repeated(label: str, digits: int, note: str = "") -> None:
        number, seconds = times[label]
        line(label, f"{number:,} x {seconds:.{digits}f} s{note} = {duration(number * seconds)}")

    line("parameters", f"{experiment.model.num_params:,}")
    line("operations", f"{flops / 1e9:,.1f} GFLOP an update, {flops * updates:.3g} in all{of_peak}")
    if facts["memory_bytes"] is not None:
        line("memory", f"{facts['memory_bytes'] / 2**20:,.0f} MiB a device")
    line("start", duration(facts["seconds"]["start"]))
    repeated("updates", 3)
    if batches is None:
        line("evaluations", f"{times['evaluations'][0]} over a whole split of unknown length: not counted")
    else:
        repeated("evaluations", 2, f" ({batches} batches, without encoder_use and losses by task)")
    if experiment.infer_eval_period is not None:
        number = -(-updates // experiment.infer_eval_period)
        line("metrics", f"{number} x INFER_EVAL_STEPS batches of every task, predicted: not counted")
    repeated("checkpoints", 2)
    if selection is not None and selection.keep:
        line("", f"and {times['checkpoints'][1]:.2f} s for each evaluation that is the best so far, out of their turn")
    if selection is not None and selection.patience is not None:
        line("early stop", f"as soon as {selection.metric} has not been better for {selection.patience} evaluations")
    line("in all", f"{duration(total)} ({total:,.0f} s)")
    if price_per_hour is not None:
        line("cost", f"{facts['cost']:,.2f} at {price_per_hour:g} an hour")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > 1.5 * environment.usable_cores():
        print(f"other programs are running (load {load:.0f}): alone on the machine it would be faster")
