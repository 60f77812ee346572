"""The site as it is served: files of the site alone, and runs as they are at the moment."""

import functools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from t5xpg.base.files import write_json
from t5xpg.run.records import JsonlWriter
from t5xpg.site import serve
from t5xpg.site.records import headline, local_runs
from t5xpg.site.serve import ADDRESS, Pages, watch
from tests.refusals import refused
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
    with refused(str(tmp_path / "mine")):
        watch("tiny", tmp_path / "mine", tmp_path / "site")


def test_runs_that_have_only_begun_or_are_damaged_are_left_out(runs: Path) -> None:
    make_run(runs / "whole")
    make_run(runs / "begun").metrics_jsonl.write_text("")
    damaged = make_run(runs / "damaged")
    write_json(damaged.run_json, {**damaged.read(), "starts": []})
    (runs / "stranger").mkdir()
    (found,) = local_runs()
    assert (found.id, found.published) == ("runs-whole", False)
    assert headline(found.results) is None  # the evaluation of this record has no numbers


def test_a_run_is_watched_from_its_first_validation_on(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(serve.time, "sleep", lambda _: done.append(make_run(runs / "mine").path.name))
    monkeypatch.setattr(serve, "build", lambda folder: folder)
    monkeypatch.setattr(serve, "serve", lambda folder, page: done.append(page))
    watch("tiny", runs / "mine", tmp_path / "site")
    assert done == ["mine", "compare.html"], "the page of a run of no experiment"
