"""The user's own files, texts and records, in every format; and what is wrong with them."""

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from t5xpg.data.text import local_files, local_records
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.labelled import parse_fields
from t5xpg.data.text.lines import Answers, LeftOutRows
from t5xpg.data.text.local_files import parse_files
from t5xpg.data.text.local_records import parts_of, records
from t5xpg.data.text.manifest import Manifest, canonical_record, read_manifest
from tests.refusals import refused

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
def test_reads_every_packing(tmp_path: Path, packing: str) -> None:
    plain = tmp_path / "plain.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": range(4), "text": LINES}), plain, row_group_size=3)
    with_mark = b"\xef\xbb\xbf" + TEXT.replace(b"\n", b"\r\n")
    tables = plain.read_bytes()
    for name, data in (("a.txt", TEXT), ("a.v1.en", with_mark), ("a.jsonl", JSON_LINES), ("b.parquet", tables)):
        path = tmp_path / (name + packing)
        path.write_bytes(PACKERS[packing](data))
        assert list(records((path,))) == [(line,) for line in LINES], name


def parquet(**columns: Any) -> bytes:
    """A file of these columns."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


NOT_UTF8 = pyarrow.array([b"good", b"\xff\xfe"], pyarrow.binary()).view(pyarrow.string())


@pytest.mark.parametrize(
    ("name", "data", "names"),
    [
        ("a.json", b'{"text": "a"}\n{"texts": "b"}\n', 'a.json:2|"text"|Did you mean texts'),
        ("a.txt.xz", lzma.compress(TEXT)[:-20], "a.txt.xz"),
        ("a.txt.zst", zstandard.compress(TEXT * 9)[:-3], "a.txt.zst|Truncated"),
        ("a.txt.bz2", b"not packed\n", "a.txt.bz2"),
        ("a.parquet", b"not parquet", "a.parquet"),
        ("a.parquet", parquet(text=NOT_UTF8), "a.parquet|utf-8"),
    ],
    ids=range(6),
)
def test_names_what_it_cannot_read(tmp_path: Path, name: str, data: bytes, names: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with refused(*names.split("|")):
        list(records((path,)))


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
    Path("lang=en").mkdir()
    Path("lang=en/a.txt").touch()
    assert parse_files("lang=en/*.txt") == {None: [Path("lang=en/a.txt")]}
    # other mistakes: tests/cli/test_bad_input.py
    with refused("a.txt", "first split"):
        parse_files("a.txt test=b.txt")
    with refused("""FILES="'c d.txt'\""""):
        parse_files("train=a.txt c d.txt validation=v.jsonl")


FIELDS = ("en", "de")
PAIRS = [("A dog runs.", "Ein Hund läuft."), ('She said "\\".', " Leerzeichen\u2028innen "), ("Two.", "Zwei.")]


@pytest.fixture
def formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Path]]:
    """The pairs in files of every format, in the working folder."""
    monkeypatch.chdir(tmp_path)
    columns = {"de": [de for _, de in PAIRS], "id": range(len(PAIRS)), "en": [en for en, _ in PAIRS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), "a.parquet")
    named = [f"{number}\t{de}\t{en}\n" for number, (en, de) in enumerate(PAIRS)]
    files = {
        "train.v1.en": "".join(f"{en}\n" for en, _ in PAIRS).encode(),
        "train.v1.de.gz": gzip.compress("".join(f"{de}\r\n" for _, de in PAIRS).encode()),
        "a.tsv": ("\n" + "".join(f"{en}\t{de}\n" for en, de in PAIRS)).encode(),
        "b.tsv": "".join(["\r\nnumber\tde\ten\r\n", *named]).encode(),
        "a.jsonl": "\n\n".join(json.dumps({"de": de, "id": 3, "en": en}) for en, de in PAIRS).encode(),
    }
    for name, content in files.items():
        Path(name).write_bytes(content)
    single = ("a.tsv", "b.tsv", "a.jsonl", "a.parquet")
    return {"parallel": [Path("train.v1.en"), Path("train.v1.de.gz")]} | {name: [Path(name)] for name in single}


def test_reads_every_format(formats: dict[str, list[Path]]) -> None:
    for name, paths in formats.items():
        (part,) = parts_of(paths, FIELDS)
        assert list(records(part, FIELDS)) == PAIRS, name


def test_parts_go_together_by_field_and_in_order() -> None:
    def parts(names: str) -> list[str]:
        return [" ".join(map(str, part)) for part in parts_of([Path(name) for name in names.split()], FIELDS)]

    assert parts("a.de.gz a.en.gz x.jsonl b.en B.DE") == ["a.en.gz a.de.gz", "x.jsonl", "b.en B.DE"]
    with refused("c.txt", "c.en c.de"):
        parts("c.txt")
    with refused("2 end in .en", "1 end in .de"):
        parts("a.en a.de b.en")


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"a.en": b"one\ntwo\nthree\n", "a.de": b"eins\nzwei\n"}, "a.en|3 lines|a.de|2 lines"),
        ({"a.en": b"one\n \n", "a.de": b"eins\nzwei\n"}, "a.en:2|a.de:2"),
        ({"a.tsv": b"one\teins\ntwo\n"}, "a.tsv:2|1 column|2: en, de"),
        ({"a.tsv": b"en\tde\ten\none\teins\tuno\n"}, "a.tsv:1|en twice"),
        ({"a.tsv": b"EN\tDE\none\teins\n"}, "a.tsv:1|EN, DE|en, de"),
        ({"a.tsv": b"id\ten\tde\n1\tone\n"}, "a.tsv:2|2 columns|3: id, en, de"),
        ({"a.jsonl": b'{"en": "one"}\n'}, 'a.jsonl:1|"de"|en'),
        ({"a.jsonl": b'{"en": "one", "de": ""}\n'}, "a.jsonl:1|de is empty"),
        ({"a.jsonl": b"one\n"}, 'a.jsonl:1|JSON|{"en": "…", "de": "…"}'),
        ({"a.parquet": parquet(En=["a"], de=["b"])}, '"en"|Did you mean En'),
        ({"a.parquet": parquet(en=["a", "b"], de=["b", None])}, 'row 2|"de"|null'),
        ({"a.parquet": parquet(en=["a", ""], de=["b", "c"])}, "row 2|en is empty"),
    ],
    ids=range(12),
)
def test_names_file_and_line_of_records_it_cannot_use(tmp_path: Path, files: dict[str, bytes], names: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (part,) = parts_of([tmp_path / name for name in files], FIELDS)
    with refused(*names.split("|")):
        list(records(part, FIELDS))


def test_parquet_with_columns_of_one_name_or_long_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays([["a"], ["b"]], names=["text", "text"]), path)
    with refused("a.parquet", '2 columns "text"'):
        list(records((path,)))
    path.write_bytes(parquet(text=["short", "a long text"]))
    monkeypatch.setattr(local_records, "LONGEST_LINE", 10)
    with refused("row 2", '"text"'):
        list(records((path,)))


_POOLS: list[Any] = []  # one has to stay as long as anything that was taken from it


def most_memory_for_texts(path: Path, left_out: LeftOutRows, expected: list[str]) -> int:
    """Bytes that Arrow held at most while the texts of a file were read; asserts that they are `expected`."""
    usual = pyarrow.default_memory_pool()
    _POOLS.append(pyarrow.proxy_memory_pool(usual))
    pyarrow.set_memory_pool(_POOLS[-1])
    try:
        assert [text for (text,) in records((path,), left_out=left_out)] == expected
    finally:
        pyarrow.set_memory_pool(usual)
    return _POOLS[-1].max_memory()


@pytest.mark.parametrize("encoding", [{}, {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}])
def test_long_rows_of_parquet_are_not_held_together(
    encoding: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, million = tmp_path / "a.parquet", 10**6
    lines = ["x" * million] * 50 + ["short"]
    pyarrow.parquet.write_table(pyarrow.table({"text": lines, "id": range(51)}), path, **encoding)
    for module in (local_files, local_records):
        monkeypatch.setattr(module, "LONGEST_LINE", million // 10)
    monkeypatch.setattr(local_files, "_BATCH", 3 * million)
    left_out = LeftOutRows(skip_malformed=True)
    assert most_memory_for_texts(path, left_out, ["short"]) < 15 * million
    assert left_out.counts == {"malformed": 50}


def test_a_long_row_of_parquet_alone_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "x" * 10**7, "b"]}), path, row_group_size=1)
    for module in (local_files, local_records):
        monkeypatch.setattr(module, "LONGEST_LINE", 2 * 10**6)
    left_out = LeftOutRows(skip_malformed=True)
    assert most_memory_for_texts(path, left_out, ["a", "b"]) < 10**7
    assert left_out.counts == {"malformed": 1}


def test_rows_of_parquet_without_a_text_are_left_out(tmp_path: Path) -> None:
    path, left_out = tmp_path / "a.parquet", LeftOutRows(skip_malformed=True)
    path.write_bytes(parquet(en=["a", "b", ""], de=["b", None, "c"]))
    assert list(records((path,), FIELDS, left_out)) == [("a", "b")]
    assert left_out.counts == {"malformed": 2}


def export(files: str, fields: str = "en,de", **options: Any) -> Manifest:
    """To data/mine, in the working folder."""
    given = {"files": parse_files(files), "fields": parse_fields(fields), "log": lambda line: None}
    return export_dataset("mine", data_dir=Path("data"), **given, **options)


def exported(split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(f"data/mine/{split}.jsonl").read_bytes().splitlines()]


@pytest.mark.usefixtures("formats")
def test_exports_with_a_manifest() -> None:
    manifest = export("train=train.v1.* validation=a.tsv")
    assert exported("train") == exported("validation") == [{"en": en, "de": de} for en, de in PAIRS]
    assert (manifest.fields, manifest.rows_read) == (FIELDS, 7)
    assert "train 3 records" in manifest.summary()
    assert read_manifest(Path("data/mine")) == manifest
    files = 'FILES="train=train.v1.de.gz train.v1.en validation=a.tsv"'
    assert manifest.command() == f"make data DATASET=mine FIELDS=en,de {files}"
    both = "train=a.tsv validation=b.tsv"
    assert export(both, "inputs=en,targets=de", force=True).fields == ("inputs", "targets")
    assert exported("train") == exported("validation")
    assert exported("train")[0] == {"inputs": "A dog runs.", "targets": "Ein Hund läuft."}
    assert "FIELDS=inputs=en,targets=de" in read_manifest(Path("data/mine")).command()
    # columns without names are in the order of FIELDS
    assert export(both, "targets=en,inputs=de", force=True).fields == ("targets", "inputs")
    with refused("FIELDS=en,de", "FILES="):
        export_dataset("pydocs", data_dir=Path("data"), fields={"en": "en", "de": "de"})


def test_equal_inputs_are_in_one_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tsv").write_text("".join(f"label {number % 3}\ttext {number % 50}\n" for number in range(200)))
    manifest = export("a.tsv", "label,text")
    texts = {split: {line["text"] for line in exported(split)} for split in ("train", "validation", "test")}
    assert sum(split.documents for split in manifest.splits.values()) == 200
    assert [len(texts[split]) for split in texts] == [46, 2, 2]
    assert not texts["train"] & texts["validation"] | texts["train"] & texts["test"]
    assert export("train=a.tsv", "label,text", limit=7, force=True).splits["train"].documents == 7


def test_a_line_of_records_is_canonical() -> None:
    assert canonical_record(('a "b"', "\ud800\n"), FIELDS) == '{"en": "a \\"b\\"", "de": "\ufffd\\n"}\n'.encode()


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_answers_that_are_numbers_or_lists(form: str, tmp_path: Path) -> None:
    def read(values: list[Any], several: bool = True) -> list[Any]:
        path = tmp_path / f"a.{form}"
        rows = [{"q": "?", "a": value} for value in values]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        if form == "parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        found = [answer for _, answer in records((path,), ("q", "a"), answer="a", several=several)]
        return [list(answer.all) if isinstance(answer, Answers) else answer for answer in found]

    assert read([0, -3]) == ["0", "-3"]
    assert read([3.5, 1e-7]) == ["3.5", "1e-07"]
    assert read([["b", "a", "b", " "], ["one"]]) == [["b", "a"], "one"]
    assert read([[2, 3]]) == [["2", "3"]]
    for value in (True, float("inf"), {"x": 1}, None, [[1]], [" "], []):
        with refused("a"):
            read([value])
    with refused('"a" is a list'):
        read([["x"]], several=False)


@pytest.mark.usefixtures("formats")
def test_an_export_says_whether_there_are_several_answers() -> None:
    Path("quiz.jsonl").write_text('{"q": "1 + 1", "a": [2, "two"]}\n{"q": "1 + 2", "a": 3}\n')
    assert export("train=quiz.jsonl", "inputs=q,targets=a").several_answers == 1
    assert exported("train") == [{"inputs": "1 + 1", "targets": ["2", "two"]}, {"inputs": "1 + 2", "targets": "3"}]
    assert read_manifest(Path("data/mine")).several_answers == 1
    Path("labels.jsonl").write_text('{"text": "good", "label": 1}\n')
    assert not export("train=labels.jsonl", "text,label", force=True).several_answers
    assert exported("train") == [{"text": "good", "label": "1"}]
    Path("labels.jsonl").write_text('{"text": 3, "label": "a"}\n')
    with refused('"text" is a number'):
        export("train=labels.jsonl", "text,label", force=True)
