"""The time of a step, beside the same reckoned by hand."""

import pytest

from t5xpg.check.plan import devices as device_table
from t5xpg.check.plan import memory, roofline
from t5xpg.check.plan.collectives import Collective
from t5xpg.check.plan.devices import DEVICES, REACHED, Device
from t5xpg.check.plan.operations import Operation
from t5xpg.distributed.hardware import PEAK_TERAFLOPS

# 100 operations, 10 bytes of memory, 8 bytes of links and 2 bytes of a network a second; 4 in a domain
DEVICE = Device("d", {"bfloat16": 100.0}, 1000.0, 10.0, 8.0, 4, 2.0, ())


def expect(operations, collectives, domain=4):
    return roofline.step_time(operations, collectives, DEVICE, "bfloat16", domain)


@pytest.fixture(autouse=True)
def all_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in REACHED:
        monkeypatch.setitem(REACHED, name, 1.0)


def test_each_operation_is_bound_by_what_takes_longer() -> None:
    time = expect({Operation(200, 10): 3, Operation(200, 40): 2, Operation(0, 5): 1}, {})
    assert (time.compute, time.memory, time.step) == pytest.approx((3 * 2.0, 2 * 4.0 + 0.5, 14.5))
    assert time.bound == "memory bandwidth"


def test_collectives_that_carry_gradients_run_beside_the_backward_pass() -> None:
    sums = Collective("all-reduce", 32, ("data",), (0, 1, 2, 3))  # 2 * 3/4 of 32 bytes: 6 s
    work = {Operation(900, 0): 1}  # 9 s, of which the backward pass is 6
    assert expect(work, {sums: 1}).step == pytest.approx(9.0)
    late = expect(work, {sums: 2})
    assert (late.late, late.step) == pytest.approx((6.0, 15.0))


def test_collectives_along_the_model_are_waited_for() -> None:
    gathered = Collective("all-gather", 32, ("model",), (0, 1, 2, 3))  # 3/4 of 32 bytes: 3 s
    time = expect({Operation(100, 0): 1}, {gathered: 2})
    assert (time.waiting, time.step) == pytest.approx((6.0, 7.0))
    assert time.bound == "interconnect"


def test_bytes_sent_within_a_domain_and_beyond() -> None:
    for kind, devices, near, far in (
        ("all-reduce", (0, 1, 2, 3), 2 * 48, 0),
        ("reduce-scatter", (0, 1, 2, 3), 48, 0),
        ("all-to-all", (0, 1, 2, 3), 48, 0),
        ("collective-permute", (0, 1), 64, 0),
        ("collective-permute", (3, 4), 0, 64),
        ("all-reduce", (0, 4, 8, 12), 0, 2 * 48),  # one of each domain
        ("all-reduce", tuple(range(8)), 2 * 48, 2 * 8),  # two domains: a quarter each, over the network
        ("all-gather", tuple(range(8)), 48, 8),
        ("all-to-all", tuple(range(8)), 24, 32),
    ):
        assert roofline.sent_bytes(Collective(kind, 64, ("data",), devices), 4) == (near, far), (kind, devices)


def test_a_smaller_domain_sends_more_over_the_network() -> None:
    sums = Collective("all-reduce", 32, ("slice", "data"), (0, 1, 2, 3))
    within, across = (expect({}, {sums: 1}, domain=size).beside for size in (4, 2))
    assert (within, across) == pytest.approx((2 * 24 / 8, 2 * 16 / 8 + 2 * 8 / 2))


def test_what_fits() -> None:
    assert [memory.fits(needed, 100) for needed in (90, 110, 130)] == [memory.FITS, "may not fit", memory.DOES_NOT_FIT]


def test_the_table_has_what_a_plan_needs() -> None:
    assert device_table.find_device("A100_80GB").name == "a100-80gb"
    assert len({device.name for device in DEVICES}) == len(DEVICES)
    for device in DEVICES:
        assert {"bfloat16", "float32"} <= set(device.peak)
        assert device.sources
        assert all(source.startswith("https://") for source in device.sources)
        assert device.bandwidth > device.links > device.network > 0, "the slower, the farther"
        assert device.peak["bfloat16"] in {1e12 * of.get("bfloat16", 0.0) for _, of in PEAK_TERAFLOPS}
