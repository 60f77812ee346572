"""Prediction files and what a terminal shows, with a predictor that answers without a model."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from t5xpg.data.batch import ENC_DEC, MASKED_LM
from t5xpg.data.objectives import SpanCorruption
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate import infer
from t5xpg.evaluate.predictor import Answer, Predictor
from tests.refusals import refused


class Echo(Predictor):
    """Fills the first blank with a character that terminals act on."""

    vocabulary = Vocabulary()
    batch_size = 2
    lengths: ClassVar = {"inputs": 64, "targets": 32}
    longest_input = 64
    converter = ENC_DEC
    identity: ClassVar[dict[str, Any]] = {"step": 3}
    more: ClassVar[list[str]] = []  # what else is answered, less probable
    asked = 0
    stops_at = 1_000  # as if Ctrl-C were typed before the answer to this row

    def __init__(self) -> None: ...

    def ids(self, text: str) -> list[int]:
        return [*self.vocabulary.encode(text), 1]

    def encode(self, texts: Sequence[str], rows: int | None = None) -> np.ndarray:
        self.encoded = list(texts)
        return np.zeros((rows or len(texts), 4), np.int32)

    def answers(self, tokens: np.ndarray, first_row: int = 0) -> list[Answer]:
        if first_row >= self.stops_at:
            raise KeyboardInterrupt
        self.asked += len(tokens)
        scores = [-float(place) for place in range(1 + len(self.more))]
        first = "<extra_id_0>\x9b1m\x1b"
        return [
            Answer([first, *(f"{text} {first_row + row}" for text in self.more)], scores) for row in range(len(tokens))
        ]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Echo:
    found = Echo()
    monkeypatch.setattr(infer.Predictor, "from_run", lambda loaded, path, step=None: (found, 3))
    return found


def predict(folder: Path, lines: Sequence[str]) -> bytes:
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8")
    loaded: Any = None
    infer.predict_file(loaded, folder, source, target)
    return target.read_bytes()


def test_the_prompt_of_a_task_is_put_before_each_text(tmp_path: Path, echo: Echo) -> None:
    loaded: Any = SimpleNamespace(experiment=SimpleNamespace(needs=()))
    prompt = infer.prompt_of(loaded, "pypackages_classify")
    (tmp_path / "in.jsonl").write_text('{"inputs": "a"}\n{"text": "b"}\n')
    infer.predict_file(loaded, tmp_path, tmp_path / "in.jsonl", tmp_path / "out.jsonl", prompt=prompt)
    assert echo.encoded == ["classify pypackages: a", "classify pypackages: b"]
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["inputs"] == "a"
    for task, named in (("wikitext_lm", "leave TASK out"), ("my_task", "yourself")):
        with refused(f"TASK={task}", named):
            infer.prompt_of(loaded, task)


def test_half_characters_and_controls_survive(tmp_path: Path, echo: Echo, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        '{"inputs": "a <extra_id_0> \\ud800 b", "id": "\\\\\\udc00 é"}',
        "",
        '{"text": "<extra_id_00>"}',
        '{"text": ""}',
    ]
    written = predict(tmp_path, lines)
    assert "U+FFFD: 1" in capsys.readouterr().err
    assert not set(written.decode("utf-8")) & {"\x1b", "\x9b"}
    records = [json.loads(line) for line in written.splitlines()]
    prediction = "<extra_id_0>\x9b1m\x1b"
    first = {"inputs": "a <extra_id_0> \ud800 b", "id": "\\\udc00 é", "filled": "a \x9b1m\x1b \ud800 b"}
    assert records == [
        first | {"prediction": prediction},
        {"text": "<extra_id_00>", "prediction": prediction, "filled": "<extra_id_00>"},
        {"text": "", "prediction": prediction, "filled": ""},
    ]


def test_a_bad_record_is_named_before_the_first_prediction(tmp_path: Path, echo: Echo) -> None:
    for line, *named in (
        ('{"inputs": "<extra_id_125>"}', "<extra_id_125>", "125 sentinels"),
        (json.dumps({"inputs": "é" * 32}), "65 tokens", "at most 64"),
        ("{", "not JSON"),
        ('{"inputs": 3}', '"inputs" is a number'),
        ('{"prompt": "a"}', "Known: prompt"),
        ("[]", '{"inputs"'),
        ('{"inputs": "a", "n": 1e400}', "1e400", "string"),
        ('{"inputs": "a", "n": [{"m": NaN}]}', "NaN", "string"),
    ):
        with refused("in.jsonl:4", *named):
            predict(tmp_path, ['{"text": "<extra_id_124>"}', "", '{"text": "b"}', line])
        assert (echo.asked, (tmp_path / "out.jsonl").exists()) == (0, False)


def test_only_a_file_is_written_over(tmp_path: Path, echo: Echo) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a <extra_id_0>"}')
    os.mkfifo(tmp_path / "pipe")
    loaded: Any = None
    for name, named in ((".", "is a folder"), ("pipe", "no regular file"), ("/dev/null", "no regular file")):
        with refused("OUTPUT=", named):
            infer.predict_file(loaded, tmp_path, source, tmp_path / name)
    (tmp_path / "link.jsonl").symlink_to("linked.jsonl")
    infer.predict_file(loaded, tmp_path, source, tmp_path / "link.jsonl")
    assert (tmp_path / "link.jsonl").is_symlink()
    assert len((tmp_path / "linked.jsonl").read_text().splitlines()) == 1


def test_prompts_are_checked(tmp_path: Path, echo: Echo) -> None:
    dataset = SimpleNamespace(objective=SpanCorruption())
    loaded: Any = SimpleNamespace(experiment=SimpleNamespace(eval_dataset=dataset))
    for prompt, *named in (
        ("", "no blank"),
        ("<extra_id_1>", "numbered 1", "<extra_id_0>"),
        ("<extra_id_0><extra_id_0>", "numbered 0, 0"),
        ("<extra_id_0>" + 63 * "a", "65 tokens", "at most 64", "{'inputs': 65, "),
        ("".join(f"<extra_id_{i}>" for i in range(126)), "<extra_id_125>"),
    ):
        with refused(*named):
            infer.fill_in(loaded, tmp_path, prompt)
    assert echo.asked == 0
    masked: Any = SimpleNamespace(  # a masked model gets a longer text on both sides
        ids=list, converter=MASKED_LM, lengths={"inputs": 64, "targets": 64}, longest_input=64
    )
    with refused("={'inputs': 65, 'targets': 65}"):
        Predictor.check(masked, 65 * "a", "The prompt")


def test_what_a_byte_model_says_does_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    infer.print_filled("the\n<extra_id_0>", "<extra_id_0>\x1b]0;title\x07")
    infer.print_sample("the <extra_id_0>", "<extra_id_0>\x1b[2J", "<extra_id_0>\udc80\r\n")
    printed = capsys.readouterr().out
    assert not set(printed) & set("\x1b\x07\r\udc80")
    for text in ("the⏎<extra_id_0>", "<extra_id_0>�]0;title�", "the⏎[�]0;title�]", "the [�[2J]", "the [�⏎]"):
        assert text in printed


def test_all_that_was_decoded_is_written_and_shown(
    tmp_path: Path, echo: Echo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(echo, "more", ["<extra_id_0>b"], raising=False)
    written = predict(tmp_path, ['{"text": "<extra_id_0>"}'] * 3).splitlines()
    assert [json.loads(line)["predictions"][1] for line in written] == [f"<extra_id_0>b {row}" for row in range(3)]
    assert json.loads(written[2])["scores"] == [0.0, -1.0]
    assert json.loads(written[2])["prediction"] == json.loads(written[2])["predictions"][0]
    options: Any = SimpleNamespace(experiment=SimpleNamespace(eval_dataset=SimpleNamespace(objective=None)))
    infer.fill_in(options, tmp_path, "<extra_id_0>", prompt="fill in: ", as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["inputs"] == "<extra_id_0>"
    assert shown.keys() == json.loads(written[0]).keys() - {"text"} | {"inputs"}
    infer.print_filled("a <extra_id_0>", "<extra_id_0>b", "<extra_id_0>c")
    printed = capsys.readouterr().out
    assert printed.count("<extra_id_0>b\n") == printed.count("<extra_id_0>c\n") == 1
    monkeypatch.setattr(echo, "more", [], raising=False)
    (again,) = predict(tmp_path, [written[0].decode()]).splitlines()
    assert json.loads(again).keys() == {"text", "prediction", "filled"}
    (line,) = predict(tmp_path, ['{"text": "<extra_id_0>", "id": 1e300, "scores": "mine"}']).splitlines()
    assert b'"id": 1e+300, "scores": "mine", "prediction"' in line


@pytest.mark.parametrize("stops_at", [0, 2, 4])
def test_an_interrupted_file_is_gone_on_with(
    tmp_path: Path, echo: Echo, stops_at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"text": f"{row} <extra_id_0>"}) for row in range(5)]
    whole = predict(tmp_path, lines)
    (tmp_path / "out.jsonl").unlink()
    echo.asked, echo.stops_at = 0, stops_at
    partial = tmp_path / "out.jsonl.partial"
    with pytest.raises(KeyboardInterrupt):
        predict(tmp_path, lines)
    assert not (tmp_path / "out.jsonl").exists()
    assert partial.exists() == (stops_at > 0)
    if stops_at:
        assert len(partial.read_bytes().splitlines()) == 1 + stops_at
        assert "out.jsonl.partial" in capsys.readouterr().err
        with refused("partial", "input.sha256"):
            predict(tmp_path, lines[:4])
    echo.asked, echo.stops_at = 0, 1_000
    assert predict(tmp_path, lines) == whole
    assert echo.asked == 6 - stops_at  # the last batch is filled up
    assert not partial.exists()
