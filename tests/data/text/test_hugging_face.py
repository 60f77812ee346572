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


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache of datasets")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache of the hub"))
    monkeypatch.setattr(hugging_face, "_reachable", lambda endpoint: False)


def test_exports_its_splits(fineweb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = "b08601e04326c79dfdd32d625aee71d232d685c3"
    assert built_in()["wikitext"].source == HuggingFace("Salesforce/wikitext", "wikitext-103-raw-v1", pinned)
    card = fineweb / "README.md"
    three = "\n  - split: validation\n    path: data/nob_Latn/test/*\n---\n"
    card.write_text(card.read_text().replace("\n---\n", three))
    local = Dataset(HuggingFace(str(fineweb), "nob_Latn", "main"))
    monkeypatch.setattr(export_module, "built_in", lambda: {"wikitext": local})
    manifest = export_dataset("wikitext", data_dir=tmp_path / "data", log=lambda line: None)
    documents = {split: record.documents for split, record in manifest.splits.items()}
    assert documents == {"train": 120, "validation": 40, "test": 40}
    assert (manifest.rows_read, manifest.source["revision"]) == (5 * 41, "main")
    first, *_ = (tmp_path / "data" / "wikitext" / "test.jsonl").read_text().splitlines()
    assert json.loads(first) == {"text": f"test 0 0 {'og noen ord til ' * 10}"}


def test_without_a_network_it_says_so_with_two_ways_on(tmp_path: Path) -> None:
    import datasets

    with refused("Salesforce/wikitext (wikitext-103-raw-v1)", "no network", 'FILES="train=', "HF_HOME"):
        export_dataset("wikitext", data_dir=tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
    assert datasets.config.HF_HUB_OFFLINE == huggingface_hub.constants.HF_HUB_OFFLINE


def test_a_proxy_is_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://localhost:1")
    assert _reachable("https://nowhere.invalid")


def test_says_which_columns_are_missing(fineweb: Path) -> None:
    for path in fineweb.rglob("*.parquet"):
        pyarrow.parquet.write_table(pyarrow.table({"content": ["a"]}), path)
    with refused('"text"', "content"):
        hugging_face.splits(str(fineweb), "nob_Latn", None)


@pytest.fixture
def fineweb(tmp_path: Path) -> Path:
    """A folder laid out like HuggingFaceFW/fineweb-2: a card that names the files, and tables in parquet; a language
    has train and test, of several files and columns."""
    folder = tmp_path / "fineweb-2"
    card = ["---", "configs:", "- config_name: nob_Latn", "  data_files:"]
    for split, count in (("train", 3), ("test", 1)):
        place = folder / "data" / "nob_Latn" / split
        place.mkdir(parents=True)
        card += [f"  - split: {split}", f"    path: data/nob_Latn/{split}/*"]
        for number in range(count):
            texts = [f"{split} {number} {row} {'og noen ord til ' * 10}" for row in range(40)]
            table = pyarrow.table({"text": ["For kort.", *texts], "language_score": [0.5] * 41})
            pyarrow.parquet.write_table(table, place / f"000_{number:05}.parquet", row_group_size=7)
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    return folder


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
