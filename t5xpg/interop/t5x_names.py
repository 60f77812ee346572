"""Mesh-TensorFlow's names of T5's variables as T5X's names of its train state.

Source: t5x/checkpoint_importer.py. Arrays are the same under both: matrices are [inputs, outputs].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

TARGET, PARAM_STATES, STEP = "target", "state/param_states", "state/step"
_SLOTS = {"_slot_vc": "v_col", "_slot_vr": "v_row", "_slot_v": "v", "_slot_m": "m"}
_MATRICES = {"q": "query", "k": "key", "v": "value", "o": "out"}
_ATTENTIONS = {
    ("encoder", "SelfAttention"): "attention",
    ("decoder", "SelfAttention"): "self_attention",
    ("decoder", "EncDecAttention"): "encoder_decoder_attention",
}
_NORMS = {
    "encoder": ("pre_attention_layer_norm", "pre_mlp_layer_norm"),
    "decoder": ("pre_self_attention_layer_norm", "pre_cross_attention_layer_norm", "pre_mlp_layer_norm"),
}
_BLOCK = r"(?P<stack>encoder|decoder)/block_(?P<block>\d{1,6})/layer_(?P<layer>\d{1,6})"
_SLOT = r"(?P<slot>_slot_\w+)?"


def _of_attention(found: Mapping[str, str]) -> str | None:
    attention = _ATTENTIONS.get((found["stack"], found["attention"]))
    return attention and f"{_of_layer(found)}/{attention}/{_MATRICES[found['matrix']]}/kernel"


def _of_norm(found: Mapping[str, str]) -> str | None:
    names, layer = _NORMS[found["stack"]], int(found["layer"])
    return f"{_of_layer(found)}/{names[layer]}/scale" if layer < len(names) else None


def _of_layer(found: Mapping[str, str]) -> str:
    return f"{found['stack']}/layers_{int(found['block'])}"


_RULES: tuple[tuple[re.Pattern[str], Callable[[Mapping[str, str]], str | None]], ...] = (
    (re.compile(rf"shared/embedding{_SLOT}"), lambda found: "token_embedder/embedding"),
    (re.compile(rf"decoder/logits/kernel{_SLOT}"), lambda found: "decoder/logits_dense/kernel"),
    (
        re.compile(rf"(?P<stack>encoder|decoder)/(final_layer|rms)_norm/scale{_SLOT}"),
        lambda found: f"{found['stack']}/{found['stack']}_norm/scale",
    ),
    (re.compile(rf"{_BLOCK}/(layer|rms)_norm/scale{_SLOT}"), _of_norm),
    (re.compile(rf"{_BLOCK}/(?P<attention>SelfAttention|EncDecAttention)/(?P<matrix>[qkvo]){_SLOT}"), _of_attention),
    (
        re.compile(rf"{_BLOCK}/SelfAttention/relative_attention_bias{_SLOT}"),
        lambda found: f"{_of_layer(found)}/relpos_bias/rel_embedding",
    ),
    (
        re.compile(rf"{_BLOCK}/DenseReluDense/(?P<matrix>wi|wi_\d|wo)/kernel{_SLOT}"),
        lambda found: f"{_of_layer(found)}/mlp/{found['matrix']}/kernel",
    ),
)


def of_mesh_tensorflow(name: str) -> str | None:
    """T5X's name of a variable; None for one that T5X has not.

    Tables of relative positions are said to be their layer's; `shared_positions` mends that where the first layer's
    is the only one, as in all of T5's.
    """
    if name == "global_step":
        return STEP
    for pattern, rule in _RULES:
        if found := pattern.fullmatch(name):
            parts = {key: value or "" for key, value in found.groupdict().items()}
            slot = parts["slot"]
            ours = rule(parts)
            if ours is None or (slot and slot not in _SLOTS):
                return None
            return f"{PARAM_STATES}/{ours}/{_SLOTS[slot]}" if slot else f"{TARGET}/{ours}"
    return None


def shared_positions(names: Mapping[str, str]) -> dict[str, str]:
    """The same names, with one table of relative positions for each stack where only the first layers have one.

    names: {Mesh-TensorFlow's: T5X's}.
    """
    layers = {int(found[1]) for name in names.values() if (found := re.search(r"/layers_(\d+)/relpos_bias/", name))}
    if layers != {0}:
        return dict(names)
    return {theirs: re.sub(r"/layers_0/relpos_bias/", "/relpos_bias/", ours) for theirs, ours in names.items()}
