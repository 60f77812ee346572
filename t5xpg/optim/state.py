"""The train state: everything that an update changes, and the parameters that stay frozen beside it."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from t5xpg.models.adapters import Adapter, trained_axes, trained_params
from t5xpg.models.model import Model, Params
from t5xpg.optim.optimizers import Optimizer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """A pytree. Random keys are not in it: they derive from the seed and the step (see `rng`).

    The leaves are arrays, or descriptions of arrays: shapes, shardings, axes. average: an exponential moving average of
    the parameters (`step.make_train_step`), with which the model is measured, used and exported; None without one.
    frozen: parameters that no update changes and no checkpoint holds. With an adapter, they are those of the model, and
    `params` are the adapter's. With a teacher, they are the teacher's. Otherwise None.
    """

    step: Any  # int32 scalar: the number of updates made
    params: Params  # float32
    opt_state: Any  # the state of the optimiser's transformation
    average: Params | None = None  # float32
    frozen: Params | None = None  # float32

    @property
    def eval_params(self) -> Params:
        """The parameters for evaluation and checkpoints: the average if there is one, else `params`."""
        return self.params if self.average is None else self.average


def of_parameters(
    model: Model,
    optimizer: Optimizer,
    params: Params,
    *,
    averaged: bool = False,
    adapter: Adapter | None = None,
    frozen: Params | None = None,
) -> TrainState:
    """The state before the first update of `params`. Can be jitted.

    averaged: the average begins as a copy of `params`. adapter: `params` are its own, `frozen` the model's.
    """
    transformation = optimizer.transformation(trained_axes(model, adapter))
    average = jax.tree.map(jnp.copy, params) if averaged else None
    return TrainState(jnp.zeros((), jnp.int32), params, transformation.init(params), average, frozen)


def abstract(
    model: Model,
    optimizer: Optimizer,
    *,
    averaged: bool = False,
    adapter: Adapter | None = None,
    frozen: Model | None = None,
) -> TrainState:
    """The state with jax.ShapeDtypeStruct at its leaves; allocates nothing. frozen: the frozen parameters' model."""
    state_of = functools.partial(of_parameters, model, optimizer, averaged=averaged, adapter=adapter)
    frozen_params = None if frozen is None else frozen.abstract_params()
    return jax.eval_shape(state_of, trained_params(model, adapter), frozen=frozen_params)
