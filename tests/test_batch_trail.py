from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from t5xpg import phases
from t5xpg.batch import Batch, hash_batch
from t5xpg.batch_trail import LINE, UNKNOWN, BatchTrail, read_trail

BATCHES: list[Batch] = [{"decoder_target_tokens": np.full((2, 3), number, np.int32)} for number in range(6)]
HASHES = [hash_batch(batch) for batch in BATCHES]


def test_every_batch_is_passed_on_and_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run" / "batches.sha256"
    trail = BatchTrail(iter(BATCHES), path, step=0)
    assert [batch is given for batch, given in zip(trail, BATCHES, strict=True)] == [True] * 6
    trail.close()
    assert path.read_text() == "".join(f"{line}\n" for line in HASHES)
    assert path.stat().st_size == 6 * LINE
    assert read_trail(path) == HASHES


def test_a_run_that_goes_on_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "batches.sha256"
    path.write_text("\n".join([*HASHES[:2], "0" * 64, "0" * 64, "torn"]))
    trail = BatchTrail(iter(BATCHES[2:]), path, step=2)
    for _ in trail:
        pass
    trail.close()
    assert read_trail(path) == HASHES


@pytest.mark.parametrize("before", [None, "", HASHES[0] + "\n", HASHES[0][:10]])
def test_a_run_from_before_there_were_trails(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "batches.sha256"
    if before is not None:
        path.write_text(before)
    trail = BatchTrail(iter(BATCHES[3:]), path, step=3)
    next(trail)
    trail.close()
    known = HASHES[:1] if before == HASHES[0] + "\n" else []
    assert read_trail(path) == [*known, *[UNKNOWN] * (3 - len(known)), HASHES[3]]


def test_a_cut_line_is_no_hash(tmp_path: Path) -> None:
    path = tmp_path / "batches.sha256"
    path.write_text(HASHES[0] + "\n" + HASHES[1][:20])
    assert read_trail(path) == HASHES[:1]


def test_the_last_batches_can_be_asked_for(tmp_path: Path) -> None:
    trail = BatchTrail(iter(BATCHES), tmp_path / "batches.sha256", step=10)
    for _ in range(4):
        next(trail)
    assert trail.batch_of(14) is BATCHES[3]
    assert trail.batch_of(13) is BATCHES[2]
    assert trail.batch_of(12) is None
    trail.close()


def test_a_watcher_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv(phases.VARIABLE, str(writing))
    with pytest.raises(ValueError, match="inside"), phases.phase("restore", 7):
        raise ValueError("inside")
    with phases.phase("compile"):
        pass
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read().splitlines() == ["begin restore 7", "end restore 7", "begin compile", "end compile"]
    phases.tell("begin", "step", 8)  # nobody watches any more
