"""Steps compiled for a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from t5xpg.models import activations
from t5xpg.partitioning.layout import batch_sharding, replicated
from t5xpg.partitioning.places import Places
from t5xpg.partitioning.rules import STANDARD_RULES, LogicalAxisRules
from t5xpg.state import TrainState


def _placed(step: Callable[..., Any], mesh: Mesh, rules: LogicalAxisRules) -> Callable[..., Any]:
    """`step`, traced for the mesh; for a mesh of one device it is as it would be without."""
    if mesh.size == 1:
        return step

    @functools.wraps(step)
    def traced(*arguments: Any) -> Any:
        with activations.placed(Places(mesh, rules)):
            return step(*arguments)

    return traced


def jit_create(create: Callable[..., TrainState], shardings: TrainState, *arguments: Any) -> TrainState:
    """The result of `create(*arguments)`, made in place: every device makes its own part. The arguments are used up."""
    donated = tuple(range(len(arguments)))
    return jax.jit(create, out_shardings=shardings, donate_argnums=donated)(*arguments)


def jit_train_step(
    step: Callable[..., Any],
    mesh: Mesh,
    shardings: TrainState,
    more: int = 0,
    rules: LogicalAxisRules = STANDARD_RULES,
) -> Any:
    """`step(state, batch, ...) -> (state, metrics)`, compiled; the old state's memory is reused for the new one.

    more: how many further arguments `step` takes, which lie on every device. rules: what activations
    follow.
    """
    return jax.jit(
        _placed(step, mesh, rules),
        in_shardings=(shardings, batch_sharding(mesh), *[replicated(mesh)] * more),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
    )


def jit_eval_step(
    step: Callable[..., Any], mesh: Mesh, params: Any, more: int = 0, rules: LogicalAxisRules = STANDARD_RULES
) -> Any:
    """`step(params, batch, ...) -> metrics`, compiled. params: the parameters' shardings; more, rules: as above."""
    return jax.jit(
        _placed(step, mesh, rules),
        in_shardings=(params, batch_sharding(mesh), *[replicated(mesh)] * more),
        out_shardings=replicated(mesh),
    )
