"""How often Python looks for objects that only refer to each other."""

import gc


def collect_seldom() -> None:
    """After 100,000 new objects, not 700 (Python 3.11): those that imports and JAX's tracing make are looked at again
    and again, and stay. A start takes a twentieth less of processor time so, and a small run holds as much memory."""
    gc.set_threshold(100_000, 50, 100)
