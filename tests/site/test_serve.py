"""The site as it is served: files of the site alone, and runs as they are at the moment."""

import functools
import http.client
import json
import os
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from t5xpg.base.files import write_json
from t5xpg.run import records
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
    shutil.copytree(make_run(runs / "whole", steps=100).path, tmp_path, dirs_exist_ok=True)  # a run that holds runs
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


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"Origin": "http://{host}"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "no-cors"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),  # a link that the user followed
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1"}, 403),
        ({"Host": "evil.example:{port}"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),  # a script of another page
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/", "/data/runs-mine.js"])
def test_other_sites_get_nothing(address: str, runs: Path, headers: dict[str, str], code: int, path: str) -> None:
    make_run(runs / "mine", steps=100)
    host = address.removeprefix("http://")
    given = {name: value.format(host=host, port=host.partition(":")[2]) for name, value in headers.items()}
    for method in ("GET",) if path != "/" else ("GET", "HEAD"):
        connection = http.client.HTTPConnection(host)
        connection.request(method, path, headers=given)
        answer = connection.getresponse()
        assert answer.status == code
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        connection.close()


@pytest.mark.parametrize("path", ["/%00", "/data/runs-%00.js", "/index.html%00.js"])
def test_a_name_of_no_file_is_a_bad_request(address: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        read(address + path)


def test_records_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    loads = json.loads
    monkeypatch.setattr(records.json, "loads", lambda line: parsed.append(line) or loads(line))
    file, reader = tmp_path / "metrics.jsonl", records.GrowingRecords()
    assert reader.read(file) == []
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')  # the last line is being written
    assert [record["step"] for record in reader.read(file)] == [1, 2]
    with file.open("a") as appended:
        appended.write('ep": 3}\n')
    assert [record["step"] for record in reader.read(file)] == [1, 2, 3]
    assert len(parsed) == 3
    with JsonlWriter(file, last_step=1) as continued:
        continued.write({"step": 2, "loss": 0.5})
    assert reader.read(file) == [{"step": 1}, {"step": 2, "loss": 0.5}]
    with file.open("a") as appended:
        appended.write("junk\n")
    with refused("line 3", "junk"):
        reader.read(file)


def test_a_run_elsewhere_is_not_watched(tmp_path: Path, runs: Path) -> None:
    with refused(str(tmp_path / "mine")):
        watch("tiny", tmp_path / "mine", tmp_path / "site")


def test_runs_that_have_only_begun_or_are_damaged_are_left_out(runs: Path) -> None:
    make_run(runs / "whole")
    make_run(runs / "begun").metrics_jsonl.write_text("")
    damaged = make_run(runs / "damaged")
    write_json(damaged.run_json, {**damaged.read(), "starts": []})
    (runs / "stranger").mkdir()
    for name, text in (
        ("nan", '{"step": 1, "split": "validation", "loss": NaN, "accuracy": 1e400}\n'),
        ("nested", f'{{"step": 1, "split": "validation", "loss": {"[" * 20_000}{"]" * 20_000}}}\n'),
        ("junk", "\0\n"),
    ):
        with make_run(runs / name).metrics_jsonl.open("a") as metrics:
            metrics.write(text)
    late = make_run(runs / "late")
    write_json(late.run_json, {**late.read(), "starts": [{**late.read()["starts"][0], "time": 1e300}]})
    make_run(runs / ("n" * 249))
    make_run(runs / "line\nend")
    make_run(Path(os.fsdecode(os.fsencode(runs) + b"/\xff")))
    said: list[str] = []
    (found,) = local_runs(said.append)
    assert len(said) == 9
    for name in ("begun", "damaged", "nan", "nested", "junk", "late", "nnnn"):
        assert any(f"/{name}" in line for line in said)
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
