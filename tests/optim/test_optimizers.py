"""Optimisers against NumPy transcriptions of their papers' update rules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5xpg.optim.optimizers import Adafactor, AdamW, AdamWScale, Muon, is_hidden_matrix
from t5xpg.optim.schedules import Cosine, InverseSquareRoot
from tests.refusals import refused

AXES = {
    "token_embedder": {"embedding": ("vocab", "embed")},
    "encoder": {
        "query": ("embed", "joined_kv"),
        "wo": ("mlp", "embed"),
        "norm": ("embed",),
        "rel_embedding": ("heads", "relpos_buckets"),
    },
    "logits_dense": ("embed", "vocab"),
}
SHAPES = {
    "token_embedder": {"embedding": (12, 8)},
    "encoder": {"query": (8, 8), "wo": (16, 8), "norm": (8,), "rel_embedding": (2, 32)},
    "logits_dense": (8, 12),
}
STEPS = 6


def arrays(seed: int, scale: float = 1.0):
    """A tree of SHAPES; entries of very different sizes, so that clipping and floors take part."""
    generator = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: (generator.normal(size=shape) * scale * 10 ** generator.uniform(-3, 1)).astype(np.float32),
        SHAPES,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def run(optimizer, steps: int = STEPS, scale: float = 1.0):
    """Parameters after `steps` updates with the gradients arrays(100), arrays(101), ..."""
    params = arrays(0)
    transformation = optimizer.transformation(AXES)
    state = transformation.init(params)

    @jax.jit
    def update(params, state, gradients):
        updates, state = transformation.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for step in range(steps):
        params, state = update(params, state, arrays(100 + step, scale))
    return params


def transcribe(rule, steps: int = STEPS, scale: float = 1.0, clip: float | None = None):
    """Parameters after `steps` of `rule(parameter, gradient, memory, step, axes) -> parameter`, in float64."""
    params, treedef = jax.tree.flatten(arrays(0))
    axes = jax.tree.leaves(AXES, is_leaf=lambda node: isinstance(node, tuple))
    params = [np.asarray(param, np.float64) for param in params]
    memories: list[dict] = [{} for _ in params]
    for step in range(steps):
        gradients = [np.asarray(g, np.float64) for g in jax.tree.leaves(arrays(100 + step, scale))]
        if clip is not None:
            norm = np.sqrt(sum((g**2).sum() for g in gradients))
            gradients = [g * clip * min(1 / clip, 1 / norm) for g in gradients]
        params = [
            rule(param, gradient, memory, step, names)
            for param, gradient, memory, names in zip(params, gradients, memories, axes, strict=True)
        ]
    return jax.tree.unflatten(treedef, params)


def assert_close(got, expected, tolerance: float = 2e-5):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        error = np.linalg.norm(np.asarray(a, np.float64) - b) / np.linalg.norm(b)
        assert error < tolerance, (jax.tree_util.keystr(path), error)


def rms(x: np.ndarray) -> float:
    return np.sqrt(np.mean(x**2))


def adafactor_rule(
    learning_rate, min_dim=128, decay=0.8, epsilon1=1e-30, epsilon2=1e-3, threshold=1.0, scaled=True, momentum=None,
    weight_decay=0.0, exponent=0.0,
):  # fmt: skip
    """Algorithm 4 of arXiv 1804.04235 with T5X's settings, for one array of one or two axes."""

    def rule(x, g, memory, t, axes):
        beta2 = 1 - float(t + 1) ** -decay
        squared = g**2 + epsilon1
        if x.ndim == 2 and min(x.shape) >= min_dim:
            rows = beta2 * memory.get("rows", 0) + (1 - beta2) * squared.mean(axis=1)
            columns = beta2 * memory.get("columns", 0) + (1 - beta2) * squared.mean(axis=0)
            memory.update(rows=rows, columns=columns)
            second = np.outer(rows, columns) / rows.mean()
        else:
            second = beta2 * memory.get("v", 0) + (1 - beta2) * squared
            memory["v"] = second
        update = g / np.sqrt(second)
        if threshold is not None:
            update = update / max(1.0, rms(update) / threshold)
        rate = learning_rate(t)
        step = rate * update * (max(epsilon2, rms(x)) if scaled else 1.0)
        if momentum is not None:
            step = momentum * memory.get("m", 0) + (1 - momentum) * step
            memory["m"] = step
        return (1 - weight_decay * rate**exponent) * x - step

    return rule


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"min_dim_size_to_factor": 8}, {"min_dim": 8}),
        ({"min_dim_size_to_factor": 2}, {"min_dim": 2}),
        ({"min_dim_size_to_factor": 2, "factored": False}, {}),
        ({"multiply_by_parameter_scale": False, "clipping_threshold": None}, {"scaled": False, "threshold": None}),
        ({"decay_rate": 0.5, "epsilon1": 1e-4, "epsilon2": 0.7}, {"decay": 0.5, "epsilon1": 1e-4, "epsilon2": 0.7}),
        ({"momentum": 0.9, "weight_decay": 0.01}, {"momentum": 0.9, "weight_decay": 0.01}),
        ({"weight_decay_lr_exponent": 2.0}, {"exponent": 2.0, "weight_decay": 1.0}),
        ({"weight_decay": 0.5, "weight_decay_lr_exponent": 2.0}, {"weight_decay": 0.5, "exponent": 2.0}),
        # as T5X takes zeros
        ({"weight_decay": 0.0, "weight_decay_lr_exponent": 2.0}, {"weight_decay": 1.0, "exponent": 2.0}),
        ({"weight_decay_lr_exponent": 0.0}, {}),
    ],
)
def test_adafactor_is_the_papers(ours, theirs):
    got = run(Adafactor(InverseSquareRoot(warmup_steps=25), **ours))
    assert_close(got, transcribe(adafactor_rule(lambda t: 1 / np.sqrt(max(t, 25)), **theirs)))


def test_adafactor_clips_the_global_norm_first():
    got = run(Adafactor(0.1, max_gradient_norm=0.5, epsilon1=1e-3), scale=0.01)
    assert_close(got, transcribe(adafactor_rule(lambda t: 0.1, epsilon1=1e-3), scale=0.01, clip=0.5))


def test_adafactor_keeps_rows_and_columns_of_large_arrays_only():
    axes = {"large": ("embed", "mlp"), "bias": ("heads", "relpos_buckets"), "norm": ("embed",)}
    params = {"large": jnp.zeros((128, 200)), "bias": jnp.zeros((150, 32)), "norm": jnp.zeros(500)}
    state = Adafactor(1.0).transformation(axes).init(params)
    factored = next(part for part in state if hasattr(part, "v_row"))
    shapes = {name: [factored.v_row[name].shape, factored.v_col[name].shape, factored.v[name].shape] for name in axes}
    assert shapes == {
        "large": [(128,), (200,), (1,)], "bias": [(1,), (1,), (150, 32)], "norm": [(1,), (1,), (500,)],
    }  # fmt: skip
    assert all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in jax.tree.leaves(state))


def adamw_rule(*, rate, b1=0.9, b2=0.999, epsilon=1e-8, weight_decay=0.0, scaled=False, minimum=1e-3, nesterov=False):
    def rule(x, g, memory, t, axes):
        m = memory["m"] = b1 * memory.get("m", 0) + (1 - b1) * g
        v = memory["v"] = b2 * memory.get("v", 0) + (1 - b2) * g**2
        n = t + 1
        first = b1 * m / (1 - b1 ** (n + 1)) + (1 - b1) * g / (1 - b1**n) if nesterov else m / (1 - b1**n)
        update = first / (np.sqrt(v / (1 - b2**n)) + epsilon)
        if scaled:
            update = update * max(minimum, rms(x))
        decay = weight_decay if len(axes) > 1 else 0.0
        return x - rate(t) * (update + decay * x)

    return rule


def cosine(t):
    return 0.02 * min(1, t / 2) * 0.5 * (1 + np.cos(np.pi * np.clip((t - 2) / 8, 0, 1)))


def test_adamw():
    got = run(AdamW(Cosine(0.02, 10, 2), weight_decay=0.3, b2=0.95))
    assert_close(got, transcribe(adamw_rule(rate=cosine, weight_decay=0.3, b2=0.95)))
    got = run(AdamWScale(Cosine(0.02, 10, 2), max_gradient_norm=0.5))
    assert_close(got, transcribe(adamw_rule(rate=cosine, epsilon=1e-6, scaled=True), clip=0.5))


def muon_rule(*, rate, adam_rate, momentum=0.95, weight_decay=0.0, consistent_rms=None):
    """Muon with Nesterov's momentum corrected for its start, as optax has it; AdamW outside the layers."""
    adam = adamw_rule(rate=adam_rate, nesterov=True)

    def rule(x, g, memory, t, axes):
        if not is_hidden_matrix(axes):
            return adam(x, g, memory, t, axes)
        m = memory["m"] = momentum * memory.get("m", 0) + (1 - momentum) * g
        n = t + 1
        direction = momentum * m / (1 - momentum ** (n + 1)) + (1 - momentum) * g / (1 - momentum**n)
        y = direction / (np.linalg.norm(direction) + 1e-8)
        tall = y.shape[0] > y.shape[1]
        y = y.T if tall else y
        for _ in range(5):
            square = y @ y.T
            y = 3.4445 * y + (-4.7750 * square + 2.0315 * square @ square) @ y
        y = y.T if tall else y
        rows, columns = x.shape
        factor = np.sqrt(max(1, columns / rows))
        if consistent_rms is not None:
            factor = consistent_rms * np.sqrt(max(rows, columns))
        return x - rate(t) * (factor * y + weight_decay * x)

    return rule


def test_muon():
    got = run(Muon(Cosine(0.02, 10, 2), weight_decay=0.1))
    # Newton and Schulz's steps multiply float32 errors of small singular values by 3.4 each.
    assert_close(got, transcribe(muon_rule(rate=cosine, adam_rate=cosine, weight_decay=0.1)), 1e-3)
    got = run(Muon(0.1, adam_learning_rate=Cosine(0.02, 10, 2), consistent_rms=0.2))
    assert_close(got, transcribe(muon_rule(rate=lambda t: 0.1, adam_rate=cosine, consistent_rms=0.2)), 1e-3)


QUERY, WO, BIASES, EMBEDDING, HEAD = (
    ("embed", "joined_kv"), ("mlp", "embed"), ("heads", "relpos_buckets"), ("vocab", "embed"), ("embed", "vocab"),
)  # fmt: skip
MUON = muon_rule(rate=cosine, adam_rate=cosine)


@pytest.mark.parametrize(
    ("optimizer", "rule", "factors"),
    [
        (AdamW(Cosine(0.02, 10, 2), relpos_bias_factor=5.0), adamw_rule(rate=cosine), {BIASES: 5.0}),
        (AdamWScale(Cosine(0.02, 10, 2), max_gradient_norm=None, relpos_bias_factor=5.0),
         adamw_rule(rate=cosine, epsilon=1e-6, scaled=True), {BIASES: 5.0}),
        (Muon(Cosine(0.02, 10, 2), relpos_bias_factor=5.0, embedding_factor=3.0), MUON, {BIASES: 5.0, EMBEDDING: 3.0}),
        # wider models
        (AdamW(Cosine(0.02, 10, 2), width_factor=4.0), adamw_rule(rate=cosine), {QUERY: 0.25, WO: 0.25, HEAD: 0.25}),
        (Muon(Cosine(0.02, 10, 2), width_factor=4.0), MUON, {HEAD: 0.25}),
    ],
)  # fmt: skip
def test_updates_of_some_arrays_are_multiplied(optimizer, rule, factors):
    def multiplied(x, g, memory, t, axes):
        return x + factors.get(axes, 1.0) * (rule(x, g, memory, t, axes) - x)

    assert_close(run(optimizer), transcribe(multiplied), 1e-3)


def test_what_an_optimiser_cannot_have():
    for settings in ({"width_factor": 0}, {"max_gradient_norm": 0}):
        with refused(f"AdamW.{min(settings)} is 0"):
            AdamW(0.1, **settings)
    with refused("two axes"):
        Adafactor(1.0).transformation({"kernel": ("embed", "heads", "kv")})


def test_muon_takes_only_the_matrices_inside_the_layers():
    axes = jax.tree_util.tree_leaves_with_path(AXES, is_leaf=lambda node: isinstance(node, tuple))
    assert [path[-1].key for path, names in axes if is_hidden_matrix(names)] == ["query", "wo"]
    assert not is_hidden_matrix(("length", "embed"))  # a soft prompt
