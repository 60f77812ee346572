"""transformers' T5 on PyTorch as a contestant, run in `.venv-bench`: the training step, and decoding by `generate`.

--option of a step names how torch runs it: "eager", or the mode of torch.compile ("default", "max-autotune"). Attention
is scaled_dot_product_attention, the optimiser the fused AdamW, the masks additive biases made before the step.
--option of decoding is "eager", which is how `generate` works by default, or "compiled": the decoder with torch.compile
over a cache of fixed size, the way that transformers describes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

from benchmarks.contestant import parse_options, time_decoding, time_steps
from benchmarks.jobs import B1, B2, EPSILON, JOBS, LEARNING_RATE, Z_LOSS, Job

MASKED = -1e10
VERSIONS = f"torch {torch.__version__}, transformers {transformers.__version__}"


def load(job: Job) -> transformers.T5ForConditionalGeneration:
    """The model by way of a checkpoint: a freshly made one ties its output matrix whatever its settings say."""
    with tempfile.TemporaryDirectory() as folder:
        save_file(job.weights(), Path(folder) / "model.safetensors", metadata={"format": "pt"})
        (Path(folder) / "config.json").write_text(json.dumps(job.settings()))
        return transformers.T5ForConditionalGeneration.from_pretrained(folder, attn_implementation="sdpa").float()


def prepared(job: Job, device: str) -> list[dict[str, torch.Tensor]]:
    """The batches, their segments as biases [B, 1, queries, keys] that transformers takes as they are."""
    batches = []
    for arrays in job.batches():
        batch = {name: torch.from_numpy(array).long().to(device) for name, array in arrays.items()}
        encoder, decoder = batch["encoder_segment_ids"], batch["decoder_segment_ids"]
        causal = torch.ones(job.targets, job.targets, device=device).tril().bool()
        seen = {
            "encoder": encoder[:, :, None] == encoder[:, None, :],
            "decoder": (decoder[:, :, None] == decoder[:, None, :]) & causal,
            "cross": decoder[:, :, None] == encoder[:, None, :],
        }
        masks = {name: torch.where(visible[:, None], 0.0, MASKED) for name, visible in seen.items()}
        batches.append(batch | masks)
    return batches


def step(given: argparse.Namespace) -> None:
    if given.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} finds no CUDA device")
    job = JOBS[given.job]
    model = load(job).train().to(given.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(B1, B2), eps=EPSILON, weight_decay=0.0, fused=True
    )

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        encoded = model.encoder(input_ids=batch["encoder_input_tokens"], attention_mask=batch["encoder"])
        decoded = model.decoder(
            input_ids=batch["decoder_input_tokens"], attention_mask=batch["decoder"],
            encoder_hidden_states=encoded.last_hidden_state, encoder_attention_mask=batch["cross"], use_cache=False,
        )  # fmt: skip
        logits = model.lm_head(decoded.last_hidden_state).float()
        log_z = torch.logsumexp(logits, dim=-1)
        of_target = logits.gather(-1, batch["decoder_target_tokens"][..., None])[..., 0]
        return (log_z - of_target + Z_LOSS * log_z.square()).mean()

    compute = loss_of if given.option == "eager" else torch.compile(loss_of, mode=given.option)
    batches = prepared(job, given.device)

    def update(number: int) -> float:
        optimizer.zero_grad(set_to_none=True)
        whole = torch.zeros((), device=given.device)
        for part in range(given.microbatches):  # parts have equally many tokens: the mean of their means is the batch's
            rows = {name: array.chunk(given.microbatches)[part] for name, array in batches[number].items()}
            with torch.autocast(given.device, torch.bfloat16, enabled=given.dtype == "bfloat16"):
                loss = compute(rows) / given.microbatches
            loss.backward()
            whole += loss.detach()
        optimizer.step()
        return whole.item()  # which waits for the device

    def device_memory() -> int | None:
        return torch.cuda.max_memory_allocated() if given.device == "cuda" else None

    time_steps(update, given.repeats, versions=VERSIONS, device_memory=device_memory)


def decoding(given: argparse.Namespace) -> None:
    job = JOBS[given.job]
    model = load(job).eval()
    tokens = torch.from_numpy(job.sources()).long()
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

    time_decoding(decode, given.repeats, job.targets, versions=VERSIONS)


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    options = parse_options(__doc__)
    {"step": step, "decoding": decoding}[options.work](options)
