"""Exports on the hub: what is asked of huggingface_hub, and what is said where the hub does not take them."""

import socket
from pathlib import Path
from unittest.mock import Mock

import pytest
from huggingface_hub import HfApi, constants

from t5xpg.exchange import to_transformers
from t5xpg.exchange.to_transformers import push
from tests.refusals import refused


def test_pushing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made, taken = Mock(return_value=Mock(repo_id="me/mine")), Mock(return_value=Mock(oid="0123abcd"))
    monkeypatch.setattr(HfApi, "create_repo", made)
    monkeypatch.setattr(HfApi, "upload_folder", taken)
    push(tmp_path, "mine")
    made.assert_called_once_with("mine", exist_ok=True)
    (upload,) = taken.call_args_list
    assert (upload.kwargs["repo_id"], upload.kwargs["folder_path"]) == ("me/mine", tmp_path)
    assert "0123abcd" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["me/mine", "no name"])
def test_no_hub_and_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint := "http://127.0.0.1:9")  # nobody listens there
    with refused(endpoint, name, "PUSH=owner/name"):
        push(tmp_path, name)


def test_a_hub_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_transformers, "_SILENT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint := f"http://127.0.0.1:{silent.getsockname()[1]}")
        with refused(endpoint, "timed out"):
            push(tmp_path, "me/mine")
