"""Makes what transformers answers where one thing of a checkpoint of tests/goldens/families is another.

    python tests/goldens/make_changed_goldens.py           writes tests/goldens/changed/logits.safetensors
    python tests/goldens/make_changed_goldens.py --check   computes it again and compares with the file

Needs what make_goldens.py needs. Each setting of config.json has another value, or is absent; settings that are absent
are there; and each tensor that transformers ties to another is there, with random numbers. The metadata `changes` has
for each: the family, the settings with their values (null in `absent`), the tensor, and whether the logits are those of
the family ("same"), others, which are in the file ("other"), or of weights that the checkpoint lacks ("random").
Changes with which transformers cannot load the checkpoint are left out.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from make_family_goldens import FOLDER, kind_of
from make_goldens import is_check, make_all
from safetensors.numpy import load_file, save_file

NAMES = (
    "t5", "t5_1_1", "mt5", "umt5", "longt5", "longt5_global", "t5gemma", "t5gemma_unbalanced", "t5gemma2", "gemma2",
    "gemma3_text",
)  # fmt: skip
# the objects of a config.json that hold settings of the text's stacks
STACKS = {"t5gemma": ("encoder", "decoder"), "t5gemma2": ("encoder.text_config", "decoder")}
SHOWN = ([0, 2], [-1, -1])  # rows, the last one with padding, and positions of the logits that are kept
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}
DEFAULT = {"rope_type": "default", "rope_theta": 500.0}
TYPES = {"sliding_attention": DEFAULT, "full_attention": LINEAR}
# other values of settings, whether or not a config.json has them
OTHERS: dict[str, list[Any]] = {
    "feed_forward_proj": ["relu", "gated-gelu", "gated-silu", "gelu"],
    "dense_act_fn": ["relu", "silu", "gelu", "gelu_pytorch_tanh"],
    "is_gated_act": [True, False],
    "scale_decoder_outputs": [True, False, None],
    "tie_word_embeddings": [False],
    "hidden_activation": ["silu", "gelu"],
    "encoder_attention_type": ["transient-global"],
    "layer_types": [["full_attention"] * 4, None],
    "rope_parameters": [DEFAULT, LINEAR, TYPES, {**TYPES, "full_attention": {**DEFAULT, "factor": 4.0}}],
    "rope_scaling": [{"rope_type": "linear", "factor": 4.0}],
    "sliding_window_pattern": [2],
    "transformers_version": ["4.50.0", "5.24.0"],
    "attn_logit_softcapping": [1.0, None],
    "final_logit_softcapping": [1.0, None],
    "use_bidirectional_attention": [True],
    "per_layer_config": [{"0": {"intermediate_size": 20, "d_ff": 20}}],
    **{name: [8.0] for name in ("rope_theta", "rope_local_base_freq")},
    "partial_rotary_factor": [0.5],
    **{name: [1, 2, 3, 16] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim")},
    "pruned_heads": [{"0": [0]}],
    "tie_encoder_decoder": [True],
    "max_position_embeddings": [8],
    "eoi_token_index": [-1, None],
    "eoi_token_id": [-1],
    "image_token_index": [3],
}
# names of files, classes and labels, which say nothing of what is computed
LEFT_OUT = ("architectures", "model_type", "id2label", "label2id", "_name_or_path", "encoder", "decoder", "dtype")


def objects(family: str, config: dict[str, Any]) -> list[str]:
    """The paths of the objects of a config.json, "" the whole."""
    return ["", *(name for name in ("encoder", "encoder.text_config", "decoder") if find(config, name) is not None)]


def find(config: dict[str, Any], path: str) -> Any:
    """The object at a path with points; None where there is none."""
    for name in filter(None, path.split(".")):
        config = config.get(name)  # type: ignore[assignment]
        if not isinstance(config, dict):
            return None
    return config


def other_values(name: str, value: Any) -> list[Any]:
    """Other values of a setting."""
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(value, bool):
        return [not value]
    return [value + 1] if isinstance(value, int) else [value * 2 + 0.1] if isinstance(value, float) else []


def changes(family: str) -> Iterator[dict[str, Any]]:
    """All changes of a family: {"settings": {"path.name": value}} or {"absent": [...]} or {"tensor": name}."""
    config = json.loads((FOLDER / family / "config.json").read_text())
    stacks = STACKS.get(family.removesuffix("_unbalanced"))
    inputs = load_file(FOLDER / family / "answers.safetensors").get("inputs")
    places = [[path] for path in objects(family, config)] + ([list(stacks)] if stacks else [])
    for place in places:
        known = {name: value for path in place for name, value in find(config, path).items()}
        for name in sorted({*known, *OTHERS} - {*LEFT_OUT}):
            paths = [f"{path}.{name}".removeprefix(".") for path in place]
            values = other_values(name, known.get(name))
            if name.startswith("eoi_") and inputs is not None:
                values = [*values, int(inputs[0, 0])]
            for value in values:
                if name not in known or value != known[name]:
                    yield {"settings": dict.fromkeys(paths, value)}
            if name in known:
                yield {"absent": paths}
    weights = load_file(FOLDER / family / "model.safetensors")
    for name in tied(family):
        if name not in weights or "gemma" not in family:
            yield {"tensor": name}


def tied(family: str) -> list[str]:
    """Tensors that transformers can tie to another one."""
    if family in ("gemma2", "gemma3_text"):
        return ["lm_head.weight"]
    if family.startswith("t5gemma"):
        eoi = [f"model.{stack}.embed_tokens.eoi_embedding" for stack in ("encoder", "decoder") if family == "t5gemma2"]
        return ["lm_head.out_proj.weight", "model.decoder.embed_tokens.weight", *eoi]
    old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    return ["lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", old]


def noise(name: str) -> np.ndarray:
    """Random numbers of the shape of a tied tensor; tests make the same."""
    shape = (16,) if "eoi" in name else (32, 3) if "relative" in name else (48, 16)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def changed(family: str, change: dict[str, Any], folder: Path) -> None:
    """Write a family's checkpoint with a change."""
    config = json.loads((FOLDER / family / "config.json").read_text())
    for path, value in change.get("settings", dict.fromkeys(change.get("absent", ()))).items():
        where, _, name = path.rpartition(".")
        if "absent" in change:
            find(config, where).pop(name, None)
        else:
            find(config, where)[name] = copy.deepcopy(value)
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(FOLDER / family / "model.safetensors")
    if "tensor" in change:
        weights[change["tensor"]] = noise(change["tensor"])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def answer(family: str, folder: Path) -> tuple[np.ndarray, bool] | None:
    """Logits [2, V] of SHOWN, and whether weights were missing; None where transformers cannot load it or answer."""
    given = load_file(FOLDER / family / "answers.safetensors")
    targets = torch.from_numpy(given["targets"]).long()
    start = 2 if "gemma" in family else 0
    shifted = torch.nn.functional.pad(targets[:, :-1], (1, 0), value=start)
    arguments = {"input_ids": shifted}
    if "inputs" in given:
        inputs = torch.from_numpy(given["inputs"]).long()
        arguments = {"input_ids": inputs, "attention_mask": (inputs > 0).long(), "decoder_input_ids": shifted}
    try:
        model, info = kind_of(family).from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
        with torch.no_grad():
            logits = model.eval()(**arguments).logits.numpy()
    except Exception as error:  # of any part of transformers: it cannot load this
        print(f"{family}: {type(error).__name__}")
        return None
    return logits[SHOWN], bool(info["missing_keys"])


def all_changes() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The logits by number, and the changes."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tensors: dict[str, np.ndarray] = {}
    said = []
    for family in NAMES:
        expected = load_file(FOLDER / family / "answers.safetensors")["logits"][SHOWN]
        for change in changes(family):
            with tempfile.TemporaryDirectory() as scratch:
                changed(family, change, Path(scratch))
                found = answer(family, Path(scratch))
            if found is None:
                continue
            logits, is_random = found
            outcome = "random" if is_random else "same" if np.abs(logits - expected).max() < 1e-6 else "other"
            if outcome == "other":
                tensors[str(len(said))] = logits
            said.append({"family": family, **change, "outcome": outcome})
    return tensors, {"changes": said}


if __name__ == "__main__":
    target = FOLDER.parent / "changed" / "logits.safetensors"
    sys.exit(make_all({"changed": target}, lambda _: all_changes(), is_check()))
