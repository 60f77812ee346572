"""transformers' logits and greedy continuations of a released checkpoint.

    python released_transformers.py CHECKPOINT GIVEN FOUND

Run in the peers' environment by `benchmarks.released`. CHECKPOINT: a folder or a GGUF file. GIVEN: a safetensors file
with `tokens` [B, T] int64, and as metadata `kind` ("causal" or "seq2seq"), `start` (the id that decoders begin with),
`length` (of continuations) and `end` (the end token). FOUND gets `logits` [B, T, V] and `generated` [B, length].
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file


def main(checkpoint: Path, given: str, found: str) -> None:
    """See above."""
    transformers.utils.logging.disable_progress_bar()
    with safe_open(given, "numpy") as file:
        tokens, settings = torch.from_numpy(file.get_tensor("tokens")), file.metadata()
    start, length, end = (int(settings[name]) for name in ("start", "length", "end"))
    is_causal, file_name = settings["kind"] == "causal", {} if checkpoint.is_dir() else {"gguf_file": checkpoint.name}
    kind = transformers.AutoModelForCausalLM if is_causal else transformers.AutoModelForSeq2SeqLM
    model = kind.from_pretrained(
        checkpoint.parent if file_name else checkpoint,
        attn_implementation="eager",
        torch_dtype=torch.float32,
        **file_name,
    ).eval()
    first = torch.full((len(tokens), 1), start)
    begun = torch.cat([first, tokens[:, :-1]], dim=1)
    options = {"max_new_tokens": length, "do_sample": False, "num_beams": 1, "eos_token_id": end, "pad_token_id": 0}
    with torch.no_grad():
        if is_causal:
            logits, prompt = model(input_ids=begun).logits, torch.cat([first, tokens], dim=1)
            answers = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[:, prompt.shape[1] :]
        else:
            logits = model(input_ids=tokens, decoder_input_ids=begun).logits
            answers = model.generate(tokens, decoder_start_token_id=start, **options)[:, 1:]
    generated = np.zeros((len(tokens), length), np.int32)
    generated[:, : answers.shape[1]] = answers.numpy()
    save_file({"logits": np.ascontiguousarray(logits.numpy()), "generated": generated}, found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
