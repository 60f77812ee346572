"""The loading of hub datasets, tried on a local copy in the same layout, and without a network."""

import json
import shlex
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest

from t5xpg.data.text import export as export_module
from t5xpg.data.text import hugging_face
from t5xpg.data.text.datasets import Dataset, built_in
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.hugging_face import _reachable
from t5xpg.data.text.manifest import Manifest, read_manifest
from t5xpg.data.text.sources import HuggingFace
from tests.refusals import refused

CONFIGURATION = "wikitext-103-raw-v1"
SHARDS = {"train": 2, "validation": 1, "test": 1}
ROWS = ["", " = Heading = \n", " " + "A sentence of the article . " * 6 + "\n", "", " Short one . \n"]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache of datasets")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache of the hub"))
    monkeypatch.setattr(hugging_face, "_reachable", lambda endpoint: False)


Columns = dict[str, list[Any]]


def write_hub(folder: Path, configuration: str, pattern: str, files: dict[str, list[Columns]]) -> Path:
    """A dataset as the hub has it: a card that names the files, and tables in parquet. pattern: of a split's files."""
    card = ["---", "configs:", f"- config_name: {configuration}", "  data_files:"]
    for split, tables in files.items():
        card += [f"  - split: {split}", f"    path: {pattern.format(split)}*"]
        for number, table in enumerate(tables):
            path = folder / f"{pattern.format(split)}{number:05}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=7)
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder laid out like Salesforce/wikitext."""

    def table(split: str, number: int) -> Columns:
        return {"text": [row.replace("article", f"{split} article {number}") for row in ROWS]}

    files = {split: [table(split, number) for number in range(count)] for split, count in SHARDS.items()}
    return write_hub(tmp_path / "wikitext", CONFIGURATION, f"{CONFIGURATION}/{{}}-", files)


def test_exports_the_three_splits(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert built_in()["wikitext"].source == HuggingFace(
        "Salesforce/wikitext", CONFIGURATION, "b08601e04326c79dfdd32d625aee71d232d685c3"
    )
    local = Dataset(HuggingFace(str(copy), CONFIGURATION, "main"))
    monkeypatch.setattr(export_module, "built_in", lambda: {"wikitext": local})
    manifest = export_dataset("wikitext", data_dir=tmp_path / "data", log=lambda line: None)
    assert {split: record.documents for split, record in manifest.splits.items()} == SHARDS
    assert manifest.rows_read == 4 * len(ROWS)
    (line,) = (tmp_path / "data" / "wikitext" / "validation.jsonl").read_text().splitlines()
    assert json.loads(line) == {"text": ROWS[2].replace("article", "validation article 0")}
    assert manifest.source["revision"] == "main"


def test_without_a_network_it_says_so_with_two_ways_on(tmp_path: Path) -> None:
    import datasets

    with refused("Salesforce/wikitext (wikitext-103-raw-v1)", "no network", 'FILES="train=', "HF_HOME"):
        export_dataset("wikitext", data_dir=tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
    assert datasets.config.HF_HUB_OFFLINE == huggingface_hub.constants.HF_HUB_OFFLINE


def test_a_proxy_is_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://localhost:1")
    assert _reachable("https://nowhere.invalid")


def test_says_which_columns_are_missing(copy: Path) -> None:
    for path in (copy / CONFIGURATION).glob("*.parquet"):
        pyarrow.parquet.write_table(pyarrow.table({"content": ["a"]}), path)
    with refused('"text"', "content"):
        hugging_face.splits(str(copy), CONFIGURATION, None)


@pytest.fixture
def fineweb(tmp_path: Path) -> Path:
    """A folder laid out like HuggingFaceFW/fineweb-2: a language has train and test, of several files and columns."""

    def table(split: str, number: int) -> Columns:
        texts = [f"{split} {number} {row} {'og noen ord til ' * 10}" for row in range(40)]
        return {"text": ["For kort.", *texts], "language_score": [0.5] * 41}

    files = {split: [table(split, number) for number in range(count)] for split, count in (("train", 3), ("test", 1))}
    return write_hub(tmp_path / "fineweb-2", "nob_Latn", "data/nob_Latn/{}/000_", files)


def exported(folder: Path, hub: HuggingFace, **options: Any) -> Manifest:
    return export_dataset("streamed", data_dir=folder / "data", hub=hub, log=lambda line: None, **options)


def test_a_stream_is_exported_as_far_as_it_was_asked_for(fineweb: Path, tmp_path: Path) -> None:
    hub = HuggingFace(str(fineweb), "nob_Latn", "main", streamed=True)
    with refused("MAX_MB=", "LIMIT="):
        exported(tmp_path, hub)
    manifest = exported(tmp_path, hub, limit=50, min_characters=101)
    assert sum(split.documents for split in manifest.splits.values()) == 50
    assert manifest.rows_read == 52  # two are too short, and nothing was read behind the last
    assert sorted(manifest.splits) == ["test", "train", "validation"]  # of its train split alone
    exports = [(tmp_path / "data" / "streamed" / f"{split}.jsonl").read_text() for split in manifest.splits]
    texts = [json.loads(line)["text"] for line in "".join(exports).splitlines()]
    read = [f"{number} {row}" for number, rows in ((0, 40), (1, 10)) for row in range(rows)]
    assert sorted(texts) == sorted(f"train {one} {'og noen ord til ' * 10}" for one in read)
    typed = f"make data DATASET=streamed HUB={fineweb} CONFIG=nob_Latn REVISION=main MIN_CHARACTERS=101 LIMIT=50"
    assert shlex.split(manifest.command()) == typed.split()
    size = len(texts[0].encode())
    bounded = exported(tmp_path, hub, max_bytes=10 * size + 5, min_characters=101, force=True)
    assert sum(split.documents for split in bounded.splits.values()) == 10
    assert bounded.max_bytes == 10 * size + 5
    assert read_manifest(tmp_path / "data" / "streamed") == bounded
    assert bounded.command().endswith(f" MAX_MB={(10 * size + 5) / 1e6}")


def test_an_export_of_a_local_folder_is_of_its_files(fineweb: Path, tmp_path: Path) -> None:
    hub = HuggingFace(str(fineweb), "nob_Latn", None, streamed=True)
    made = exported(tmp_path, hub, limit=20)
    (fineweb / ".git").write_text("hidden")
    assert exported(tmp_path, hub, limit=20) == made
    pyarrow.parquet.write_table(pyarrow.table({"text": ["other"] * 20}), next(fineweb.rglob("*.parquet")))
    with refused("source changed", "another content"):
        exported(tmp_path, hub, limit=20)
    of_a_name = HuggingFace("owner/name", None, "main", streamed=True).describe()
    assert of_a_name == {
        "kind": "hugging face",
        "path": "owner/name",
        "configuration": None,
        "revision": "main",
        "streamed": True,
    }


def test_what_a_stream_lacks_is_said(fineweb: Path, tmp_path: Path) -> None:
    def refuses(*names: str, configuration: str = "nob_Latn") -> None:
        with refused("fineweb-2", *names):
            hub = HuggingFace(str(fineweb), configuration, "main", streamed=True)
            exported(tmp_path, hub, limit=3, force=True)

    files = sorted((fineweb / "data" / "nob_Latn" / "train").glob("*"))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None]}), files[0])
    refuses("train, row 2", '"text"', "NoneType")
    files[0].write_bytes(b"PAR1 and nothing else")
    refuses("(nob_Latn)")
    for path in files:
        pyarrow.parquet.write_table(pyarrow.table({"content": ["a"]}), path)
    refuses("train", '"text"', "content")
    refuses("nno_Latn", configuration="nno_Latn")
