"""The training step as one would write it in jax and optax, without tuning: a contestant of `benchmarks.step`.

The same model, loss and optimiser as the others, in one file: a dict of arrays, `@`, softmax, `jax.jit`. XLA's flags
are its defaults.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.contestant import parse_options, time_steps
from benchmarks.jobs import B1, B2, EPSILON, JOBS, LEARNING_RATE, Z_LOSS, Job

Weights = dict[str, jax.Array]
MASKED = -1e10


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def attention(w: Weights, name: str, job: Job, x: jax.Array, memory: jax.Array, bias: jax.Array) -> jax.Array:
    def heads(y: jax.Array) -> jax.Array:
        return y.reshape(*y.shape[:2], job.heads, job.head_dim)

    query, key, value = (
        heads(y @ w[f"{name}.{matrix}.weight"].T) for y, matrix in ((x, "q"), (memory, "k"), (memory, "v"))
    )
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) + bias, axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    return mixed.reshape(*x.shape[:2], -1) @ w[f"{name}.o.weight"].T


def mlp(w: Weights, name: str, x: jax.Array) -> jax.Array:
    name = f"{name}.DenseReluDense"
    hidden = jax.nn.gelu(x @ w[f"{name}.wi_0.weight"].T) * (x @ w[f"{name}.wi_1.weight"].T)
    return hidden @ w[f"{name}.wo.weight"].T


def buckets(length: int, bidirectional: bool) -> np.ndarray:
    """T5's 32 buckets of distances up to 128: [length, length]."""
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    count, first = (16, (distance > 0) * 16) if bidirectional else (32, 0)
    distance = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    exact = count // 2
    large = exact + np.log(np.maximum(distance, 1) / exact) / math.log(128 / exact) * (count - exact)
    return first + np.where(distance < exact, distance, np.minimum(large.astype(int), count - 1))


def loss_of(w: Weights, batch: dict[str, jax.Array], job: Job) -> jax.Array:
    encoder, decoder = batch["encoder_segment_ids"], batch["decoder_segment_ids"]

    def bias(visible: jax.Array, stack: str | None = None) -> jax.Array:
        masked = jnp.where(visible, 0.0, MASKED)[:, None]
        if stack is None:
            return masked
        table = w[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        return masked + table[buckets(visible.shape[1], stack == "encoder")].transpose(2, 0, 1)

    def stack(name: str, layers: int, own: jax.Array, encoded: jax.Array | None = None) -> jax.Array:
        x = w["shared.weight"][batch[f"{name}_input_tokens"]]
        for index in range(layers):
            layer = f"{name}.block.{index}.layer"
            y = norm(x, w[f"{layer}.0.layer_norm.weight"])
            x = x + attention(w, f"{layer}.0.SelfAttention", job, y, y, own)
            if encoded is not None:
                y = norm(x, w[f"{layer}.1.layer_norm.weight"])
                x = x + attention(w, f"{layer}.1.EncDecAttention", job, y, encoded, cross)
            last = f"{layer}.{1 if encoded is None else 2}"
            x = x + mlp(w, last, norm(x, w[f"{last}.layer_norm.weight"]))
        return norm(x, w[f"{name}.final_layer_norm.weight"])

    causal = np.tril(np.ones((job.targets, job.targets), bool))
    cross = bias(decoder[:, :, None] == encoder[:, None, :])
    encoded = stack("encoder", job.encoder_layers, bias(encoder[:, :, None] == encoder[:, None, :], "encoder"))
    own = bias((decoder[:, :, None] == decoder[:, None, :]) & causal, "decoder")
    logits = stack("decoder", job.decoder_layers, own, encoded) @ w["lm_head.weight"].T
    log_z = jax.nn.logsumexp(logits, axis=-1)
    of_target = jnp.take_along_axis(logits, batch["decoder_target_tokens"][..., None], axis=-1)[..., 0]
    return jnp.mean(log_z - of_target + Z_LOSS * log_z**2)


def measure(loss_of: Callable[[Any, Any], jax.Array], params: Any, job: Job, repeats: int) -> None:
    """Time updates of `params` by optax's AdamW on the job's batches, each as one jitted program that donates them."""
    optimizer = optax.adamw(LEARNING_RATE, b1=B1, b2=B2, eps=EPSILON, weight_decay=0.0)
    state = (params, optimizer.init(params))
    batches = [{name: jnp.asarray(array) for name, array in batch.items()} for batch in job.batches()]

    def update(state: Any, batch: Any) -> Any:
        params, opt_state = state
        loss, gradients = jax.value_and_grad(loss_of)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    jitted = jax.jit(update, donate_argnums=0)

    def step(number: int) -> float:
        nonlocal state
        state, loss = jitted(state, batches[number])
        return float(jax.block_until_ready((state, loss))[1])

    time_steps(step, repeats, versions=f"jax {jax.__version__}, optax {optax.__version__}")


def main() -> None:
    given = parse_options(__doc__)
    job = JOBS[given.job]
    weights = {name: jnp.asarray(array) for name, array in job.weights().items()}
    measure(functools.partial(loss_of, job=job), weights, job, given.repeats)


if __name__ == "__main__":
    main()
