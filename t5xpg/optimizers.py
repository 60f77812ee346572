"""Optimisers: frozen settings, each of which builds an optax transformation.

What is said of an array holds for every layer of a stacked one (`layerwise`).

`transformation(params_axes)` takes the logical axes of the parameters (a tree of the parameters' structure whose
leaves are tuples of names, see `partitioning`), because some rules depend on what a dimension is.
`learning_rate` is a schedule; a number stands for a constant rate.

`relpos_bias_factor` multiplies the updates of the relative position biases. Adam moves an entry by about the learning
rate a step, whatever its size. These entries start near 0 and are added to the logits of the attention as they are: it
takes several units until a head looks at its neighbours, which at the rate that suits a matrix is hundreds of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers

from t5xpg.layerwise import by_layer, is_stacked, of_layer
from t5xpg.schedules import Schedule, as_schedule

AxesTree = Any  # nested dicts whose leaves are tuples of axis names
TABLE_AXES = ("vocab", "relpos_buckets")  # axes of lookup tables and of the output head


class Optimizer(Protocol):
    """What the step needs of an optimiser."""

    @property
    def learning_rate(self) -> Schedule: ...

    def transformation(self, params_axes: AxesTree) -> optax.GradientTransformation: ...


@dataclass(frozen=True)
class Adafactor:
    """Adafactor as T5X ships it (arXiv 1804.04235; `t5x.adafactor.Adafactor`), for parameters of at most two axes.

    Arrays whose two largest dimensions have `min_dim_size_to_factor` or more entries keep a mean of squared gradients
    per row and per column, all others one per entry. T5X's rules by logical axis matter for arrays of three and more
    axes only: for two and fewer it falls back to these sizes too, relative position buckets included.
    `weight_decay` is subtracted as `weight_decay * parameter`, not multiplied by the learning rate, unless
    `weight_decay_lr_exponent` is set: then by `learning_rate ** weight_decay_lr_exponent`.
    """

    learning_rate: Schedule
    decay_rate: float = 0.8
    multiply_by_parameter_scale: bool = True
    clipping_threshold: float | None = 1.0
    epsilon1: float = 1e-30
    epsilon2: float = 1e-3
    min_dim_size_to_factor: int = 128
    factored: bool = True
    momentum: float | None = None
    step_offset: int = 0
    weight_decay: float | None = None
    weight_decay_lr_exponent: float | None = None
    max_gradient_norm: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", as_schedule(self.learning_rate))

    def transformation(self, params_axes: AxesTree) -> optax.GradientTransformation:
        """Raises ValueError for parameters of more than two axes."""
        deep = [axes for axes in _leaves(params_axes) if len(of_layer(axes)) > 2]
        if deep:
            raise ValueError(f"Adafactor factors arrays of at most two axes; got {deep}")
        steps = _clip(self.max_gradient_norm)
        factored = optax.scale_by_factored_rms(
            self.factored, self.decay_rate, self.step_offset, self.min_dim_size_to_factor, self.epsilon1
        )
        steps.append(by_layer(factored, params_axes))
        if self.clipping_threshold is not None:
            steps.append(by_layer(optax.clip_by_block_rms(self.clipping_threshold), params_axes))
        steps.append(optax.scale_by_learning_rate(self.learning_rate, flip_sign=False))
        if self.multiply_by_parameter_scale:
            steps.append(by_layer(optax.scale_by_param_block_rms(self.epsilon2), params_axes))
        if self.momentum is not None:
            steps.append(optax.ema(self.momentum, debias=False, accumulator_dtype=jnp.float32))
        if self.weight_decay is not None or self.weight_decay_lr_exponent is not None:
            steps.append(optax.add_decayed_weights(self._decay()))
        return optax.chain(*steps, optax.scale(-1.0))

    def _decay(self) -> Schedule | float:
        rate, exponent = self.weight_decay, self.weight_decay_lr_exponent
        if exponent is None:
            return 0.0 if rate is None else rate
        factor = 1.0 if rate is None else rate
        return lambda step: factor * self.learning_rate(step) ** exponent


@dataclass(frozen=True)
class AdamW:
    """AdamW (arXiv 1711.05101). Decays arrays of two and more axes, so not the scales of the norms."""

    learning_rate: Schedule
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_gradient_norm: float | None = None
    relpos_bias_factor: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", as_schedule(self.learning_rate))

    def transformation(self, params_axes: AxesTree) -> optax.GradientTransformation:
        return optax.chain(
            *_clip(self.max_gradient_norm),
            optax.scale_by_adam(self.b1, self.b2, self.epsilon),
            optax.add_decayed_weights(self.weight_decay, _matrices(params_axes)),
            optax.scale_by_learning_rate(self.learning_rate),
            *_faster_position_biases(self.relpos_bias_factor, params_axes),
        )


@dataclass(frozen=True)
class AdamWScale:
    """nanoT5's AdamW with Adafactor's parameter scaling: the update of an array is multiplied by its own size.

    The size is the root mean square of its entries, at least `minimum_scale`. The decay is AdamW's, not scaled.
    """

    learning_rate: Schedule
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-6
    minimum_scale: float = 1e-3
    weight_decay: float = 0.0
    max_gradient_norm: float | None = 1.0
    relpos_bias_factor: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", as_schedule(self.learning_rate))

    def transformation(self, params_axes: AxesTree) -> optax.GradientTransformation:
        return optax.chain(
            *_clip(self.max_gradient_norm),
            optax.scale_by_adam(self.b1, self.b2, self.epsilon),
            by_layer(optax.scale_by_param_block_rms(self.minimum_scale), params_axes),
            optax.add_decayed_weights(self.weight_decay, _matrices(params_axes)),
            optax.scale_by_learning_rate(self.learning_rate),
            *_faster_position_biases(self.relpos_bias_factor, params_axes),
        )


@dataclass(frozen=True)
class Muon:
    """Muon (Jordan 2024) for the matrices inside the layers, AdamW for everything else.

    Embeddings, the output head, relative position biases and norms get AdamW, at `adam_learning_rate` where it is
    given and at `learning_rate` otherwise; `nesterov` holds for both (NAdamW), as in optax. Updates of matrices are
    orthogonalised momenta. The update of a matrix [I, O] is multiplied by sqrt(max(1, O / I)), or, where
    `consistent_rms` is set (0.2 is usual, arXiv 2502.16982), by consistent_rms * sqrt(max(I, O)), which makes rates
    comparable with AdamW's.
    """

    learning_rate: Schedule
    adam_learning_rate: Schedule | None = None
    momentum: float = 0.95
    nesterov: bool = True
    newton_schulz_steps: int = 5
    consistent_rms: float | None = None
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    max_gradient_norm: float | None = None
    relpos_bias_factor: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", as_schedule(self.learning_rate))
        if self.adam_learning_rate is not None:
            object.__setattr__(self, "adam_learning_rate", as_schedule(self.adam_learning_rate))

    def transformation(self, params_axes: AxesTree) -> optax.GradientTransformation:
        muon = optax.contrib.muon(
            self.learning_rate,
            ns_steps=self.newton_schulz_steps,
            beta=self.momentum,
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            adam_b1=self.b1,
            adam_b2=self.b2,
            adam_learning_rate=self.adam_learning_rate,
            muon_weight_dimension_numbers=jax.tree.map(_muon_dimensions, params_axes, is_leaf=_is_axes),
            consistent_rms=self.consistent_rms,
        )
        return optax.chain(
            *_clip(self.max_gradient_norm), muon, *_faster_position_biases(self.relpos_bias_factor, params_axes)
        )


def is_hidden_matrix(axes: tuple[str, ...]) -> bool:
    """Whether an array with these logical axes maps hidden units to hidden units: no embedding, head, bias or norm."""
    return len(of_layer(axes)) == 2 and not any(name in TABLE_AXES for name in axes)


def _muon_dimensions(axes: tuple[str, ...]) -> MuonDimensionNumbers | None:
    """Rows and columns of what Muon orthogonalises; optax takes other axes as those of many matrices."""
    if not is_hidden_matrix(axes):
        return None
    return MuonDimensionNumbers(1, 2) if is_stacked(axes) else MuonDimensionNumbers(0, 1)


def _clip(max_gradient_norm: float | None) -> list[optax.GradientTransformation]:
    """Clipping by the global norm of the gradients, before everything else, as T5X does it."""
    return [] if max_gradient_norm is None else [optax.clip_by_global_norm(max_gradient_norm)]


def _faster_position_biases(factor: float, params_axes: AxesTree) -> list[optax.GradientTransformation]:
    """Multiplies the updates of the relative position biases; nothing where the factor is 1."""
    if factor == 1.0:
        return []
    biases = jax.tree.map(lambda axes: "relpos_buckets" in axes, params_axes, is_leaf=_is_axes)
    return [optax.masked(optax.scale(factor), biases)]


def _matrices(params_axes: AxesTree) -> Any:
    return jax.tree.map(lambda axes: len(of_layer(axes)) > 1, params_axes, is_leaf=_is_axes)


def _leaves(params_axes: AxesTree) -> list[tuple[str, ...]]:
    return jax.tree.leaves(params_axes, is_leaf=_is_axes)


def _is_axes(node: object) -> bool:
    return isinstance(node, tuple)
