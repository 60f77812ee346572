"""The user's own files, and what is wrong with them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from t5xpg.base.errors import UserError
from t5xpg.data.text.local_files import parse_files
from t5xpg.data.text.local_records import texts

LINES = ["first line", "  zweite Zeile — ä", "", "fourth \u2028 with a separator"]
TEXT = "\n".join(LINES).encode() + b"\n"
JSON_LINES = b"".join(json.dumps({"id": i, "text": line}).encode() + b"\n" for i, line in enumerate(LINES)) + b"\n"
PACKERS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    # two frames, as parallel compressors write
    ".zst": lambda data: b"".join(zstandard.compress(part) for part in (data[:20], data[20:])),
}


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize(("name", "data"), [("a.txt", TEXT), ("a.v1.en", TEXT), ("a.jsonl", JSON_LINES)])
def test_reads_lines_and_json_lines(tmp_path: Path, packing: str, name: str, data: bytes) -> None:
    path = tmp_path / (name + packing)
    path.write_bytes(PACKERS[packing](data))
    assert list(texts(path)) == LINES


@pytest.mark.parametrize("packing", PACKERS)
def test_reads_parquet(tmp_path: Path, packing: str) -> None:
    plain = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": range(4), "text": LINES}), plain, row_group_size=3)
    path = tmp_path / ("b.parquet" + packing)
    path.write_bytes(PACKERS[packing](plain.read_bytes()))
    assert list(texts(path)) == LINES


def test_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\nthree")
    assert list(texts(path)) == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"good\nb\xe4d\n", r"a\.txt:2 is not UTF-8 \(byte 0xe4 at column 2\)"),
        ("a.txt", b"good\na\0b\n", r"a\.txt:2 holds a zero byte"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', r"a\.jsonl:3 is not JSON"),
        ("a.jsonl", b'[{"text": "a"}]\n', r"a\.jsonl:1 holds a JSON list"),
        ("a.json", b'{"text": "a"}\n{"texts": "b"}\n', r'a\.json:2 has no "text"\. Did you mean texts'),
        ("a.jsonl", b'{"text": null}\n', r'a\.jsonl:1: "text" is NoneType, expected a string'),
        ("a.jsonl.gz", gzip.compress(JSON_LINES)[:-15], r"a\.jsonl\.gz.* cannot be read"),
        ("a.txt.gz", b"not packed\n", r"a\.txt\.gz cannot be read"),
        ("a.txt.xz", lzma.compress(TEXT)[:-20], r"a\.txt\.xz.* cannot be read"),
        ("a.txt.zst", zstandard.compress(TEXT * 9)[:-3], r"a\.txt\.zst.* cannot be read: Truncated compressed stream"),
        ("a.txt.zst", b"not packed\n", r"a\.txt\.zst cannot be read"),
        ("a.txt.bz2", b"not packed\n", r"a\.txt\.bz2 cannot be read"),
        ("a.parquet", b"not parquet", r"a\.parquet cannot be read as parquet"),
    ],
)
def test_names_file_and_line_of_what_it_cannot_read(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UserError, match=message):
        list(texts(path))


def test_refuses_parquet_without_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"Text": ["a"]}), path)
    with pytest.raises(UserError, match=r'no column "text"\. Did you mean Text'):
        list(texts(path))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None]}), path)
    with pytest.raises(UserError, match="row 2"):
        list(texts(path))


def test_parses_files_by_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "c d.txt", "v.jsonl", "x=y.txt"):
        Path(name).touch()
    assert parse_files("train=a.txt b.txt 'c d.txt' validation=v.jsonl") == {
        "train": [Path("a.txt"), Path("b.txt"), Path("c d.txt")],
        "validation": [Path("v.jsonl")],
    }
    assert parse_files("*.txt") == {None: [Path(n) for n in ("a.txt", "b.txt", "c d.txt", "x=y.txt")]}
    assert parse_files(["x=y.txt", "c d.txt"]) == {None: [Path("x=y.txt"), Path("c d.txt")]}
    assert parse_files(["train=*.txt"])["train"][0] == Path("a.txt")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("gone.txt", "there is no file gone.txt"),
        ("train=*.csv", r"there is no file \*.csv"),
        ("trian=a.txt", "'trian' is not a split. Did you mean train"),
        ("a.txt validation=b.txt", "a.txt comes before the first split"),
        ("train=a.txt test=./a.txt", "given twice"),
        ("train=folder", r"is a folder. Expected files, for instance folder/\*.txt"),
        ("train='a.txt", "No closing quotation"),
        (" ", "names no file"),
        ("train=", "names no file"),
    ],
)
def test_refuses_wrong_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        Path(name).touch()
    Path("folder").mkdir()
    with pytest.raises(UserError, match=message):
        parse_files(given)
