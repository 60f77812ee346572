"""What devices send each other, read from programs whose collectives are known."""

import json
import os
from collections import Counter

import pytest

from t5xpg.check.plan.collectives import Collective, collectives
from t5xpg.check.plan.program import read_program
from tests.workplace import run_python

MESH = {"data": 4, "model": 2}
ALONG_DATA, ALONG_MODEL, ALL = (0, 2, 4, 6), (0, 1), tuple(range(8))
WHOLE, PART = 64 * 256 * 4, 16 * 256 * 4  # of float32, and the rows of one device


@pytest.mark.process
def test_kinds_bytes_and_axes() -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    program = "from tests.check.plan import small_programs as s; s.main()"
    programs = json.loads(run_python(program, env={**os.environ, **flags}))
    for name, times, *expected in (
        ("all-reduce", 1, "all-reduce", PART, ("data",), ALONG_DATA),
        # bfloat16, though CPUs add it up in float32
        ("all-reduce of bfloat16", 1, "all-reduce", PART // 2, ("model",), ALONG_MODEL),
        ("all-reduce of all", 1, "all-reduce", PART, ("data", "model"), ALL),
        ("all-gather", 1, "all-gather", WHOLE, ("data",), ALONG_DATA),
        ("reduce-scatter", 1, "reduce-scatter", WHOLE, ("data",), ALONG_DATA),
        ("all-to-all", 1, "all-to-all", PART, ("data",), ALONG_DATA),
        ("collective-permute", 1, "collective-permute", PART, ("data",), (0, 2)),
        ("five in a loop", 5, "all-reduce", PART, ("model",), ALONG_MODEL),
        ("a product of which each keeps its rows", 1, "reduce-scatter", 64 * 32 * 4, ("data",), ALONG_DATA),
    ):
        assert collectives(read_program(programs[name]), MESH) == Counter({Collective(*expected): times}), name


def line(kind: str, groups: str) -> str:
    return (
        "ENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        f"  ROOT %r = f32[8]{{0}} {kind}(%p), channel_id=1, {groups}, to_apply=%add\n}}\n"
    )


def test_every_way_of_writing_groups() -> None:
    for groups, axes, devices in (
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", ("data",), ALONG_DATA),
        ("replica_groups=[4,2]<=[8]", ("model",), ALONG_MODEL),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", ("data",), ALONG_DATA),
        ("replica_groups=mesh['a'=4,'b'=2] {'a'}", ("data",), ALONG_DATA),
        ("replica_groups=mesh['a'=4,'b'=2] {'a','b'}", ("data", "model"), ALL),
        ("replica_groups=mesh['a'=8] {'a':(1)4}", ("data",), ALONG_DATA),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", ("data",), ALONG_DATA),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=([0,2,4,6,1,3,5,7]) {'b'}", ("data",), ALONG_DATA),
        ("replica_groups={}", ("data", "model"), ALL),
        ("replica_groups=something new", ("?",), ALL),
    ):
        (found,) = collectives(read_program(line("all-reduce", groups)), MESH)
        assert (found.axes, found.devices, found.group) == (axes, devices, len(devices)), groups
