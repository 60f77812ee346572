"""An encoder-decoder, or a decoder alone, in NumPy, float64, one text at a time and head by head: T5Config in words."""

import math
from typing import Any

import numpy as np

from t5xpg.models.attention.relative_positions import relative_position_bucket
from t5xpg.models.config import T5Config

ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "linear": lambda x: x,
}


def logits(
    params: Any, config: T5Config, inputs: list[int], targets: list[int], gate: tuple[int, int] | None = None
) -> np.ndarray:
    """Of one pair of texts without padding: [T, V]. gate: a delete gate's layer, and how many positions it keeps."""
    params = _float64(params)
    x = _embedded(params["token_embedder"], config, inputs)
    encoded = _stack(params["encoder"], "encoder", config.encoder, x, None, gate)
    tables = params.get("decoder_token_embedder", params["token_embedder"])
    x = _embedded(tables, config, [config.decoder_start_token_id, *targets[:-1]])
    x = _stack(params["decoder"], "decoder", config, x, encoded)
    if config.logits_via_embedding:
        return _capped(x @ tables["embedding"].T / math.sqrt(config.emb_dim), config.logit_softcap)
    return _capped(x @ params["decoder"]["logits_dense"]["kernel"], config.logit_softcap)


def logits_of_decoder(params: Any, config: T5Config, tokens: list[int], prefix: int) -> np.ndarray:
    """Of a decoder without an encoder, whose first `prefix` positions see each other: [T, V]."""
    params = _float64(params)
    x = _embedded(params["token_embedder"], config, [config.decoder_start_token_id, *tokens[:-1]])
    return (
        _stack(params["decoder"], "decoder", config, x, None, prefix=prefix)
        @ params["decoder"]["logits_dense"]["kernel"]
    )


def _float64(tree: Any) -> Any:
    return {k: _float64(v) for k, v in tree.items()} if isinstance(tree, dict) else np.asarray(tree, np.float64)


def _embedded(tables: Any, config: T5Config, ids: list[int]) -> np.ndarray:
    x = tables["embedding"][ids]
    for length in () if config.ngrams is None else config.ngrams.lengths:
        for place in range(len(ids)):
            number = 0
            for at in range(place, place - length, -1):
                number = (number * 1_000_003 + (ids[at] if at >= 0 else 0) + 1) % 2**32
            mixed = (number ^ number >> 15) * 0x2C1B3C6D % 2**32
            x[place] += tables["ngram_embedding"][(mixed ^ mixed >> 16) % config.ngrams.buckets]
    return x


def _capped(x: np.ndarray, cap: float | None) -> np.ndarray:
    return x if cap is None else cap * np.tanh(x / cap)


def _norm(layer: Any, name: str, x: np.ndarray) -> np.ndarray:
    if name not in layer:
        return x
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * layer[name]["scale"]


def _stack(
    stack: Any,
    name: str,
    config: T5Config,
    x: np.ndarray,
    encoded: np.ndarray | None,
    gate: tuple[int, int] | None = None,
    prefix: int = 0,
) -> np.ndarray:
    is_decoder = name == "decoder"
    number = config.num_decoder_layers if is_decoder else config.num_encoder_layers
    first = len(encoded) if encoded is not None and config.has_rotary_cross_attention else 0
    places, gates = first + np.arange(len(x)), np.ones(1)
    for index in range(number):
        if gate is not None and gate[0] == index:
            scores = _norm(stack["delete_gate"], "norm", x) @ stack["delete_gate"]["kernel"]
            places = np.sort(np.argsort(-scores)[: gate[1]])
            x, gates = x[places], 2 / (1 + np.exp(-scores[places]))
        layer = stack[f"layers_{index}"]
        is_local = (index + 1) % config.windows.pattern != 0
        window = config.windows.encoder
        if is_decoder:
            window = None if config.windows.decoder is None else (config.windows.decoder, 0)
        own = "self_attention" if is_decoder else "attention"
        see = np.ones((len(x), len(x)), bool)
        for q in range(len(x)):
            for k in range(len(x)):
                behind = q - k
                if is_decoder and behind < 0 and k >= prefix:
                    see[q, k] = False
                if is_local and window is not None and not -window[1] <= behind <= window[0]:
                    see[q, k] = False
        table = (layer if config.has_table_in_every_layer else stack).get("relpos_bias")
        bias = np.where(see, 0.0, -np.inf)[None].repeat(config.num_heads, 0)
        if table is not None:
            distances = np.arange(len(x))[None, :] - np.arange(len(x))[:, None]
            bias = bias + table["rel_embedding"][:, relative_position_bucket(distances, not is_decoder, 32, 128)]
        y = _norm(layer, f"pre_{own}_layer_norm", x)
        seen = [(y, bias, places)]
        if not is_decoder and (size := config.windows.global_block) is not None and len(x) >= size:
            block = np.minimum(np.arange(len(x)) // size, len(x) // size - 1)
            numbers = np.arange(len(x) // size)
            sums = np.stack([y[block == number].sum(axis=0) for number in numbers])
            buckets = relative_position_bucket(numbers[None, :] - block[:, None], True, 32, 128)
            added = stack["global_relpos_bias"]["rel_embedding"][:, buckets]
            seen.append((_norm(layer, "global_input_layer_norm", sums), added, None))
        elsewhere = np.arange(len(encoded)) if encoded is not None and config.has_rotary_cross_attention else None
        source = (encoded, np.zeros((config.num_heads, len(x), 0 if encoded is None else len(encoded))), elsewhere)
        if is_decoder and config.heads.merged:
            seen.append(source)
        y = _attention(layer[own], config, is_local, y, places, seen)
        x = x + _norm(layer, f"post_{own}_layer_norm", y)
        if encoded is not None and not config.heads.merged:
            y = _norm(layer, "pre_cross_attention_layer_norm", x)
            here = places if config.has_rotary_cross_attention else None
            y = _attention(layer["encoder_decoder_attention"], config, is_local, y, here, [source])
            x = x + _norm(layer, "post_cross_attention_layer_norm", y)
        y, mlp = _norm(layer, "pre_mlp_layer_norm", x), layer["mlp"]
        first_name, *others = ["wi"] if len(config.mlp_activations) == 1 else ["wi_0", "wi_1"]
        hidden = ACTIVATIONS[config.mlp_activations[0]](y @ mlp[first_name]["kernel"])
        for other in others:
            hidden = hidden * (y @ mlp[other]["kernel"])
        x = x + _norm(layer, "post_mlp_layer_norm", hidden @ mlp["wo"]["kernel"])
    return _norm(stack, f"{name}_norm", x) * gates[:, None]


def _attention(
    part: Any, config: T5Config, is_local: bool, x: np.ndarray, places: np.ndarray | None, seen: list[Any]
) -> np.ndarray:
    """seen: of each group of positions what they are, their biases [H, Q, S], and their places or None."""
    H, K = config.num_heads, config.head_dim
    shared = H // (config.heads.num_kv_heads or H)
    found = []
    for head in range(H):
        mine, theirs = slice(head * K, head * K + K), slice(head // shared * K, head // shared * K + K)
        queries = x @ part["query"]["kernel"][:, mine]
        if config.heads.qk_norm:
            queries = _norm(part, "query_norm", queries) / math.sqrt(K)
        queries = _turned(config, is_local, queries, places)
        rows, values = [], []
        for memory, bias, at in seen:
            keys = _turned(config, is_local, _norm(part, "key_norm", memory @ part["key"]["kernel"][:, theirs]), at)
            rows.append(_capped(queries @ keys.T, config.heads.logit_softcap) + bias[head])
            values.append(memory @ part["value"]["kernel"][:, theirs])
        weights = np.exp(np.concatenate(rows, axis=1))
        found.append(weights / weights.sum(axis=1, keepdims=True) @ np.concatenate(values))
    return np.concatenate(found, axis=1) @ part["out"]["kernel"]


def _turned(config: T5Config, is_local: bool, x: np.ndarray, places: np.ndarray | None) -> np.ndarray:
    """Each pair of numbers k and k + K/2 as one complex number, multiplied by exp(i place base^(-2k/K))."""
    if (rotary := config.rotary) is None or places is None:
        return x
    half = x.shape[1] // 2
    base = rotary.local_base if is_local and rotary.local_base is not None else rotary.base
    scale = 1.0 if is_local else rotary.scale
    angles = np.outer(places / scale, [base ** (-k / half) for k in range(half)])
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=1)
