"""What every contestant does besides its own work: reads options, times, prints what it found as a line of JSON.

Imported in the peers' environments too: nothing but the standard library, numpy and `benchmarks.jobs`.
"""

import argparse
import hashlib
import json
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.jobs import END, JOBS, NUM_BATCHES

WARM_UP = 2


def parse_options(description: str | None) -> argparse.Namespace:
    """What is measured, of which job, and how; what else a contestant understands comes as --option."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("work", nargs="?", choices=("step", "decoding"), default="step")
    parser.add_argument("--job", choices=JOBS, default="small")
    parser.add_argument("--repeats", type=int, default=10, help="steps or calls that are timed")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cpu", help="torch's: cpu or cuda (jax takes what it finds)")
    parser.add_argument("--microbatches", type=int, default=1, help="parts that a batch is worked off in")
    parser.add_argument("--beams", type=int, default=1, help="1: greedy decoding")
    parser.add_argument("--option", default="")
    return parser.parse_args()


def time_steps(step: Callable[[int], float], repeats: int, **facts: object) -> None:
    """Call `step` with numbers of batches; it returns the loss once the whole update is done. Then print a line.

    {"ms": the median of the timed steps, "each_ms": all of them, "losses": of all steps, the first ones included,
    "memory": the most bytes of the process} and the facts; a fact that is a function is called after all steps.
    """
    losses, seconds = [], []
    for number in range(WARM_UP + repeats):
        began = time.perf_counter()
        losses.append(step(number % NUM_BATCHES))
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    times = {"ms": 1000 * statistics.median(seconds), "each_ms": [1000 * each for each in seconds]}
    found = {name: fact() if callable(fact) else fact for name, fact in facts.items()}
    print(json.dumps({**times, "losses": losses, "memory": memory, **found}))


def time_decoding(decode: Callable[[], np.ndarray], repeats: int, targets: int, **facts: object) -> None:
    """Call `decode`, which returns tokens [batch, at most `targets`], once untimed and then timed; print a line.

    {"tokens_per_second": of the median call, encoding included, "tokens": without padding and what follows the first
    end of a row, "answer": a digest of each row of tokens} and the facts.
    """
    decode()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        tokens = decode()
        seconds.append(time.perf_counter() - began)
    padded = np.zeros((len(tokens), targets), np.int32)
    padded[:, : tokens.shape[1]] = tokens
    padded[np.cumsum(padded == END, axis=1) - (padded == END) > 0] = 0
    count = int((padded != 0).sum())
    answer = [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in padded]
    rate = count / statistics.median(seconds)
    print(json.dumps({"tokens_per_second": rate, "tokens": count, "answer": answer, **facts}))
