"""Updates whose loss or gradient is not finite: the parameters concerned, and the batch, kept for inspection."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import directory_atomically, write_json
from t5xpg.data.batch import Batch, hash_batch
from t5xpg.distributed import path_names
from t5xpg.models.model import Params

_SHOWN = 5


@dataclass(frozen=True)
class NonFinite:
    """The names of metrics that were not finite in the update `step`, and of parameters whose gradients were not."""

    step: int
    metrics: tuple[str, ...]
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        what = " and the ".join(name.replace("_", " ") for name in self.metrics)
        return f"The {what} of step {self.step} {'are' if len(self.metrics) > 1 else 'is'} not finite"

    def where(self) -> str:
        """The parameters concerned, by name; of many only the first ones."""
        if not self.parameters:
            return "every gradient is finite"
        shown = ", ".join(self.parameters[:_SHOWN])
        more = len(self.parameters) - _SHOWN
        return f"gradients of {shown}" + (f" and {more} more parameters" if more > 0 else "")


def parameter_names(params: Params) -> tuple[str, ...]:
    """The names of the parameters in the order of their leaves: "encoder/layers_0/mlp/wo/kernel"."""
    return tuple("/".join(path_names(path)) for path, _ in jax.tree_util.tree_leaves_with_path(params))


def find(step: int, metrics: Mapping[str, Any], params: Params) -> NonFinite | None:
    """The metrics of an update (see `step.make_train_step`) that are not finite; None if all are finite.

    params: the trained ones; the entries of "gradient_squares" belong to their leaves, in the same order.
    """
    bad_metrics = [name for name in ("cross_entropy", "gradient_norm") if not math.isfinite(metrics.get(name, 0.0))]
    if not bad_metrics:
        return None
    squares = np.asarray(metrics.get("gradient_squares", ()))
    return NonFinite(
        step,
        tuple(bad_metrics),
        tuple(name for name, square in zip(parameter_names(params), squares, strict=False) if not np.isfinite(square)),
    )


def nonfinite_parameters(params: Params) -> list[str]:
    """The names of the parameters that hold a value which is not finite."""
    # A sum of squares is four times as fast as a test of every number. It is finite only if all numbers are; if it is
    # not finite, the sum itself may have been too large.
    if all(math.isfinite(square) for square in jax.device_get(_square_sums(params))):
        return []
    are_finite = jax.device_get(_are_finite(params))
    return [name for name, is_finite in zip(parameter_names(params), are_finite, strict=True) if not is_finite]


def require_finite(params: Params, step: int) -> None:
    """Raise UserError if a parameter is not finite: an update can overflow though its gradient did not."""
    names = nonfinite_parameters(params)
    if names:
        raise UserError(
            f"After step {step} {', '.join(names[:_SHOWN])}{' and more' if len(names) > _SHOWN else ''} hold values "
            "that are not finite; nothing of it was saved. Lower LEARNING_RATE."
        )


def too_many(problem: NonFinite, limit: int, folder: str, optimizer: str) -> UserError:
    """The error if more updates than `limit` were not finite. folder: of the batch of the last one. optimizer: its name
    in gin."""
    before = f" SKIP_NONFINITE={limit} such steps were passed over before it." if limit else ""
    return UserError(
        f"{problem} ({problem.where()}); nothing of that step was saved, and its batch lies in {folder}.{before} "
        f"Lower LEARNING_RATE, clip gradients (--gin.optimizers.{optimizer}.max_gradient_norm=1.0), or pass over some "
        "such steps (--gin.SKIP_NONFINITE=3). These change the run: name another run directory with RUN=…"
    )


@jax.jit
def _square_sums(params: Params) -> list[jax.Array]:
    return [jnp.tensordot(leaf, leaf, axes=leaf.ndim) for leaf in jax.tree.leaves(params)]


@jax.jit
def _are_finite(params: Params) -> list[jax.Array]:
    """For each parameter a boolean: whether all its numbers are finite."""
    return [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]


def keep(folder: Path, problem: NonFinite, metrics: Mapping[str, Any], batch: Batch) -> Path:
    """Write `<folder>/step_<n>/`: batch.npz (the arrays of the batch) and step.json; returns that folder."""
    target = folder / f"step_{problem.step:08d}"
    with directory_atomically(target) as temporary:
        record = {
            "step": problem.step,
            "not_finite": list(problem.metrics),
            "parameters": list(problem.parameters),
            "metrics": {name: str(value) for name, value in metrics.items() if np.ndim(value) == 0},
            "batch_sha256": hash_batch(batch),
        }
        np.savez_compressed(temporary / "batch.npz", allow_pickle=False, **batch)
        write_json(temporary / "step.json", record)
    return target
