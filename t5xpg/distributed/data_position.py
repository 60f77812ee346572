"""The position in the whole data, merged from the positions of the processes in the virtual shards that each reads.

A position can have megabytes. So every process but the first writes its own into the run's folder, which lies on a disk
that all hosts share, and the first one reads them all. The result is the position of a single process that reads all
shards: a checkpoint does not depend on the number of processes that wrote it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.base.files import remove_abandoned, write_atomically
from t5xpg.distributed.group import Group

_SHARD_PREFIX = "shard_"  # of the names of arrays that belong to one virtual shard
Position = dict[str, np.ndarray]


def shared_position(local: Position, folder: Path, group: Group) -> Position:
    """The position in the whole stream on the first process; on every other one `local`, its own part, unchanged.

    Call it in all processes after the same batch. folder: on a disk that they share; each has a subfolder there.
    """
    paths = [folder / str(process) / "position.npz" for process in range(group.count)]
    if not group.first:
        remove_abandoned(folder / str(group.process))  # of this host: other hosts cannot check its processes
        with write_atomically(paths[group.process]) as target:
            np.savez(target, allow_pickle=False, **local)
    group.barrier("positions")
    if not group.first:
        return local
    positions = [local]
    for path in paths[1:]:
        positions.append(_read(path))
        path.unlink()
    return merge_positions(positions)


def merge_positions(positions: Sequence[Mapping[str, np.ndarray]]) -> Position:
    """The position in the whole stream, from the positions of the processes after the same batch.

    Raises UserError where they are not of the same stream, because hosts read different files.
    """
    whole = dict(positions[0])
    for process, position in enumerate(positions[1:], start=1):
        for name, array in position.items():
            if not name.startswith(_SHARD_PREFIX) and not np.array_equal(whole.get(name, ()), array):
                raise UserError(
                    f"Process {process} reads other data than process 0 ({name} differs): every host needs the same "
                    "exports and caches. Copy them, or let all hosts share the folders (T5XPG_DATA_DIR, "
                    "T5XPG_CACHE_DIR)."
                )
            whole.setdefault(name, array)
    return whole


def _read(path: Path) -> Position:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError as error:
        raise UserError(
            f"{path}, which another process has just written, cannot be seen here: the run directory has to lie on a "
            "disk that all hosts share. Name one with RUN=/shared/folder/…, or set T5XPG_RUNS_DIR."
        ) from error
