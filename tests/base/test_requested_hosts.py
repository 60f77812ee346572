"""Which processes train together, from options and from the environment of a launcher."""

from t5xpg.base.requested_hosts import RequestedHosts, requested_hosts, require_alone
from tests.refusals import refused

NAMED = {"JAX_COORDINATOR_ADDRESS": "node1:8476", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
SLURM = {"JOB_ID": "17", "STEP_NODELIST": "node[1-2]", "NTASKS": "2", "PROCID": "1", "LOCALID": "0"}
SLURM = {f"SLURM_{name}": value for name, value in SLURM.items()}


def test_options_come_before_the_environment() -> None:
    assert requested_hosts(None, None, None, {}) is None
    assert requested_hosts("a:1", "2", "0", {}) == RequestedHosts("a:1", 2, 0)
    assert requested_hosts(None, None, None, NAMED) == RequestedHosts("node1:8476", 4, 3)
    assert requested_hosts(None, None, "0", {**NAMED, "SLURM_JOB_ID": "17"}) == RequestedHosts("node1:8476", 4, 0)
    other = {"COORDINATOR_ADDRESS": "[::1]:9", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    assert requested_hosts(None, None, None, other) == RequestedHosts("[::1]:9", 2, 1)
    assert requested_hosts(None, "1", None, NAMED) is None, "one process is this one"


def test_schedulers() -> None:
    for environment, cluster in (
        (SLURM, "Slurm"),
        ({**SLURM, "SLURM_NTASKS": "1"}, None),
        ({name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"}, None),  # outside of srun
        ({"OMPI_COMM_WORLD_SIZE": "8"}, "Open MPI"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU"),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "JAX_PLATFORMS": "cpu"}, None),
    ):
        found = requested_hosts(None, None, None, environment)
        assert found == (None if cluster is None else RequestedHosts(cluster=cluster)), environment
        assert requested_hosts(None, "1", None, environment) is None


def test_what_cannot_be() -> None:
    for options, named in (
        (("a:1", None, "0"), "PROCESSES"),
        ((None, "2", None), "COORDINATOR and PROCESS"),
        (("a:1", "2", "2"), "PROCESS is 2"),
        (("a:1", "two", "0"), "PROCESSES is 'two'"),
        (("a:1", "9" * 30, "0"), "PROCESSES is '999"),
        (("node1", "2", "0"), "COORDINATOR is 'node1'"),
        (("node1:99999", "2", "0"), "COORDINATOR is 'node1:99999'"),
    ):
        with refused(named):
            requested_hosts(*options, {})


def test_commands_of_one_process() -> None:
    require_alone("make eval", {})
    require_alone("make eval", {**NAMED, "JAX_NUM_PROCESSES": "1"})
    for environment, *named in ((NAMED, "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES=1"), (SLURM, "without srun")):
        with refused("make eval", *named):
            require_alone("make eval", environment)
