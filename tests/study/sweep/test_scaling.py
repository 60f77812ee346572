"""Scaling laws: a published one is found again, and SciPy finds the same through losses that are not exact."""

import numpy as np
import pytest

from t5xpg.study.sweep.board import fit_law

SIZES = [178_000, 372_000, 634_000, 1_400_000]


def test_a_law_is_found_again_through_its_own_losses() -> None:
    """Hoffmann et al. 2022, equation 10, at models from 70 million to 16 billion parameters."""
    sizes = [70_000_000, 400_000_000, 2_800_000_000, 16_000_000_000]
    law = fit_law(sizes, [1.69 + 406.4 / size**0.34 for size in sizes])
    assert law == pytest.approx((1.69, 406.4, 0.34), rel=1e-9)
    assert law.loss(1e9) == pytest.approx(1.69 + 406.4 / 1e9**0.34, rel=1e-9)


def test_scipy_finds_the_same_law() -> None:
    from scipy import optimize

    def loss(size: np.ndarray, irreducible: float, slope: float, exponent: float) -> np.ndarray:
        return irreducible + slope * (size / 5e5) ** -exponent

    losses = [2.31, 2.04, 1.93, 1.80]
    expected, _ = optimize.curve_fit(loss, np.array(SIZES, float), losses, p0=(1.5, 0.5, 0.5), maxfev=100_000)
    law = fit_law(SIZES, losses)
    found = (law.irreducible, law.coefficient / 5e5**law.exponent, law.exponent)
    assert found == pytest.approx(tuple(expected), rel=2e-3), "exponents are 0.001 apart"


def test_no_loss_is_predicted_below_zero() -> None:
    """A loss that falls faster than the law can: its irreducible part is 0, not below it."""
    law = fit_law(SIZES, [4.0, 2.0, 1.0, 0.1])
    assert law.irreducible == 0
    assert 0 < law.loss(10**9) < 0.1
