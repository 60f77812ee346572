"""Positions of virtual shards that several processes read, as one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from t5xpg.distributed import Processes
from t5xpg.distributed.data_position import merge_positions, shared_position
from tests.distributed.store import Store
from tests.refusals import refused


def position(shards: list[int], batches: int = 3, files: bytes = b"[]") -> dict[str, np.ndarray]:
    found = {f"shard_{shard:05d}-index": np.arange(shard + 1, dtype=np.uint8) for shard in shards}
    found |= {f"shard_{shard:05d}-empty": np.empty(0, np.int32) for shard in shards}
    return {**found, "batches_read": np.array(batches, np.int64), "files": np.frombuffer(files, np.uint8)}


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        array.dtype == other[name].dtype and np.array_equal(array, other[name]) for name, array in one.items()
    )


def test_the_first_process_has_the_whole_position(tmp_path: Path) -> None:
    store, owned = Store(3), [[0, 1], [2], [3, 4]]

    def work(process: int) -> list[dict[str, np.ndarray]]:
        group = Processes(store, process, 3)
        states = []
        for count in (1, 2):
            states.append(shared_position(position(owned[process], count), tmp_path, group))
            group.barrier("the checkpoint is written")
        return states

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, range(3)))
    assert [equal(state, position([0, 1, 2, 3, 4], count)) for count, state in enumerate(found[0], 1)] == [True, True]
    assert equal(found[2][1], position([3, 4], 2))
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_shards_may_be_read_by_several() -> None:
    assert equal(merge_positions([position([0, 1]), position([0, 1])]), position([0, 1]))
    assert equal(merge_positions([position([0]), position([0, 1])]), position([0, 1]))


def test_other_data_on_another_host() -> None:
    with refused("Process 1", "files"):
        merge_positions([position([0]), position([1], files=b"[1]")])
    with refused("Process 1", "batches_read"):
        merge_positions([position([0]), position([1], batches=4)])


def test_a_folder_that_is_not_shared(tmp_path: Path) -> None:
    store = Store(1)  # the other writes elsewhere
    with refused("run directory", "all hosts"):
        shared_position(position([0]), tmp_path, Processes(store, 0, 2))
