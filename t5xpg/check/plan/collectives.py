"""What the devices of a compiled program send each other: kind, bytes, and along which axes of the mesh."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from t5xpg.check.plan.program import Array, Computation, Instruction, Program

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# The ways in which XLA writes groups of devices: {{0,1},{2,3}}, [2,2]<=[4], mesh['a'=2,'b'=2] {'b'}; and pairs.
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:,\s*device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?\s*\{([^}]*)\}"
)
_AXIS = re.compile(r"'([^']+)'(?:=(\d+)|:\((\d+)\)(\d+))?")
_PAIRS = re.compile(r"source_target_pairs=\{(.*?)\}\}")
_ANY = re.compile(r"replica_groups=(?!\{\})")


@dataclass(frozen=True)
class Collective:
    """One collective operation of a device.

    bytes: the size in a device's memory of the whole array that is added up, gathered, scattered or exchanged: the
    result, or for a reduce-scatter the operand. axes: the mesh axes that its devices lie along; "?" where XLA writes
    them in an unknown way, and all devices are taken. devices: one group's positions in the mesh. group: their number.
    """

    kind: str
    bytes: int
    axes: tuple[str, ...]
    devices: tuple[int, ...]

    @property
    def group(self) -> int:
        return len(self.devices)


def is_promoted(one: Instruction) -> bool:
    """Whether a sum of bfloat16 is carried out in float32, as CPUs do; on accelerators bfloat16 goes over the wire."""
    added = one.called("to_apply")
    return one.opcode in ("all-reduce", "reduce-scatter") and added is not None and "promoted" in added


def collectives(program: Program, mesh: Mapping[str, int]) -> Counter[Collective]:
    """How often each collective runs in one step. mesh: the sizes of its axes, in their order."""
    found: Counter[Collective] = Counter()
    for computation, one, times in program.run():
        if one.opcode in KINDS:
            sent = _collective(program, computation, one, mesh)
            if sent.group > 1:
                found[sent] += times
    return found


def _collective(program: Program, computation: Computation, one: Instruction, mesh: Mapping[str, int]) -> Collective:
    kind, count = one.opcode, math.prod(mesh.values())
    group = _group(one, count)
    devices = tuple(range(count)) if group is None else group
    arrays = one.result
    if kind == "reduce-scatter":
        arrays = tuple(array for operand in one.operands for array in computation[operand].result)
    size = sum(array.bytes(16 if is_promoted(one) else 64) for array in arrays)
    if kind == "all-reduce" and _is_scattered(program, computation, one, len(devices)):
        kind = "reduce-scatter"
    return Collective(kind, size, ("?",) if group is None else _axes(devices, mesh), devices)


def _group(one: Instruction, count: int) -> tuple[int, ...] | None:
    """The positions in the mesh of the first group of devices; None where it is written in no known way."""
    if listed := _LISTED.search(one.attributes):
        return tuple(int(number) for number in listed[1].split(","))
    if iota := _IOTA.search(one.attributes):
        groups, sizes = ([int(number) for number in iota[place].split(",")] for place in (1, 2))
        return tuple(int(number) for number in _order(sizes, iota[3]).reshape(groups[0], -1)[0])
    if named := _MESH.search(one.attributes):
        sizes_of = {name: int(size) for name, size, *_ in _AXIS.findall(named[1])}
        along = _along(sizes_of, named[4])
        if named[2] is None:
            return along
        numbers = [int(number) for number in named[2].split(",")]
        # the sizes of an array of all devices, or the devices themselves
        order = _order(numbers, named[3]) if math.prod(numbers) == count else np.asarray(numbers)
        return tuple(sorted(int(number) for number in order.reshape(-1)[list(along)]))
    if pairs := _PAIRS.search(one.attributes):
        # a ring or an exchange, where some may send to themselves
        ways = [tuple(int(number) for number in pair.strip("{}").split(",")) for pair in pairs[1].split("},{")]
        return next((tuple(sorted(way)) for way in ways if len(set(way)) > 1), ways[0][:1])
    return None if _ANY.search(one.attributes) else tuple(range(count))


def _order(sizes: Sequence[int], transposed: str | None) -> np.ndarray:
    order = np.arange(math.prod(sizes)).reshape(sizes)
    return order.transpose([int(number) for number in transposed.split(",")]) if transposed else order


def _along(sizes: Mapping[str, int], names: str) -> tuple[int, ...]:
    """Positions along some axes of a row-major mesh, at 0 of the others. 'b':(2)4: 4 of b, behind a part of 2."""
    numbers = np.zeros(1, int)
    strides = {name: math.prod(list(sizes.values())[place + 1 :]) for place, name in enumerate(sizes)}
    for name, _, before, part in _AXIS.findall(names):
        size = int(part or sizes[name])
        stride = strides[name] * (sizes[name] // (int(before) * size) if part else 1)
        numbers = (numbers[:, None] + np.arange(size) * stride).reshape(-1)
    return tuple(int(number) for number in numbers)


def _axes(devices: tuple[int, ...], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which the positions differ."""
    positions = np.unravel_index(np.asarray(devices), tuple(mesh.values()))
    return tuple(name for name, along in zip(mesh, positions, strict=True) if len(set(along.tolist())) > 1)


def _is_scattered(program: Program, computation: Computation, one: Instruction, group: int) -> bool:
    """Whether each device keeps only its own part of a sum: XLA writes a reduce-scatter this way for CPUs."""
    if len(one.result) != 1:
        return False
    users = computation.users(one.name)
    return bool(users) and all(_takes_part(program, user, one.name, one.result[0], group) for user in users)


def _takes_part(program: Program, user: Instruction, name: str, whole: Array, group: int) -> bool:
    """Whether an instruction reads no more of the array `name` than the part of one device of the group."""
    if user.opcode == "dynamic-slice":
        return user.operands[0] == name and user.result[0].size * group <= whole.size
    called = user.called("calls") if user.opcode == "fusion" else None
    if called is None:
        return False
    fused = program.computations[called]
    return all(
        bool(inside := fused.users(parameter.name))
        and all(_takes_part(program, each, parameter.name, whole, group) for each in inside)
        for parameter, operand in zip(fused.parameters, user.operands, strict=True)
        if operand == name
    )
