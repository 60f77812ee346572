"""Makes small checkpoints of T5's families as transformers writes them, with what transformers answers.

    python tests/goldens/make_family_goldens.py           writes tests/goldens/families/<family>/
    python tests/goldens/make_family_goldens.py --check   computes the answers again and compares with the files

Needs what make_goldens.py needs. Each folder is what `save_pretrained` writes of a model with random weights and of its
tokenizer, with `answers.safetensors`: `inputs` [B, S], padded with 0, `targets` [B, T], `logits` of the targets,
`generated` greedily, of T5Gemma `beams` (the best of four), and in its metadata texts with their ids and the versions.
Decoders alone (gemma2, gemma3_text) go on from the first tokens of the targets.
`parts` and `*_bin` hold the weights of t5_1_1 in the other ways that they come in, small.bin one tensor of four
numbers.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from make_goldens import from_checkpoint, is_check, make_all, random_weights

FOLDER = Path(__file__).resolve().parent / "families"
B, S, T, DECODE = 3, 24, 10, 8
PIECES = 40  # ids of the tokenizers with pieces, 8 sentinels among them
SENTINELS = 8
TEXTS = ["The owl <extra_id_0> the mouse <extra_id_1>.", "owls", "the the  owl"]

COMMON = {
    "d_model": 16, "d_kv": 5, "d_ff": 20, "num_heads": 3, "num_layers": 2, "num_decoder_layers": 2, "vocab_size": 48,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
# model_type, what differs from COMMON, the seed of the weights
FAMILIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "t5": ("t5", {"feed_forward_proj": "relu", "tie_word_embeddings": True}, 0),
    "t5_1_1": ("t5", GATED, 1),
    "byt5": ("t5", {**GATED, "num_decoder_layers": 1, "vocab_size": 384}, 2),
    "mt5": ("mt5", GATED, 3),
    "umt5": ("umt5", GATED, 4),
    "umt5_tied": ("umt5", {**GATED, "tie_word_embeddings": True}, 5),
    "longt5": ("longt5", {**GATED, "local_radius": 5, "encoder_attention_type": "local"}, 8),
    "longt5_global": (
        "longt5",
        {**GATED, "local_radius": 5, "encoder_attention_type": "transient-global", "global_block_size": 4},
        9,
    ),
}

GEMMA = {
    "hidden_size": 16, "head_dim": 6, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 48, "query_pre_attn_scalar": 9, "max_position_embeddings": 64, "bos_token_id": 2,
}  # fmt: skip
WIDER = {"hidden_size": 24, "intermediate_size": 28, "num_attention_heads": 6, "num_key_value_heads": 3}
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
VISION = {"hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 0, "num_attention_heads": 1, "patch_size": 2}


def gemma(layers: int, **more: Any) -> dict[str, Any]:
    """A stack of T5Gemma."""
    return {**GEMMA, "num_hidden_layers": layers, **more}


def second(layers: int) -> dict[str, Any]:
    """A stack of T5Gemma 2."""
    types = ["sliding_attention" if (at + 1) % 3 else "full_attention" for at in range(layers)]
    bases = {"rope_type": "default", "rope_theta": 100.0}, {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0}
    rope = dict(zip(("sliding_attention", "full_attention"), bases, strict=True))
    return gemma(layers, sliding_window=5, layer_types=types, rope_parameters=rope)


FAMILIES |= {
    "t5gemma": (
        "t5gemma",
        {"encoder": gemma(3, sliding_window=4, **CAPS), "decoder": gemma(2, sliding_window=4, **CAPS)},
        6,
    ),
    "t5gemma_unbalanced": (
        "t5gemma",
        {"encoder": gemma(2, sliding_window=4, **CAPS) | WIDER, "decoder": gemma(1, sliding_window=4, **CAPS)},
        11,
    ),
    "t5gemma2": (
        "t5gemma2",
        {
            "encoder": {
                "text_config": second(3),
                "vision_config": {**VISION, "image_size": 2, "vision_use_head": False},
                "mm_tokens_per_image": 1,
            },
            "decoder": second(4),
        },
        7,
    ),
}


DECODERS = {
    "gemma2": ("gemma2", gemma(3, sliding_window=4, **CAPS), 9),
    "gemma3_text": ("gemma3_text", second(4), 10),
}
FAMILIES |= DECODERS
PROMPT = 6  # tokens of the targets that a decoder goes on from


def tokenizer_of(family: str) -> Any:
    """ByT5's, or T5's of some pieces."""
    if family == "byt5":
        return transformers.ByT5Tokenizer()
    words = ["▁", "▁the", "▁owl", "▁The", "s", "▁mouse", ".", *"abcdefghijklmnopqrstuv"[: PIECES - 3 - 7 - SENTINELS]]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((word, -2.0 - i / 8) for i, word in enumerate(words))]
    vocab += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(SENTINELS))]
    assert len(vocab) == PIECES
    return transformers.T5Tokenizer(vocab=vocab, extra_ids=SENTINELS)


def make(family: str, folder: Path) -> None:
    """Write the checkpoint."""
    model_type, own, seed = FAMILIES[family]
    rng = np.random.default_rng(seed)
    if "encoder" in own or family in DECODERS:
        config = transformers.AutoConfig.for_model(model_type, **{**own, "vocab_size": 48, "tie_word_embeddings": True})
        model = kind_of(family).from_config(config)
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.copy_(torch.from_numpy(0.3 * rng.normal(size=tuple(tensor.shape))))
        model.save_pretrained(folder)
        tokenizer_of(family).save_pretrained(folder)
        return
    settings = COMMON | own
    config = transformers.AutoConfig.for_model(model_type, **settings)
    made = transformers.AutoModelForSeq2SeqLM.from_config(config)
    tied = settings["tie_word_embeddings"]
    weights = random_weights(made, tied, rng)
    weights["shared.weight" if tied else "lm_head.weight"][1] *= 2.0
    kind = transformers.AutoModelForSeq2SeqLM
    model = from_checkpoint(kind, weights, {**settings, "model_type": model_type})
    model.save_pretrained(folder)
    tokenizer_of(family).save_pretrained(folder)


def kind_of(family: str) -> Any:
    """The class of transformers that loads it."""
    return transformers.AutoModelForCausalLM if family in DECODERS else transformers.AutoModelForSeq2SeqLM


def decoder_answers(model: Any, targets: np.ndarray) -> dict[str, np.ndarray]:
    """What a decoder alone makes of the targets [B, T], each begun with its first token, <bos>."""
    begun = torch.from_numpy(np.pad(targets, ((0, 0), (1, 0)), constant_values=2))
    with torch.no_grad():
        logits = model(input_ids=begun[:, :-1]).logits.numpy()
    prompts = begun[:, : PROMPT + 1]
    said = model.generate(
        input_ids=prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=DECODE, do_sample=False
    )
    said = said[:, PROMPT + 1 :].numpy()
    generated = np.pad(said, ((0, 0), (0, DECODE - said.shape[1]))).astype(np.int32)
    return {"targets": targets.astype(np.int32), "logits": logits, "generated": generated}


def answers(family: str, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What transformers makes of the folder."""
    model = kind_of(family).from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rng = np.random.default_rng(FAMILIES[family][2])
    inputs, targets = (rng.integers(2, 48, size=(B, length)) for length in (S, T))
    for row, length in enumerate((S, S - 7, 4)):
        inputs[row, length - 1], inputs[row, length:] = 1, 0
    texts = {"texts": {text: tokenizer(text).input_ids for text in TEXTS}}
    if family in DECODERS:
        return decoder_answers(model, targets), texts
    given = torch.from_numpy(inputs)
    mask = (given > 0).long()
    start = 2 if "encoder" in FAMILIES[family][1] else 0
    shifted = torch.from_numpy(np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=start))
    with torch.no_grad():
        logits = model(input_ids=given, attention_mask=mask, decoder_input_ids=shifted).logits.numpy()

    def generated(**options: Any) -> np.ndarray:
        said = model.generate(input_ids=given, attention_mask=mask, max_new_tokens=DECODE, do_sample=False, **options)
        said = said[:, 1:].numpy()
        return np.pad(said, ((0, 0), (0, DECODE - said.shape[1]))).astype(np.int32)

    tensors = {
        "inputs": inputs.astype(np.int32),
        "targets": targets.astype(np.int32),
        "logits": logits,
        "generated": generated(num_beams=1),
    }
    if start:
        tensors["beams"] = generated(num_beams=4)
    return tensors, texts


def other_ways(folder: Path) -> None:
    """The weights of t5_1_1 in parts, and as PyTorch's own file, of today's layout and of the one before 1.6."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "t5_1_1")
    model.save_pretrained(folder / "parts", max_shard_size="24KB")
    for name, as_archive in (("archive_bin", True), ("old_bin", False)):
        (folder / name).mkdir()
        shutil.copy(folder / "t5_1_1" / "config.json", folder / name)
        state = {key: value.half() if name == "archive_bin" else value for key, value in model.state_dict().items()}
        torch.save(state, folder / name / "pytorch_model.bin", _use_new_zipfile_serialization=as_archive)
        small = {"a": torch.arange(4.0).reshape(2, 2).T}
        torch.save(small, folder / name / "small.bin", _use_new_zipfile_serialization=as_archive)


def main() -> int:
    check = is_check()

    def golden(family: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        if not check:
            make(family, FOLDER / family)
        return answers(family, FOLDER / family)

    if not check:
        shutil.rmtree(FOLDER, ignore_errors=True)
    failed = make_all({family: FOLDER / family / "answers.safetensors" for family in FAMILIES}, golden, check)
    if not check:
        other_ways(FOLDER)
    return failed


if __name__ == "__main__":
    sys.exit(main())
