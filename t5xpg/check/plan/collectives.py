"""The collectives of a compiled program: their kinds, bytes, and axes of the mesh."""

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


def is_promoted(op: Instruction) -> bool:
    """True if a sum of bfloat16 is computed in float32, as on CPUs; accelerators send bfloat16."""
    reducer = op.called("to_apply")
    return op.opcode in ("all-reduce", "reduce-scatter") and reducer is not None and "promoted" in reducer


def collectives(program: Program, mesh: Mapping[str, int]) -> Counter[Collective]:
    """The number of times that each collective runs in one step. mesh: the sizes of its axes, in order."""
    counts: Counter[Collective] = Counter()
    for computation, op, times in program.run():
        if op.opcode in KINDS:
            collective = _collective(program, computation, op, mesh)
            if collective.group > 1:
                counts[collective] += times
    return counts


def _collective(program: Program, computation: Computation, op: Instruction, mesh: Mapping[str, int]) -> Collective:
    kind, count = op.opcode, math.prod(mesh.values())
    group = _group(op, count)
    devices = tuple(range(count)) if group is None else group
    arrays = op.result
    if kind == "reduce-scatter":
        arrays = tuple(array for operand in op.operands for array in computation[operand].result)
    size = sum(array.bytes(16 if is_promoted(op) else 64) for array in arrays)
    if kind == "all-reduce" and _is_scattered(program, computation, op, len(devices)):
        kind = "reduce-scatter"
    return Collective(kind, size, ("?",) if group is None else _axes(devices, mesh), devices)


def _group(op: Instruction, count: int) -> tuple[int, ...] | None:
    """The positions in the mesh of the first group of devices; None if its notation is not known."""
    if listed := _LISTED.search(op.attributes):
        return tuple(int(number) for number in listed[1].split(","))
    if iota := _IOTA.search(op.attributes):
        groups, sizes = ([int(number) for number in iota[place].split(",")] for place in (1, 2))
        return tuple(int(number) for number in _order(sizes, iota[3]).reshape(groups[0], -1)[0])
    if mesh_axes := _MESH.search(op.attributes):
        sizes_of = {name: int(size) for name, size, *_ in _AXIS.findall(mesh_axes[1])}
        positions = _along(sizes_of, mesh_axes[4])
        if mesh_axes[2] is None:
            return positions
        numbers = [int(number) for number in mesh_axes[2].split(",")]
        # the sizes of an array of all devices, or the devices themselves
        order = _order(numbers, mesh_axes[3]) if math.prod(numbers) == count else np.asarray(numbers)
        return tuple(sorted(int(number) for number in order.reshape(-1)[list(positions)]))
    if pairs := _PAIRS.search(op.attributes):
        # a ring or an exchange, where some may send to themselves
        device_pairs = [tuple(int(number) for number in pair.strip("{}").split(",")) for pair in pairs[1].split("},{")]
        return next((tuple(sorted(way)) for way in device_pairs if len(set(way)) > 1), device_pairs[0][:1])
    return None if _ANY.search(op.attributes) else tuple(range(count))


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


def _is_scattered(program: Program, computation: Computation, op: Instruction, group: int) -> bool:
    """True if each device keeps only its own part of a sum: XLA writes a reduce-scatter this way for CPUs."""
    if len(op.result) != 1:
        return False
    users = computation.users[op.name]
    return bool(users) and all(_takes_part(program, user, op.name, op.result[0], group) for user in users)


def _takes_part(program: Program, user: Instruction, name: str, array: Array, group: int) -> bool:
    """True if an instruction reads no more of the array `name` than the part of one device of the group."""
    if user.opcode == "dynamic-slice":
        return user.operands[0] == name and user.result[0].size * group <= array.size
    called = user.called("calls") if user.opcode == "fusion" else None
    if called is None:
        return False
    fused = program.computations[called]
    return all(
        bool(inside := fused.users[parameter.name])
        and all(_takes_part(program, inner_user, parameter.name, array, group) for inner_user in inside)
        for parameter, operand in zip(fused.parameters, user.operands, strict=True)
        if operand == name
    )
