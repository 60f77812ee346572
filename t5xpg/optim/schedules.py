"""Learning rates as functions of the step.

A schedule maps a step (0 at the first update; a Python int or a traced int32 scalar) to a float32 scalar.
Warmups are T5X's: linear from 0, `step / warmup_steps`, so that the first update of a warmup does nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from t5xpg.base.errors import UserError

_LARGEST_FLOAT32 = float(jnp.finfo(jnp.float32).max)
Step = int | jax.Array
Schedule = Callable[[Any], jax.Array]


@dataclass(frozen=True)
class Constant:
    """`value` at every step, after a linear warmup from 0."""

    value: float
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        _check_rate(self.value, "Constant.value")
        if self.warmup_steps < 0:
            raise UserError(f"Constant.warmup_steps is {self.warmup_steps}; it has to be 0 or more.")

    def __call__(self, step: Step) -> jax.Array:
        return jnp.float32(self.value) * _warmup(_float(step), self.warmup_steps)


@dataclass(frozen=True)
class InverseSquareRoot:
    """T5X's "constant * rsqrt_decay": `base_learning_rate / sqrt(max(step, warmup_steps))`.

    With `linear_warmup`, T5X's "constant * linear_warmup * rsqrt_decay". Never below `minimum`, as in T5X
    (`t5x.utils.create_learning_rate_scheduler`).
    """

    base_learning_rate: float = 1.0
    warmup_steps: int = 10_000
    linear_warmup: bool = False
    minimum: float = 1e-8

    def __post_init__(self) -> None:
        _check_rate(self.base_learning_rate, "InverseSquareRoot.base_learning_rate")
        if self.warmup_steps < 1:
            raise UserError(f"InverseSquareRoot.warmup_steps is {self.warmup_steps}; it has to be 1 or more.")

    def __call__(self, step: Step) -> jax.Array:
        t = _float(step)
        rate = jnp.float32(self.base_learning_rate) / jnp.sqrt(jnp.maximum(t, jnp.float32(self.warmup_steps)))
        if self.linear_warmup:
            rate = rate * _warmup(t, self.warmup_steps)
        return jnp.maximum(rate, jnp.float32(self.minimum))


@dataclass(frozen=True)
class _Decay:
    """From `peak`, at the end of the warmup, to `peak * final_fraction` at `total_steps`; then flat."""

    peak: float
    total_steps: int
    warmup_steps: int = 0
    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.peak, f"{type(self).__name__}.peak")
        _check_rate(self.peak * self.final_fraction, f"{type(self).__name__}.peak * final_fraction")
        if self.warmup_steps < 0 or self.total_steps <= self.warmup_steps:
            raise UserError(
                f"{type(self).__name__}: total_steps is {self.total_steps} and warmup_steps is {self.warmup_steps}; "
                "the decay needs at least one step after the warmup."
            )

    def __call__(self, step: Step) -> jax.Array:
        t = _float(step)
        decay_steps = jnp.float32(self.total_steps - self.warmup_steps)
        fall = self._fall(jnp.clip((t - jnp.float32(self.warmup_steps)) / decay_steps, 0, 1))
        fraction = jnp.float32(self.final_fraction) + jnp.float32(1 - self.final_fraction) * fall
        return jnp.float32(self.peak) * _warmup(t, self.warmup_steps) * fraction

    def _fall(self, progress: jax.Array) -> jax.Array:
        """The decay's factor, from 1 to 0: here a line."""
        return 1 - progress


class Cosine(_Decay):
    """Half a cosine from `peak`, at the end of the warmup, to `peak * final_fraction` at `total_steps`; then flat."""

    def _fall(self, progress: jax.Array) -> jax.Array:
        return jnp.float32(0.5) * (1 + jnp.cos(jnp.float32(jnp.pi) * progress))


class Linear(_Decay):
    """A line from `peak`, at the end of the warmup, to `peak * final_fraction` at `total_steps`; then flat."""


@dataclass(frozen=True)
class WarmupStableDecay:
    """A linear warmup to `peak`, then `peak`, and over the last `decay_steps` before `total_steps` a fall to
    `peak * final_fraction`, as 1 - sqrt(progress) or linear (`shape`). Hu et al. 2024 (arXiv 2404.06395, section 4);
    the square root is from Hägele et al. 2024 (arXiv 2405.18392, section 3).
    """

    peak: float
    total_steps: int
    decay_steps: int
    warmup_steps: int = 0
    final_fraction: float = 0.0
    shape: str = "sqrt"

    def __post_init__(self) -> None:
        _check_rate(self.peak, "WarmupStableDecay.peak")
        _check_rate(self.peak * self.final_fraction, "WarmupStableDecay.peak * final_fraction")
        if self.shape not in ("sqrt", "linear"):
            raise UserError(f"WarmupStableDecay.shape is {self.shape!r}; it has to be 'sqrt' or 'linear'.")
        if self.warmup_steps < 0 or self.decay_steps < 1 or self.total_steps < self.warmup_steps + self.decay_steps:
            raise UserError(
                f"WarmupStableDecay: {self.warmup_steps} steps of warmup and {self.decay_steps} of decay do not fit "
                f"into total_steps, {self.total_steps}."
            )

    def __call__(self, step: Step) -> jax.Array:
        t = _float(step)
        begin, decay = jnp.float32(self.total_steps - self.decay_steps), jnp.float32(self.decay_steps)
        progress = jnp.clip((t - begin) / decay, 0, 1)
        fall = 1 - (jnp.sqrt(progress) if self.shape == "sqrt" else progress)
        fraction = jnp.float32(self.final_fraction) + jnp.float32(1 - self.final_fraction) * fall
        return jnp.float32(self.peak) * _warmup(t, self.warmup_steps) * fraction


def as_schedule(value: Schedule | float) -> Schedule:
    """A schedule from a schedule or from a number, which stands for a constant rate."""
    if callable(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(
            f"learning_rate is {value!r}; it has to be a number or a schedule, "
            "such as @schedules.InverseSquareRoot(), @schedules.Cosine() or @schedules.Constant()."
        )
    return Constant(float(value))


def _float(step: Step) -> jax.Array:
    return jnp.asarray(step, dtype=jnp.float32)


def _warmup(t: jax.Array, warmup_steps: int) -> jax.Array:
    """The warmup's factor: from 0 at step 0 to 1 from `warmup_steps` on."""
    return jnp.minimum(t / jnp.float32(warmup_steps), jnp.float32(1)) if warmup_steps > 0 else jnp.float32(1)


def _check_rate(rate: object, name: str) -> None:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= _LARGEST_FLOAT32:
        raise UserError(f"{name} is {rate!r}; a learning rate is a finite number of at least 0.")
