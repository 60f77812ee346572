"""Positions do not tell where the data lies."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.pipeline import ShardedBatches, with_relocatable_paths
from t5xpg.data.stream.relocatable_paths import readable
from t5xpg.data.tasks import providers


def test_a_position_survives_the_move_of_its_files(
    sample_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(sample_folder))
    providers.import_modules(["sample_tasks"])
    text, cache, moved = sample_folder / "text", sample_folder / "cache", tmp_path / "moved"
    monkeypatch.setenv("T5XPG_DATA_DIR", str(text))
    monkeypatch.setenv("T5XPG_CACHE_DIR", str(cache))
    config = DatasetConfig("sample_mixture", {"inputs": 40, "targets": 24}, batch_size=8, use_cached=False)
    provider = with_relocatable_paths(providers.find_provider(config))
    names = [name for task in providers.tasks_of(provider) for name in task.source.list_shards("train")]
    names += provider.tasks[0]._get_cached_source("train").list_shards("train")
    if sys.platform != "linux":  # no names for descriptors: nothing changes
        assert all(name.startswith(str(sample_folder.resolve())) for name in names)
        return
    assert sorted(name.rpartition("/")[0] for name in names) == 4 * ["/proc/self/fd/900"] + 3 * [
        "/proc/self/fd/901/sample_cached"
    ]
    assert readable(f"cannot read {names[0]}") == f"cannot read {text.resolve() / 'train-0.txt'}"

    stream, other = (ShardedBatches(provider, config, [0]) for _ in range(2))
    stream.next()
    state = stream.save()
    expected = [stream.next() for _ in range(3)]
    assert not any(str(sample_folder).encode() in array.tobytes() for array in state.values())
    shutil.move(text, moved)
    try:
        other.restore(state)
        for batch in expected:
            again = other.next()
            assert batch is not None
            assert again is not None
            for name, rows in batch.items():
                np.testing.assert_array_equal(rows, again[name])
    finally:
        shutil.move(moved, text)
