"""A compiled program as XLA prints it for CPUs: its computations, their instructions, and how often each one runs.

Only the parts that a plan needs are read: names, shapes, operands, the computations that are called, trip counts.
"""

import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

BITS = {"pred": 8, "token": 0, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
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
    def bits(self) -> int:
        """Bits of one element."""
        found = re.match(r"[a-z]+(\d+)", self.dtype)
        return BITS.get(self.dtype, int(found[1]) if found else 32)

    def bytes(self, most_bits: int = 128) -> int:
        """Bytes of all elements, with at most `most_bits` bits for each."""
        return self.size * min(self.bits, most_bits) // 8


@dataclass(frozen=True)
class Instruction:
    """One line. result: its arrays, several where it is a tuple. operands: names in the same computation.

    arguments: the text in the brackets, for instance a parameter's number. attributes: the text after the brackets.
    """

    name: str
    opcode: str
    result: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool
    arguments: str = ""

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
        """The number of iterations of a loop; None if the compiler does not know it."""
        found = _TRIPS.search(self.attributes)
        return int(found[1]) if found else None


@dataclass
class Computation:
    """Instructions in their order. All of them have to be added before one is looked up."""

    instructions: list[Instruction] = field(default_factory=list)

    def __getitem__(self, name: str) -> Instruction:
        return self._by_name[name]

    @functools.cached_property
    def _by_name(self) -> Mapping[str, Instruction]:
        return {one.name: one for one in self.instructions}

    @functools.cached_property
    def users(self) -> Mapping[str, list[Instruction]]:
        """The instructions that read a name."""
        users = defaultdict(list)
        for one in self.instructions:
            for operand in dict.fromkeys(one.operands):
                users[operand].append(one)
        return users

    @property
    def root(self) -> Instruction:
        return next(one for one in self.instructions if one.root)

    @property
    def parameters(self) -> list[Instruction]:
        """The parameters, in the order of the caller's operands."""
        found = [one for one in self.instructions if one.opcode == "parameter"]
        return sorted(found, key=lambda one: int(one.arguments))


@dataclass(frozen=True)
class Program:
    """unknown_loops: the number of loops with a trip count that the compiler does not know; they are counted once."""

    computations: Mapping[str, Computation]
    entry: str
    unknown_loops: int

    def run(self) -> Iterator[tuple[Computation, Instruction, int]]:
        """Yields every instruction that runs as one operation, with its computation and the number of its runs.

        Loops, calls and conditionals are followed, of a conditional only the longest branch. A fusion is one operation.
        """
        yield from self._run(self.entry, 1)

    def _run(self, name: str, times: int) -> Iterator[tuple[Computation, Instruction, int]]:
        computation = self.computations[name]
        for op in computation.instructions:
            if op.opcode == "while":
                yield from self._run(str(op.called("body")), times * (1 if op.trips is None else op.trips))
            elif op.opcode == "call":
                yield from self._run(str(op.called("to_apply")), times)
            elif op.opcode == "conditional":
                longest = max(op.branches, key=lambda branch: len(self.computations[branch].instructions))
                yield from self._run(longest, times)
            else:
                yield computation, op, times


def read_program(text: str) -> Program:
    """The program of `jax.stages.Compiled.as_text()`. Raises ValueError if it has no entry computation."""
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    entry = None
    unknown = 0
    for line in text.splitlines():
        if current is None:
            if header := _HEADER.match(line):
                current = computations[header[2]] = Computation()
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
    """The instruction of a line of HLO. text: what follows its name, "f32[2,3] add(%a, %b), metadata={…}"."""
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    kind, rest = text[:end], text[end:].strip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    arrays = tuple(
        Array(dtype, tuple(int(size) for size in shape.split(",") if size))
        for dtype, shape in _ARRAY.findall(_COMMENT.sub("", kind))
    )
    arguments = rest[opening + 1 : closing]
    operands = tuple(_OPERAND.findall(arguments))
    return Instruction(name, rest[:opening], arrays, operands, rest[closing + 1 :], root, arguments)


def _closing(text: str, opening: int) -> int:
    """The index of the bracket that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    raise ValueError(f"no closing bracket: {text[:80]}")
