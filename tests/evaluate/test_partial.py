"""Files that are written over several starts: what is kept, what is refused, and who may write."""

import json
from pathlib import Path

import pytest

from t5xpg.base.errors import UserError
from t5xpg.evaluate.infer_resume import open_partial

IDENTITY = {"step": 3, "decoding": {"method": "greedy"}}


def test_a_first_line_that_was_cut_off_is_begun_again(tmp_path: Path) -> None:
    target, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    header = json.dumps({"t5xpg_predictions": 1, **IDENTITY}).encode()
    for size in (0, 1, 20):
        partial.write_bytes(header[:size])
        with open_partial(target, IDENTITY, 3) as kept:
            assert kept[1] == 0
            kept[0].write(b"0\n")
        assert target.read_bytes() == b"0\n"


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


def test_one_at_a_time_writes(tmp_path: Path) -> None:
    """Two opened files of one process hold flock against each other, as two processes do."""
    target = tmp_path / "out.jsonl"
    with open_partial(target, IDENTITY, 3) as (file, _):
        file.write(b"0\n1\n2\n")
        with pytest.raises(UserError, match="Another process writes"), open_partial(target, IDENTITY, 3):
            pass
    assert target.read_text() == "0\n1\n2\n"
