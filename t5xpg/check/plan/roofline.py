"""The expected time of a step on a device, and its bottleneck: a roofline model, operation by operation.

An operation takes the longer of two times: that of its matrix products, and that of the bytes it reads and writes. For
collectives along axes that only split the model, the step waits. Collectives that carry parameters and gradients run
beside the backward pass, two thirds of the step, and cost only the time by which they outlast it. Latencies and the
time to start an operation are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from t5xpg.check.plan.collectives import Collective
from t5xpg.check.plan.devices import REACHED, Device
from t5xpg.check.plan.operations import Operation
from t5xpg.distributed import MODEL

BACKWARD = 2 / 3  # share of a step without collectives; meanwhile gradients can be sent


@dataclass(frozen=True)
class StepTime:
    """The seconds of a step.

    compute, memory: of the operations that are bound by compute, and by memory. waiting: of the collectives that are
    waited for. beside: of those that run beside the backward pass; `late`: the time by which they outlast it.
    """

    compute: float
    memory: float
    waiting: float
    beside: float

    @property
    def late(self) -> float:
        return max(0.0, self.beside - BACKWARD * (self.compute + self.memory))

    @property
    def step(self) -> float:
        return self.compute + self.memory + self.waiting + self.late

    @property
    def bound(self) -> str:
        """The kind of work that takes most of the time."""
        parts = {"compute": self.compute, "memory bandwidth": self.memory, "interconnect": self.waiting + self.late}
        return max(parts, key=lambda name: parts[name])


def step_time(
    operations: Mapping[Operation, int], collectives: Mapping[Collective, int], device: Device, dtype: str, domain: int
) -> StepTime:
    """The time of one step.

    dtype: of the model's products. domain: how many devices are joined by links: the device's own `domain`, or fewer.
    """
    flops, bandwidth = device.peak[dtype] * REACHED["compute"], device.bandwidth * REACHED["memory"]
    compute = memory = 0.0
    for operation, times in operations.items():
        by_compute, by_memory = operation.flops / flops, operation.bytes / bandwidth
        if by_compute > by_memory:
            compute += by_compute * times
        else:
            memory += by_memory * times
    waiting = beside = 0.0
    for collective, times in collectives.items():
        seconds = seconds_of(collective, device, domain) * times
        if set(collective.axes) <= {MODEL}:
            waiting += seconds
        else:
            beside += seconds
    return StepTime(compute, memory, waiting, beside)


def seconds_of(collective: Collective, device: Device, domain: int) -> float:
    """The seconds of a collective, as rings: one within each domain, then one between the domains over the network."""
    near, far = sent_bytes(collective, domain)
    return (near / device.links + far / device.network) / REACHED["links"]


def sent_bytes(collective: Collective, domain: int) -> tuple[float, float]:
    """The bytes that a device sends within its domain, and beyond it."""
    n = collective.group
    m = len({place // domain for place in collective.devices})  # domains that it reaches
    k = n / m  # devices in each of them
    if collective.kind == "collective-permute":
        return (0.0, collective.bytes) if m > 1 else (collective.bytes, 0.0)
    if collective.kind == "all-to-all":
        return collective.bytes * (k - 1) / n, collective.bytes * (n - k) / n
    rounds = 2 if collective.kind == "all-reduce" else 1  # a reduce-scatter and an all-gather
    return rounds * collective.bytes * (k - 1) / k, rounds * collective.bytes / k * (m - 1) / m
