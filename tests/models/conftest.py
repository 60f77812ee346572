from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _strict_dtypes() -> Iterator[None]:
    """No model promotes a dtype."""
    with jax.numpy_dtype_promotion("strict"):
        yield
