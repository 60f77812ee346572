"""Bad input, as a user may give it: what is said, in one message, and that nothing is left behind.

Every case of the table runs the program's `main` in a folder of its own. What is expected of all of them: exit code 1
(2 where the command itself is malformed), no traceback, and afterwards no file that was not there, and none changed.
"""

import gzip
import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard

from t5xpg import cli
from t5xpg.base.errors import UserError, nearest
from t5xpg.data.text import local_files
from t5xpg.data.text.lines import LeftOut, bounded_lines
from t5xpg.data.text.local_records import records
from tests.workplace import FINE_TUNING, contents

GOOD = json.dumps({"text": "a" * 150}).encode() + b"\n"
LONG = b"x" * 150 + b"\n"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def folder(*names: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir(parents=True)
        for name in names:
            (path / name).write_text("mine")

    return make


@dataclass(frozen=True)
class Case:
    """`arguments` typed where `files` lie give `says` (a pattern) and `code`."""

    name: str
    arguments: str | list[str]
    says: str
    files: dict[str, bytes | Callable[[Path], None]] = field(default_factory=dict)
    code: int = 1


def data(name: str, content: bytes, says: str, file: str = "a.jsonl") -> Case:
    """An export of one bad file."""
    return Case(name, f"data mine --files=train={file}", says, {file: content})


def files(name: str, given: str, says: str, **made: bytes | Callable[[Path], None]) -> Case:
    """An export with `FILES=given`; made: what lies there, `a_txt` for a.txt."""
    lying = {key.replace("_txt", ".txt"): value for key, value in {"a_txt": LONG, **made}.items()}
    return Case(name, ["data", "mine", f"--files={given}"], says, lying)


def dataset(name: str, dataset: str, says: str, **made: bytes | Callable[[Path], None]) -> Case:
    """An export of a good file as a dataset; made: what lies in the place of data/mine, or in it."""
    lying = {key.replace("data_mine", "data/mine").replace("mine_", "mine/"): one for key, one in made.items()}
    return Case(name, ["data", dataset, "--files=train=a.txt"], says, {"a.txt": LONG, **lying})


def gin(name: str, override: str, says: str) -> Case:
    """A value for the experiment."""
    return Case(name, ["train", "small.gin", f"--gin.{override}"], says)


def run_json(name: str, content: bytes, says: str) -> Case:
    """An evaluation of a run with such a run.json."""
    return Case(name, "eval small.gin --run=./mine", says, {"mine/run.json": content})


JSON_LINES = [
    data("malformed", GOOD + b'{"text": ', r"a\.jsonl:2 is not JSON \(.*\)\. Expected one \{\"text\""),
    data("missing field", b'{"txt": "a"}\n', r'a\.jsonl:1 has no "text"\. Did you mean txt\?'),
    data("no field at all", b"{}\n", r'a\.jsonl:1 has no "text"\.$'),
    data("field of another type", b'{"text": ["a"]}\n', r'a\.jsonl:1: "text" is list, expected a string'),
    data("not UTF-8", GOOD + b'{"text": "\xe4"}\n', r"a\.jsonl:2 is not UTF-8 \(byte 0xe4 at column 11\)"),
    data("nested without end", b"[" * 100_000 + b"\n", r"a\.jsonl:1 is not JSON \(maximum recursion"),
    data("nested deeply", b'{"text": "a", "b": ' + b"[" * 150 + b"]" * 150 + b"}\n", "nested more than 100 deep"),
    data("a number of 5,000 digits", b'{"text": ' + b"1" * 5000 + b"}\n", r"a\.jsonl:1 is not JSON \(Exceeds"),
    data("control characters in a name", b'{"\x1b[31mtext": 1}'.replace(b"\x1b", b"\\u001b"), r"mean \\x1b\[31mtext"),
    data("empty", b"", r"mine would have no document in train: 0 rows were read"),
    data("empty texts alone", b'{"text": " "}\n', r"train: 1 rows were read\. 1 row was left out: 1 empty"),
    data("cut off while packed", gzip.compress(GOOD * 99)[:-9], r"gz after line \d+ cannot be read", "a.jsonl.gz"),
    data("a picture", b"\x89PNG\r\n\x1a\n\0", r"a\.txt:1 is not UTF-8 \(byte 0x89", "a.txt"),
    data("a binary that is UTF-8", b"\x7fELF\0\0\n", r"a\.txt:1 holds a zero byte: not a text file", "a.txt"),
    Case("every line bad, and skipped", "data mine --files=train=a.jsonl --on-bad-line=skip",
         r"no document in train.* 2 rows were left out: 2 malformed a\.jsonl:1 holds", {"a.jsonl": b"[]\n{}\n"}),
    Case("skipping of what has no lines", "data pydocs --on-bad-line=skip", "=skip is for the lines of FILES"),
    Case("another way to treat lines", "data mine --on-bad-line=fix", "invalid choice: 'fix'", code=2),
]  # fmt: skip

FILES = [
    files("no such file", "gone.txt", r"FILES: there is no file gone\.txt"),
    files("unclosed quote", "train='a.txt", "No closing quotation"),
    files("nothing", " ", "FILES names no file"),
    files("no such split", "tran=a.txt", "'tran' is not a split. Did you mean train"),
    files("a file twice", "train=a.txt test=./a.txt", "a.txt is given twice"),
    files("a file twice, by a link", "train=a.txt test=b.txt", "b.txt is given twice", b_txt=link("a.txt")),
    files("a folder", "train=texts", "texts is a folder. Expected files", texts=folder("b.txt")),
    files("a dangling link", "train=b.txt", "b.txt is a link to gone.txt, which is not there", b_txt=link("gone.txt")),
    files("a pipe", "train=pipe", "pipe is no regular file", pipe=fifo),
    files("a name of 300 letters", "train=" + "a" * 300, "FILES: a+ cannot be looked up: File name too long"),
    files("a zero byte in a name", "train=a\0b", r"there is no file a\\x00b"),
    files("home of nobody", "train=~nobody_here/a.txt", "FILES: ~nobody_here/a.txt cannot be looked up"),
    files("an empty split", "train=a.txt validation=b.txt", "no document in validation", b_txt=b""),
    files("one text for three splits", "a.txt", "1 different documents cannot be split into"),
]

NAMES = [
    dataset("dataset that climbs", "../x", r"DATASET=\.\./x: a name is at most 100"),
    dataset("dataset of 200 letters", "a" * 200, r"DATASET=a{101}: a name is"),
    dataset("dataset of other digits", "a\u0663", "a name is at most"),
    dataset("a file in the place of the export", "mine", "data/mine is no folder: move it away", data_mine=b"mine"),
    dataset("text that no export made", "mine", r"data/mine holds train\.jsonl and no manifest\.json",
            data_mine=folder("train.jsonl")),
    dataset("export that is a dangling link", "mine", "data/mine is a link to .*gone, where there is no folder",
            data_mine=link("gone")),
    dataset("a pipe in the export", "mine", "data/mine/pipe is neither a file nor a folder", data_mine_pipe=fifo),
    Case("unknown dataset", "data wikitex", "There is no dataset 'wikitex'. Did you mean wikitext"),
    Case("an experiment that climbs", "train ../experiments/byt5_tiny_demo", "There is no experiment"),
    Case("more rows than are counted", "data mine --files=a.txt --limit=9999999999999", "is not a whole number above 0",
         {"a.txt": LONG}, code=2),
    Case("no rows", "data mine --files=a.txt --limit=0", "0 is not a whole number above 0", {"a.txt": LONG}, code=2),
    Case("rows that are no number", "data mine --limit=-5", "--limit: -5 is not a whole number above 0", code=2),
    Case("no megabytes", "data mine --max-mb=0", "argument --max-mb: 0 is not a number of megabytes", code=2),
    Case("a price below zero", "estimate small.gin --price-per-hour=-1", "-1 is not a price", code=2),
    Case("two sources", "data mine --files=a.txt --hub=some/where", "give one of them", {"a.txt": LONG}),
    Case("revision of nothing", "data pycode --revision=main", r"are of the dataset that HUB=… names"),
    Case("a selection that is open", ["data", "pycode", "--select='a"], "SELECT='a: No closing quotation"),
    Case("a selection of nothing", ["data", "pycode", "--select= "], "SELECT names nothing"),
    Case("a selection of text without files", "data wikitext --select=a*", "is not of files with names"),
    Case("task that climbs", "cache ../x", r"no task or mixture named .\.\./x"),
    Case("run that is not a run", "eval small.gin --run=./mine", "mine holds no run", {"mine": folder("thesis.tex")}),
    Case("a run directory that is a file",
         "train small.gin --run=./a.txt --gin.MIXTURE_OR_TASK_NAME=pydocs_span_corruption",
         "a.txt is a file, and a run directory a folder", {"a.txt": LONG}),
    Case("unknown experiment", "train byt5_tiny_dmeo", "There is no experiment 'byt5_tiny_dmeo'.* Did you mean byt5"),
    Case("gin file that is a folder", "train mine.gin", "There is no gin file mine.gin", {"mine.gin": folder()}),
    Case("no command", [], "required: command", code=2),
    Case("unknown command", "trian", "invalid choice: 'trian'", code=2),
    Case("unknown option", "train small.gin --gni.A=3", "unrecognized arguments: --gni.A=3", code=2),
]  # fmt: skip

GIN = [
    gin("two lines in one value", "BATCH_SIZE=8\nTRAIN_STEPS = 2", "Cannot read.*on one line"),
    gin("option of another method", "decoding.DecodingConfig.topk=5", "of the method 'sample'.*decoding/greedy.gin"),
    gin("absurd batch", "BATCH_SIZE=1000000000000", "1000000000000 rows of 64 tokens .* Lower BATCH_SIZE"),
    gin("batch beyond integers", "BATCH_SIZE=1" + "0" * 30, r"batch_size is 10+: .*below 2\*\*63"),
    gin("lengths of other features", "TASK_FEATURE_LENGTHS={'input': 64}", "lengths of 'input': expected"),
    gin("seed out of range", "RANDOM_SEED=4294967296", "from 0 to 2147483647"),
    gin("task that climbs, in gin", "MIXTURE_OR_TASK_NAME=../../etc", r"mixture_or_task_name is '\.\./\.\./etc'"),
    gin("module that is none", "MODULE_IMPORT=os;x", "MODULE_IMPORT is 'os;x': expected names of Python modules"),
    gin("virtual shards that do not divide", "train/spec.DatasetConfig.num_virtual_shards=3", "over 3 virtual shards"),
    gin("a call to something else", "OPTIMIZER=@os.system()", "os"),
    Case("microbatches that do not divide",
         "train small.gin --gin.NUM_MICROBATCHES=3 --gin.MIXTURE_OR_TASK_NAME=pydocs_span_corruption",
         "BATCH_SIZE is 4: it does not divide into 1 data-parallel devices x 3 microbatches"),
    Case("override that is none", "train small.gin --gin-overrides=TRAIN_STEPS=3", r"expected --gin\.NAME=value"),
    Case("fragment that is not there", "train small.gin --gin_file=gone.gin", r"There is no gin file gone\.gin"),
    Case("gin that is not UTF-8", "train mine.gin", "mine.gin", {"mine.gin": b"A = '\xff'\n"}),
    Case("gin with zero bytes", "train mine.gin", "mine.gin", {"mine.gin": b"A = 1\0\n"}),
    Case("empty gin", "train mine.gin", "Experiment", {"mine.gin": b""}),
]  # fmt: skip

ONE_OF = "Give one of PROMPT=.* INPUT=.* and SPLIT="
OTHERS = [
    Case("neither prompt nor file", "infer small.gin", ONE_OF),
    Case("both file and split", "infer small.gin --split=a --input=b", ONE_OF),
    Case("a split of a path", "infer small.gin --split=../a", "holds no run"),
    Case("a file for a prompt", "infer small.gin --prompt=a --output=b", "OUTPUT=… is for INPUT=… and SPLIT=…"),
    Case("a matrix elsewhere", "check matrix_tiny --device=h100", "DEVICES are for one experiment"),
    Case("inputs that are not there", "infer small.gin --input=gone.jsonl", r"INPUT: gone\.jsonl is not there"),
    Case("inputs that are a pipe", "infer small.gin --input=pipe", "INPUT: pipe is no regular file", {"pipe": fifo}),
    Case("T5X's checkpoint without T5X", "train small.gin --initial=a", "INITIAL=… is for ENGINE=t5x"),
    Case("report without a run", "report small.gin", "holds no run"),
    run_json("run.json without an identity", b'{"format": 1}', "run.json"),
    run_json("run.json that is not UTF-8", b"\xff", "run.json"),
    Case("Beam options that are none", "cache a_task --beam-options='", "BEAM_OPTIONS=': No closing quotation"),
    Case("a format that is none", "export small.gin --format=pth", "FORMAT=pth is not known"),
]  # fmt: skip


def start(name: str, says: str, *given: str, **made: bytes) -> Case:
    """A fine-tuning of what lies in runs/; made: files there, `small_meta` for small/checkpoints/5/meta/metadata."""
    arguments = ["train", "tuned.gin", "--gin.MIXTURE_OR_TASK_NAME=pydocs_span_corruption", *given]
    lying: dict[str, bytes | Callable[[Path], None]] = {"tuned.gin": FINE_TUNING.encode()}
    for run, content in made.items():
        lying[f"runs/{run.removesuffix('_meta')}/checkpoints/5/meta/metadata"] = content
    return Case(name, arguments, says, lying)


START = [
    start("a start from no run", r"INITIAL_CHECKPOINT: there is no run .*runs/small\.$"),
    start("a start from what is none", r"small/checkpoints/5 cannot be read: its meta has no", small_meta=b"{}"),
    start("a start from half a checkpoint", r"cannot be read: .*(JSON|Expecting)", small_meta=b"{"),
    start("a start from a list", r"The checkpoint .* cannot be read", small_meta=b"[]"),
    start("a start from a name of 5,000 letters", "File name too long", f"--gin.INITIAL_CHECKPOINT={'a' * 5000}"),
    start("a start from a zero byte", r"there is no run|null byte", "--gin.INITIAL_CHECKPOINT='a\\0b'"),
    Case("a step that is none", "eval small.gin --step=last", "--step: last is neither a step nor best", code=2),
    Case("a step before the first", "infer small.gin --prompt=a --step=-1", "--step: -1 is neither a step", code=2),
]  # fmt: skip

TABLE = [*JSON_LINES, *FILES, *NAMES, *GIN, *OTHERS, *START]


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_it_is_said_and_nothing_is_left(
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
    try:
        code = cli.main(arguments)
    except SystemExit as exit_:  # argparse
        code = int(exit_.code or 0)
    said = capsys.readouterr().err
    assert re.search(case.says, said), said
    assert code == case.code, said
    assert "Traceback" not in said
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
    with pytest.raises(UserError, match=r"a\.txt:2 is longer than 64 MiB\. Expected a document a line"):
        list(records((file,)))
    left_out = LeftOut(skip_malformed=True)
    assert list(records((file,), left_out=left_out)) == [("ab",), ("cd",)]
    assert left_out.summary().startswith("1 row was left out: 1 malformed\n  ")


def test_a_small_file_cannot_fill_the_memory(tmp_path: Path) -> None:
    """A hundred megabytes of one letter, packed into some kilobytes, are read in bounded pieces."""
    file = tmp_path / "bomb.txt.zst"
    compressor = zstandard.ZstdCompressor(level=19).compressobj()
    with file.open("wb") as packed:
        for _ in range(100):
            packed.write(compressor.compress(b"a" * (1 << 20)))
        packed.write(compressor.flush())
    assert file.stat().st_size < 20_000
    with pytest.raises(UserError, match=r"bomb\.txt\.zst:1 is longer than 64 MiB"):
        list(records((file,)))


def test_names_in_messages_are_bounded() -> None:
    assert nearest("text", ["x" * 10**6, "txt"]) == " Did you mean txt?"
    assert len(nearest("a" * 10**6, (f"name {i}" for i in range(10**5)))) < 500
    assert str(UserError("a\x1b[31m\u202eb\ud800 é")) == r"a\x1b[31m\u202eb\ud800 é"
