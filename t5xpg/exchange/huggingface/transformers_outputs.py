"""transformers' outputs for a folder. Run by its path, in an environment that has torch and transformers:

    python transformers_outputs.py FOLDER INPUTS OUTPUTS

FOLDER may also be a GGUF file.
INPUTS is a safetensors file with `inputs` [B, S] int64, padded with 0, `decoder_inputs` [B, T] and as metadata
`settings`: JSON of `auto_class`, `prompted` (whether the decoder continues the inputs), `start_id` (with which decoders
begin), `max_new_tokens` (0: nothing is generated), `texts`, `tokenizer_type`, `adapter` (None, or a folder that peft
loads over FOLDER).
OUTPUTS gets `logits`, `generated` [B, max_new_tokens], and as metadata `found` (JSON: the texts' ids by AutoTokenizer,
names of the classes that were loaded, versions). Imports nothing of t5xpg, which that environment lacks.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main(folder: str, inputs_file: str, outputs_file: str) -> None:
    """Load `folder` as a user does, and write its outputs."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
    import numpy as np
    import torch
    import transformers
    from safetensors import safe_open
    from safetensors.numpy import save_file

    transformers.utils.logging.disable_progress_bar()
    with safe_open(inputs_file, "numpy") as file:
        tensors = {name: torch.from_numpy(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        settings = json.loads(file.metadata()["settings"])
    file = {} if os.path.isdir(folder) else {"gguf_file": os.path.basename(folder)}
    model = getattr(transformers, settings["auto_class"]).from_pretrained(
        os.path.dirname(folder) if file else folder, attn_implementation="eager", torch_dtype=torch.float32, **file
    )
    if settings["adapter"]:
        import peft

        model = peft.PeftModel.from_pretrained(model, settings["adapter"])
    model = (model if file else model.float()).eval()  # what comes of a GGUF file is float32, and refuses `float`
    results: dict[str, Any] = {}
    with torch.no_grad():
        inputs, decoder_inputs = tensors["inputs"], tensors["decoder_inputs"]
        decoder_inputs[:, 0] = settings["start_id"]
        encoder_inputs = {"input_ids": inputs, "attention_mask": (inputs > 0).long()}
        given = {
            "AutoModelForSeq2SeqLM": {**encoder_inputs, "decoder_input_ids": decoder_inputs},
            "AutoModelForCausalLM": {"input_ids": decoder_inputs},
            "AutoModelForTokenClassification": encoder_inputs,
        }[settings["auto_class"]]
        results["logits"] = model(**given).logits
        if settings["max_new_tokens"]:
            results["generated"] = generated(model, inputs, settings)
    load, kind, texts = transformers.AutoTokenizer.from_pretrained, settings["tokenizer_type"], settings["texts"]
    tokenizer: Any = load(folder, tokenizer_type=kind) if texts else None
    answer = {
        "ids": [tokenizer(text).input_ids for text in texts],
        "model": type(model).__name__,
        "tokenizer": tokenizer and type(tokenizer).__name__,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    outputs = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in results.items()}
    save_file(outputs, outputs_file, metadata={"found": json.dumps(answer)})


def generated(model: Any, inputs: Any, settings: dict[str, Any]) -> Any:
    """Greedy answers [B, max_new_tokens], without the tokens that the decoder was given."""
    import torch

    prompted, length = settings["prompted"], settings["max_new_tokens"]
    first = torch.tensor([settings["start_id"]])
    rows = torch.zeros((len(inputs), length), dtype=torch.int64)
    for row, tokens in enumerate(inputs):  # one by one: prompts differ in length
        real = tokens[tokens > 0]
        start = torch.cat([first, real]) if prompted else first
        source = torch.ones((1, 1), dtype=torch.int64) if prompted else real[None]
        answer = model.generate(
            input_ids=source, decoder_input_ids=start[None], max_new_tokens=length, do_sample=False, num_beams=1
        )[0, len(start) :]
        rows[row, : len(answer)] = answer
    return rows


if __name__ == "__main__":
    main(*sys.argv[1:4])
