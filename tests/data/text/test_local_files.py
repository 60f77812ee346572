"""The user's own files, texts and records, in every format; and what is wrong with them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from t5xpg.base.errors import UserError
from t5xpg.data.text import local_records
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.labelled import parse_fields
from t5xpg.data.text.lines import BadLines
from t5xpg.data.text.local_files import parse_files
from t5xpg.data.text.local_records import parts_of, records, texts
from t5xpg.data.text.manifest import Manifest, canonical_record, read_manifest

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


FIELDS = ("en", "de")
PAIRS = [("A dog runs.", "Ein Hund läuft."), ('She said "\\".', " Leerzeichen\u2028innen "), ("Two.", "Zwei.")]


def write_parallel(folder: Path) -> list[Path]:
    (folder / "train.v1.en").write_text("".join(f"{en}\n" for en, _ in PAIRS), "utf-8")
    with gzip.open(folder / "train.v1.de.gz", "wb") as file:
        file.write("".join(f"{de}\r\n" for _, de in PAIRS).encode("utf-8"))
    return [folder / "train.v1.en", folder / "train.v1.de.gz"]


def write_tsv(folder: Path) -> list[Path]:
    (folder / "a.tsv").write_text("\n" + "".join(f"{en}\t{de}\n" for en, de in PAIRS), "utf-8")
    return [folder / "a.tsv"]


def write_named_tsv(folder: Path) -> list[Path]:
    lines = [f"{number}\t{de}\t{en}\n" for number, (en, de) in enumerate(PAIRS)]
    (folder / "b.tsv").write_text("".join(["number\tde\ten\r\n", *lines]), "utf-8")
    return [folder / "b.tsv"]


def write_jsonl(folder: Path) -> list[Path]:
    lines = [json.dumps({"de": de, "id": 3, "en": en}) + "\n" for en, de in PAIRS]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return [folder / "a.jsonl"]


def write_parquet(folder: Path) -> list[Path]:
    columns = {"de": [de for _, de in PAIRS], "id": range(len(PAIRS)), "en": [en for en, _ in PAIRS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "a.parquet")
    return [folder / "a.parquet"]


FORMATS = [write_parallel, write_tsv, write_named_tsv, write_jsonl, write_parquet]


@pytest.mark.parametrize("write", FORMATS)
def test_reads_every_format(tmp_path: Path, write: Callable[[Path], list[Path]]) -> None:
    (part,) = parts_of(write(tmp_path), FIELDS)
    assert list(records(part, FIELDS)) == PAIRS


def test_parts_go_together_by_field_and_in_order(tmp_path: Path) -> None:
    names = ["a.de.gz", "a.en.gz", "x.jsonl", "b.en", "B.DE"]
    paths = [Path(name) for name in names]
    found = parts_of(paths, FIELDS)
    assert [[str(path) for path in part] for part in found] == [["a.en.gz", "a.de.gz"], ["x.jsonl"], ["b.en", "B.DE"]]
    with pytest.raises(UserError, match=r"of which field is c\.txt\? Files of text end in it: c\.en c\.de \(packed: c"):
        parts_of([Path("c.txt")], FIELDS)
    with pytest.raises(UserError, match=r"2 end in \.en, 1 end in \.de\. Each file of text needs one of every other"):
        parts_of([Path(name) for name in ("a.en", "a.de", "b.en")], FIELDS)


def parallel(en: str, de: str) -> dict[str, bytes]:
    return {"a.en": en.encode(), "a.de": de.encode()}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            parallel("one\ntwo\nthree\n", "eins\nzwei\n"),
            r"a\.en has 3 lines, .*a\.de has 2 lines: each line of the one",
        ),
        (parallel("one\n\n", "eins\nzwei\n"), r"a\.en:2 is empty, and .*a\.de:2 is not\.$"),
        (parallel("one\ntwo\n", "eins\n \n"), r"a\.de:2 is empty, and .*a\.en:2 is not\.$"),
        ({"a.tsv": b"one\teins\ntwo\n"}, r"a\.tsv:2 has 1 column, expected 2: en, de\. \(Columns of other names"),
        ({"a.tsv": b"id\ten\tde\n1\tone\n"}, r"a\.tsv:2 has 2 columns, expected 3: id, en, de"),
        ({"a.tsv": b"one\t\n"}, r"a\.tsv:1: de is empty, and en is not"),
        ({"a.jsonl": b'{"en": "one"}\n'}, r'a\.jsonl:1 has no "de"\. Known: en'),
        ({"a.jsonl": b'{"en": "one", "de": ""}\n'}, r"a\.jsonl:1: de is empty, and en is not"),
        ({"a.jsonl": b"one\n"}, r'a\.jsonl:1 is not JSON .* Expected one {"en": "…", "de": "…"} a line'),
    ],
)
def test_names_file_and_line_of_records_it_cannot_use(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (part,) = parts_of([tmp_path / name for name in files], FIELDS)
    with pytest.raises(UserError, match=message) as caught:
        list(records(part, FIELDS))
    assert "\n" not in str(caught.value)


def test_parquet_with_columns_of_one_name_and_texts_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays([["a"], ["b"]], names=["text", "text"]), path)
    with pytest.raises(UserError, match=r'a\.parquet has 2 columns "text": expected one'):
        list(texts(path))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["short", "a long text"]}), path)
    monkeypatch.setattr(local_records, "LONGEST_LINE", 10)
    with pytest.raises(UserError, match=r'row 2: "text" is longer than 0 MiB\. Expected a document a row'):
        list(texts(path))


def test_parquet_without_a_field_or_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"En": ["a"], "de": ["b"]}), path)
    with pytest.raises(UserError, match=r'no column "en"\. Did you mean En'):
        list(records((path,), FIELDS))
    pyarrow.parquet.write_table(pyarrow.table({"en": ["a", "b", ""], "de": ["b", None, "c"]}), path)
    with pytest.raises(UserError, match=r'row 2: "de" is NoneType, expected a string'):
        list(records((path,), FIELDS))
    left_out = BadLines()
    assert list(records((path,), FIELDS, left_out)) == [("a", "b")]
    assert left_out.count == 2
    assert "row 3: en is empty, and de is not" in left_out.first[1]


class Export:
    """Calls `export_dataset` for records of the dataset "mine"."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "data" / "mine"
        self.said: list[str] = []

    def __call__(self, files: str, fields: str = "en,de", **options: Any) -> Manifest:
        return export_dataset(
            "mine",
            data_dir=self.folder.parent,
            files=parse_files(files),
            fields=parse_fields(fields),
            log=self.said.append,
            **options,
        )

    def lines(self, split: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in (self.folder / f"{split}.jsonl").read_bytes().splitlines()]


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    monkeypatch.chdir(tmp_path)
    return Export(tmp_path)


def test_exports_with_a_manifest(export: Export) -> None:
    write_parallel(Path())
    write_tsv(Path())
    manifest = export("train=train.v1.* validation=a.tsv")
    assert export.lines("train") == export.lines("validation") == [{"en": en, "de": de} for en, de in PAIRS]
    assert manifest.fields == FIELDS
    assert manifest.rows_read == 6
    assert manifest.summary().startswith("train 3 records")
    assert read_manifest(export.folder) == manifest
    assert manifest.command() == (
        'make data DATASET=mine FIELDS=en,de FILES="train=train.v1.de.gz train.v1.en validation=a.tsv"'
    )
    export("train=train.v1.* validation=a.tsv")
    assert "up to date" in export.said[-1]
    write_named_tsv(Path())
    both = "train=a.tsv validation=b.tsv"
    assert export(both, "inputs=en,targets=de").fields == ("inputs", "targets")
    assert export.lines("train") == export.lines("validation")
    assert export.lines("train")[0] == {"inputs": "A dog runs.", "targets": "Ein Hund läuft."}
    assert "FIELDS=inputs=en,targets=de" in read_manifest(export.folder).command()
    # columns without names are in the order of FIELDS
    assert export(both, "targets=en,inputs=de").fields == ("targets", "inputs")
    assert export.lines("train")[0] == {"targets": "A dog runs.", "inputs": "Ein Hund läuft."}


def test_equal_inputs_are_in_one_split(export: Export) -> None:
    Path("a.tsv").write_text("".join(f"label {number % 3}\ttext {number % 50}\n" for number in range(200)))
    manifest = export("a.tsv", "label,text")
    texts = {split: {line["text"] for line in export.lines(split)} for split in ("train", "validation", "test")}
    assert sum(split.documents for split in manifest.splits.values()) == 200
    assert [len(texts[split]) for split in texts] == [46, 2, 2]
    assert not texts["train"] & texts["validation"] | texts["train"] & texts["test"]
    assert export("train=a.tsv", "label,text", limit=7).splits["train"].documents == 7


def test_fields_are_of_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="FIELDS=en,de are of records in your own files: name them, FILES="):
        export_dataset("pydocs", data_dir=tmp_path, fields={"en": "en", "de": "de"})


def test_a_line_of_records_is_canonical() -> None:
    assert canonical_record(('a "b"', "\ud800\n"), FIELDS) == '{"en": "a \\"b\\"", "de": "\ufffd\\n"}\n'.encode()
