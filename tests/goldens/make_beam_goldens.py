"""Makes the golden answers that beam search is compared with, from transformers' `generate` in float32.

    python tests/goldens/make_beam_goldens.py           writes tests/goldens/beams/*.safetensors
    python tests/goldens/make_beam_goldens.py --check   computes them again and compares with the files

Needs what make_goldens.py needs. Each file holds one small model ("weight/<transformers' name>"), padded inputs, and
for every search of SEARCHES its sequences ("<name>/tokens" [B, returned, T], without the start token) and its scores
("<name>/scores" [B, returned]); its metadata has the configuration, the searches and the versions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from make_goldens import CASES, is_check, make_all, random_weights, t5

FOLDER = Path(__file__).resolve().parent / "beams"
B, S, T, V = 8, 30, 14, 48

FOUR = {"num_beams": 4, "num_return_sequences": 4}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1},
    "penalty_0": {**FOUR, "length_penalty": 0.0},
    "penalty_0_never": {**FOUR, "length_penalty": 0.0, "early_stopping": "never"},
    "penalty_1": {**FOUR, "length_penalty": 1.0},
    "penalty_1_early": {**FOUR, "length_penalty": 1.0, "early_stopping": True},
    "penalty_1_never": {**FOUR, "length_penalty": 1.0, "early_stopping": "never"},
    "penalty_2_of_3": {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 2.0},
    "penalty_minus_1": {"num_beams": 2, "num_return_sequences": 1, "length_penalty": -1.0},
}
# Matrices times `scale`, so that several continuations are likely; the end's row of the head times `end`, so that they
# come at different lengths. The seeds tell the rules apart.
MODELS: dict[str, dict[str, Any]] = {
    "tied_relu": {"seed": 14, "scale": 0.7, "end": 2.0},
}


def inputs(rng: np.random.Generator) -> np.ndarray:
    tokens = rng.integers(2, V, size=(B, S))
    for row, length in enumerate([S, S - 1, S - 9, S // 2, 7, 3, 2, S]):
        tokens[row, length - 1], tokens[row, length:] = 1, 0
    return tokens.astype(np.int32)


def up_to_the_end(sequences: np.ndarray) -> np.ndarray:
    """[rows, length] with padding behind the first end: where padding is 0, beam search fills up with ends."""
    ended = np.cumsum(sequences == 1, axis=1) - (sequences == 1) > 0
    return np.where(ended, 0, sequences)


def golden(name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and metadata."""
    settings, made = CASES[name], MODELS[name]
    tied = settings["tie_word_embeddings"]
    rng = np.random.default_rng(made["seed"])
    weights = random_weights(transformers.T5ForConditionalGeneration(transformers.T5Config(**settings)), tied, rng)
    weights = {
        key: value if "layer_norm" in key or "shared" in key else (value * made["scale"]).astype(np.float32)
        for key, value in weights.items()
    }
    weights["shared.weight" if tied else "lm_head.weight"][1] *= made["end"]
    model = t5(weights, settings)
    tokens = inputs(rng)
    found: dict[str, np.ndarray] = {"inputs": tokens}
    for search, asked in SEARCHES.items():
        given = torch.from_numpy(tokens.astype(np.int64))
        answer = model.generate(
            input_ids=given, attention_mask=(given > 0).long(), max_new_tokens=T, do_sample=False,
            return_dict_in_generate=True, output_scores=True, **asked,
        )  # fmt: skip
        returned = asked.get("num_return_sequences", 1)
        sequences = up_to_the_end(answer.sequences[:, 1:].numpy()).reshape(B, returned, -1)
        found[f"{search}/tokens"] = np.pad(sequences, ((0, 0), (0, 0), (0, T - sequences.shape[2]))).astype(np.int32)
        if asked["num_beams"] > 1:
            found[f"{search}/scores"] = answer.sequences_scores.numpy().reshape(B, returned).astype(np.float32)
    tensors = {f"weight/{key}": value for key, value in weights.items()} | found
    return tensors, {"config": settings, "searches": SEARCHES}


if __name__ == "__main__":
    sys.exit(make_all({name: FOLDER / f"{name}.safetensors" for name in MODELS}, golden, is_check()))
