"""What every contestant of the training step does besides its step: reads its options, times, and prints what it found.

Imported in the peers' environment too: nothing but the standard library and numpy.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable

from benchmarks.jobs import JOBS, NUM_BATCHES

WARM_UP = 2


def parse_options(description: str | None) -> argparse.Namespace:
    """--job, --steps, --dtype, --device and --microbatches; what else a contestant understands comes as --option."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--job", choices=JOBS, default="small")
    parser.add_argument("--steps", type=int, default=15, help="that are timed")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cpu", help="torch's: cpu or cuda (jax takes what it finds)")
    parser.add_argument("--microbatches", type=int, default=1, help="parts that a batch is worked off in")
    parser.add_argument("--option", default="")
    return parser.parse_args()


def measure(step: Callable[[int], float], steps: int, **facts: object) -> None:
    """Call `step` with numbers of batches; it returns the loss once the whole update is done. Then print a line.

    {"ms": the median of the timed steps, "each_ms": all of them, "losses": of all steps, the first ones included,
    "memory": the most bytes of the process} and the facts; a fact that is a function is called after all steps.
    """
    losses, seconds = [], []
    for number in range(WARM_UP + steps):
        began = time.perf_counter()
        losses.append(step(number % NUM_BATCHES))
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    times = {"ms": 1000 * statistics.median(seconds), "each_ms": [1000 * each for each in seconds]}
    found = {name: fact() if callable(fact) else fact for name, fact in facts.items()}
    print(json.dumps({**times, "losses": losses, "memory": memory, **found}))
