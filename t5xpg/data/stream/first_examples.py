"""The first examples of supervised tasks, uncut: their lengths, and their unknown tokens. Imports TensorFlow."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import seqio

from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.length_fit import EXAMPLES
from t5xpg.data.stream.pipeline import without_autograph
from t5xpg.data.tasks.providers import Provider, reads_cache, tasks_of
from t5xpg.data.tasks.steps import objective_of


def measure(provider: Provider, config: DatasetConfig) -> list[dict[str, Any]]:
    """The fields of a `length_fit.LengthFit` for each task whose examples are cut to the lengths of its features.

    Tasks with a pretraining objective are left out: they divide their text and cut nothing. So are tasks whose steps
    fail without lengths.
    """
    fits = []
    for task in tasks_of(provider):
        if config.split in task.splits and objective_of(task) is None:
            try:
                fits.append(_measure(task, config))
            except Exception:  # of steps of the user's that need lengths: whatever they raise
                continue
    return fits


def _measure(task: seqio.Task, config: DatasetConfig) -> dict[str, Any]:
    names = [name for name in config.token_features if name in config.task_feature_lengths]
    lengths: dict[str, list[int]] = {name: [] for name in names}
    unknown = dict.fromkeys(names, 0)
    cached = reads_cache(task, config)
    dataset = without_autograph(lambda: task.get_dataset(None, config.split, use_cached=cached, shuffle=False))
    for example in dataset.take(EXAMPLES).as_numpy_iterator():
        for name in names:
            lengths[name].append(len(example[name]))
            unknown[name] += int(np.sum(example[name] == task.output_features[name].vocabulary.unk_id))
    return {
        "task": task.name,
        "examples": max(map(len, lengths.values()), default=0),
        "cut": {name: sum(n > config.task_feature_lengths[name] for n in lengths[name]) for name in names},
        "longest": {name: max(lengths[name], default=0) for name in names},
        "tokens": {name: sum(lengths[name]) for name in names},
        "unknown": unknown,
        "padding": None if config.length_buckets is None else _padding(lengths, config),
    }


def _padding(lengths: Mapping[str, Sequence[int]], config: DatasetConfig) -> tuple[float, float]:
    """The share of padding in rows of examples with these lengths: in their buckets, and all in the longest bucket."""
    sizes = config.task_feature_lengths
    lengths_cut = np.stack([np.minimum(lengths[name], sizes[name]) for name in lengths])
    buckets = np.array(list(config.buckets))
    of_example = buckets[np.searchsorted(buckets, lengths_cut.max(axis=0))]

    def share(bucket: np.ndarray) -> float:
        return float(1 - lengths_cut.sum() / max(1, sum(np.minimum(bucket, sizes[name]).sum() for name in lengths)))

    return share(of_example), share(np.full_like(of_example, buckets[-1]))
