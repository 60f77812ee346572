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

    The leaves are arrays, or what describes arrays: shapes, shardings, axes. average: an exponential moving average of
    the parameters (`step.make_train_step`), with which the model is measured, used and exported; None where there is
    none.
    """

    step: Any  # int32 scalar: how many updates have been made
    params: Params  # float32
    opt_state: Any  # what the optimiser's transformation keeps
    average: Params | None = None  # float32

    @property
    def measured(self) -> Params:
        """The parameters that the model is used with: their average, where there is one."""
        return self.params if self.average is None else self.average


def create(model: Model, optimizer: Optimizer, key: jax.Array, *, averaged: bool = False) -> TrainState:
    """The state before the first update, with new parameters from `key`. Can be jitted."""
    return of_parameters(model, optimizer, model.init(key), averaged=averaged)


def of_parameters(model: Model, optimizer: Optimizer, params: Params, *, averaged: bool = False) -> TrainState:
    """The state before the first update of `params`, which are their own average where `averaged`. Can be jitted."""
    transformation = optimizer.transformation(model.logical_axes())
    average = jax.tree.map(jnp.copy, params) if averaged else None
    return TrainState(jnp.zeros((), jnp.int32), params, transformation.init(params), average)


def abstract(model: Model, optimizer: Optimizer, *, averaged: bool = False) -> TrainState:
    """The state with jax.ShapeDtypeStruct at its leaves; allocates nothing."""
    return jax.eval_shape(
        lambda params: of_parameters(model, optimizer, params, averaged=averaged), model.abstract_params()
    )
