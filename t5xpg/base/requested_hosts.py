"""The processes that train together: as the user named them, or as the scheduler says. Needs no JAX."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from t5xpg.base.errors import UserError

# The variables of JAX's own programs, then those of other launchers; the first that is set counts.
COORDINATOR = ("JAX_COORDINATOR_ADDRESS", "COORDINATOR_ADDRESS")
PROCESSES = ("JAX_NUM_PROCESSES",)
PROCESS = ("JAX_PROCESS_ID",)
# Set in a step of a Slurm job, which `srun` starts. A batch script by itself has no SLURM_STEP_NODELIST.
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_OPEN_MPI = "OMPI_COMM_WORLD_SIZE"
_TPU_HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
_MAX_PROCESSES = 1 << 16


@dataclass(frozen=True)
class RequestedHosts:
    """The processes that a user named, or the scheduler that knows them.

    coordinator: "host:port" of the first process. The first three fields are None if JAX is to ask the scheduler,
    `cluster`, which may have started only one process.
    """

    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    cluster: str | None = None


def requested_hosts(
    coordinator: str | None, processes: str | None, process: str | None, environment: Mapping[str, str]
) -> RequestedHosts | None:
    """The processes named by options, else by the environment; None for this process alone. Raises UserError for values
    that are missing or wrong."""
    settings = {
        "COORDINATOR": coordinator or _first_value(environment, COORDINATOR),
        "PROCESSES": processes or _first_value(environment, PROCESSES),
        "PROCESS": process or _first_value(environment, PROCESS),
    }
    count = None if settings["PROCESSES"] is None else _number("PROCESSES", settings["PROCESSES"], 1)
    if count == 1:
        return None
    if not any(settings.values()):
        cluster = _cluster(environment)
        return None if cluster is None else RequestedHosts(cluster=cluster)
    missing = [name for name, value in settings.items() if value is None]
    if missing:
        raise UserError(
            f"Several processes are asked for, without {' and '.join(missing)}. Each needs COORDINATOR=host:port "
            f"({COORDINATOR[0]}), PROCESSES=number ({PROCESSES[0]}) and PROCESS=0, 1, … ({PROCESS[0]}); or PROCESSES=1 "
            "for this one alone."
        )
    assert count is not None
    number = _number("PROCESS", settings["PROCESS"] or "", 0)
    if number >= count:
        raise UserError(f"PROCESS is {number} of PROCESSES={count}: they count from 0 to {count - 1}.")
    return RequestedHosts(_address(settings["COORDINATOR"] or ""), count, number)


def require_alone(command: str, environment: Mapping[str, str]) -> None:
    """Raise UserError if the environment asks for several processes: `command` is the work of one process."""
    hosts = requested_hosts(None, None, None, environment)
    if hosts is None or hosts.cluster == "TPU":  # one host of a TPU slice may be used alone
        return
    names = [name for name in (*COORDINATOR, *PROCESSES, *PROCESS) if name in environment]
    remedy = f"Unset {', '.join(names)}" if hosts.cluster is None else "Start it without srun or mpirun"
    raise UserError(
        f"`{command}` is the work of one process, and several are asked for. {remedy}, or set "
        f"{PROCESSES[0]}=1; training alone is shared by several."
    )


def _first_value(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


def _number(name: str, text: str, minimum: int) -> int:
    if not text.isascii() or not text.isdecimal() or not minimum <= int(text[:9]) <= _MAX_PROCESSES:
        raise UserError(f"{name} is {text!r}: expected a whole number of at least {minimum}.")
    return int(text[:9])


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not host or not colon or not port.isdecimal() or not 0 < int(port[:9]) < 65536:
        raise UserError(
            f"COORDINATOR is {text!r}: expected the name or address of the host of process 0 and a free port on it, "
            "such as node1:8476."
        )
    return text


def _cluster(environment: Mapping[str, str]) -> str | None:
    """The scheduler that started several processes; None if none did, or JAX cannot ask it."""
    if all(name in environment for name in _SLURM):
        return "Slurm" if environment["SLURM_NTASKS"] != "1" else None
    if environment.get(_OPEN_MPI, "1") != "1":
        return "Open MPI"
    if "tpu" not in environment.get("JAX_PLATFORMS", "tpu"):
        return None
    hosts = _first_value(environment, _TPU_HOSTS)
    if hosts is not None:
        return "TPU" if "," in hosts else None
    return "TPU" if importlib.util.find_spec("libtpu") is not None and _has_tpu() else None


def _has_tpu() -> bool:
    return any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))
