"""What is said of a runner of Beam before it is started."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.cache.caching import cache_task
from t5xpg.data.cache.runners import resolve_runner

DATAFLOW = ["--project=p", "--region=r", "--temp_location=gs://b/t"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages that count as installed."""
    names = {"google.cloud.dataflow_v1beta3"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in names else None)
    return names


def test_runners_as_beam_knows_them(installed: set[str]) -> None:
    assert resolve_runner("FlinkRunner", ["--flink_master=host:8081"], None) == "FlinkRunner"
    assert resolve_runner("my.own.Runner", [], None) == "my.own.Runner"
    assert resolve_runner("DataflowRunner", DATAFLOW, "gs://b/s") == "DataflowRunner"


@pytest.mark.parametrize(
    ("name", "options", "staging", "said"),
    [
        ("SparkRuner", [], None, "no runner 'SparkRuner': RUNNER is local, .*Did you mean SparkRunner"),
        ("PortableRunner", [], None, 'needs --job_endpoint: BEAM_OPTIONS="--job_endpoint=…"'),
        ("DataflowRunner", DATAFLOW, None, "see no folder of this machine: .*STAGING=gs://bucket/folder"),
        ("DataflowRunner", DATAFLOW, "absent", "RUNNER=DataflowRunner needs the package .*install"),
    ],
)
def test_what_is_missing(installed: set[str], name: str, options: list[str], staging: str | None, said: str) -> None:
    if staging == "absent":
        installed.clear()
    with pytest.raises(UserError, match=said):
        resolve_runner(name, options, staging)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"staging": "gs://b"}, r"STAGING \(gs://b\) is for Apache Beam. Name a runner of Beam"),
        ({"beam_options": ["--x=2"]}, r"BEAM_OPTIONS \(--x=2\) are for Apache Beam.*RUNNER=FnApi"),
    ],
)
def test_options_of_beam_without_beam(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        cache_task("t", cache_dir=tmp_path, data_dir=tmp_path, **options)
    assert not list(tmp_path.iterdir())
