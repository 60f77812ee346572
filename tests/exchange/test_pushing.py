"""Exports on the hub: an endpoint of this process gets what lies in the folder."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from t5xpg.exchange.to_transformers import push
from tests.refusals import refused

OID = "0123456789abcdef" * 2


class Hub(BaseHTTPRequestHandler):
    """Takes repositories of `me`, and files without LFS."""

    commits: list[dict[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        url = f"http://{self.headers['Host']}/me/mine"
        if self.path == "/api/repos/create":
            self._answer(200 if json.loads(body).get("organization") == "me" else 403, {"url": url})
        elif self.path == "/api/validate-yaml":  # of the card
            self._answer(200, {"errors": [], "warnings": []})
        elif self.path == "/api/models/me/mine/preupload/main":
            names = [file["path"] for file in json.loads(body)["files"]]
            files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            self._answer(200, {"files": files})
        elif self.path == "/api/models/me/mine/commit/main":
            lines = [json.loads(line) for line in body.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            self.commits.append({file["path"]: base64.b64decode(file["content"]) for file in files})
            self._answer(200, {"success": True, "commitUrl": f"{url}/commit/{OID}", "commitOid": OID})
        else:
            self._answer(404, {"error": self.path})

    def do_GET(self) -> None:
        self._answer(404, {"error": self.path})

    def _answer(self, code: int, value: object) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Hub.commits = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(constants, "ENDPOINT", url := f"http://127.0.0.1:{server.server_port}")
        yield url
        server.shutdown()
        thread.join()


def test_the_files_of_an_export_are_one_commit(
    tmp_path: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"config.json": b"{}\n", "model.safetensors": bytes(range(256)) * 20, "README.md": "ä\n".encode()}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    push(tmp_path, "me/mine")
    assert Hub.commits == [files]
    assert OID in capsys.readouterr().out


@pytest.mark.parametrize("name", ["another/mine", "no name"])
def test_what_the_hub_refuses(tmp_path: Path, endpoint: str, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    with refused(endpoint, name, "PUSH=owner/name"):
        push(tmp_path, name)
    assert Hub.commits == []
