"""What is said of a runner of Beam before it is started."""

import importlib.util

import pytest

from t5xpg.data.cache.runners import resolve_runner
from tests.refusals import refused

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
    ("name", "options", "staging", "names"),
    [
        ("SparkRuner", [], None, "'SparkRuner'|RUNNER|Did you mean SparkRunner"),
        ("PortableRunner", [], None, 'BEAM_OPTIONS="--job_endpoint=…"'),
        ("DataflowRunner", DATAFLOW, None, "DataflowRunner|STAGING=gs://bucket/folder"),
        ("DataflowRunner", DATAFLOW, "absent", "RUNNER=DataflowRunner|install"),
        ("local", [], "gs://b", "STAGING (gs://b)|RUNNER=FnApi"),
        ("local", ["--x=2"], None, "BEAM_OPTIONS (--x=2)|RUNNER=FnApi"),
    ],
)
def test_what_is_missing(installed: set[str], name: str, options: list[str], staging: str | None, names: str) -> None:
    if staging == "absent":
        installed.clear()
    with refused(*names.split("|")):
        resolve_runner(name, options, staging)
