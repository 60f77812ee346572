"""TensorFlow's checkpoints of variables (`model.ckpt-1000.index`, `.data-00000-of-00001`), by TensorFlow's reader."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from t5xpg.base.errors import UserError

INDEX = ".index"
_Result = TypeVar("_Result")


class TensorFlowCheckpoint:
    """The variables of a checkpoint, by its path without `.index`: `shapes` by name, and `read` for the numbers of one.
    Raises UserError for files that are missing, incomplete or damaged (TensorFlow compares checksums)."""

    def __init__(self, prefix: Path) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import tensorflow as tf  # late: it takes seconds, and only these checkpoints need it

        self._prefix = prefix
        index = prefix.with_name(f"{prefix.name}{INDEX}")
        if not index.is_file():
            raise UserError(f"There is no {index}: expected the files of a TensorFlow checkpoint.")
        names = {file.name for file in prefix.parent.iterdir()}
        # the name of each data file has their number
        pattern = re.compile(re.escape(prefix.name) + r"\.data-\d{5}-of-(\d{5})")
        count = max((int(match[1]) for name in names if (match := pattern.fullmatch(name))), default=1)
        expected = [f"{prefix.name}.data-{shard:05}-of-{count:05}" for shard in range(count)]
        if missing := [name for name in expected if name not in names]:
            raise UserError(f"{prefix.parent} lacks {', '.join(missing[:3])}. Copy or download the data files, too.")
        problem = f"{index} is no index of a TensorFlow checkpoint, or not whole"
        self._reader = self._checked(lambda: tf.train.load_checkpoint(str(prefix)), problem)
        shapes: dict[str, list[int]] = self._reader.get_variable_to_shape_map()
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}

    def read(self, name: str) -> np.ndarray:
        """The numbers of a variable."""
        problem = f"{name} in {self._prefix} is damaged or not whole"
        array: Any = self._checked(lambda: self._reader.get_tensor(name), problem)
        if not isinstance(array, np.ndarray | np.generic) or array.dtype.kind in "OSU":
            raise UserError(f"{name} in {self._prefix} holds texts: expected numbers.")
        return np.asarray(array)

    def _checked(self, load: Callable[[], _Result], problem: str) -> _Result:
        """The result of `load`; an error of TensorFlow's, of whatever class, becomes a UserError."""
        try:
            return load()
        except Exception as error:
            reason = " ".join(str(error).replace(str(self._prefix), self._prefix.name).split())
            raise UserError(f"{problem} ({reason[:300]}).") from None
