"""What devices send each other, read from programs whose collectives are known."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from t5xpg.check.plan.collectives import Collective, collectives
from t5xpg.check.plan.program import read_program
from tests.workplace import PATIENCE

MESH = {"data": 4, "model": 2}
ALONG_DATA, ALONG_MODEL, ALL = (0, 2, 4, 6), (0, 1), tuple(range(8))
WHOLE, PART = 64 * 256 * 4, 16 * 256 * 4  # of float32, and the rows of one device


@pytest.fixture(scope="module")
def programs() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("small_programs.py"))],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "expected", "times"),
    [
        ("all-reduce", Collective("all-reduce", PART, ("data",), ALONG_DATA), 1),
        # bfloat16, though CPUs add it up in float32
        ("all-reduce of bfloat16", Collective("all-reduce", PART // 2, ("model",), ALONG_MODEL), 1),
        ("all-reduce of all", Collective("all-reduce", PART, ("data", "model"), ALL), 1),
        ("all-gather", Collective("all-gather", WHOLE, ("data",), ALONG_DATA), 1),
        ("reduce-scatter", Collective("reduce-scatter", WHOLE, ("data",), ALONG_DATA), 1),
        ("all-to-all", Collective("all-to-all", PART, ("data",), ALONG_DATA), 1),
        ("collective-permute", Collective("collective-permute", PART, ("data",), (0, 2)), 1),
        ("five in a loop", Collective("all-reduce", PART, ("model",), ALONG_MODEL), 5),
        (
            "a product of which each keeps its rows",
            Collective("reduce-scatter", 64 * 32 * 4, ("data",), ALONG_DATA),
            1,
        ),
    ],
)
def test_kinds_bytes_and_axes(programs, name, expected, times) -> None:
    assert collectives(read_program(programs[name]), MESH) == Counter({expected: times})


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
