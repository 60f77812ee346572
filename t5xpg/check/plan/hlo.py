"""A compiled program as XLA writes it out: its computations, their instructions, and how often each one runs.

Only what a plan needs is read: names, shapes, operands, the computations that are called, trip counts.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

BITS = {"pred": 8, "token": 0, "s4": 4, "u4": 4, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\]")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True)
class Array:
    """An array of a program: its element type in XLA's words (f32, bf16, ...) and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * bits(self.dtype) // 8


@dataclass(frozen=True)
class Instruction:
    """One line. result: its arrays, several where it is a tuple. operands: names in the same computation."""

    name: str
    opcode: str
    result: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool
    arguments: str = ""  # what stands in the brackets: a parameter's number

    @property
    def bytes(self) -> int:
        return sum(array.bytes for array in self.result)

    def called(self, kind: str) -> str | None:
        """The computation that is called as `kind`: calls, body, condition, to_apply."""
        return next((name for key, name in _CALLED.findall(self.attributes) if key == kind), None)

    @property
    def branches(self) -> tuple[str, ...]:
        """The computations of a conditional, of which one runs."""
        listed = _BRANCHES.search(self.attributes)
        if listed:
            return tuple(name.strip().lstrip("%") for name in listed[1].split(","))
        return tuple(name for key, name in _CALLED.findall(self.attributes) if key.endswith("_computation"))

    @property
    def trips(self) -> int | None:
        """How often the body of a loop runs, where the compiler knows it."""
        found = _TRIPS.search(self.attributes)
        return int(found[1]) if found else None


@dataclass
class Computation:
    """Instructions in their order."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._by_name: dict[str, Instruction] = {}
        self._users: Mapping[str, list[Instruction]] | None = None

    def __getitem__(self, name: str) -> Instruction:
        if len(self._by_name) != len(self.instructions):
            self._by_name = {one.name: one for one in self.instructions}
        return self._by_name[name]

    def users(self, name: str) -> list[Instruction]:
        """The instructions that read `name`."""
        if self._users is None:
            users = defaultdict(list)
            for one in self.instructions:
                for operand in dict.fromkeys(one.operands):
                    users[operand].append(one)
            self._users = users
        return self._users.get(name, [])

    @property
    def root(self) -> Instruction:
        return next(one for one in self.instructions if one.root)

    @property
    def parameters(self) -> list[Instruction]:
        """In the order of the operands of what calls it."""
        found = [one for one in self.instructions if one.opcode == "parameter"]
        return sorted(found, key=lambda one: int(one.arguments))


@dataclass(frozen=True)
class Program:
    """unknown_loops: how many loops have a trip count that the compiler does not know; they are taken to run once."""

    computations: Mapping[str, Computation]
    entry: str
    unknown_loops: int

    def run(self) -> Iterator[tuple[Computation, Instruction, int]]:
        """Every instruction that runs as one operation, with its computation and how often it runs.

        Loops, calls and conditionals are followed, of the branches of a conditional the longest; what is fused is one
        operation.
        """
        yield from self._run(self.entry, 1)

    def _run(self, name: str, times: int) -> Iterator[tuple[Computation, Instruction, int]]:
        computation = self.computations[name]
        for one in computation.instructions:
            if one.opcode == "while":
                body = one.called("body")
                assert body is not None
                yield from self._run(body, times * (1 if one.trips is None else one.trips))
            elif one.opcode == "call":
                called = one.called("to_apply")
                assert called is not None
                yield from self._run(called, times)
            elif one.opcode == "conditional":
                longest = max(one.branches, key=lambda branch: len(self.computations[branch].instructions))
                yield from self._run(longest, times)
            else:
                yield computation, one, times


def bits(dtype: str) -> int:
    """Of one element."""
    if dtype in BITS:
        return BITS[dtype]
    found = re.match(r"[a-z]+(\d+)", dtype)
    return int(found[1]) if found else 32


def read(text: str) -> Program:
    """The program of `jax.stages.Compiled.as_text()`. Raises ValueError where there is no entry in it."""
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    entry = None
    unknown = 0
    for line in text.splitlines():
        if current is None:
            header = _HEADER.match(line)
            if header:
                current = computations[header[2]] = Computation(header[2])
                entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif found := _LINE.match(line):
            instruction = _instruction(found[2], found[3], bool(found[1]))
            current.instructions.append(instruction)
            unknown += instruction.opcode == "while" and instruction.trips is None
    if entry is None:
        raise ValueError("no ENTRY computation")
    return Program(computations, entry, unknown)


def _instruction(name: str, text: str, root: bool) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    kind, rest = text[:end], text[end:].strip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    arrays = tuple(
        Array(dtype, tuple(int(size.lstrip("<=")) for size in shape.split(",") if size))
        for dtype, shape in _ARRAY.findall(_COMMENT.sub("", kind))
    )
    arguments = rest[opening + 1 : closing]
    operands = tuple(_OPERAND.findall(arguments))
    return Instruction(name, rest[:opening], arrays, operands, rest[closing + 1 :], root, arguments)


def _closing(text: str, opening: int) -> int:
    depth = 0
    for place in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    raise ValueError(f"no closing bracket: {text[:80]}")


KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_NAMES = KINDS + tuple(f"{kind}-start" for kind in KINDS) + ("ragged-all-to-all", "collective-broadcast")
_DONE = tuple(f"{kind}-done" for kind in KINDS)
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:,\s*device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?\s*\{([^}]*)\}"
)
_AXIS = re.compile(r"'([^']+)'(?:=(\d+)|:\((\d+)\)(\d+))?")
_EVERYONE = re.compile(r"replica_groups=(?!\{\})")
_PAIRS = re.compile(r"source_target_pairs=\{(.*?)\}\}")


@dataclass(frozen=True)
class Collective:
    """One collective operation of a device.

    bytes: of the whole array that is added up, gathered, scattered or exchanged, in a device's memory: the result, of a
    reduce-scatter the operand. axes: of the mesh, along which its devices lie; "?" where XLA says it in a way that is
    not known here, and all devices are taken. group: their number; devices: the positions in the mesh of one group.
    """

    kind: str
    bytes: int
    axes: tuple[str, ...]
    devices: tuple[int, ...]

    @property
    def group(self) -> int:
        return len(self.devices)


def is_collective(opcode: str) -> bool:
    """Whether an instruction sends something, or waits for it."""
    return opcode in _NAMES or opcode in _DONE


def is_promoted(one: Instruction) -> bool:
    """Whether a sum of bfloat16 is carried out in float32, as CPUs do; on accelerators bfloat16 goes over the wire."""
    added = one.called("to_apply")
    return one.opcode.startswith(("all-reduce", "reduce-scatter")) and added is not None and "promoted" in added


def collectives(program: Program, mesh: Mapping[str, int]) -> Counter[Collective]:
    """How often each collective runs in one step. mesh: the sizes of its axes, in their order."""
    found: Counter[Collective] = Counter()
    for computation, one, times in program.run():
        if one.opcode in _NAMES:
            sent = _collective(program, computation, one, mesh)
            if sent.group > 1:
                found[sent] += times
    return found


def _collective(program: Program, computation: Computation, one: Instruction, mesh: Mapping[str, int]) -> Collective:
    kind = one.opcode.removesuffix("-start")
    devices = _devices(one, math.prod(mesh.values()))
    arrays = list(one.result)
    if kind == "reduce-scatter":
        arrays = [array for operand in one.operands for array in computation[operand].result]
    elif one.opcode.endswith("-start") and len(arrays) > 1:  # (operands, results, ...)
        arrays = arrays[len(arrays) // 2 :]
    width = 16 if is_promoted(one) else 64
    size = sum(array.size * min(bits(array.dtype), width) // 8 for array in arrays)
    if kind == "all-reduce" and _is_scattered(program, computation, one, len(devices)):
        kind = "reduce-scatter"
    known = len(devices) < math.prod(mesh.values()) or _is_known(one)
    return Collective(kind, size, _axes(devices, mesh) if known else ("?",), devices)


def _is_known(one: Instruction) -> bool:
    read = (_LISTED, _IOTA, _MESH, _PAIRS)
    return not _EVERYONE.search(one.attributes) or any(pattern.search(one.attributes) for pattern in read)


def _devices(one: Instruction, count: int) -> tuple[int, ...]:
    """The positions in the mesh of the first group of devices."""
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
        # of an order, or the devices themselves
        order = _order(numbers, named[3]) if math.prod(numbers) == count else np.asarray(numbers)
        return tuple(sorted(int(number) for number in order.reshape(-1)[list(along)]))
    if pairs := _PAIRS.search(one.attributes):
        # a ring or an exchange, where some may send to themselves
        ways = [tuple(int(number) for number in pair.strip("{}").split(",")) for pair in pairs[1].split("},{")]
        return next((tuple(sorted(way)) for way in ways if len(set(way)) > 1), ways[0][:1])
    return tuple(range(count))


def _order(sizes: Sequence[int], transposed: str | None) -> np.ndarray:
    order = np.arange(math.prod(sizes)).reshape(sizes)
    return order.transpose([int(number) for number in transposed.split(",")]) if transposed else order


def _along(sizes: Mapping[str, int], names: str) -> tuple[int, ...]:
    """Positions of the devices along some axes of a mesh in row-major order, at 0 of the others.

    names: as in 'a','b':(2)4, where the latter is the part of 4 of the axis b, behind a part of 2.
    """
    numbers = np.zeros(1, int)
    strides = {name: math.prod(list(sizes.values())[place + 1 :]) for place, name in enumerate(sizes)}
    for name, _, before, part in _AXIS.findall(names):
        size = int(part or sizes[name])
        stride = strides[name] * (sizes[name] // (int(before) * size) if part else 1)
        numbers = (numbers[:, None] + np.arange(size) * stride).reshape(-1)
    return tuple(int(number) for number in numbers)


def _axes(devices: tuple[int, ...], mesh: Mapping[str, int]) -> tuple[str, ...]:
    places = np.unravel_index(np.asarray(devices), tuple(mesh.values()))
    return tuple(name for name, along in zip(mesh, places, strict=True) if len(set(along.tolist())) > 1)


def _is_scattered(program: Program, computation: Computation, one: Instruction, group: int) -> bool:
    """Whether each device keeps its own part of a sum alone: XLA writes a reduce-scatter so for CPUs."""
    if len(one.result) != 1:
        return False
    whole = one.result[0]
    users = computation.users(one.name)
    return bool(users) and all(_takes_part(program, user, one.name, whole, group) for user in users)


def _takes_part(program: Program, user: Instruction, name: str, whole: Array, group: int) -> bool:
    if user.opcode == "dynamic-slice":
        return user.operands[0] == name and user.result[0].size * group <= whole.size
    called = user.called("calls") if user.opcode == "fusion" else None
    if called is None:
        return False
    fused = program.computations[called]
    places = [place for place, operand in enumerate(user.operands) if operand == name]
    return all(
        bool(inside := fused.users(parameter.name))
        and all(_takes_part(program, each, parameter.name, whole, group) for each in inside)
        for parameter in (fused.parameters[place] for place in places)
    )


def merged(found: Mapping[Collective, int]) -> list[tuple[Collective, int]]:
    """One for each kind and axes, with the bytes of all, and how many they are; the most bytes first."""
    together: dict[tuple[str, tuple[str, ...]], list[tuple[Collective, int]]] = {}
    for one, times in found.items():
        together.setdefault((one.kind, one.axes), []).append((one, times))
    rows = []
    for several in together.values():
        total = sum(one.bytes * times for one, times in several)
        rows.append((dataclasses.replace(several[0][0], bytes=total), sum(times for _, times in several)))
    return sorted(rows, key=lambda row: -row[0].bytes)


_FREE = {
    "after-all", "bitcast", "constant", "copy", "copy-done", "copy-start", "get-tuple-element", "iota", "parameter",
    "partition-id", "replica-id", "tuple",
}  # fmt: skip
_THROUGH = {"bitcast", "copy", "get-tuple-element", "reshape"}
_MOVING = {"parameter", "bitcast", "copy", "reshape", "transpose"}
_SLICES = {"dynamic-slice", "gather", "slice"}
_SUMS = {"reduce", "reduce-window"}
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


@dataclass(frozen=True)
class Operation:
    """flops: of its matrix products. bytes: read and written."""

    flops: int
    bytes: int


def operations(program: Program, compute_dtype: str) -> Counter[Operation]:
    """How often each operation runs in one step on one device. compute_dtype: of the model, "bfloat16" for instance."""
    reader = _Reader(program, 8 * _width(compute_dtype))
    found: Counter[Operation] = Counter()
    for computation, one, times in program.run():
        if one.opcode not in _FREE and not is_collective(one.opcode):
            found[Operation(reader.flops(computation, one), reader.bytes(computation, one))] += times
    return found


def _width(dtype: str) -> int:
    return {"bfloat16": 2, "float16": 2, "float32": 4}[dtype]


class _Reader:
    def __init__(self, program: Program, compute_bits: int) -> None:
        self._program, self._compute_bits = program, compute_bits

    def flops(self, computation: Computation, one: Instruction) -> int:
        """Of the matrix products of an operation, fused ones included."""
        if one.opcode == "dot":
            left = computation[one.operands[0]].result[0]
            contracted = _CONTRACTED.search(one.attributes)
            dims = [int(dim) for dim in contracted[1].split(",") if dim] if contracted else []
            return 2 * one.result[0].size * math.prod(left.shape[dim] for dim in dims)
        fused = self._fused(one)
        return 0 if fused is None else sum(self.flops(fused, each) for each in fused.instructions)

    def bytes(self, computation: Computation, one: Instruction) -> int:
        """That an operation reads and writes."""
        if self._is_conversion(one):
            # made beside what it converts; only what is narrower than its source has to be written
            narrower = self._bits(computation, one.name) < self._bits(computation, one.operands[0])
            return self._size(computation, one.name) if narrower else 0
        written = self._written(computation, one)
        read = sum(self._read(computation, one, place) for place in range(len(one.operands)))
        return written + read

    def _written(self, computation: Computation, one: Instruction) -> int:
        updated = self._update(one)
        if updated is not None:
            return updated.bytes
        users = self._users(computation, one.name)
        passing = [user for user in users if self._is_sum(user) or self._is_conversion(user)]
        if not self._is_product(one) and users and len(passing) == len(users) and not self._is_sum(one):
            return 0
        return self._size(computation, one.name)

    def _read(self, computation: Computation, one: Instruction, place: int) -> int:
        source = self._source(computation, one.operands[place])
        if self._is_sum(one) and self._is_elementwise(source):
            return 0
        per_element = self._bits(computation, source.name) / 8
        fused = self._fused(one)
        if fused is not None and place < len(fused.parameters):
            inside = fused.users(fused.parameters[place].name)
            if inside and all(
                user.opcode in _SLICES and user.operands[0] == fused.parameters[place].name for user in inside
            ):
                return round(sum(user.result[0].size for user in inside) * per_element)
            if inside and all(self._is_updated(user, fused.parameters[place].name) for user in inside):
                return 0  # in place
        if one.opcode in _SLICES and place == 0:
            return self._size(computation, one.name)
        if one.opcode == "dynamic-update-slice" and place == 0:
            return 0
        return self._size(computation, one.operands[place])

    def _size(self, computation: Computation, name: str) -> int:
        """Bytes of a value as an accelerator keeps it."""
        one = computation[name]
        here = self._bits(computation, name)
        return sum(array.size * min(bits(array.dtype), here) // 8 for array in one.result)

    def _bits(self, computation: Computation, name: str) -> int:
        """Of an element of a value as an accelerator keeps it."""
        one = computation[name]
        own = max((bits(array.dtype) for array in one.result), default=0)
        if self._is_product(one) or is_promoted(one):
            return min(own, self._compute_bits)
        if one.opcode in _THROUGH and one.operands:
            return min(own, self._bits(computation, one.operands[0]))
        if self._is_conversion(one) or self._is_movement(one):
            inside = self._fused(one)
            narrowest = [own, self._bits(computation, one.operands[0])]
            narrowest += [bits(each.result[0].dtype) for each in (inside.instructions if inside else ()) if each.result]
            return min(narrowest)
        return own

    def _source(self, computation: Computation, name: str) -> Instruction:
        one = computation[name]
        while one.opcode in _THROUGH and one.operands:
            one = computation[one.operands[0]]
        return one

    def _users(self, computation: Computation, name: str) -> list[Instruction]:
        """What reads a value, under whatever name."""
        found = []
        for user in computation.users(name):
            found += self._users(computation, user.name) or [user] if user.opcode in _THROUGH else [user]
        return found

    def _fused(self, one: Instruction) -> Computation | None:
        called = one.called("calls") if one.opcode == "fusion" else None
        return None if called is None else self._program.computations[called]

    def _opcodes(self, one: Instruction) -> set[str]:
        fused = self._fused(one)
        return {one.opcode} if fused is None else {each.opcode for each in fused.instructions}

    def _is_sum(self, one: Instruction) -> bool:
        return bool(self._opcodes(one) & _SUMS)

    def _is_product(self, one: Instruction) -> bool:
        fused = self._fused(one)
        return (one if fused is None else self._source(fused, fused.root.name)).opcode == "dot"

    def _is_elementwise(self, one: Instruction) -> bool:
        return one.opcode == "fusion" and not self._is_sum(one) and "dot" not in self._opcodes(one)

    def _is_conversion(self, one: Instruction) -> bool:
        found = self._opcodes(one)
        return "convert" in found and found <= _MOVING | {"convert"} and len(one.operands) == 1

    def _is_movement(self, one: Instruction) -> bool:
        return one.opcode in ("fusion", "transpose") and len(one.operands) == 1 and self._opcodes(one) <= _MOVING

    def _update(self, one: Instruction) -> Array | None:
        """What is written into a larger array in place, where that is all an operation does."""
        if one.opcode == "dynamic-update-slice":
            return None
        fused = self._fused(one)
        if fused is None:
            return None
        root = self._source(fused, fused.root.name)
        if root.opcode != "dynamic-update-slice":
            return None
        return fused[root.operands[1]].result[0]

    @staticmethod
    def _is_updated(user: Instruction, name: str) -> bool:
        return user.opcode == "dynamic-update-slice" and user.operands[0] == name
