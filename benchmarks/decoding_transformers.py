"""`generate` of transformers on PyTorch: a contestant of `benchmarks.decoding`, run in `.venv-bench`.

--option is "eager", which is how `generate` works by default, or "compiled": the decoder with torch.compile
over a cache of fixed size, the way that transformers describes. Attention is scaled_dot_product_attention in both.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers

from benchmarks.decoding_jobs import JOBS, measure, parse_options, sources
from benchmarks.step_transformers import load


def main() -> None:
    given = parse_options(__doc__)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    job = JOBS[given.job]
    model = load(job).eval()
    tokens = torch.from_numpy(sources(job)).long()
    options = {
        "input_ids": tokens, "attention_mask": (tokens > 0).long(), "max_new_tokens": job.targets,
        "do_sample": False, "num_beams": given.beams, "length_penalty": 1.0, "early_stopping": False,
    }  # fmt: skip
    if given.option == "compiled":
        options["cache_implementation"] = "static"
        model.forward = torch.compile(model.forward)

    @torch.inference_mode()
    def decode() -> np.ndarray:
        return model.generate(**options).numpy()[:, 1:]

    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    measure(decode, given.calls, job.targets, versions=versions)


if __name__ == "__main__":
    main()
