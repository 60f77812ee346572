"""Graphs of ONNX, written node by node, and their files. The package `onnx` is imported with the first node."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_OPERATORS, _FILE_VERSION = 20, 9  # of 2023: the first operator set with Gelu; onnxruntime 1.17 can read it
_LARGEST = 1 << 30  # bytes of weights in the graph's file, of which protobuf reads 2 GiB; more go beside it
_FLOAT32, _ZERO = 1, np.uint8(128)  # unsigned weights around 128: the sums of their products overflow on no processor

# a value's name -> its dtype, and its axes by names or sizes (None: any)
Values = Mapping[str, tuple[Any, Sequence[str | int] | None]]


class Graph:
    """Nodes in the order in which they run. A value is given by its name, a string; arrays become constants.

    int8: weights have 8 bits. branch_of: the graph whose `If` has this one as a branch, and which holds its constants.
    """

    def __init__(self, int8: bool, branch_of: "Graph | None" = None) -> None:
        self.int8, self.nodes = int8, list[Any]()
        self.constants: dict[str, np.ndarray] = {} if branch_of is None else branch_of.constants

    def add_node(self, operator: str, outputs: Sequence[Any], *inputs: Any, **options: Any) -> list[str]:
        """Append a node; returns the names of its outputs: those in `outputs`, and a new one for each other item."""
        from onnx import helper

        names = [one if isinstance(one, str) else f"{operator}_{len(self.nodes)}_{one}" for one in outputs]
        sources = [one if isinstance(one, str) else self._constant(np.asarray(one, order="C")) for one in inputs]
        self.nodes.append(helper.make_node(operator, sources, names, **options))
        return names

    def __call__(self, operator: str, *inputs: Any, **options: Any) -> str:
        """Append a node with one output; returns its name."""
        return self.add_node(operator, [0], *inputs, **options)[0]

    def _constant(self, array: np.ndarray) -> str:
        name = f"{array.dtype}_{'x'.join(map(str, array.shape))}_{hashlib.sha256(array.data).hexdigest()[:16]}"
        self.constants[name] = array  # equal ones are stored once
        return name

    def product(self, x: str, weight: np.ndarray) -> str:
        """x [..., I] times weight [I, O] float32: in int8 with a factor for each column, and one for all of x."""
        if not self.int8:
            return self("MatMul", x, weight)
        rounded, factors = _in_int8(weight, axis=0)
        x, factor, zero = self.add_node("DynamicQuantizeLinear", range(3), x)
        sums = self("Cast", self("MatMulInteger", x, rounded, zero, _ZERO), to=_FLOAT32)
        return self("Mul", sums, self("Mul", factor, factors[0]))

    def rows(self, table: np.ndarray, ids: str) -> str:
        """Rows of a table [V, D] float32, by ids [...]: in int8 with a factor for each row."""
        if not self.int8:
            return self("Gather", table, ids)
        rounded, factors = _in_int8(table, axis=1)
        found = self("Sub", self("Cast", self("Gather", rounded, ids), to=_FLOAT32), np.float32(_ZERO))
        return self("Mul", found, self("Gather", factors, ids))

    def proto(self, name: str, inputs: Values, outputs: Values) -> Any:
        """The graph as onnx has it, without the constants."""
        from onnx import helper

        def described(values: Values) -> list[Any]:
            return [
                helper.make_tensor_value_info(one, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), axes)
                for one, (dtype, axes) in values.items()
            ]

        return helper.make_graph(self.nodes, name, described(inputs), described(outputs))

    def save(self, file: Path, inputs: Values, outputs: Values) -> None:
        """Write the graph; large weights go into a file of the same name with `_data` behind it."""
        import onnx

        graph = self.proto(file.stem, inputs, outputs)
        graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in self.constants.items())
        operators = [onnx.helper.make_opsetid("", _OPERATORS)]
        model = onnx.helper.make_model(graph, opset_imports=operators, ir_version=_FILE_VERSION, producer_name="t5xpg")
        is_large = sum(value.nbytes for value in self.constants.values()) > _LARGEST
        onnx.save_model(model, file, save_as_external_data=is_large, location=f"{file.name}_data")


def _in_int8(weight: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The weight as uint8 around 128, and the factors of its distances from 128: float32, of size 1 on `axis`."""
    factors = np.maximum(np.abs(weight).max(axis, keepdims=True), np.finfo(np.float32).tiny) / np.float32(127)
    return (np.rint(weight / factors) + _ZERO).astype(np.uint8), factors
