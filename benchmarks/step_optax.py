"""What the contestants of the training step that use jax and optax, and nothing of t5xpg, have in common."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks import step_timing
from benchmarks.jobs import B1, B2, EPSILON, LEARNING_RATE, Job


def measure(loss_of: Callable[[Any, Any], jax.Array], params: Any, job: Job, steps: int) -> None:
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

    step_timing.measure(step, steps, versions=f"jax {jax.__version__}, optax {optax.__version__}")
