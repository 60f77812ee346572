"""The operations of a compiled program: matrix products and memory traffic, as on an accelerator.

A CPU's program widens bfloat16, splits what others fuse, and writes intermediate results; the counts correct for that.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass

from t5xpg.check.plan.collectives import KINDS, is_promoted
from t5xpg.check.plan.program import Array, Computation, Instruction, Program

# Operations that take no time of their own.
_FREE = {
    "after-all", "bitcast", "constant", "copy", "get-tuple-element", "iota", "parameter", "partition-id", "replica-id",
    "tuple", *KINDS,
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
    reader = _Reader(program, {"bfloat16": 16, "float16": 16, "float32": 32}[compute_dtype])
    found: Counter[Operation] = Counter()
    for computation, one, times in program.run():
        if one.opcode not in _FREE:
            found[Operation(reader.flops(computation, one), reader.bytes(computation, one))] += times
    return found


class _Reader:
    def __init__(self, program: Program, compute_bits: int) -> None:
        self._program, self._compute_bits = program, compute_bits

    def flops(self, computation: Computation, one: Instruction) -> int:
        """The FLOPs of an operation's matrix products, fused ones included."""
        if one.opcode == "dot":
            left = computation[one.operands[0]].result[0]
            contracted = _CONTRACTED.search(one.attributes)
            dims = [int(dim) for dim in contracted[1].split(",") if dim] if contracted else []
            return 2 * one.result[0].size * math.prod(left.shape[dim] for dim in dims)
        fused = self._fused(one)
        return 0 if fused is None else sum(self.flops(fused, each) for each in fused.instructions)

    def bytes(self, computation: Computation, one: Instruction) -> int:
        """The bytes that an operation reads and writes."""
        if self._is_conversion(one):
            # made together with its source; only a result that is narrower than that has to be written
            narrower = self._bits(computation, one.name) < self._bits(computation, one.operands[0])
            return self._size(computation, one.name) if narrower else 0
        written = self._written(computation, one)
        read = sum(self._read(computation, one, place) for place in range(len(one.operands)))
        return written + read

    def _written(self, computation: Computation, one: Instruction) -> int:
        updated = self._update(one)
        if updated is not None:
            return updated.bytes()
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
            name = fused.parameters[place].name
            inside = fused.users(name)
            if inside and all(user.opcode in _SLICES and user.operands[0] == name for user in inside):
                return round(sum(user.result[0].size for user in inside) * per_element)
            if inside and all(user.opcode == "dynamic-update-slice" and user.operands[0] == name for user in inside):
                return 0  # in place
        if one.opcode in _SLICES and place == 0:
            return self._size(computation, one.name)
        if one.opcode == "dynamic-update-slice" and place == 0:
            return 0
        return self._size(computation, one.operands[place])

    def _size(self, computation: Computation, name: str) -> int:
        """Bytes of a value as an accelerator keeps it."""
        return sum(array.bytes(self._bits(computation, name)) for array in computation[name].result)

    def _bits(self, computation: Computation, name: str) -> int:
        """Bits of one element of a value, as an accelerator keeps it."""
        one = computation[name]
        own = max((array.bits for array in one.result), default=0)
        if self._is_product(one) or is_promoted(one):
            return min(own, self._compute_bits)
        if one.opcode in _THROUGH and one.operands:
            return min(own, self._bits(computation, one.operands[0]))
        if self._is_conversion(one) or self._is_movement(one):
            inside = self._fused(one)
            narrowest = [own, self._bits(computation, one.operands[0])]
            narrowest += [each.result[0].bits for each in (inside.instructions if inside else ()) if each.result]
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
        fused = self._fused(one)
        root = None if fused is None else self._source(fused, fused.root.name)
        if fused is None or root is None or root.opcode != "dynamic-update-slice":
            return None
        return fused[root.operands[1]].result[0]
