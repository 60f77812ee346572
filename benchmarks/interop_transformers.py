"""Makes a checkpoint of a published size with random weights, as transformers writes it, and answers with it.

    python interop_transformers.py MODEL_TYPE SETTINGS FOLDER

Run in the peers' environment by `benchmarks.interop`. SETTINGS are JSON. FOLDER gets what `save_pretrained` writes, and
answers.safetensors: `inputs` [B, S], `targets` [B, T], `logits`, `generated`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

B, S, T, DECODE = 2, 48, 16, 12


def main(model_type: str, settings: dict[str, Any], folder: Path) -> None:
    """See above."""
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        model_type, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **settings
    )
    model = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").float().eval()
    if settings.get("tie_word_embeddings") is False:  # which transformers 5 does not believe of a new model
        own = torch.randn_like(model.shared.weight) / config.d_model**0.5
        model.lm_head.weight = torch.nn.Parameter(own)
    model.save_pretrained(folder)
    transformers.ByT5Tokenizer().save_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").float().eval()
    draw = np.random.default_rng(0)
    inputs, targets = (draw.integers(2, 384, size=(B, length)) for length in (S, T))
    inputs[1, S // 2 - 1], inputs[1, S // 2 :] = 1, 0
    given = torch.from_numpy(inputs)
    mask = (given > 0).long()
    shifted = torch.from_numpy(np.pad(targets[:, :-1], ((0, 0), (1, 0))))
    with torch.no_grad():
        logits = model(input_ids=given, attention_mask=mask, decoder_input_ids=shifted).logits.numpy()
        generated = model.generate(
            input_ids=given, attention_mask=mask, max_new_tokens=DECODE, do_sample=False, num_beams=1
        )[:, 1:].numpy()  # fmt: skip
    tensors = {"inputs": inputs.astype(np.int32), "targets": targets.astype(np.int32), "logits": logits}
    tensors["generated"] = np.pad(generated, ((0, 0), (0, DECODE - generated.shape[1]))).astype(np.int32)
    save_file(tensors, folder / "answers.safetensors")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))
