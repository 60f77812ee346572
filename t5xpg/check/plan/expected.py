"""How long a step should take on a device, and what keeps it from being faster: a roofline, operation by operation.

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
class Expected:
    """Seconds of a step.

    compute, memory: of the operations that are bound by compute, and by memory. waiting: of the collectives that are
    waited for. beside: of those that run beside the backward pass; `late` is what is left of them when it ends.
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
        """Where most of the time goes."""
        parts = {"compute": self.compute, "memory bandwidth": self.memory, "interconnect": self.waiting + self.late}
        return max(parts, key=lambda name: parts[name])


def expect(
    operations: Mapping[Operation, int], collectives: Mapping[Collective, int], device: Device, dtype: str, domain: int
) -> Expected:
    """The time of one step.

    dtype: of the model's products. domain: how many devices are joined by links: the device's own `domain`, or fewer.
    """
    flops, bandwidth = device.peak[dtype] * REACHED["compute"], device.bandwidth * REACHED["memory"]
    compute = memory = 0.0
    for one, times in operations.items():
        by_compute, by_memory = one.flops / flops, one.bytes / bandwidth
        if by_compute > by_memory:
            compute += by_compute * times
        else:
            memory += by_memory * times
    waiting = beside = 0.0
    for sent, times in collectives.items():
        seconds = seconds_of(sent, device, domain) * times
        if set(sent.axes) <= {MODEL}:
            waiting += seconds
        else:
            beside += seconds
    return Expected(compute, memory, waiting, beside)


def seconds_of(sent: Collective, device: Device, domain: int) -> float:
    """Seconds of one collective, as rings: one within each domain, then one between the domains over the network."""
    near, far = sent_bytes(sent, domain)
    return (near / device.links + far / device.network) / REACHED["links"]


def sent_bytes(sent: Collective, domain: int) -> tuple[float, float]:
    """Bytes that a device sends within its domain, and beyond it."""
    n = sent.group
    m = len({place // domain for place in sent.devices})  # domains that it reaches
    k = n / m
    if sent.kind == "collective-permute":
        return (0.0, sent.bytes) if m > 1 else (sent.bytes, 0.0)
    if sent.kind == "all-to-all":
        return sent.bytes * (k - 1) / n, sent.bytes * (n - k) / n
    rounds = 2 if sent.kind == "all-reduce" else 1  # a reduce-scatter and an all-gather
    return rounds * sent.bytes * (k - 1) / k, rounds * sent.bytes / k * (m - 1) / m
