"""Rows of batches and the processes that hold them."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from t5xpg.distributed.host_rows import HostRows, require_devices_of_all, rows_of_host
from tests.refusals import refused

B = 8
BATCH = {
    "tokens": np.arange(B * 3, dtype=np.int32).reshape(B, 3),
    "weights": np.arange(B * 2, dtype=np.int32).reshape(B, 2),
}


class Layout:
    """A sharding of rows over devices that need not be there: the rows of each, by process."""

    def __init__(self, *rows: tuple[int, slice]) -> None:
        self._rows = rows

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Any, tuple[slice, ...]]:
        assert shape == (B,)
        return {Device(process, number): (rows,) for number, (process, rows) in enumerate(self._rows)}


class Device:
    def __init__(self, process_index: int, number: int) -> None:
        self.process_index, self.number = process_index, number


QUARTERS = [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)]
HALVES = Layout(*zip([0, 0, 1, 1], QUARTERS, strict=True))


@pytest.mark.parametrize(
    ("layout", "shards", "expected"),
    [
        # one device a process, two, all; a shard of which only a part is needed is read as a whole
        (Layout(*enumerate(QUARTERS)), 4, [(0,), (1,), (2,), (3,)]),
        (HALVES, 4, [(0, 1), (2, 3)]),
        (HALVES, 8, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (HALVES, 1, [(0,), (0,)]),
        # devices of one process apart from each other
        (Layout(*zip([0, 1, 1, 0], QUARTERS, strict=True)), 4, [(0, 3), (1, 2)]),
        # a model split over two processes: both have the same rows
        (Layout((0, slice(0, 4)), (1, slice(0, 4)), (0, slice(4, 8)), (1, slice(4, 8))), 2, [(0, 1), (0, 1)]),
        (Layout((0, slice(None)), (1, slice(None))), 2, [(0, 1), (0, 1)]),
    ],
)
def test_the_virtual_shards_of_a_process(layout: Any, shards: int, expected: list[tuple[int, ...]]) -> None:
    found = [rows_of_host(layout, B, shards, process) for process in range(len(expected))]
    assert [held.shards for held in found] == expected
    assert {held.rows_per_shard for held in found} == {B // shards}


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (2, 4), (6, 8), (1, 3), (0, 4)])
def test_rows_are_found_among_those_that_are_held(start: int, stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HostRows(B, 2, (0, 1, 3))
    own = {name: array[[0, 1, 2, 3, 6, 7]] for name, array in BATCH.items()}
    asked = []

    def make(shape: tuple[int, ...], sharding: Any, rows_of: Any) -> np.ndarray:
        asked.append(shape)
        return rows_of((slice(start, stop), slice(None)))

    monkeypatch.setattr(jax, "make_array_from_callback", make)
    sharding: Any = None
    for name, rows in held.to_global_arrays(own, sharding).items():
        np.testing.assert_array_equal(np.asarray(rows), BATCH[name][start:stop])
    assert asked == [(B, 3), (B, 2)]


def test_batches_of_length_buckets_are_whole_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(
        jax, "make_array_from_callback", lambda shape, _, rows_of: (shape, rows_of((slice(12, 16), slice(None))))
    )
    rows = np.arange(16 * 3, dtype=np.int32).reshape(16, 3)
    placed: Any = HostRows(B, B, (0,)).to_global_arrays({"tokens": rows}, None)  # type: ignore[arg-type]
    assert placed["tokens"][0] == (16, 3)
    np.testing.assert_array_equal(placed["tokens"][1], rows[12:])


def test_a_process_without_a_device_on_the_mesh() -> None:
    def mesh(*processes: int) -> Any:
        devices = np.array([Device(process, number) for number, process in enumerate(processes)], dtype=object)
        return SimpleNamespace(devices=devices, shape={"data": len(processes), "model": 1})

    require_devices_of_all(mesh(0, 0, 1, 1), 2)
    with refused("data 1 x model 1", "1, 2, and 3"):
        require_devices_of_all(mesh(0), 3)
