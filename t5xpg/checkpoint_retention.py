"""Which checkpoints of a run stay: what they themselves say of that, in their meta and their metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from t5xpg.checkpoints import CheckpointConfig

PASSING = "passing"  # in the meta of one that is only to go on from


def staying(steps: Sequence[int], folder: Callable[[int], Path], config: CheckpointConfig) -> set[int]:
    """Those of `steps`, ascending, that stay: the last `config.keep`, the best, and the very last.

    Passing ones count for nothing but that: an unbroken run would not have written them.
    """
    lasting = [step for step in steps if not _is_passing(folder(step))]
    found = best(steps, folder, config)
    return {*lasting[-config.keep :], *steps[-1:], *([] if found is None else [found])}


def best(steps: Iterable[int], folder: Callable[[int], Path], config: CheckpointConfig) -> int | None:
    """The one with the best metric, the first of equals; None where none has it. What is not a number is the worst.

    A passing one is none.
    """
    badness: dict[int, float] = {}
    for step in steps if config.keep_best is not None else ():
        if _is_passing(folder(step)):
            continue
        with suppress(OSError, ValueError, KeyError, TypeError):  # not measured then, or damaged
            metrics = json.loads((folder(step) / "metrics" / "metrics").read_bytes())
            value = float(metrics[config.keep_best])
            badness[step] = math.inf if math.isnan(value) else value if config.best_mode == "min" else -value
    return min(badness, key=lambda step: (badness[step], step), default=None)


def _is_passing(folder: Path) -> bool:
    with suppress(OSError, ValueError):  # damaged
        meta = json.loads((folder / "meta" / "metadata").read_bytes())
        return isinstance(meta, dict) and bool(meta.get(PASSING))
    return False
