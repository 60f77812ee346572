"""Sizes of small models, batches for them, and the goldens of transformers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

from t5xpg.exchange.huggingface.config import config_from_transformers
from t5xpg.models.config import T5Config
from t5xpg.models.layer_stack import layers_as_in
from t5xpg.models.model import Model

SIZES: dict[str, Any] = {
    "vocab_size": 29, "emb_dim": 12, "num_heads": 3, "head_dim": 5, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "mlp_dim": 14,
}  # fmt: skip
ONE_LAYER: dict[str, Any] = {"num_encoder_layers": 1, "num_decoder_layers": 1}
GOLDENS = Path(__file__).parent / "goldens"
FAMILIES = GOLDENS / "families"


def seq2seq(inputs: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of EncDecFeatureConverter, of inputs [B, S] and targets [B, T], padded with 0."""
    return {
        "encoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
    }


def relative_l2(got: Any, expected: Any) -> float:
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def equations(jaxpr: Any) -> Iterator[Any]:
    """All of a program, those of its loops and functions included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def largest_array(model: Model, batch: Any) -> int:
    """How many numbers the largest array has in the program of the logits' gradients, forward and backward."""
    gradient = jax.grad(lambda params, batch: model.logits(params, batch).sum())
    program = jax.make_jaxpr(gradient)(model.abstract_params(), batch).jaxpr
    return max(variable.aval.size for equation in equations(program) for variable in equation.outvars)


def with_layers_of(tree: Any, like: Any) -> Any:
    """Parameters, their layers together or apart as those of `like` are."""
    return layers_as_in(tree, like, lambda leaves, _: jnp.stack(leaves), lambda leaf, index, _: leaf[index])


def golden(path: Path) -> tuple[T5Config, dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    """Of a file that tests/goldens makes: the configuration, weights by transformers' names, all tensors, metadata."""
    tensors = load_file(path)
    with safe_open(path, "numpy") as file:
        metadata = {name: json.loads(text) for name, text in file.metadata().items()}
    weights = {name.removeprefix("weight/"): value for name, value in tensors.items() if name.startswith("weight/")}
    return config_from_transformers(metadata["config"]), weights, tensors, metadata
