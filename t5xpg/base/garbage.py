"""The frequency at which Python's garbage collector looks for cycles of references."""

import gc


def collect_seldom() -> None:
    """Collect after 100,000 new objects, not 700 (Python 3.11): imports and JAX's tracing make many that stay, and each
    collection walks them again. A start takes a twentieth less processor time, and a small run no more memory."""
    gc.set_threshold(100_000, 50, 100)
