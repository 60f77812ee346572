"""This project as a contestant, each time in a process of its own: the training step, decoding, one size of growth.

python -m benchmarks.ours step|decoding [--job NAME …]            as `make train` and `make infer` compile them
python -m benchmarks.ours bare EXPERIMENT STEPS OVERRIDES         an experiment's step on one batch, nothing around it
python -m benchmarks.ours growth JOB WINDOWS                      fields of `Job` and of `Windows` as JSON
"""

import argparse
import contextlib
import dataclasses
import functools
import gc
import json
import resource
import statistics
import sys
import time
from pathlib import Path

from benchmarks import memory
from benchmarks.contestant import parse_options, time_decoding, time_steps
from benchmarks.jobs import JOBS, Job
from t5xpg.base import malloc
from t5xpg.base.xla_flags import set_xla_flags

BARE_WARM_UP = 5
SECONDS, FEWEST, MOST = 1.5, 2, 15  # of timed steps of `growth`: as many as fit


def step(given: argparse.Namespace) -> None:
    """The compiled training step."""
    import jax

    from benchmarks.own_step import OwnStep, experiment
    from t5xpg.exchange.huggingface.params import params_from_transformers

    job = JOBS[given.job]
    own = OwnStep(experiment(job, given.dtype, microbatches=given.microbatches))
    params = params_from_transformers(job.weights(), own.parts.experiment.model.config)
    own.state = dataclasses.replace(own.state, params=jax.device_put(params, own.parts.shardings.params))
    batches = [own.parts.on_devices(batch) for batch in job.batches()]
    norms: list[float] = []

    def update(number: int) -> float:
        metrics = own(batches[number])
        norms.append(float(metrics["gradient_norm"]))
        return float(metrics["loss"])

    def device_memory() -> int | None:
        """The most bytes of arrays and of XLA's temporaries; None where the device does not count them."""
        return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")

    facts = {"device": own.parts.devices["kind"], "compile_seconds": own.compile_seconds, "gradient_norms": norms}
    time_steps(update, given.repeats, device_memory=device_memory, **facts)


def decoding(given: argparse.Namespace) -> None:
    """Greedy decoding, or beam search as transformers does it."""
    import jax
    import numpy as np

    from t5xpg.exchange.huggingface.config import config_from_transformers
    from t5xpg.exchange.huggingface.params import params_from_transformers
    from t5xpg.models import decoding
    from t5xpg.models.encoder_decoder import EncoderDecoderModel

    job = JOBS[given.job]
    model = EncoderDecoderModel(dataclasses.replace(config_from_transformers(job.settings()), dtype=given.dtype))
    params = jax.device_put(params_from_transformers(job.weights(), model.config))
    config = decoding.DecodingConfig()
    if given.beams > 1:
        config = decoding.DecodingConfig(
            "beam", num_decodes=given.beams, length_penalty="transformers", alpha=1.0, return_all_decodes=False
        )
    decode = jax.jit(functools.partial(decoding.decode, model, config=config, max_decode_length=job.targets))
    tokens = job.sources()
    time_decoding(lambda: np.asarray(decode(params, tokens).tokens[:, 0]), given.repeats, job.targets)


def bare(name: str, steps: str, overrides: str) -> None:
    """{"ms": of a step of an experiment}."""
    from benchmarks.own_step import OwnStep
    from t5xpg.check.estimate import made_up_batches
    from t5xpg.experiment import config

    experiment = config.load(name, *config.split_overrides(overrides)).experiment
    own = OwnStep(experiment)
    batch = own.parts.on_devices(next(made_up_batches(experiment, experiment.train_dataset)))
    for _ in range(BARE_WARM_UP):
        own(batch)
    began = time.perf_counter()
    for _ in range(int(steps)):
        own(batch)
    print(json.dumps({"ms": 1000 * (time.perf_counter() - began) / int(steps)}))


def growth(sizes: str, windows: str) -> None:
    """Seconds of a step, the most bytes of the process during steps, operations of its matrix products, tokens."""
    from benchmarks.own_step import OwnStep, experiment
    from t5xpg.models.parts import Windows

    job = Job(**json.loads(sizes))
    own = OwnStep(experiment(job, windows=Windows(**json.loads(windows))))
    batch = own.parts.on_devices(job.batches()[0])
    forget_peak()
    seconds: list[float] = []
    while len(seconds) <= FEWEST or (sum(seconds) < SECONDS and len(seconds) < MOST):
        began = time.perf_counter()
        own(batch)
        seconds.append(time.perf_counter() - began)
    peak = memory.size("/proc/self/status", "VmHWM")  # since its start if the kernel does not forget
    peak = peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # if it does not tell
    median = statistics.median(seconds[1:])  # the first one touches its memory for the first time
    print(json.dumps({"seconds": median, "memory": peak, "flops": job.flops(), "tokens": job.tokens}))


def forget_peak() -> None:
    """Give back the memory that compiling has left, and reset the kernel's record of the largest memory."""
    gc.collect()
    malloc.release_unused()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    set_xla_flags()  # before jax is imported
    if sys.argv[1] in ("bare", "growth"):
        {"bare": bare, "growth": growth}[sys.argv[1]](*sys.argv[2:])
    else:
        options = parse_options(__doc__)
        {"step": step, "decoding": decoding}[options.work](options)
