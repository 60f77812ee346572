"""The objectives of a text share one cache of its tokens."""

from pathlib import Path

import numpy as np
import pytest
import seqio

from t5xpg.base import paths
from t5xpg.data.cache.caching import cache_task
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.pipeline import without_autograph
from t5xpg.data.tasks.shared_cache import SharedCacheTask, cached_task
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.tasks.task_names import UL2, rows
from t5xpg.data.text.export import export_dataset
from t5xpg.experiment.recipe import Recipe

LENGTHS = {"inputs": 64, "targets": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, real_texts: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    (folder / "text.txt").write_text("\n".join(" ".join(text.split()) for text in real_texts))
    export_dataset("mine", data_dir=folder / "data", files={None: [folder / "text.txt"]}, log=lambda line: None)
    register_tasks(folder / "data")
    for name in seqio.TaskRegistry.names():
        if name.startswith("mine_"):  # a buffer of 1,000 takes longest of all to fill
            seqio.TaskRegistry.get(name)._shuffle_buffer_size = 100
    return folder


@pytest.mark.process
def test_a_mixture_is_cached_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "data_directory", lambda: folder / "data")
    monkeypatch.setattr(paths, "cache_directory", lambda: folder / "cache")
    config = DatasetConfig("mine_ul2", LENGTHS)
    assert Recipe.of(config).missing == ("make cache TASK=mine_ul2",)
    said: list[str] = []
    where = {"cache_dir": folder / "cache", "data_dir": folder / "data", "log": said.append}
    identity = cache_task("mine_ul2", **where)
    assert said == ["mine_span_corruption is cached"]
    assert identity.keys() == {"mine_span_corruption"}
    assert cache_task("mine_ul2", **where) == identity
    folders = [path.name for path in (folder / "cache").iterdir() if path.is_dir() and not path.name.startswith(".")]
    assert folders == ["mine_span_corruption"]
    assert all(Recipe.of(DatasetConfig(row.name, LENGTHS)).ready for row in rows("mine"))
    earlier = seqio.utils.get_global_cache_dirs()
    seqio.set_global_cache_dirs([str(folder / "cache")])
    try:
        mixture = seqio.get_mixture_or_task("mine_ul2")
        cached = without_autograph(lambda: mixture.get_dataset(LENGTHS, "train", use_cached=True, num_epochs=1))
        assert len(list(cached.take(40))) == 40
        task = seqio.TaskRegistry.get("mine_lm")
        own = folder / "cache" / "mine_lm"
        own.mkdir()
        (own / "COMPLETED").touch()
        assert task.replace(name="mine_lm").cache_dir == str(own)  # one of its own goes first
        (own / "COMPLETED").unlink()
        assert task.replace(name="mine_lm").cache_dir == str(folder / "cache" / "mine_span_corruption")
    finally:
        seqio.set_global_cache_dirs(earlier)


def test_all_tasks_of_the_same_tokens_make_the_same_before_the_placeholder(folder: Path) -> None:
    first = seqio.TaskRegistry.get("mine_span_corruption")
    assert type(first) is seqio.Task

    def made(task: seqio.Task) -> list[dict[str, np.ndarray]]:
        dataset = task.preprocess_precache(task.source.get_dataset("validation", shuffle=False), seed=0)
        return list(dataset.take(3).as_numpy_iterator())

    expected = made(first)
    for name in {part.name for row in rows("mine") for part in row.parts}:
        task = seqio.TaskRegistry.get(name)
        assert cached_task(task) is first
        for one, other in zip(made(task), expected, strict=True):
            np.testing.assert_array_equal(one["targets"], other["targets"])


def test_the_denoisers_read_the_text_in_different_orders(folder: Path) -> None:
    """Which shows where nothing but the name is another."""

    def first_bytes(task: seqio.Task) -> bytes:
        options = {"shuffle": True, "seed": 1, "try_in_mem_cache": False}
        dataset = without_autograph(lambda: task.get_dataset(LENGTHS, "train", **options))
        inputs = next(dataset.as_numpy_iterator())["inputs"]
        return bytes((inputs[1:9] - 3).astype(np.uint8))

    first, *others = (seqio.TaskRegistry.get(f"mine_ul2_{denoiser.name}") for denoiser in UL2)
    renamed = first.replace(name="renamed")
    assert isinstance(renamed, SharedCacheTask)
    assert all(task._own_seed for task in (first, *others, renamed))
    assert first_bytes(first) == first_bytes(first) != first_bytes(renamed)
