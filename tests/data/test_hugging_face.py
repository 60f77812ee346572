"""The loading of hub datasets, tried on a local copy in the same layout, and without a network."""

from __future__ import annotations

from pathlib import Path

import datasets
import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest

from t5xpg.data import export as export_module
from t5xpg.data import hugging_face
from t5xpg.data.datasets_table import Dataset, HuggingFace, built_in
from t5xpg.data.export import export_dataset
from t5xpg.errors import UserError

CONFIGURATION = "wikitext-103-raw-v1"
SHARDS = {"train": 2, "validation": 1, "test": 1}
ROWS = ["", " = Heading = \n", " " + "A sentence of the article . " * 6 + "\n", "", " Short one . \n"]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache of datasets")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache of the hub"))
    monkeypatch.setattr(hugging_face, "_reachable", lambda endpoint: False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder laid out like Salesforce/wikitext: a card that names the files, and parquet shards."""
    folder = tmp_path / "wikitext"
    (folder / CONFIGURATION).mkdir(parents=True)
    card = ["---", "configs:", f"- config_name: {CONFIGURATION}", "  data_files:"]
    for split, shards in SHARDS.items():
        card += [f"  - split: {split}", f"    path: {CONFIGURATION}/{split}-*"]
        for shard in range(shards):
            rows = [row.replace("article", f"{split} article {shard}") for row in ROWS]
            name = f"{split}-{shard:05}-of-{shards:05}.parquet"
            pyarrow.parquet.write_table(pyarrow.table({"text": rows}), folder / CONFIGURATION / name)
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    return folder


def test_exports_the_three_splits(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert built_in()["wikitext"].source == HuggingFace(
        "Salesforce/wikitext", CONFIGURATION, "b08601e04326c79dfdd32d625aee71d232d685c3"
    )
    local = Dataset(HuggingFace(str(copy), CONFIGURATION, "main"))
    monkeypatch.setattr(export_module, "built_in", lambda: {"wikitext": local})
    manifest = export_dataset("wikitext", data_dir=tmp_path / "data", log=lambda line: None)
    assert {split: record.documents for split, record in manifest.splits.items()} == SHARDS
    assert manifest.rows_read == 4 * len(ROWS)
    text = ROWS[2].replace("article", "validation article 0")
    line = '{"text": "' + text.replace("\n", "\\n") + '"}\n'
    assert (tmp_path / "data" / "wikitext" / "validation.jsonl").read_text() == line
    assert manifest.source["revision"] == "main"


def test_without_a_network_it_says_so_in_one_line_with_two_ways_on(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        export_dataset("wikitext", data_dir=tmp_path / "data")
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(
        "Cannot load Salesforce/wikitext (wikitext-103-raw-v1): there is no network. Two ways on:"
    )
    assert 'FILES="train=' in message
    assert "HF_HOME" in message
    assert list((tmp_path / "data").iterdir()) == []
    assert datasets.config.HF_HUB_OFFLINE == huggingface_hub.constants.HF_HUB_OFFLINE


def test_says_which_splits_and_columns_are_missing(copy: Path) -> None:
    for path in (copy / CONFIGURATION).glob("*.parquet"):
        pyarrow.parquet.write_table(pyarrow.table({"content": ["a"]}), path)
    with pytest.raises(UserError, match='has no column "text": it has content'):
        hugging_face.load_splits(str(copy), CONFIGURATION, None)


def test_a_row_that_is_no_text_is_named() -> None:
    split = datasets.Dataset.from_dict({"text": ["a", None, "b"]})
    with pytest.raises(UserError, match=r'mine train, row 2: "text" is NoneType, expected a string'):
        list(hugging_face.TextColumn(split, "mine train"))
