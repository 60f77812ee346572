"""Mesh-TensorFlow's names of T5's variables as T5X's names of its train state.

Source: the importer of t5x/checkpoint_importer.py.
"""

import re
from collections.abc import Mapping

TARGET, PARAM_STATES, STEP = "target", "state/param_states", "state/step"
_SLOTS = {"_slot_vc": "v_col", "_slot_vr": "v_row", "_slot_v": "v", "_slot_m": "m"}
_VARIABLE = re.compile(r"(.*?)(_slot_\w+)?")
_OUTSIDE_LAYERS = {
    "shared/embedding": "token_embedder/embedding",
    "decoder/logits/kernel": "decoder/logits_dense/kernel",
    **{
        f"{stack}/{norm}/scale": f"{stack}/{stack}_norm/scale"
        for stack in ("encoder", "decoder")
        for norm in ("final_layer_norm", "rms_norm")
    },
}
_IN_LAYER = re.compile(r"(encoder|decoder)/block_(\d{1,6})/layer_(\d{1,6})/(.+)")
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


def t5x_name(variable: str) -> str | None:
    """T5X's name of a variable; None for one that T5X does not have.

    A table of relative positions gets the name of a table of its layer; see `share_positions`.
    """
    if variable == "global_step":
        return STEP
    found = _VARIABLE.fullmatch(variable)
    name, slot = found.groups() if found else (variable, None)
    param = _OUTSIDE_LAYERS.get(name) or _in_layer(name)
    if param is None or (slot and slot not in _SLOTS):
        return None
    return f"{PARAM_STATES}/{param}/{_SLOTS[slot]}" if slot else f"{TARGET}/{param}"


def _in_layer(name: str) -> str | None:
    match = _IN_LAYER.fullmatch(name)
    if match is None:
        return None
    stack, block, number, rest = match.groups()
    layer, norms = f"{stack}/layers_{int(block)}", _NORMS[stack]
    if rest in ("layer_norm/scale", "rms_norm/scale"):
        return f"{layer}/{norms[int(number)]}/scale" if int(number) < len(norms) else None
    if rest == "SelfAttention/relative_attention_bias":
        return f"{layer}/relpos_bias/rel_embedding"
    if mlp := re.fullmatch(r"DenseReluDense/(wi|wi_\d|wo)/kernel", rest):
        return f"{layer}/mlp/{mlp[1]}/kernel"
    kind, _, matrix = rest.partition("/")
    attention = _ATTENTIONS.get((stack, kind))
    return f"{layer}/{attention}/{_MATRICES[matrix]}/kernel" if attention and matrix in _MATRICES else None


def share_positions(names: Mapping[str, str]) -> dict[str, str]:
    """The same names, with one table of relative positions for each stack where only the first layers have one.

    names: {Mesh-TensorFlow's: T5X's}. In all of T5's released checkpoints the first layer's table is the only one.
    """
    layers = {int(found[1]) for name in names.values() if (found := re.search(r"/layers_(\d+)/relpos_bias/", name))}
    if layers != {0}:
        return dict(names)
    return {variable: name.replace("/layers_0/relpos_bias/", "/relpos_bias/") for variable, name in names.items()}
