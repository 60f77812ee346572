"""t5xpg: reproducible experiments with T5-family models."""

__version__ = "0.1.0"
