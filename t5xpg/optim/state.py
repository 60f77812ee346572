"""Everything that an update changes."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from t5xpg.models.model import Model, Params
from t5xpg.optim.optimizers import Optimizer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """A pytree. Random keys are not in it: they derive from the seed and the step (see `rng`).

    The leaves are arrays, or what describes arrays: shapes, shardings, axes.
    """

    step: Any  # int32 scalar: how many updates have been made
    params: Params  # float32
    opt_state: Any  # what the optimiser's transformation keeps


def create(model: Model, optimizer: Optimizer, key: jax.Array) -> TrainState:
    """The state before the first update, with new parameters from `key`. Can be jitted."""
    return of_parameters(model, optimizer, model.init(key))


def of_parameters(model: Model, optimizer: Optimizer, params: Params) -> TrainState:
    """The state before the first update of `params`. Can be jitted."""
    transformation = optimizer.transformation(model.logical_axes())
    return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=transformation.init(params))


def abstract(model: Model, optimizer: Optimizer) -> TrainState:
    """The state with jax.ShapeDtypeStruct at its leaves; allocates nothing."""
    return jax.eval_shape(lambda params: of_parameters(model, optimizer, params), model.abstract_params())
