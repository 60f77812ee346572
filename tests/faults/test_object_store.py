"""A run whose data, cache and run directory are in an S3 server of this machine alone."""

import dataclasses
import logging
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec.config
import pytest
import s3fs
from moto import server

from t5xpg.base.files import json_object_if_any
from tests.workplace import Workplace, assert_same_run, wait_until


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The server's only bucket is `bucket`; what is started finds it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    running = server.ThreadedMotoServer("127.0.0.1", port=0)
    running.start()
    _, port = running.get_host_and_port()
    # what the server of another test of this process had
    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")).close()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": f"http://127.0.0.1:{port}"})  # of this process
    files = s3fs.S3FileSystem(use_listings_cache=False)
    files.mkdir("bucket")
    yield files
    running.stop()


@pytest.mark.process
def test_a_killed_run_goes_on_from_the_store_alone(workplace: Workplace, pretrained: Path, store: Any) -> None:
    variables = {f"T5XPG_{name}_DIR": f"s3://bucket/{name.lower()}" for name in ("DATA", "CACHE", "RUNS")}
    homes = [workplace.folder / f"machine {number}" for number in range(3)]
    first, second, third = (
        dataclasses.replace(workplace, variables={**variables, "XDG_CACHE_HOME": str(home)}) for home in homes
    )
    mirrors = [home / "t5xpg" / "stores" / "s3" / "bucket" / "runs" / "stored" for home in homes]
    files = " ".join(f"{split}='{workplace.folder / split}.txt'" for split in ("train", "validation"))
    first.run("data", "small", f"--files={files}")
    train = ("train", str(workplace.experiment), "--run=stored")

    def steps() -> set[int]:
        """Those that the last push stored."""
        names = json_object_if_any(mirrors[0] / ".t5xpg_store.json").get("files", {})
        return {int(name.split("/")[1]) for name in names if name.startswith("checkpoints/")}

    with first.start(*train, held_at=4) as process:
        wait_until(process, steps)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    printed = second.run(*train)
    assert "continues after step 4\n" in printed
    assert "small_span_corruption is cached already" not in printed
    evaluated = third.run("eval", str(workplace.experiment), "--run=s3://bucket/runs/stored")
    assert "small, step 12, validation" in evaluated
    assert "cache small" not in evaluated, "what is stored was made again"
    assert_same_run(mirrors[2], pretrained, 12)
    assert store.find("bucket/runs/stored/objects/evaluations")
    assert store.exists("bucket/runs/stored/objects/checkpoints/12/SHA256SUMS")
    assert "stored" in third.run("runs")
    third.run("runs", "--remove=stored", "--yes")
    assert not store.find("bucket/runs/stored")


@pytest.mark.process
def test_a_store_that_cannot_be_reached_is_said_before_training(workplace: Workplace, store: Any) -> None:
    variables = {"T5XPG_RUNS_DIR": "s3://no-such-bucket/runs", "XDG_CACHE_HOME": str(workplace.folder / "mirrors")}
    printed = dataclasses.replace(workplace, variables=variables).refused("train", str(workplace.experiment))
    assert "t5xpg: error: s3://no-such-bucket/runs/small cannot be written" in printed
    assert "step 0" not in printed
    printed = dataclasses.replace(workplace, variables=variables).refused("runs")
    assert "no bucket 'no-such-bucket'" in printed
