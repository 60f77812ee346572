"""Optimisers on stacked layers, beside themselves on layers that are apart."""

import functools

import jax
import numpy as np
import optax
import pytest

from t5xpg.optim.optimizers import Adafactor, AdamW, AdamWScale, Muon
from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint import checkpoint_items
from tests.small_models import with_layers_of

LAYER = {
    "query": ("embed", "joined_kv"), "wo": ("mlp", "embed"), "norm": ("embed",), "bias": ("heads", "relpos_buckets"),
}  # fmt: skip
SHAPES = {"query": (6, 8), "wo": (16, 6), "norm": (6,), "bias": (2, 32)}
OTHER = {"embedding": ("vocab", "embed")}
L = 3
APART_AXES = {"encoder": {f"layers_{index}": LAYER for index in range(L)}, "embedder": OTHER}
TOGETHER_AXES = {"encoder": {"layers": {name: ("layers", *axes) for name, axes in LAYER.items()}}, "embedder": OTHER}
# factored are wo (16 x 6) and not the stacked biases, whose layers are too small, though 3 x 2 x 32 is not
OPTIMIZERS = [
    Adafactor(0.1, min_dim_size_to_factor=6, momentum=0.9, weight_decay=0.01, max_gradient_norm=1.0),
    Adafactor(0.1, factored=False, multiply_by_parameter_scale=False),
    AdamW(0.1, weight_decay=0.1, relpos_bias_factor=3.0),
    AdamWScale(0.1, weight_decay=0.1),
    Muon(0.1, weight_decay=0.1, relpos_bias_factor=3.0),
    Muon(0.1, consistent_rms=0.2),
]


def arrays(seed: int):
    """Of layers apart; every one of a size of its own, so that means over several would show."""
    generator = np.random.default_rng(seed)

    def array(shape):
        return (generator.normal(size=shape) * 10 ** generator.uniform(-2, 1)).astype(np.float32)

    layers = {f"layers_{index}": {name: array(shape) for name, shape in SHAPES.items()} for index in range(L)}
    return {"encoder": layers, "embedder": {"embedding": array((12, 6))}}


def together(tree):
    return with_layers_of(tree, {"encoder": {"layers": dict.fromkeys(LAYER, 0)}, "embedder": {"embedding": 0}})


def trained(optimizer, axes, params, gradients):
    transformation = optimizer.transformation(axes)
    state = transformation.init(params)
    update = jax.jit(transformation.update)
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_every_layer_of_a_stack_is_an_array_of_its_own(optimizer) -> None:
    gradients = [arrays(100 + step) for step in range(4)]
    params, state = trained(optimizer, APART_AXES, arrays(0), gradients)
    stacked, stacked_state = trained(
        optimizer, TOGETHER_AXES, together(arrays(0)), [together(gradient) for gradient in gradients]
    )
    moved = jax.tree.map(lambda new, old: np.abs(new - old).max(), params, arrays(0))
    assert min(jax.tree.leaves(moved)) > 1e-4
    # the state too, under the names of checkpoints
    own = checkpoint_items.optimizer_tree(TrainState(np.int32(4), params, state))
    of_stack = checkpoint_items.optimizer_tree(TrainState(np.int32(4), stacked, stacked_state))
    for ours, theirs in ((params, stacked), (own, of_stack)):
        converted = with_layers_of(theirs, ours)
        assert jax.tree.map(np.shape, converted) == jax.tree.map(np.shape, ours)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), converted, ours)
