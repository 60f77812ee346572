"""Files that are written over several starts: what is kept, what is refused, and who may write."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from t5xpg.base.errors import UserError
from t5xpg.evaluate.infer_resume import open_partial

IDENTITY = {"step": 3, "decoding": {"method": "greedy"}}


class StoppedError(Exception):
    """What ends a start in these tests."""


def start(target: Path, lines: int, identity: Mapping[str, Any] = IDENTITY, batch: int = 3) -> int:
    """A start that writes lines up to `lines` in all and is then stopped; how many were there."""
    with contextlib.suppress(StoppedError), open_partial(target, identity, batch) as (file, done):
        add(file, done, lines)
        raise StoppedError
    return done


def add(file: BinaryIO, done: int, lines: int) -> None:
    for number in range(done, lines):
        file.write(f"{number}\n".encode())


def test_whole_batches_are_kept(tmp_path: Path) -> None:
    target, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    assert start(target, 0) == 0
    assert not partial.exists()  # nothing worth keeping
    assert start(target, 5) == 0
    header = partial.read_bytes().splitlines()[0]
    assert json.loads(header) == {"t5xpg_predictions": 1, **IDENTITY}
    with partial.open("ab") as file:
        file.write(b"torn")
    assert start(target, 7) == 3
    assert partial.read_bytes() == header + b"\n" + b"".join(f"{n}\n".encode() for n in range(7))
    with open_partial(target, IDENTITY, 3) as (kept, done):
        assert done == 6
        add(kept, done, 8)
        assert not target.exists()
    assert target.read_text() == "".join(f"{n}\n" for n in range(8))
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_first_line_that_was_cut_off_is_begun_again(tmp_path: Path) -> None:
    target, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    start(target, 3)
    whole = partial.read_bytes()
    for size in (0, 1, 20):
        partial.write_bytes(whole[:size])
        assert start(target, 3) == 0
        assert partial.read_bytes() == whole


def test_what_is_of_other_settings_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    start(target, 3)
    kept = (tmp_path / "out.jsonl.partial").read_bytes()
    other = {"step": 4, "decoding": {"method": "beam", "alpha": 0.6}}
    with pytest.raises(UserError) as refused, open_partial(target, other, 3):
        pass
    assert str(refused.value).splitlines()[1:4] == [
        "  step: 3 there, 4 now",
        "  decoding.method: greedy there, beam now",
        "  decoding.alpha: not set there, 0.6 now",
    ]
    assert (tmp_path / "out.jsonl.partial").read_bytes() == kept


@pytest.mark.parametrize("content", [b"mine\n", b"[1]\n", b"\xff\n", b"{}\n", b"no line end"])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "out.jsonl.partial").write_bytes(content)
    with (
        pytest.raises(UserError, match=r"out\.jsonl\.partial is in the way"),
        open_partial(tmp_path / "out.jsonl", IDENTITY, 3),
    ):
        pass
    assert (tmp_path / "out.jsonl.partial").read_bytes() == content
    (tmp_path / "other.partial").mkdir()
    with pytest.raises(UserError, match="is no regular file"), open_partial(tmp_path / "other", IDENTITY, 3):
        pass


@pytest.mark.process
def test_one_process_writes(tmp_path: Path) -> None:
    def second() -> None:
        try:
            with open_partial(tmp_path / "out.jsonl", IDENTITY, 3):
                os._exit(0)
        except UserError as error:
            os._exit(7 if "Another process writes" in str(error) else 1)

    with open_partial(tmp_path / "out.jsonl", IDENTITY, 3) as (file, done):
        add(file, done, 3)
        process = multiprocessing.get_context("fork").Process(target=second)
        process.start()
        process.join(timeout=60)
        assert process.exitcode == 7
    assert (tmp_path / "out.jsonl").read_text() == "0\n1\n2\n"
