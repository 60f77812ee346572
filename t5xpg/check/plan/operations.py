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
    """The number of times that each operation runs in one step on one device. compute_dtype: the model's."""
    reader = _Reader(program, {"bfloat16": 16, "float16": 16, "float32": 32}[compute_dtype])
    counts: Counter[Operation] = Counter()
    for computation, op, times in program.run():
        if op.opcode not in _FREE:
            counts[Operation(reader.flops(computation, op), reader.bytes(computation, op))] += times
    return counts


class _Reader:
    def __init__(self, program: Program, compute_bits: int) -> None:
        self._program, self._compute_bits = program, compute_bits

    def flops(self, computation: Computation, op: Instruction) -> int:
        """The FLOPs of an operation's matrix products, fused ones included."""
        if op.opcode == "dot":
            left = computation[op.operands[0]].result[0]
            contracted = _CONTRACTED.search(op.attributes)
            dims = [int(dim) for dim in contracted[1].split(",") if dim] if contracted else []
            return 2 * op.result[0].size * math.prod(left.shape[dim] for dim in dims)
        fused = self._fused(op)
        return 0 if fused is None else sum(self.flops(fused, each) for each in fused.instructions)

    def bytes(self, computation: Computation, op: Instruction) -> int:
        """The bytes that an operation reads and writes."""
        if self._is_conversion(op):
            # computed together with its source; only a narrower result has to be written
            narrower = self._bits(computation, op.name) < self._bits(computation, op.operands[0])
            return self._size(computation, op.name) if narrower else 0
        read = sum(self._read(computation, op, place) for place in range(len(op.operands)))
        return self._written(computation, op) + read

    def _written(self, computation: Computation, op: Instruction) -> int:
        updated = self._update(op)
        if updated is not None:
            return updated.bytes()
        users = self._users(computation, op.name)
        passing = [user for user in users if self._is_sum(user) or self._is_conversion(user)]
        if not self._is_product(op) and users and len(passing) == len(users) and not self._is_sum(op):
            return 0
        return self._size(computation, op.name)

    def _read(self, computation: Computation, op: Instruction, place: int) -> int:
        source = self._source(computation, op.operands[place])
        if self._is_sum(op) and self._is_elementwise(source):
            return 0
        per_element = self._bits(computation, source.name) / 8
        fused = self._fused(op)
        if fused is not None and place < len(fused.parameters):
            name = fused.parameters[place].name
            readers = fused.users[name]
            if readers and all(user.opcode in _SLICES and user.operands[0] == name for user in readers):
                return round(sum(user.result[0].size for user in readers) * per_element)
            if readers and all(user.opcode == "dynamic-update-slice" and user.operands[0] == name for user in readers):
                return 0  # in place
        if op.opcode in _SLICES and place == 0:
            return self._size(computation, op.name)
        if op.opcode == "dynamic-update-slice" and place == 0:
            return 0
        return self._size(computation, op.operands[place])

    def _size(self, computation: Computation, name: str) -> int:
        """Bytes of a value as an accelerator keeps it."""
        return sum(array.bytes(self._bits(computation, name)) for array in computation[name].result)

    def _bits(self, computation: Computation, name: str) -> int:
        """Bits of one element of a value, as an accelerator keeps it."""
        op = computation[name]
        bits = max((array.bits for array in op.result), default=0)
        if self._is_product(op) or is_promoted(op):
            return min(bits, self._compute_bits)
        if op.opcode in _THROUGH and op.operands:
            return min(bits, self._bits(computation, op.operands[0]))
        if self._is_conversion(op) or self._is_movement(op):
            fused = self._fused(op)
            narrowest = [bits, self._bits(computation, op.operands[0])]
            narrowest += [each.result[0].bits for each in (fused.instructions if fused else ()) if each.result]
            return min(narrowest)
        return bits

    def _source(self, computation: Computation, name: str) -> Instruction:
        op = computation[name]
        while op.opcode in _THROUGH and op.operands:
            op = computation[op.operands[0]]
        return op

    def _users(self, computation: Computation, name: str) -> list[Instruction]:
        """The instructions that read a value, also through bitcasts and copies."""
        readers = []
        for user in computation.users[name]:
            readers += self._users(computation, user.name) or [user] if user.opcode in _THROUGH else [user]
        return readers

    def _fused(self, op: Instruction) -> Computation | None:
        called = op.called("calls") if op.opcode == "fusion" else None
        return None if called is None else self._program.computations[called]

    def _opcodes(self, op: Instruction) -> set[str]:
        fused = self._fused(op)
        return {op.opcode} if fused is None else {each.opcode for each in fused.instructions}

    def _is_sum(self, op: Instruction) -> bool:
        return bool(self._opcodes(op) & _SUMS)

    def _is_product(self, op: Instruction) -> bool:
        fused = self._fused(op)
        return (op if fused is None else self._source(fused, fused.root.name)).opcode == "dot"

    def _is_elementwise(self, op: Instruction) -> bool:
        return op.opcode == "fusion" and not self._is_sum(op) and "dot" not in self._opcodes(op)

    def _is_conversion(self, op: Instruction) -> bool:
        opcodes = self._opcodes(op)
        return "convert" in opcodes and opcodes <= _MOVING | {"convert"} and len(op.operands) == 1

    def _is_movement(self, op: Instruction) -> bool:
        return op.opcode in ("fusion", "transpose") and len(op.operands) == 1 and self._opcodes(op) <= _MOVING

    def _update(self, op: Instruction) -> Array | None:
        """The array that an operation writes into a larger array in place, if it does nothing else."""
        fused = self._fused(op)
        root = None if fused is None else self._source(fused, fused.root.name)
        if fused is None or root is None or root.opcode != "dynamic-update-slice":
            return None
        return fused[root.operands[1]].result[0]
