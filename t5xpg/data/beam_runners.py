"""The runners of Apache Beam that `make cache RUNNER=…` knows by name: what they need, before anything is started."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from t5xpg.errors import UserError, nearest


@dataclass(frozen=True)
class Runner:
    """selector: how Beam knows it. package: a module that it imports, with what to install. options: that it cannot do
    without. remote: its workers see none of this machine's folders."""

    selector: str
    package: str | None = None
    install: str = ""
    options: tuple[str, ...] = ()
    remote: bool = False


RUNNERS = {
    "FnApiRunner": Runner("FnApiRunner"),
    "DirectRunner": Runner("DirectRunner"),
    "PrismRunner": Runner("PrismRunner"),
    "DaskRunner": Runner("t5xpg.data.beam_dask.DaskRunnerForCaching", "distributed", "dask distributed"),
    "FlinkRunner": Runner("FlinkRunner"),
    "SparkRunner": Runner("SparkRunner"),
    "PortableRunner": Runner("PortableRunner", options=("--job_endpoint",)),
    "DataflowRunner": Runner(
        "DataflowRunner",
        "google.cloud.dataflow_v1beta3",
        "'apache-beam[gcp]'",
        options=("--project", "--region", "--temp_location"),
        remote=True,
    ),
}


def resolve(name: str, options: Sequence[str], staging: str | None) -> str:
    """How Beam knows the runner. A name with dots is a class of its own, taken as it is.

    Raises UserError for a name that is none, and for what the runner would miss: a package, options, a staging folder.
    """
    if "." in name:
        return name
    if name not in RUNNERS:
        raise UserError(
            f"There is no runner {name!r}: RUNNER is local, one of {', '.join(RUNNERS)}, or a class by its full name."
            f"{nearest(name, ['local', *RUNNERS])}"
        )
    runner = RUNNERS[name]
    if runner.package is not None and not _is_there(runner.package):
        raise UserError(
            f"RUNNER={name} needs packages that are not installed: .venv/bin/python -m pip install {runner.install}"
        )
    given = {option.partition("=")[0] for option in options}
    missing = [option for option in runner.options if option not in given]
    if missing:
        raise UserError(
            f'RUNNER={name} needs {" and ".join(missing)}: BEAM_OPTIONS="{" ".join(f"{one}=…" for one in missing)}".'
        )
    if runner.remote and not staging:
        raise UserError(
            f"The workers of RUNNER={name} see no folder of this machine: name one that they and this machine can "
            "write, STAGING=gs://bucket/folder. The cache is fetched from there."
        )
    return runner.selector


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package around it
        return False
