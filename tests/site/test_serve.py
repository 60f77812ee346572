"""The site as it is served: files of the site alone, and runs as they are at the moment."""

import functools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import pytest

from t5xpg.base.errors import UserError
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import JsonlWriter
from t5xpg.site import serve
from t5xpg.site.records import headline, local_runs
from t5xpg.site.serve import ADDRESS, Pages, watch
from tests.run.test_report import added_by, make_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runs"
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(folder))
    return folder


@pytest.fixture
def address(tmp_path: Path, runs: Path) -> Iterator[str]:
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("first page")
    with ThreadingHTTPServer((ADDRESS, 0), functools.partial(Pages, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{ADDRESS}:{server.server_port}"
        server.shutdown()


def read(address: str) -> str:
    with urllib.request.urlopen(address) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        return answer.read().decode()


def test_a_run_is_shown_as_it_is_now(address: str, runs: Path) -> None:
    run = make_run(runs / "a run#1", steps=100)

    def curve() -> list[list[float]]:
        found = added_by(read(f"{address}/data/runs-a%20run%231.js?1"))
        assert found["id"] == "runs-a run#1"
        return found["curves"]["validation: nats per target token"]

    before = curve()
    with JsonlWriter(run.metrics_jsonl) as metrics:
        metrics.write({"step": 200, "split": "validation", "loss": 1.5, "accuracy": 0.5, "target_tokens": 9})
    after = curve()
    assert (len(after[0]), after[0][-1], after[1][-1]) == (len(before[0]) + 1, 200, 1.5)


def test_nothing_else_is_served(address: str, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    other_format = make_run(runs / "older", steps=100).path / "run.json"
    other_format.write_text(json.dumps({**json.loads(other_format.read_text()), "starts": [{}]}))
    assert read(f"{address}/") == "first page"
    for path in (
        "data/runs-nothing.js",
        "data/runs-older.js",
        "data/runs-...js",
        "../secret.txt",
        "%2e%2e/secret.txt",
        "data/runs-..%2Fsecret.js",
    ):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(f"{address}/{path}")


def test_a_run_elsewhere_is_not_watched(tmp_path: Path, runs: Path) -> None:
    with pytest.raises(UserError, match="is elsewhere"):
        watch("tiny", tmp_path / "mine", tmp_path / "site")


def test_what_a_run_waits_for(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve.time, "sleep", mock.Mock(side_effect=[None, KeyboardInterrupt] * 3))
    assert watch("tiny", runs / "mine", tmp_path / "site") == 0
    make_run(runs / "mine").metrics_jsonl.write_text("")
    assert watch("tiny", runs / "mine", tmp_path / "site") == 0
    with RunDirectory(runs / "mine").lock():
        assert watch("tiny", runs / "mine", tmp_path / "site") == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert third.endswith("mine: it trains")
    assert "mine holds no run" in first
    assert "mine has no validation loss" in second


def test_a_run_of_no_experiment_is_watched_among_all(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []
    monkeypatch.setattr(serve, "build", lambda folder: folder)
    monkeypatch.setattr(serve, "serve", lambda folder, page: pages.append(page))
    watch("tiny", make_run(runs / "mine").path, tmp_path / "site")
    assert pages == ["compare.html"]


def test_runs_that_have_only_begun_are_left_out(runs: Path) -> None:
    make_run(runs / "whole")
    make_run(runs / "begun").metrics_jsonl.write_text("")
    (runs / "stranger").mkdir()
    (found,) = local_runs()
    assert (found.id, found.published) == ("runs-whole", False)
    assert headline(found.results) is None  # the evaluation of this record has no numbers
