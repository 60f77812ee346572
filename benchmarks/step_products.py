"""The matrix products of our training step alone, as one program: the floor under every step of `benchmarks.step`.

They are taken from the step itself, as JAX traces it, with their shapes and precisions.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.contestant import parse_options, time_steps
from benchmarks.jobs import JOBS
from t5xpg.base.xla_flags import set_xla_flags


class Product(NamedTuple):
    """One `dot_general`. shapes, dtypes: of both factors. numbers: contracting and batch dimensions, as of lax. result:
    its dtype; None: lax decides."""

    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[Any, Any]
    numbers: Any
    result: Any

    @property
    def flops(self) -> int:
        """Floating point operations: two for each pair of numbers that is multiplied and added."""
        (_, contracted), (_, batch) = self.numbers
        left, right = self.shapes
        return 2 * math.prod(left) * math.prod(size for at, size in enumerate(right) if at not in (*contracted, *batch))


def products(jaxpr: Any) -> Iterator[Product]:
    """The matrix products of a program; those in a scan as often as it repeats them."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            left, right = (variable.aval for variable in equation.invars)
            numbers, result = (equation.params[name] for name in ("dimension_numbers", "preferred_element_type"))
            yield Product((left.shape, right.shape), (left.dtype, right.dtype), numbers, result)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in _programs(equation.params.values()):
            yield from list(products(inner)) * times


def _programs(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _programs(value)
        elif hasattr(inner := getattr(value, "jaxpr", value), "eqns"):
            yield inner


def program(found: Sequence[Product]) -> Any:
    """A function to be compiled: it takes (left, right) for each product, and returns one number of each result."""
    import jax.numpy as jnp
    from jax import lax

    def run(factors: Any) -> Any:
        made = [
            lax.dot_general(*pair, one.numbers, preferred_element_type=one.result)
            for one, pair in zip(found, factors, strict=True)
        ]
        return jnp.stack([lax.optimization_barrier(x).ravel()[0].astype(jnp.float32) for x in made])

    return run


def factors_of(found: Sequence[Product]) -> list[Any]:
    """Random factors for each product; all arrays differ, as equal products would be computed only once."""
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    return [
        tuple(
            jnp.asarray(rng.standard_normal(shape, np.float32), dtype)
            for shape, dtype in zip(one.shapes, one.dtypes, strict=True)
        )
        for one in found
    ]


def main() -> None:
    given = parse_options(__doc__)
    set_xla_flags()  # before jax is imported
    import jax

    from benchmarks.own_step import experiment
    from t5xpg.experiment import assembly

    found = list(products(assembly.assemble(experiment(JOBS[given.job], given.dtype)).traced_train_step().jaxpr))
    run, factors = jax.jit(program(found)), factors_of(found)
    time_steps(lambda _: float(run(factors)[0]), given.repeats, flops=sum(one.flops for one in found))


if __name__ == "__main__":
    main()
