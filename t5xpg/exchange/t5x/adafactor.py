"""Adafactor's accumulators in T5X's train state, there and back.

For every parameter T5X keeps `v_row` and `v_col` where it factors, `v` where it does not, and `m` with momentum; what
is not used is one zero. optax has the same arrays, a tree for each. Source: t5x/adafactor.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.exchange.formats.t5x_files import StoredArray
from t5xpg.exchange.t5x.params import PARAM_STATES, SCAN_AXIS, STEP, StoredState, flat, is_of_all_layers, put
from t5xpg.models.model import Params

SLOTS = ("v_row", "v_col", "v")
_MOMENTUM = "m"
UNUSED = (1,)  # the shape of what is not used
_USUAL = 128


@dataclass(frozen=True)
class Accumulators:
    """Trees of the parameters' structure. step: how many updates there were. min_dim_size_to_factor: which arrays are
    factored, in the words of `optimizers.Adafactor`."""

    step: int
    trees: Mapping[str, Params]
    min_dim_size_to_factor: int


def accumulators_of(state: StoredState, params: Params) -> Accumulators:
    """What the optimiser of a checkpoint has kept. Raises UserError where it is none of Adafactor's, or has all layers
    in one array: T5X then factors other axes.
    """
    if state.scan_axis is not None:
        raise UserError(
            "The checkpoint has the layers of a stack in one array, and T5X factors Adafactor's accumulators of such "
            "arrays by other axes: import it without OPTIMIZER=1, and train with a new optimiser."
        )
    stored = state.arrays
    if STEP not in stored or not any(name.startswith(PARAM_STATES) for name in stored):
        raise UserError("The checkpoint has no optimiser: import it without OPTIMIZER=1.")
    trees: dict[str, Params] = {slot: {} for slot in SLOTS}
    for name, param in flat(params):
        slots = {slot: _read(stored.get(f"{PARAM_STATES}/{name}/{slot}")) for slot in SLOTS}
        _check(name, param.shape, {slot: array.shape for slot, array in slots.items()})
        for slot, array in slots.items():
            put(trees[slot], name, array)
        momentum = stored.get(f"{PARAM_STATES}/{name}/{_MOMENTUM}")
        if momentum is not None and momentum.shape != UNUSED:
            raise UserError("The optimiser of the checkpoint has momentum: import it without OPTIMIZER=1.")
    return Accumulators(int(stored[STEP].read()), trees, _factored_from(params, trees["v"]))


def _read(stored: StoredArray | None) -> np.ndarray:
    """Mesh-TensorFlow writes those alone that are used."""
    return np.zeros(UNUSED, np.float32) if stored is None else stored.read().astype(np.float32)


def _check(name: str, shape: tuple[int, ...], slots: Mapping[str, tuple[int, ...]]) -> None:
    if slots["v"] == shape:
        return
    if len(shape) == 2 and slots["v"] == UNUSED:
        # the larger axis is averaged over in v_row; of two that are equal the second one
        rows, columns = (shape[0], shape[1]) if shape[1] >= shape[0] else (shape[1], shape[0])
        if slots["v_row"] == (rows,) and slots["v_col"] == (columns,):
            return
    said = ", ".join(f"{slot} {found}" for slot, found in slots.items())
    raise UserError(f"The optimiser of the checkpoint is not Adafactor as T5 has it: of {name} {shape} it has {said}.")


def _factored_from(params: Params, full: Params) -> int:
    """From which size on matrices are factored."""
    matrices = [(min(param.shape), kept.shape == UNUSED) for (_, param), (_, kept) in
                zip(flat(params), flat(full), strict=True) if len(param.shape) == 2]  # fmt: skip
    factored = [size for size, is_so in matrices if is_so]
    whole = [size for size, is_so in matrices if not is_so]
    least = _USUAL if all(size >= _USUAL for size in factored) and all(size < _USUAL for size in whole) else None
    least = min(factored) if least is None and factored else least
    if least is None:
        least = max(whole, default=_USUAL) + 1
    if any(size >= least for size in whole):
        raise UserError(
            "The optimiser of the checkpoint factors some matrices and not others of the same size: import it without "
            "OPTIMIZER=1."
        )
    return least


def param_states(trees: Mapping[str, Params]) -> Params:
    """T5X's `param_states` of trees of accumulators."""
    made: Params = {}
    for slot in SLOTS:
        for name, array in flat(trees[slot]):
            put(made, f"{name}/{slot}", np.asarray(array, np.float32))
            put(made, f"{name}/{_MOMENTUM}", np.zeros(UNUSED, np.float32))
    return made


def zeros_of_layers_in_one(target: Params) -> Params:
    """The `param_states` with which T5X begins where all layers of a stack are in one array, along SCAN_AXIS.

    Of their matrices it factors the width of the model and everything else but the layers, whatever their sizes.
    """
    made: Params = {}
    for name, array in flat(target):
        shapes = dict.fromkeys((*SLOTS, _MOMENTUM), UNUSED)
        if array.ndim > 2 and name.endswith("/kernel"):
            width = array.ndim - 1 if name.endswith(("/out/kernel", "/wo/kernel")) else 0
            sizes = dict(enumerate(array.shape))
            shapes["v_row"] = tuple(size for axis, size in sizes.items() if axis in (width, SCAN_AXIS))
            shapes["v_col"] = tuple(size for axis, size in sizes.items() if axis != width)
        elif array.ndim == 2 and not is_of_all_layers(name) and min(array.shape) >= _USUAL:
            shapes["v_row"], shapes["v_col"] = (min(array.shape),), (max(array.shape),)
        else:
            shapes["v"] = array.shape
        for slot, shape in shapes.items():
            put(made, f"{name}/{slot}", np.zeros(shape, np.float32))
    return made
