"""Makes the golden tensors that the model is compared with, from transformers' T5 in float32.

    python tests/goldens/make_goldens.py           writes tests/goldens/*.safetensors
    python tests/goldens/make_goldens.py --check   computes them again and compares with the files

Needs torch and transformers (`make bench-peers`) and nothing of this package. Each file holds one small model: its
weights ("weight/<transformers' name>"), a padded batch, logits, loss, gradients ("gradient/<name>"), what `generate`
answers greedily, and in its metadata the configuration and the versions.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).resolve().parent
B, S, T, V, DECODE = 4, 40, 24, 48, 16

COMMON = {
    "vocab_size": V, "d_model": 16, "d_kv": 5, "d_ff": 20, "num_heads": 3, "num_layers": 2, "num_decoder_layers": 2,
    "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    # T5 1.1 and ByT5
    "untied_gated_gelu": COMMON | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    # the first T5; distances beyond the largest bucket too
    "tied_relu": COMMON
    | {"feed_forward_proj": "relu", "tie_word_embeddings": True, "relative_attention_max_distance": 24},
    "tied_gated_gelu": COMMON
    | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": True, "num_decoder_layers": 1},
}
# chosen so that `generate` ends some rows early and does not repeat one token throughout
SEEDS = {"untied_gated_gelu": 1, "tied_relu": 0, "tied_gated_gelu": 4}


def random_weights(model: torch.nn.Module, tied: bool, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights of about the size that T5 starts with, norms away from 1, and a head of its own where untied."""
    weights = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("embed_tokens.weight") or (tied and name == "lm_head.weight"):
            continue
        shape = tuple(tensor.shape)
        if name == "shared.weight":
            # small where tied: otherwise a decoder answers with its own input for ever
            value = rng.normal(size=shape) * (0.2 if tied else 1.0)
        elif "layer_norm" in name:
            value = 1.0 + 0.2 * rng.normal(size=shape)
        elif "relative_attention_bias" in name:
            value = 0.5 * rng.normal(size=shape)
        else:
            value = rng.normal(size=shape) / np.sqrt(shape[1])
            if name.endswith(".q.weight"):
                value /= np.sqrt(COMMON["d_kv"])
        weights[name] = value.astype(np.float32)
    return weights


def from_checkpoint(kind: Any, weights: dict[str, np.ndarray], settings: dict[str, Any], **options: Any) -> Any:
    """The model, through a checkpoint: one that is freshly made ties its head whatever the configuration says."""
    with tempfile.TemporaryDirectory() as folder:
        save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        (Path(folder) / "config.json").write_text(json.dumps(settings))
        model = kind.from_pretrained(folder, **options)
    assert settings["tie_word_embeddings"] or not torch.equal(model.lm_head.weight, model.shared.weight)
    return model


def t5(weights: dict[str, np.ndarray], settings: dict[str, Any]) -> Any:
    kind, settings = transformers.T5ForConditionalGeneration, {**settings, "model_type": "t5"}
    return from_checkpoint(kind, weights, settings, attn_implementation="eager").float().eval()


def batch(rng: np.random.Generator) -> dict[str, np.ndarray]:
    inputs = rng.integers(2, V, size=(B, S))
    targets = rng.integers(2, V, size=(B, T))
    for row, (source, target) in enumerate([(S, T), (S - 9, 5), (3, T - 2), (S // 2, T // 2)]):
        inputs[row, source - 1], inputs[row, source:] = 1, 0
        targets[row, target - 1], targets[row, target:] = 1, 0
    return {"inputs": inputs.astype(np.int32), "targets": targets.astype(np.int32)}


def golden(name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and metadata."""
    settings = CASES[name]
    tied = settings["tie_word_embeddings"]
    rng = np.random.default_rng(SEEDS[name])
    config = transformers.T5Config(**settings)
    weights = random_weights(transformers.T5ForConditionalGeneration(config), tied, rng)
    # makes some rows end early when decoding
    head = weights["shared.weight" if tied else "lm_head.weight"]
    head[1] *= 1.5
    model = t5(weights, settings)
    data = batch(rng)
    inputs, targets = (torch.from_numpy(data[key].astype(np.int64)) for key in ("inputs", "targets"))
    labels = targets.masked_fill(targets == 0, -100)
    output = model(input_ids=inputs, attention_mask=(inputs > 0).long(), labels=labels)
    output.loss.backward()
    generated = model.generate(
        input_ids=inputs, attention_mask=(inputs > 0).long(), max_new_tokens=DECODE, do_sample=False, num_beams=1
    )[:, 1:].numpy()
    generated = np.pad(generated, ((0, 0), (0, DECODE - generated.shape[1])))
    tensors = {f"weight/{key}": value for key, value in weights.items()}
    parameters = dict(model.named_parameters())
    tensors |= {f"gradient/{key}": parameters[key].grad.numpy().copy() for key in weights}
    found = {"logits": output.logits.detach().numpy().copy(), "loss": output.loss.detach().numpy().reshape(1)}
    return {**tensors, **data, **found, "generated": generated.astype(np.int32)}, {"config": settings}


def is_check() -> bool:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    return parser.parse_args().check


def make_all(paths: dict[str, Path], golden: Callable[[str], Any], check: bool) -> int:
    """Write the file of each name, or compare it with what is computed now; returns 1 where they differ."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    failed = False
    for name, path in paths.items():
        tensors, metadata = golden(name)
        if check:
            stored = load_file(path)
            assert sorted(stored) == sorted(tensors), name
            norm = np.linalg.norm
            worst = max(float(norm(stored[key] - tensors[key]) / (norm(stored[key]) + 1e-12)) for key in stored)
            failed |= worst > 1e-5
            print(f"{name}: largest relative difference {worst:.1e}")
            continue
        metadata["versions"] = {"torch": torch.__version__, "transformers": transformers.__version__}
        path.parent.mkdir(exist_ok=True)
        save_file(tensors, path, metadata={key: json.dumps(value) for key, value in metadata.items()})
        print(f"{name}: {path.stat().st_size} bytes, {metadata['versions']}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(make_all({name: HERE / f"{name}.safetensors" for name in CASES}, golden, is_check()))
