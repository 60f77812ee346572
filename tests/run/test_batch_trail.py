from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t5xpg.data.batch import Batch, hash_batch
from t5xpg.run.batch_trail import LINE, UNKNOWN, BatchTrail, Shares, read_trail

BATCHES: list[Batch] = [{"decoder_target_tokens": np.full((2, 3), number, np.int32)} for number in range(6)]
HASHES = [hash_batch(batch) for batch in BATCHES]


def test_a_run_goes_on_after_the_lines_up_to_its_checkpoint(tmp_path: Path) -> None:
    """What came after it is dropped, and lines that were lost are unknown."""
    path = tmp_path / "batches.sha256"
    more = [*HASHES[:3], "0" * 64, "0" * 64, "torn"]
    for before, kept in ((None, 0), ("", 0), (f"{HASHES[0]}\n", 1), (HASHES[0][:10], 0), ("\n".join(more), 3)):
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_text(before)
        trail = BatchTrail(path, step=3)
        for batch in BATCHES[3:]:
            trail.add(batch)
        trail.close()
        lines = [*HASHES[:kept], *[UNKNOWN] * (3 - kept), *HASHES[3:]]
        assert path.read_text() == "".join(f"{line}\n" for line in lines)
        assert path.stat().st_size == 6 * LINE
        assert read_trail(path) == lines


def test_the_last_batches_can_be_asked_for(tmp_path: Path) -> None:
    trail = BatchTrail(tmp_path / "batches.sha256", step=10)
    for batch in BATCHES[:4]:
        trail.add(batch)
    assert trail.batch_of(14) is BATCHES[3]
    assert trail.batch_of(13) is BATCHES[2]
    with pytest.raises(KeyError):
        trail.batch_of(12)
    trail.close()


@pytest.mark.parametrize(
    ("owned", "shards"), [([[0], [1]], 2), ([[0, 2], [1, 3]], 4), ([[0, 1], [1, 2]], 3), ([[0], [0]], 1), ([[0, 1]], 2)]
)
def test_what_several_processes_read_has_the_lines_of_one(tmp_path: Path, owned: list[list[int]], shards: int) -> None:
    draw = np.random.default_rng(3)
    batches = [{name: draw.integers(0, 9, (2 * shards, 5)) for name in ("a", "b")} for _ in range(250)]
    alone = BatchTrail(tmp_path / "one", 0, shards)
    for batch in batches:
        alone.add(batch)
    alone.flush()
    alone.close()

    said: list[list[bytes]] = []
    for process in reversed(range(len(owned))):  # the first one hears what the others have said
        heard = iter(list(map(list, zip(*said, strict=True)))) if process == 0 else iter(())
        own: list[bytes] = []

        def gather(value: bytes, process: int = process, heard: Any = heard, own: list[bytes] = own) -> list[bytes]:
            own.append(value)
            return [value, *next(heard, [])] if process == 0 else []

        path = tmp_path / "several" if process == 0 else None
        trail = BatchTrail(path, 0, shards, Shares(owned, process, gather))
        places = [row for shard in owned[process] for row in (2 * shard, 2 * shard + 1)]
        for number, batch in enumerate(batches):
            trail.add({name: array[places] for name, array in batch.items()})
            if number in (29, 30):
                trail.flush()
        trail.flush()
        trail.flush()
        trail.close()
        said.insert(0, own)
    assert (tmp_path / "several").read_bytes() == (tmp_path / "one").read_bytes()
    assert read_trail(tmp_path / "one") == [hash_batch(batch, shards) for batch in batches]
