"""The commands that make vocabularies and show what is in them."""

import re
from pathlib import Path
from typing import Any

import pytest

from t5xpg import cli
from tests.refusals import program_refused
from tests.small_tokenizers import LINES, byte_level


@pytest.fixture
def program(own_place: Path, capsys: pytest.CaptureFixture[str]) -> object:
    for split, first in (("train", 0), ("validation", 400)):
        rows = [" ".join(LINES[i : i + 4]) for i in range(first, first + 40)]
        (own_place / f"{split}.txt").write_text("\n".join(rows) + "\n")

    def run(*arguments: str) -> list[str]:
        capsys.readouterr()
        assert cli.main(arguments) == 0
        return capsys.readouterr().out.splitlines()

    run("data", "mine", "--files=" + " ".join(f"{one}='{own_place / one}.txt'" for one in ("train", "validation")))
    return run


def test_makes_one_and_says_how_to_use_it(program: Any, tmp_path: Path) -> None:
    options = ["--size=330", "--extra-ids=10", "--model=bpe", "--sample=1MB", "--byte-fallback"]
    said = program("vocab", "mine", *options)
    task = "mine_span_corruption_mine_bpe_330"
    assert [line.split(" = ")[1] for line in said[-2:]] == [f"'{task}'", "340"]  # what an experiment has to say
    shown = program("tokens", task, "--text=bag <extra_id_1>é")
    assert [re.findall(r"\d+", line) for line in shown[:2]] == [["340", "0", "1", "2"], ["0", "339", "9", "330"]]
    assert any(line.split() == ["338", "0", "<extra_id_1>"] for line in shown)
    assert [line.split()[-1] for line in shown[-3:-1]] == ["<0xC3>", "<0xA9>"]
    file = byte_level(tmp_path / "gpt", special=("<end>",))
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


def test_mistakes_are_said(program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = byte_level(tmp_path / "gpt", special=("<end>",))
    for command, option, *named in (
        ("tokens mine_span_corruption", "--ids=384", "384"),
        ("tokens mine_span_corruption", "--ids=a", "whole numbers"),
        ("tokens mine_span_corruption --ids=1", "--text=a", "TEXT="),
        ("tokens mine_span_corruption_mine_bpe_9", "--ids=1", "make vocab DATASET="),
        ("vocab mine --model=bpe --byte-fallback", "--size=90", "SIZE=90"),
        ("vocab mine", "--sample=some", "SAMPLE=some"),
        ("vocab mine", "--eos-token=x", "EOS_TOKEN", "TOKENIZER="),
        ("vocab mine", "--model=words", "Did you mean word?"),
        ("vocab mine", f"--tokenizer={file}", "VOCAB="),
        ("vocab mine --name=gpt", f"--tokenizer={file}", "EOS_TOKEN="),
    ):
        program_refused(capsys, [*command.split(), option], *named)
