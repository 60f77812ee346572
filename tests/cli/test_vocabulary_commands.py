"""The commands that make vocabularies and show what is in them."""

import re
from pathlib import Path
from typing import Any

import pytest

from t5xpg import cli
from tests.small_tokenizers import LINES, byte_level


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("T5XPG_TRACEBACK", raising=False)
    for split, first in (("train", 0), ("validation", 400)):
        rows = [" ".join(LINES[i : i + 4]) for i in range(first, first + 40)]
        (tmp_path / f"{split}.txt").write_text("\n".join(rows) + "\n")
    files = f"--files=train='{tmp_path / 'train.txt'}' validation='{tmp_path / 'validation.txt'}'"
    assert cli.main(["data", "mine", files]) == 0

    def run(*arguments: str, code: int = 0) -> list[str]:
        capsys.readouterr()
        assert cli.main(arguments) == code
        said = capsys.readouterr()
        return (said.err if code else said.out).splitlines()

    return run


def test_makes_one_and_says_how_to_use_it(program: Any, tmp_path: Path) -> None:
    options = ["vocab", "mine", "--size=90", "--extra-ids=10", "--model=bpe", "--sample=1MB", "--byte-fallback"]
    assert "SIZE=90" in program(*options, code=1)[-1]
    options[2] = "--size=330"
    said = program(*options)
    task = "mine_span_corruption_mine_bpe_330"
    assert [line.split(" = ")[1] for line in said[-2:]] == [f"'{task}'", "340"]  # what an experiment has to say
    shown = program("tokens", task, "--text=bag <extra_id_1>é")
    assert [re.findall(r"\d+", line) for line in shown[:2]] == [["340", "0", "1", "2"], ["0", "339", "9", "330"]]
    assert any(line.split() == ["338", "0", "<extra_id_1>"] for line in shown)
    assert [line.split()[-1] for line in shown[-3:-1]] == ["<0xC3>", "<0xA9>"]
    file = byte_level(tmp_path / "gpt", special=("<end>",))
    assert "VOCAB=" in program("vocab", "mine", f"--tokenizer={file}", code=1)[-1]
    assert "EOS_TOKEN=" in program("vocab", "mine", f"--tokenizer={file}", "--name=gpt", code=1)[-1]
    said = program("vocab", "mine", f"--tokenizer={file}", "--name=gpt", "--eos-token=<end>", "--extra-ids=5")
    assert said[-1].split(" = ")[1] == "326"
    shown = program("tokens", "mine_span_corruption_mine_gpt", "--ids=0 320 325")
    assert [line.split() for line in shown[3:6]] == [
        ["0", "320", "0"], ["320", "0", "0", "<end>"], ["325", "325", "0", "<extra_id_0>"],
    ]  # fmt: skip


def test_shows_what_others_call_the_sentinels_of_bytes(program: Any) -> None:
    assert program("tokens", "mine_mlm", "--text=a")[3].split() == ["100", "1", "<0x61>"]
    shown = program("tokens", "mine_span_corruption", "--text=a<extra_id_0><extra_id_11>")
    assert shown[2].split() == ["id", "transformers", "byt5_google", "bytes", "token"]
    assert [line.split() for line in shown[3:6]] == [
        ["100", "100", "100", "1", "<0x61>"],
        ["383", "259", "258", "0", "<extra_id_0>"],
        ["372", "270", "-", "0", "<extra_id_11>"],
    ]


def test_mistakes_are_said(program: Any) -> None:
    for arguments, named in (
        (["tokens", "mine_span_corruption", "--ids=384"], "384"),
        (["tokens", "mine_span_corruption", "--ids=a"], "whole numbers"),
        (["tokens", "mine_span_corruption", "--ids=1", "--text=a"], "TEXT="),
        (["tokens", "mine_span_corruption_mine_bpe_9"], "make vocab DATASET=mine SIZE=9 MODEL=bpe"),
        (["vocab", "mine", "--sample=some"], "SAMPLE=some"),
        (["vocab", "mine", "--eos-token=x"], "TOKENIZER="),
        (["vocab", "mine", "--model=words"], "Did you mean word?"),
    ):
        assert named in "\n".join(program(*arguments, code=1))
