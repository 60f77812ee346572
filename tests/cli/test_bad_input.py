"""Bad input, as a user may give it: exit code 1 (2 where the command itself is malformed), no traceback, and the
mistake is named; afterwards no file is there that was not, and none has changed."""

import gzip
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard

from t5xpg.base.errors import UserError, nearest
from t5xpg.data.text import local_files
from t5xpg.data.text.lines import LeftOutRows, bounded_lines
from t5xpg.data.text.local_records import records
from tests.refusals import program_refused, refused
from tests.workplace import FINE_TUNING, contents

GOOD = json.dumps({"text": "a" * 150}).encode() + b"\n"
LONG = b"x" * 150 + b"\n"
Make = Callable[[Path], None]
Files = dict[str, bytes | Make]


def link(target: str) -> Make:
    return lambda path: path.symlink_to(target)


def folder(*names: str) -> Make:
    """With files of these names."""

    def make(path: Path) -> None:
        path.mkdir(parents=True)
        for name in names:
            (path / name).write_text("mine")

    return make


@dataclass(frozen=True)
class Case:
    """`arguments` typed where `files` lie end with `code`; what is said names `names`: words, split at |."""

    name: str
    arguments: str | list[str]
    names: str
    files: Files = field(default_factory=dict)
    code: int = 1


def data(name: str, content: bytes, names: str, file: str = "a.jsonl") -> Case:
    """An export of one bad file."""
    return Case(name, f"data mine --files=train={file}", names, {file: content})


def files(name: str, given: str, names: str, **made: bytes | Make) -> Case:
    """An export with `FILES=given`; made: what lies there, `a_txt` for a.txt."""
    lying = {key.replace("_txt", ".txt"): value for key, value in {"a_txt": LONG, **made}.items()}
    return Case(name, ["data", "mine", f"--files={given}"], names, lying)


def dataset(name: str, dataset: str, names: str, lying: Files | None = None) -> Case:
    """An export of a good file as a dataset."""
    return Case(name, ["data", dataset, "--files=train=a.txt"], names, {"a.txt": LONG, **(lying or {})})


def gin(name: str, override: str, names: str) -> Case:
    """A value for the experiment."""
    return Case(name, ["train", "small.gin", f"--gin.{override}"], names)


def start(name: str, names: str, *given: str, small: bytes | None = None) -> Case:
    """A fine-tuning of what lies in runs/; small: the record of a checkpoint there."""
    arguments = ["train", "tuned.gin", "--gin.MIXTURE_OR_TASK_NAME=pydocs_span_corruption", *given]
    made = {} if small is None else {"runs/small/checkpoints/5/meta/metadata": small}
    return Case(name, arguments, names, {"tuned.gin": FINE_TUNING.encode(), **made})


TABLE = [
    # lines of JSON and of text
    data("malformed", GOOD + b'{"text": ', 'a.jsonl:2|{"text"'),
    data("missing field", b'{"txt": "a"}\n', "a.jsonl:1|Did you mean txt"),
    data("field of another type", b'{"text": ["a"]}\n', 'a.jsonl:1|"text"|list'),
    data("not UTF-8", GOOD + b'{"text": "\xe4"}\n', "a.jsonl:2|0xe4"),
    data("nested without end", b"[" * 100_000 + b"\n", "a.jsonl:1"),
    data("nested deeply", b'{"text": "a", "b": ' + b"[" * 150 + b"]" * 150 + b"}\n", "100 deep"),
    data("a number of 5,000 digits", b'{"text": ' + b"1" * 5000 + b"}\n", "a.jsonl:1"),
    data("control characters in a name", b'{"\x1b[31mtext": 1}'.replace(b"\x1b", b"\\u001b"), r"\x1b[31mtext"),
    data("empty", b"", "no document in train"),
    data("empty texts alone", b'{"text": " "}\n', "1 empty"),
    data("cut off while packed", gzip.compress(GOOD * 99)[:-9], "a.jsonl.gz", "a.jsonl.gz"),
    data("a picture", b"\x89PNG\r\n\x1a\n\0", "a.txt:1|0x89", "a.txt"),
    data("a binary that is UTF-8", b"\x7fELF\0\0\n", "a.txt:1|zero byte", "a.txt"),
    Case("every line bad, and skipped", "data mine --files=train=a.jsonl --on-bad-line=skip", "2 malformed|a.jsonl:1",
         {"a.jsonl": b"[]\n{}\n"}),
    Case("skipping of what has no lines", "data pydocs --on-bad-line=skip", "=skip|FILES"),
    Case("another way to treat lines", "data mine --on-bad-line=fix", "'fix'", code=2),
    # FILES
    files("no such file", "gone.txt", "FILES|gone.txt"),
    files("unclosed quote", "train='a.txt", "No closing quotation"),
    files("nothing", " ", "FILES"),
    files("no such split", "tran=a.txt", "'tran'|Did you mean train"),
    files("a file twice, by a link", "train=a.txt test=b.txt", "b.txt is given twice", b_txt=link("a.txt")),
    files("a folder", "train=texts", "texts is a folder", texts=folder("b.txt")),
    files("a dangling link", "train=b.txt", "b.txt|gone.txt", b_txt=link("gone.txt")),
    files("a pipe", "train=pipe", "pipe is no regular file", pipe=os.mkfifo),
    files("a name of 300 letters", "train=" + "a" * 300, "FILES|too long"),
    files("a zero byte in a name", "train=a\0b", r"a\x00b"),
    files("home of nobody", "train=~nobody_here/a.txt", "FILES|~nobody_here/a.txt"),
    files("an empty split", "train=a.txt validation=b.txt", "no document in validation", b_txt=b""),
    files("one text for three splits", "a.txt", "1 different documents"),
    # names and numbers
    dataset("dataset that climbs", "../x", "DATASET=../x"),
    dataset("dataset of 200 letters", "a" * 200, "DATASET=aaa"),
    dataset("dataset of other digits", "a\u0663", "DATASET="),
    dataset("a file in the place of the export", "mine", "data/mine is no folder|move it away", {"data/mine": b"mine"}),
    dataset("text that no export made", "mine", "train.jsonl|manifest.json", {"data/mine": folder("train.jsonl")}),
    dataset("export that is a dangling link", "mine", "data/mine|gone", {"data/mine": link("gone")}),
    dataset("a pipe in the export", "mine", "data/mine/pipe", {"data/mine/pipe": os.mkfifo}),
    Case("unknown dataset", "data wikitex", "Did you mean wikitext"),
    Case("an experiment that climbs", "train ../experiments/byt5_tiny", "no experiment"),
    Case("more rows than are counted", "data mine --files=a.txt --limit=9999999999999", "--limit", {"a.txt": LONG}, 2),
    Case("no rows", "data mine --files=a.txt --limit=0", "--limit", {"a.txt": LONG}, 2),
    Case("no megabytes", "data mine --max-mb=0", "--max-mb", code=2),
    Case("a price below zero", "estimate small.gin --price-per-hour=-1", "-1", code=2),
    Case("two sources", "data mine --files=a.txt --hub=some/where", "give one of them", {"a.txt": LONG}),
    Case("revision of nothing", "data pycode --revision=main", "HUB="),
    Case("task that climbs", "cache ../x", "no task or mixture|'../x'"),
    Case("run that is not a run", "eval small.gin --run=./mine", "mine holds no run", {"mine": folder("thesis.tex")}),
    Case("a run directory that is a file",
         "train small.gin --run=./a.txt --gin.MIXTURE_OR_TASK_NAME=pydocs_span_corruption",
         "a.txt is a file", {"a.txt": LONG}),
    Case("unknown experiment", "train byt5_tiny_dmeo", "Did you mean byt5"),
    Case("gin file that is a folder", "train mine.gin", "no gin file mine.gin", {"mine.gin": folder()}),
    Case("no command", [], "command", code=2),
    Case("unknown command", "trian", "'trian'", code=2),
    Case("unknown option", "train small.gin --gni.A=3", "--gni.A=3", code=2),
    # gin
    gin("two lines in one value", "BATCH_SIZE=8\nTRAIN_STEPS = 2", "on one line"),
    gin("option of another method", "decoding.DecodingConfig.topk=5", "'sample'|decoding/greedy.gin"),
    gin("absurd batch", "BATCH_SIZE=1000000000000", "1000000000000|Lower BATCH_SIZE"),
    gin("batch beyond integers", "BATCH_SIZE=1" + "0" * 30, "batch_size|2**63"),
    gin("lengths of other features", "TASK_FEATURE_LENGTHS={'input': 64}", "'input'|expected"),
    gin("seed out of range", "RANDOM_SEED=4294967296", "2147483647"),
    gin("task that climbs, in gin", "MIXTURE_OR_TASK_NAME=../../etc", "mixture_or_task_name is '../../etc'"),
    gin("module that is none", "MODULE_IMPORT=os;x", "MODULE_IMPORT is 'os;x'"),
    gin("virtual shards that do not divide", "train/spec.DatasetConfig.num_virtual_shards=3", "3 virtual shards"),
    gin("a call to something else", "OPTIMIZER=@os.system()", "os"),
    Case("microbatches that do not divide",
         "train small.gin --gin.NUM_MICROBATCHES=3 --gin.MIXTURE_OR_TASK_NAME=pydocs_span_corruption",
         "BATCH_SIZE is 4|3 microbatches"),
    Case("override that is none", "train small.gin --gin-overrides=TRAIN_STEPS=3", "--gin.NAME=value"),
    Case("fragment that is not there", "train small.gin --gin_file=gone.gin", "no gin file gone.gin"),
    Case("gin that is not UTF-8", "train mine.gin", "mine.gin", {"mine.gin": b"A = '\xff'\n"}),
    Case("gin with zero bytes", "train mine.gin", "mine.gin", {"mine.gin": b"A = 1\0\n"}),
    Case("empty gin", "train mine.gin", "Experiment", {"mine.gin": b""}),
    # options that say nothing, too little or too much
    Case("neither prompt nor file", "infer small.gin", "PROMPT=|INPUT=|SPLIT="),
    Case("both file and split", "infer small.gin --split=a --input=b", "PROMPT=|INPUT=|SPLIT="),
    Case("a split of a path", "infer small.gin --split=../a", "holds no run"),
    Case("a file for a prompt", "infer small.gin --prompt=a --output=b", "OUTPUT=|INPUT=|SPLIT="),
    Case("a matrix elsewhere", "check matrix_tiny --device=h100", "DEVICES"),
    Case("inputs that are not there", "infer small.gin --input=gone.jsonl", "INPUT|gone.jsonl"),
    Case("inputs of a pipe", "infer small.gin --input=pipe", "INPUT|pipe is no regular file", {"pipe": os.mkfifo}),
    Case("T5X's checkpoint without T5X", "train small.gin --initial=a", "INITIAL=|ENGINE=t5x"),
    Case("report without a run", "report small.gin", "holds no run"),
    Case("no identity", "eval small.gin --run=./mine", "run.json", {"mine/run.json": b'{"format": 1}'}),
    Case("run.json that is not UTF-8", "eval small.gin --run=./mine", "run.json", {"mine/run.json": b"\xff"}),
    Case("Beam options that are none", "cache a_task --beam-options='", "BEAM_OPTIONS='"),
    Case("a format that is none", "export small.gin --format=pth", "FORMAT=pth"),
    # what a training starts from
    start("a start from no run", "INITIAL_CHECKPOINT|runs/small"),
    start("a start from what is none", "small/checkpoints/5|meta", small=b"{}"),
    start("a start from half a checkpoint", "cannot be read", small=b"{"),
    start("a start from a list", "cannot be read", small=b"[]"),
    start("a start from a name of 5,000 letters", "too long", f"--gin.INITIAL_CHECKPOINT={'a' * 5000}"),
    start("a start from a zero byte", "there is no run", "--gin.INITIAL_CHECKPOINT='a\\0b'"),
    Case("a step that is none", "eval small.gin --step=last", "--step|last", code=2),
    Case("a step before the first", "infer small.gin --prompt=a --step=-1", "--step|-1", code=2),
]  # fmt: skip


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_it_is_named_and_nothing_is_left(
    case: Case, own_place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("data", "cache", "runs"):
        (own_place / name).mkdir()
    monkeypatch.chdir(own_place)
    for name, content in case.files.items():
        path = own_place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content)
    before = contents(own_place)
    arguments = case.arguments.split() if isinstance(case.arguments, str) else case.arguments
    said = program_refused(capsys, arguments, *case.names.split("|"), code=case.code)
    # one line, or several mistakes listed below it
    head, *listed = said[said.rindex("error: ") :].strip().splitlines()
    assert all(line.startswith("  ") for line in listed), said
    assert bool(listed) == ("mistakes in" in head), said
    assert contents(own_place) == before


def test_a_line_without_end_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(bounded_lines(io.BytesIO(b"ab\n" + b"x" * 9 + b"\ncd\nefghi"), longest=4)) == [
        b"ab\n", None, b"cd\n", None,
    ]  # fmt: skip

    monkeypatch.setattr(local_files, "bounded_lines", lambda file: bounded_lines(file, longest=4))
    file = tmp_path / "a.txt"
    file.write_bytes(b"ab\n" + b"x" * 9 + b"\ncd")
    with refused("a.txt:2", "64 MiB"):
        list(records((file,)))
    left_out = LeftOutRows(skip_malformed=True)
    assert list(records((file,), left_out=left_out)) == [("ab",), ("cd",)]
    assert "1 malformed" in left_out.summary()


def test_a_small_file_cannot_fill_the_memory(tmp_path: Path) -> None:
    """A hundred megabytes of one letter, packed into some kilobytes, are read in bounded pieces."""
    file = tmp_path / "bomb.txt.zst"
    compressor = zstandard.ZstdCompressor(level=19).compressobj()
    with file.open("wb") as packed:
        for _ in range(100):
            packed.write(compressor.compress(b"a" * (1 << 20)))
        packed.write(compressor.flush())
    assert file.stat().st_size < 20_000
    with refused("bomb.txt.zst:1"):
        list(records((file,)))


def test_names_in_messages_are_bounded() -> None:
    assert nearest("text", ["x" * 10**6, "txt"]) == " Did you mean txt?"
    assert len(nearest("a" * 10**6, (f"name {i}" for i in range(10**5)))) < 500
    assert str(UserError("a\x1b[31m\u202eb\ud800 é")) == r"a\x1b[31m\u202eb\ud800 é"
