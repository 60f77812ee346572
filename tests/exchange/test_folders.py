"""Where checkpoints are found: folders, and the cache of the Hugging Face hub, which needs no network."""

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from t5xpg.exchange import import_folders
from t5xpg.exchange.import_folders import CheckpointFolder, find
from tests.refusals import refused
from tests.small_models import FAMILIES

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub that holds google/byt5-small, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "hub" / "models--google--byt5-small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    shutil.copytree(FAMILIES / "byt5", repository / "snapshots" / COMMIT)
    return repository


def test_a_folder(tmp_path: Path) -> None:
    found = find(str(FAMILIES / "byt5"))
    assert (found.path, found.source) == (FAMILIES / "byt5", str((FAMILIES / "byt5").resolve()))
    for folder, name in (("google/byt5-small.2", "byt5_small_2"), ("me@uni/byt5", "byt5"), ("3B", "t5_3B")):
        (tmp_path / folder).mkdir(parents=True)
        assert find(str(tmp_path / folder)).name == name


def test_the_cache_of_the_hub(hub: Path) -> None:
    found = find("google/byt5-small")
    assert found.path == hub / "snapshots" / COMMIT
    assert found.source == f"google/byt5-small@{COMMIT}"
    assert found.name == "byt5_small"
    assert find(f"google/byt5-small@{COMMIT}") == found


def test_what_the_cache_lacks(hub: Path) -> None:
    with refused("google/byt5-base", "copy the folder", "CHECKPOINT=path"):
        find("google/byt5-base")
    (hub / "snapshots" / COMMIT / "model.safetensors").unlink()
    with refused("no parameters"):
        find("google/byt5-small")


def test_a_copy_without_a_tokenizer_is_completed(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, whole = [], huggingface_hub.snapshot_download

    def download(name: str, **options: Any) -> str:
        asked.append(not options["local_files_only"])
        return str(whole(name, **options))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    found = find("google/byt5-small")
    for name in import_folders.TOKENIZER_FILES:
        (found.path / name).unlink(missing_ok=True)
    assert find("google/byt5-small") == found  # without a network it is used as it is
    assert asked == [False, False, True]


def test_weights_of_pytorch_where_there_are_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str] | None] = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str] | None, local_files_only: bool) -> str:
        asked.append(allow_patterns)
        if local_files_only:
            raise OSError("not there")
        (tmp_path / "config.json").touch()
        if "pytorch_model*.bin" in (allow_patterns or []):
            (tmp_path / "pytorch_model.bin").touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    found = CheckpointFolder(tmp_path, f"google/byt5-small@{tmp_path.name}", "byt5_small")
    assert find("google/byt5-small") == found
    assert [patterns is not None and "*.safetensors" in patterns for patterns in asked] == [False, True, False]
    assert all(patterns is None or import_folders.CONFIG in patterns for patterns in asked)


def test_what_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "byt5_small").mkdir()
    (tmp_path / "model.safetensors").touch()
    for checkpoint, named in (
        ("./nowhere", "no such folder"),
        ("a b", "google/byt5-small"),
        ("", "CHECKPOINT=google/byt5-small"),
        (str(tmp_path / "byt5_smal"), "Did you mean byt5_small"),
        (str(tmp_path / "model.safetensors"), "name the folder"),
    ):
        with refused(named):
            find(checkpoint)
