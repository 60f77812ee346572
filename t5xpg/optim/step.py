"""One update and one evaluation, as pure functions of a state and a batch."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5xpg.models import chunked_loss
from t5xpg.models.adapters import Adapter, trained_axes
from t5xpg.models.distillation import Teacher
from t5xpg.models.losses import LossConfig, loss_and_metrics, loss_weights_and_normalizer
from t5xpg.models.model import Batch, Model, Params
from t5xpg.models.rng import stream_key
from t5xpg.optim.optimizers import Optimizer
from t5xpg.optim.state import TrainState

Metrics = dict[str, jax.Array]
# (params, rows, the whole batch's normaliser, number of the microbatch) -> (gradients, sums of metrics)
GradientFunction = Callable[[Params, Batch, jax.Array, jax.Array], tuple[Params, Metrics]]
# The same over a whole batch, which may be computed in parts.
WholeGradientFunction = Callable[[Params, Batch, jax.Array], tuple[Params, Metrics]]
# (params, frozen params or None, rows, the whole batch's normaliser, dropout key or None) -> (loss, sums of metrics)
LossFunction = Callable[[Params, Params | None, Batch, jax.Array, jax.Array | None], tuple[jax.Array, Metrics]]


def make_train_step(
    model: Model,
    optimizer: Optimizer,
    loss_config: LossConfig,
    *,
    num_microbatches: int = 1,
    skip_nonfinite: bool = False,
    ema_decay: float | None = None,
    adapter: Adapter | None = None,
    teacher: Teacher | None = None,
    seed: int,
    token_bytes: np.ndarray,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """A function (state, batch) -> (next state, metrics), to be compiled by `distributed.jit_train_step`.

    batch: int32 arrays [B, S] and [B, T], see `data.batch`. token_bytes: int32 [vocabulary], UTF-8 bytes of every id.
    metrics: the float32 sums of `losses.loss_and_metrics`, "gradient_norm" (global L2 norm before clipping),
    "gradient_squares" ([number of arrays], in the order of the leaves: the square of each array's L2 norm) and
    "learning_rate". num_microbatches: the number of parts that a batch is computed in, one after the other, to save
    memory; the update is the same but for rounding and for dropout, whose masks are drawn part by part.
    skip_nonfinite: if cross entropy or gradient is not finite, the step still counts, for the optimiser's schedules
    too, but parameters, their average and the optimiser's other arrays stay as they were. ema_decay: for the state's
    average of the parameters, see `moving_average`; None for a state without one. adapter: makes the model's parameters
    from the trained ones; None if they are the same. teacher: adds its divergence to the loss, and the sum
    "teacher_divergence" to the metrics.
    """
    transformation = optimizer.transformation(trained_axes(model, adapter))
    loss_function = _make_loss(model, loss_config, adapter, teacher, token_bytes)

    def update(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        dropout_key = stream_key(seed, "dropout", state.step) if model.config.dropout_rate > 0 else None

        def gradient(params: Params, rows: Batch, normalizer: jax.Array, part: jax.Array) -> tuple[Params, Metrics]:
            key = None if dropout_key is None else jax.random.fold_in(dropout_key, part)
            loss_and_gradients = jax.value_and_grad(loss_function, has_aux=True)
            (_, sums), gradients = loss_and_gradients(params, state.frozen, rows, normalizer, key)
            return gradients, sums

        normalizer = loss_weights_and_normalizer(batch, loss_config)[1]
        gradients, metrics = microbatched(gradient, num_microbatches)(state.params, batch, normalizer)
        squares = [jnp.sum(jnp.square(gradient)) for gradient in jax.tree.leaves(gradients)]
        metrics["gradient_squares"] = jnp.stack(squares)
        metrics["gradient_norm"] = jnp.sqrt(functools.reduce(jnp.add, squares))
        metrics["learning_rate"] = optimizer.learning_rate(state.step)
        updates, opt_state = transformation.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        average = None if ema_decay is None else moving_average(state.average, params, state.step, ema_decay)
        if skip_nonfinite:
            is_finite = jnp.isfinite(metrics["cross_entropy"]) & jnp.isfinite(metrics["gradient_norm"])
            params, opt_state, average = jax.tree.map(
                lambda new, old: new if jnp.issubdtype(new.dtype, jnp.integer) else jnp.where(is_finite, new, old),
                (params, opt_state, average),
                (state.params, state.opt_state, state.average),
            )
        return TrainState(state.step + 1, params, opt_state, average, state.frozen), metrics

    return update


def _make_loss(
    model: Model, loss_config: LossConfig, adapter: Adapter | None, teacher: Teacher | None, token_bytes: np.ndarray
) -> LossFunction:
    """The loss as a function of the trained parameters. frozen: the model's under an adapter, or the teacher's."""

    def loss(
        params: Params, frozen: Params | None, rows: Batch, normalizer: jax.Array, dropout_key: jax.Array | None
    ) -> tuple[jax.Array, Metrics]:
        if adapter is not None:
            assert frozen is not None
            params = adapter.applied(frozen, params)
        states, to_logits = model.outputs(params, rows, dropout_key=dropout_key)
        if teacher is None:
            return chunked_loss.loss_and_metrics(states, to_logits, rows, loss_config, token_bytes, normalizer)
        logits = to_logits(states)
        target_loss, sums = loss_and_metrics(logits, rows, loss_config, token_bytes, normalizer)
        assert frozen is not None
        return teacher.distillation_loss(target_loss, sums, logits, frozen, rows, loss_config, normalizer)

    return loss


def moving_average(average: Params | None, params: Params, step: jax.Array, decay: float) -> Params:
    """decay' * average + (1 - decay') * params, with decay' = min(decay, (1 + step) / (10 + step)): the average follows
    the parameters closely at first (tf.train.ExponentialMovingAverage). step: number of updates before this, int32."""
    num_updates = step.astype(jnp.float32)
    share = 1 - jnp.minimum(jnp.float32(decay), (1 + num_updates) / (10 + num_updates))
    return jax.tree.map(lambda old, new: old + share * (new - old), average, params)


def microbatched(gradient: GradientFunction, num_microbatches: int) -> WholeGradientFunction:
    """`gradient` over `num_microbatches` equal parts of a batch, with the results of the parts added up.

    If `gradient` is a sum over rows, the result is that of the whole batch. Part i has the rows i, i + n, i + 2n, ...:
    rows split over devices then stay where they are. The batch has to divide.
    """

    def whole_gradient(params: Params, batch: Batch, normalizer: jax.Array) -> tuple[Params, Metrics]:
        if num_microbatches == 1:
            return gradient(params, batch, normalizer, jnp.int32(0))

        def split(array: jax.Array) -> jax.Array:
            B = array.shape[0]
            return jnp.swapaxes(array.reshape(B // num_microbatches, num_microbatches, *array.shape[1:]), 0, 1)

        def add(total: Any, part: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            number, rows = part
            return jax.tree.map(jnp.add, total, gradient(params, rows, normalizer, number)), None

        parts = (jnp.arange(num_microbatches, dtype=jnp.int32), {name: split(array) for name, array in batch.items()})
        shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda x: x[0], parts[1]), normalizer, parts[0][0])
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.scan(add, zeros, parts)[0]

    return whole_gradient


def make_eval_step(
    model: Model, loss_config: LossConfig, *, token_bytes: np.ndarray
) -> Callable[[Params, Batch], Metrics]:
    """A function (params, batch) -> the float32 sums of `losses.loss_and_metrics`, without dropout."""

    def evaluate(params: Params, batch: Batch) -> Metrics:
        states, to_logits = model.outputs(params, batch)
        return chunked_loss.loss_and_metrics(states, to_logits, batch, loss_config, token_bytes)[1]

    return evaluate
