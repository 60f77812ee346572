"""The runners that can cache a task: this program itself on one machine ("local"), and those of Apache Beam."""

from collections.abc import Sequence
from dataclasses import dataclass

from t5xpg.base.environment import require_package
from t5xpg.base.errors import UserError, nearest

LOCAL = "local"
# Beam in this machine's memory. Beam's "DirectRunner" would first download another runner.
BEAM = "FnApiRunner"


@dataclass(frozen=True)
class Runner:
    """A runner. package: a module that it imports. install: what to install for that. options: those that it needs.
    remote: whether its workers cannot read this machine's folders."""

    package: str | None = None
    install: str = ""
    options: tuple[str, ...] = ()
    remote: bool = False


RUNNERS = {
    **{name: Runner() for name in (BEAM, "DirectRunner", "PrismRunner", "FlinkRunner", "SparkRunner")},
    "PortableRunner": Runner(options=("--job_endpoint",)),
    "DataflowRunner": Runner(
        "google.cloud.dataflow_v1beta3",
        "'apache-beam[gcp]'",
        options=("--project", "--region", "--temp_location"),
        remote=True,
    ),
}


def resolve_runner(name: str, options: Sequence[str], staging: str | None) -> str:
    """LOCAL, or Beam's name for a runner or class. UserError for an unknown runner, a missing option or package."""
    if name == LOCAL:
        if options or staging:
            variables = f"BEAM_OPTIONS ({' '.join(options)}) are" if options else f"STAGING ({staging}) is"
            raise UserError(f"{variables} for Apache Beam. Name a runner of Beam, as RUNNER={BEAM}, too.")
        return LOCAL
    if "." in name:
        return name
    if name not in RUNNERS:
        raise UserError(
            f"There is no runner {name!r}: RUNNER is local, one of {', '.join(RUNNERS)}, or a class by its full name."
            f"{nearest(name, [LOCAL, *RUNNERS])}"
        )
    runner = RUNNERS[name]
    if runner.package is not None:
        require_package(f"RUNNER={name}", runner.package, runner.install)
    given_names = {option.partition("=")[0] for option in options}
    if missing := [option for option in runner.options if option not in given_names]:
        form = " ".join(f"{option}=…" for option in missing)
        raise UserError(f'RUNNER={name} needs {" and ".join(missing)}: BEAM_OPTIONS="{form}".')
    if runner.remote and not staging:
        raise UserError(
            f"The workers of RUNNER={name} see no folder of this machine: name one that they and this machine can "
            "write, STAGING=gs://bucket/folder. The cache is fetched from there."
        )
    return name
