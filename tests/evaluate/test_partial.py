"""Files that are written over several starts: what is kept, what is refused, and who may write."""

import json
from pathlib import Path

from t5xpg.evaluate.infer_resume import open_partial
from tests.refusals import refused

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


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    partial = tmp_path / "out.jsonl.partial"
    for content in (b"mine\n", b"[1]\n", b"\xff\n", b"{}\n", b"no line end"):
        partial.write_bytes(content)
        with refused("out.jsonl.partial"):
            open_partial(tmp_path / "out.jsonl", IDENTITY, 3).__enter__()
        assert partial.read_bytes() == content
    (tmp_path / "other.partial").mkdir()
    with refused("no regular file"):
        open_partial(tmp_path / "other", IDENTITY, 3).__enter__()


def test_one_at_a_time_writes(tmp_path: Path) -> None:
    """Two opened files of one process hold flock against each other, as two processes do."""
    target = tmp_path / "out.jsonl"
    with open_partial(target, IDENTITY, 3) as (file, _):
        file.write(b"0\n1\n2\n")
        with refused("Another process"):
            open_partial(target, IDENTITY, 3).__enter__()
    assert target.read_text() == "0\n1\n2\n"
