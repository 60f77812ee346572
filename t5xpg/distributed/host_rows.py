"""The rows of the global batch that a process loads, and the global jax.Arrays made of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import Mesh, Sharding

from t5xpg.base.errors import UserError


@dataclass(frozen=True)
class HostRows:
    """The rows of a batch that belong to some virtual shards (ascending); each shard has `rows_per_shard` rows."""

    batch_size: int
    rows_per_shard: int
    shards: tuple[int, ...]

    @classmethod
    def of_all(cls, batch_size: int) -> Self:
        """The whole batch."""
        return cls(batch_size, batch_size, (0,))

    def to_global_arrays(self, batch: Mapping[str, np.ndarray], sharding: Sharding) -> dict[str, jax.Array]:
        """Global arrays of the whole batch, from this process's rows: each of its devices gets its own rows.

        Batches of length buckets have another number of rows; every process has all of them.
        """
        if jax.process_count() == 1 and len(self.shards) * self.rows_per_shard == self.batch_size:
            return jax.device_put(dict(batch), sharding)

        if (count := len(next(iter(batch.values())))) != len(self.shards) * self.rows_per_shard:
            return HostRows.of_all(count).to_global_arrays(batch, sharding)

        def array_of(name: str) -> jax.Array:
            rows = batch[name]
            shape = (self.batch_size, *rows.shape[1:])

            def on_device(index: tuple[slice, ...] | None) -> np.ndarray:
                assert index is not None
                start, stop, _ = index[0].indices(self.batch_size)
                begin = self._local_row(start)
                return rows[(slice(begin, begin + stop - start), *index[1:])]

            return jax.make_array_from_callback(shape, sharding, on_device)

        return {name: array_of(name) for name in batch}

    def _local_row(self, row: int) -> int:
        """The index of a row of the batch among those of this process; it holds all shards between two of its rows."""
        shard, offset = divmod(row, self.rows_per_shard)
        return self.shards.index(shard) * self.rows_per_shard + offset


def rows_of_host(sharding: Sharding, batch_size: int, num_virtual_shards: int, process: int) -> HostRows:
    """The rows of all virtual shards that have rows on devices of a process. Processes can hold the same shards."""
    rows = batch_size // num_virtual_shards
    shards: set[int] = set()
    indices: Mapping[Any, Any] = sharding.devices_indices_map((batch_size,))
    for device, index in indices.items():
        if device.process_index == process:
            start, stop, _ = index[0].indices(batch_size)
            shards.update(range(start // rows, (stop - 1) // rows + 1))
    return HostRows(batch_size, rows, tuple(sorted(shards)))


def require_devices_of_all(mesh: Mesh, processes: int) -> None:
    """Raise UserError where a process has no device on the mesh."""
    present = {device.process_index for device in mesh.devices.flat}
    idle = sorted(set(range(processes)) - present)
    if idle:
        shown = ", ".join(map(str, idle[:5])) + (" and more" if len(idle) > 5 else "")
        axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
        raise UserError(
            f"The mesh ({axes}) has no device of process {shown}, and {processes} processes were started. Take "
            "a mesh over all devices (gin/partitioning/data_parallel.gin), or start fewer processes."
        )


def put_on_mesh(tree: object, shardings: object) -> object:
    """Values that every process has, as global arrays over the devices of all: nothing is sent between processes."""

    def place(value: jax.Array, sharding: Sharding) -> jax.Array:
        array = np.asarray(value)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(place, tree, shardings)
