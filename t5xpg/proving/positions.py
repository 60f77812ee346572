"""Whether two saved positions in the data are the same one."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import numpy as np

from t5xpg import paths
from t5xpg.batch import hash_batch
from t5xpg.config import LoadedConfig
from t5xpg.data.client import DataService
from t5xpg.run_identity import data_config

_BATCHES = 8

Arrays = dict[str, np.ndarray]


class PositionComparison:
    """Compares positions of an experiment's training stream. A context manager, for the data process it may need."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded
        self._service: DataService | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._service is not None:
            self._service.close()

    def __call__(self, ours: Arrays, theirs: Arrays) -> tuple[str, str | None]:
        """(what was compared, the first difference or None). Where the bytes differ, the batches that follow decide."""
        if ours.keys() == theirs.keys() and all(ours[name].tobytes() == theirs[name].tobytes() for name in ours):
            return "byte for byte", None
        for number, (one, other) in enumerate(zip(self._next(ours), self._next(theirs), strict=True)):
            if one != other:
                return "", f"of the batches that follow its position, number {number + 1} is another one"
        return f"the next {_BATCHES} batches", None

    def _next(self, position: Arrays) -> list[str]:
        if self._service is None:
            self._service = DataService(data_dir=paths.data_directory(), cache_dir=paths.cache_directory())
        experiment = self._loaded.experiment
        stream = self._service.open(data_config(experiment.train_dataset, experiment.random_seed))
        try:
            stream.restore(position)
            return [hash_batch(next(stream)) for _ in range(_BATCHES)]
        finally:
            stream.close()
