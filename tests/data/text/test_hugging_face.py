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
from tests.workplace import make_hub


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache of datasets")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache of the hub"))
    monkeypatch.setattr(hugging_face, "_reachable", lambda endpoint: False)


def test_exports_its_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = "b08601e04326c79dfdd32d625aee71d232d685c3"
    assert built_in()["wikitext"].source == HuggingFace("Salesforce/wikitext", "wikitext-103-raw-v1", pinned)
    counts = {"train": 9, "validation": 2, "test": 3}
    hub = make_hub(tmp_path / "hub", "some", **counts)
    monkeypatch.setattr(export_module, "built_in", lambda: {"wikitext": Dataset(HuggingFace(str(hub), "some", "main"))})
    manifest = export_dataset("wikitext", data_dir=tmp_path / "data", log=lambda line: None)
    assert {split: record.documents for split, record in manifest.splits.items()} == counts
    assert (manifest.rows_read, manifest.source["revision"]) == (9 + 2 + 3, "main")
    exported = (tmp_path / "data" / "wikitext" / "test.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in exported] == column(hub / "some" / "test" / "00000.parquet")


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


def column(path: Path) -> list[str]:
    return pyarrow.parquet.read_table(path)["text"].to_pylist()


@pytest.fixture
def fineweb(tmp_path: Path) -> Path:
    """A folder laid out like HuggingFaceFW/fineweb-2, of which a language has train and test."""
    return make_hub(tmp_path / "fineweb-2", "nob_Latn", train=120, test=40)


def exported(folder: Path, hub: HuggingFace, **options: Any) -> Manifest:
    return export_dataset("streamed", data_dir=folder / "data", hub=hub, log=lambda line: None, **options)


def test_a_stream_is_exported_as_far_as_it_was_asked_for(fineweb: Path, tmp_path: Path) -> None:
    hub = HuggingFace(str(fineweb), "nob_Latn", "main", streamed=True)
    with refused("MAX_MB=", "LIMIT="):
        exported(tmp_path, hub)
    manifest = exported(tmp_path, hub, limit=50, min_characters=160)
    rows = column(fineweb / "nob_Latn" / "train" / "00000.parquet")
    long = [text for text in rows if len(text) >= 160][:50]
    assert manifest.rows_read == rows.index(long[-1]) + 1 > 50  # nothing was read behind the last
    assert sorted(manifest.splits) == ["test", "train", "validation"]  # of its train split alone
    exports = [(tmp_path / "data" / "streamed" / f"{split}.jsonl").read_text() for split in manifest.splits]
    assert sorted(json.loads(line)["text"] for line in "".join(exports).splitlines()) == sorted(long)
    typed = f"make data DATASET=streamed HUB={fineweb} CONFIG=nob_Latn REVISION=main MIN_CHARACTERS=160 LIMIT=50"
    assert shlex.split(manifest.command()) == typed.split()
    size = len("".join(long[:10]).encode()) + 5
    bounded = exported(tmp_path, hub, max_bytes=size, min_characters=160, force=True)
    assert sum(split.documents for split in bounded.splits.values()) == 10
    assert bounded.max_bytes == size
    assert read_manifest(tmp_path / "data" / "streamed") == bounded
    assert bounded.command().endswith(f" MAX_MB={size / 1e6}")


def test_an_export_of_a_local_folder_is_of_its_files(fineweb: Path, tmp_path: Path) -> None:
    hub = HuggingFace(str(fineweb), "nob_Latn", None, streamed=True)
    made = exported(tmp_path, hub, limit=20)
    (fineweb / ".git").write_text("hidden")
    assert exported(tmp_path, hub, limit=20) == made
    pyarrow.parquet.write_table(pyarrow.table({"text": ["other"] * 20}), next(fineweb.rglob("*.parquet")))
    with refused("source changed", "another content"):
        exported(tmp_path, hub, limit=20)
    named = {"path": "owner/name", "configuration": None, "revision": "main"}
    of_a_name = HuggingFace("owner/name", None, "main", streamed=True)
    assert of_a_name.describe() == {"kind": "hugging face", "streamed": True, **named}


def test_what_a_stream_lacks_is_said(fineweb: Path, tmp_path: Path) -> None:
    def refuses(*names: str, configuration: str = "nob_Latn") -> None:
        with refused("fineweb-2", *names):
            hub = HuggingFace(str(fineweb), configuration, "main", streamed=True)
            exported(tmp_path, hub, limit=3, force=True)

    path = fineweb / "nob_Latn" / "train" / "00000.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None]}), path)
    refuses("train, row 2", '"text"', "null")
    path.write_bytes(b"PAR1 and nothing else")
    refuses("(nob_Latn)")
    pyarrow.parquet.write_table(pyarrow.table({"content": ["a"]}), path)
    refuses("train", '"text"', "content")
    refuses("nno_Latn", configuration="nno_Latn")
