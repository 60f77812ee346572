"""A scaling law for the loss of a model of another size: loss = E + A / N^alpha through the recipes of a sweep.

The law is that of Hoffmann et al. 2022 (arXiv 2203.15556, section 3.3) without the term of the tokens: all sizes see
equally many.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_EXPONENTS = np.linspace(0.01, 2.0, 1991)


class ScalingLaw(NamedTuple):
    """The loss of N parameters: irreducible + coefficient / N^exponent."""

    irreducible: float
    coefficient: float
    exponent: float

    def loss(self, parameters: float) -> float:
        return self.irreducible + self.coefficient * parameters**-self.exponent


def fit(parameters: Sequence[int], losses: Sequence[float]) -> ScalingLaw:
    """Fit the law by least squares, with exponents from 0.01 to 2 in steps of 0.001, and an E of at least 0.

    parameters, losses: of at least three sizes. For each exponent, fitting the rest is a linear problem.
    """
    sizes, values = np.asarray(parameters, np.float64), np.asarray(losses, np.float64)
    scale = np.exp(np.log(sizes).mean())  # so that powers are near 1, and the equations well conditioned
    best, least = ScalingLaw(0.0, 0.0, 0.0), np.inf
    for exponent in _EXPONENTS:
        power = (sizes / scale) ** -exponent
        irreducible, slope = np.linalg.lstsq(np.stack([np.ones_like(power), power], -1), values)[0]
        if irreducible < 0:
            irreducible, slope = 0.0, power @ values / (power @ power)
        if (squares := float(((irreducible + slope * power - values) ** 2).sum())) < least:
            best, least = ScalingLaw(float(irreducible), float(slope * scale**exponent), float(exponent)), squares
    return best
