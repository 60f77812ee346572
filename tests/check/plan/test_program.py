"""A program's text, read."""

from __future__ import annotations

import pytest

from t5xpg.check.plan.program import Array, read

TEXT = """
HloModule jit_f, entry_computation_layout={(f32[4,8]{1,0})->f32[4]{0}}

%fused (param_0: f32[4,8], param_1: f32[]) -> f32[4,8] {
  %param_1 = f32[] parameter(1)
  %param_0 = f32[4,8]{1,0} parameter(0)
  %wide = f32[4,8]{1,0} broadcast(%param_1), dimensions={}
  ROOT %sum = f32[4,8]{1,0} add(%param_0, %wide)
}

%body (state: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %state = (s32[], f32[4,8]{1,0}) parameter(0)
  %x = f32[4,8]{1,0} get-tuple-element(%state), index=1
  %c = f32[] constant(2)
  %y = f32[4,8]{1,0} fusion(%x, %c), kind=kLoop, calls=%fused
  ROOT %out = (s32[], f32[4,8]{1,0}) tuple(%c, %y)
}

%test (state: (s32[], f32[4,8])) -> pred[] {
  %state.1 = (s32[], f32[4,8]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (x: f32[4,8]) -> f32[4] {
  %x.1 = bf16[4,8]{1,0:T(8,128)} parameter(0), metadata={op_name="x (an argument)"}
  %pair = (s32[], /*index=1*/f32[4,8]{1,0}) while(%x.1), condition=%test, body=%body, TRIPS
  ROOT %end = f32[4]{0} custom-call(%pair), custom_call_target="a(b"
}
"""
KNOWN = 'backend_config={"known_trip_count":{"n":"6"}}'


def test_shapes_operands_and_calls() -> None:
    program = read(TEXT.replace("TRIPS", KNOWN))
    entry = program.computations[program.entry]
    assert [one.opcode for one in entry.instructions] == ["parameter", "while", "custom-call"]
    assert entry["x.1"].result == (Array("bf16", (4, 8)),)
    assert entry["x.1"].result[0].bytes() == 2 * 4 * 8
    assert entry["pair"].result == (Array("s32", ()), Array("f32", (4, 8)))
    assert entry["pair"].called("body") == "body"
    assert entry.root.operands == ("pair",)
    assert [user.name for user in entry.users("x.1")] == ["pair"]
    fused = program.computations["fused"]
    assert [one.name for one in fused.parameters] == ["param_0", "param_1"]


@pytest.mark.parametrize(("trips", "times", "unknown"), [(KNOWN, 6, 0), ("metadata={}", 1, 1)])
def test_a_loop_runs_as_often_as_the_compiler_says_or_counts_once(trips, times, unknown) -> None:
    program = read(TEXT.replace("TRIPS", trips))
    assert {one.name: count for _, one, count in program.run() if one.opcode == "fusion"} == {"y": times}
    assert program.unknown_loops == unknown
