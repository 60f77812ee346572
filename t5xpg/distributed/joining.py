"""Joining the other processes of a run, and leaving them: at the end, or after an error with its reason."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

from t5xpg.base.errors import UserError, first_line
from t5xpg.base.requested_hosts import RequestedHosts
from t5xpg.distributed.group import ALONE, Group, Processes, lost_seconds

WAIT_SECONDS = 300.0  # how long to wait for the other processes


@contextlib.contextmanager
def join(requested: RequestedHosts | None) -> Iterator[Group]:
    """Join the other processes for the block. Call it before any device is used.

    Raises UserError where they cannot be joined, and, with the reason, where another process has ended. Ends this
    process where not all have joined after WAIT_SECONDS.
    """
    group = None if requested is None else _connect(requested)
    if group is None:
        yield ALONE
        return
    from jax import distributed

    group.start()
    try:
        with _quiet(group.first):
            yield group
            group.close()
    except BaseException as error:
        reason = group.explain(error)
        if reason is not None:
            raise UserError(reason) from error
        raise
    distributed.shutdown()


def _connect(requested: RequestedHosts) -> Processes | None:
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # the processes agree on signals in this package: see `group.StopTogether`
    jax.config.update("jax_enable_preemption_service", False)
    address = requested.coordinator or f"the first process of {requested.cluster}"
    if requested.processes is not None:
        print(f"process {requested.process} of {requested.processes}: joining the others at {address}", flush=True)
    # JAX's client would end the process after its own timeout, with a message that names no address
    timer = threading.Timer(WAIT_SECONDS, _end_after_wait, (address,))
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            requested.coordinator,
            requested.processes,
            requested.process,
            initialization_timeout=int(2 * WAIT_SECONDS),
            heartbeat_timeout_seconds=int(2 * lost_seconds() + 60),  # after that, JAX ends all processes
            cluster_detection_method=None if requested.cluster else "deactivate",
        )
    except (ValueError, RuntimeError) as error:
        if requested.cluster == "TPU" and isinstance(error, ValueError):  # a single host
            return None
        raise UserError(
            f"The other processes cannot be joined at {address}: {first_line(error)}. Is the port free, and the "
            "address that of process 0?"
        ) from error
    finally:
        timer.cancel()
    from jax._src import distributed  # has the client; orbax takes it from there too

    state = distributed.global_state
    return Processes(state.client, int(state.process_id), int(state.num_processes))


def _end_after_wait(address: str) -> None:
    """End this process, because others have not joined at the address."""
    print(
        f"t5xpg: error: After {WAIT_SECONDS:.0f} s not all processes have come to {address}. Start the same command on "
        "every host, each with its own PROCESS and all with the same COORDINATOR and PROCESSES; the port of the "
        "coordinator has to be open between the hosts.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


@contextlib.contextmanager
def _quiet(is_first: bool) -> Iterator[None]:
    """Silence stdout and progress in all processes but the first, which prints for all; errors come from each."""
    if is_first:
        yield
        return
    from t5xpg.base.progress import Progress

    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere), Progress.silenced():
        yield
