"""Mesh-TensorFlow's names of T5's variables as T5X's names of its train state.

transformers has Mesh-TensorFlow's names, joined by points. Source: the importer of t5x/checkpoint_importer.py.
"""

import functools
import re
from collections.abc import Mapping

from t5xpg.exchange.huggingface.params import tensors_of
from t5xpg.models.config import T5Config
from t5xpg.models.positions import Buckets

TARGET, PARAM_STATES, STEP = "target", "state/param_states", "state/step"
_SLOTS = {"_slot_vc": "v_col", "_slot_vr": "v_row", "_slot_v": "v", "_slot_m": "m"}
_VARIABLE = re.compile(r"(.*?)(?:/(?:scale|kernel|embedding))?(_slot_\w+)?")


@functools.cache
def _params() -> dict[str, str]:
    """{"encoder.block.0.layer.0.SelfAttention.q": T5X's name}, with both kinds of MLP."""
    names: dict[str, str] = {}
    for mlp in (("relu",), ("gelu", "linear")):
        config = T5Config(1, mlp_activations=mlp, positions=Buckets(in_every_layer=True))
        names |= {tensor.theirs.removesuffix(".weight"): tensor.ours for tensor in tensors_of(config, 1.0)}
    names["decoder.logits"] = names.pop("lm_head")
    return names | {re.sub(r"(final_)?layer_norm$", "rms_norm", name): ours for name, ours in names.items()}


def t5x_name(variable: str) -> str | None:
    """T5X's name of a variable; None for one that T5X does not have.

    A table of relative positions gets the name of a table of its layer; see `share_positions`.
    """
    if variable == "global_step":
        return STEP
    match = _VARIABLE.fullmatch(variable)
    name, slot = match.groups() if match else (variable, None)
    block = re.search(r"(?<=/block_)\d{1,6}(?=/layer_)", name)
    first = re.sub(r"/block_\d{1,6}/layer_0{0,5}(?=\d)", "/block/0/layer/", name)
    param = _params().get(first.replace("/", "."))
    if param is None or (slot and slot not in _SLOTS):
        return None
    param = param.replace("layers_0", f"layers_{int(block[0])}") if block else param
    return f"{PARAM_STATES}/{param}/{_SLOTS[slot]}" if slot else f"{TARGET}/{param}"


def share_positions(names: Mapping[str, str]) -> dict[str, str]:
    """The same names, with one table of relative positions for each stack where only the first layers have one.

    names: {Mesh-TensorFlow's: T5X's}. In all of T5's released checkpoints the first layer's table is the only one.
    """
    layers = {int(match[1]) for name in names.values() if (match := re.search(r"/layers_(\d+)/relpos_bias/", name))}
    if layers != {0}:
        return dict(names)
    return {variable: name.replace("/layers_0/relpos_bias/", "/relpos_bias/") for variable, name in names.items()}
