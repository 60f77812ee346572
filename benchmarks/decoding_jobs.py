"""What the contestants of decoding are given, and what each does besides decoding: options, timing, its answer.

Imported in the peers' environment too: nothing but the standard library, numpy and `benchmarks.jobs`.
"""

import argparse
import dataclasses
import hashlib
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.jobs import END, Job, t5_1_1

BEAMS = 4
# The published demo's model over bytes; T5 1.1 small with its vocabulary.
JOBS = {
    "tiny": Job(emb=128, mlp=512, inputs=256, targets=64, batch=32),
    "small": Job(
        emb=512, mlp=1024, inputs=512, targets=114, batch=32, heads=6, head_dim=64, encoder_layers=8, decoder_layers=8,
        vocabulary=32_128,
    ),
    "t5_1_1_base": t5_1_1(768, 2048, 12, 12, batch=32),
}  # fmt: skip
JOBS["small, 8 rows"] = dataclasses.replace(JOBS["small"], batch=8)


def sources(job: Job) -> np.ndarray:
    """int32 [batch, inputs]: pieces of a text, each with its end; every fourth row is a quarter shorter."""
    tokens = job.batches()[0]["encoder_input_tokens"]
    tokens = np.where(tokens == END, END + 2, tokens)  # rows are packed: no end but the last
    tokens[:, -1] = END
    short = job.inputs * 3 // 4
    tokens[::4, short - 1], tokens[::4, short:] = END, 0
    return tokens


def parse_options(description: str | None) -> argparse.Namespace:
    """--job, --calls, --beams (1: greedy) and --dtype; what else a contestant understands comes as --option."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--job", choices=JOBS, default="tiny")
    parser.add_argument("--calls", type=int, default=5, help="that are timed")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--option", default="")
    return parser.parse_args()


def measure(decode: Callable[[], np.ndarray], calls: int, targets: int, **facts: object) -> None:
    """Call `decode`, which returns tokens [batch, at most `targets`], once untimed and `calls` times; print a line.

    Tokens after the first end of a row are not counted.

    {"tokens_per_second": of the median call, encoding included, "tokens": without padding, "answer": a digest of each
    row of tokens} and the facts.
    """
    decode()
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        tokens = decode()
        seconds.append(time.perf_counter() - began)
    padded = np.zeros((len(tokens), targets), np.int32)
    padded[:, : tokens.shape[1]] = tokens
    padded[np.cumsum(padded == END, axis=1) - (padded == END) > 0] = 0
    count = int((padded != 0).sum())
    answer = [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in padded]
    print(
        json.dumps(
            {"tokens_per_second": count / statistics.median(seconds), "tokens": count, "answer": answer, **facts}
        )
    )
