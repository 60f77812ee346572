"""What is said of a runner of Beam before it is started."""

import importlib.util

import pytest

from t5xpg.data.cache.runners import resolve_runner
from tests.refusals import refused

DATAFLOW = ["--project=p", "--region=r", "--temp_location=gs://b/t"]


def have_packages(monkeypatch: pytest.MonkeyPatch, are_there: bool = True) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if are_there else None)


def test_runners_as_beam_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    have_packages(monkeypatch)
    assert resolve_runner("FlinkRunner", ["--flink_master=host:8081"], None) == "FlinkRunner"
    assert resolve_runner("my.own.Runner", [], None) == "my.own.Runner"
    assert resolve_runner("DataflowRunner", DATAFLOW, "gs://b/s") == "DataflowRunner"


@pytest.mark.parametrize(
    ("name", "options", "staging", "names"),
    [
        ("SparkRuner", [], None, "'SparkRuner'|RUNNER|Did you mean SparkRunner"),
        ("PortableRunner", [], None, 'BEAM_OPTIONS="--job_endpoint=…"'),
        ("DataflowRunner", DATAFLOW, None, "DataflowRunner|STAGING=gs://bucket/folder"),
        ("DataflowRunner", DATAFLOW, "not installed", "RUNNER=DataflowRunner|install"),
        ("local", [], "gs://b", "STAGING (gs://b)|RUNNER=FnApi"),
        ("local", ["--x=2"], None, "BEAM_OPTIONS (--x=2)|RUNNER=FnApi"),
    ],
)
def test_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, name: str, options: list[str], staging: str | None, names: str
) -> None:
    have_packages(monkeypatch, are_there=staging != "not installed")
    with refused(*names.split("|")):
        resolve_runner(name, options, staging)
