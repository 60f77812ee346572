"""Adafactor's accumulators in T5X's train state, in both directions.

For every parameter T5X keeps `v_row` and `v_col` where it factors, `v` where it does not, and `m` with momentum; an
unused one is a single zero. optax has the same arrays except `m`, a tree for each kind. Source: t5x/adafactor.py.
"""

from collections.abc import Mapping

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t5xpg.base.errors import UserError
from t5xpg.exchange.formats.t5x_files import require_whole
from t5xpg.exchange.formats.weights import as_float32
from t5xpg.exchange.t5x.mesh_tensorflow import PARAM_STATES, STEP
from t5xpg.exchange.t5x.params import SCAN_AXIS, StoredState, split_stacked
from t5xpg.models.model import Params

SLOTS = ("v_row", "v_col", "v")
_MOMENTUM = "m"
UNUSED = (1,)  # the shape of what is not used
_DEFAULT_MIN_SIZE = 128  # T5X factors a matrix whose smaller axis has at least this size


def accumulators_of(state: StoredState, params: Params) -> tuple[int, dict[str, Params]]:
    """The number of updates of a checkpoint, and its accumulators: a tree of the parameters' structure for each slot.

    Raises UserError where its optimiser is not Adafactor as T5 has it, or where all layers are in one array: T5X then
    factors other axes.
    """
    if state.scan_axis is not None:
        raise UserError(
            "The checkpoint has the layers of a stack in one array, and T5X factors Adafactor's accumulators of such "
            "arrays by other axes: import it without OPTIMIZER=1, and train with a new optimiser."
        )
    stored = state.arrays
    if STEP not in stored or not any(name.startswith(PARAM_STATES) for name in stored):
        raise UserError("The checkpoint has no optimiser: import it without OPTIMIZER=1.")
    require_whole(array for name, array in stored.items() if name.startswith(PARAM_STATES))
    arrays: dict[str, dict[str, np.ndarray]] = {slot: {} for slot in SLOTS}
    for name, param in flatten_dict(params, sep="/").items():
        for slot in SLOTS:
            # Mesh-TensorFlow leaves out unused slots
            key = f"{PARAM_STATES}/{name}/{slot}"
            accumulator = as_float32(key, stored[key].read()) if key in stored else np.zeros(UNUSED, np.float32)
            arrays[slot][name] = accumulator
        _check_shapes(name, param.shape, {slot: arrays[slot][name].shape for slot in SLOTS})
        momentum = stored.get(f"{PARAM_STATES}/{name}/{_MOMENTUM}")
        if momentum is not None and momentum.shape != UNUSED:
            raise UserError("The optimiser of the checkpoint has momentum: import it without OPTIMIZER=1.")
    return int(stored[STEP].read()), {slot: unflatten_dict(values, sep="/") for slot, values in arrays.items()}


def _check_shapes(name: str, shape: tuple[int, ...], slots: Mapping[str, tuple[int, ...]]) -> None:
    if slots["v"] == shape:
        return
    if len(shape) == 2 and slots["v"] == UNUSED:
        # v_row is averaged over the larger axis, or over the second one if both are equal
        rows, columns = (shape[0], shape[1]) if shape[1] >= shape[0] else (shape[1], shape[0])
        if slots["v_row"] == (rows,) and slots["v_col"] == (columns,):
            return
    sizes = ", ".join(f"{slot} {size}" for slot, size in slots.items())
    raise UserError(f"The optimiser of the checkpoint is not Adafactor as T5 has it: of {name} {shape} it has {sizes}.")


def param_states(trees: Mapping[str, Params]) -> Params:
    """T5X's `param_states` from trees of accumulators."""
    states: dict[str, np.ndarray] = {}
    for slot in SLOTS:
        for name, array in flatten_dict(trees[slot], sep="/").items():
            states[f"{name}/{slot}"] = np.asarray(array, np.float32)
            states[f"{name}/{_MOMENTUM}"] = np.zeros(UNUSED, np.float32)
    return unflatten_dict(states, sep="/")


def new_param_states(target: Params) -> Params:
    """The `param_states` with which T5X's Adafactor begins; all layers of a stack may be in one array, by SCAN_AXIS."""
    # whatever their sizes, it factors matrices of all layers into the width of the model and the other axes, for each
    states: dict[str, np.ndarray] = {}
    for name, array in flatten_dict(target, sep="/").items():
        shapes = dict.fromkeys((*SLOTS, _MOMENTUM), UNUSED)
        if array.ndim > 2 and name.endswith("/kernel"):
            width = array.ndim - 1 if name.endswith(("/out/kernel", "/wo/kernel")) else 0
            sizes = dict(enumerate(array.shape))
            shapes["v_row"] = tuple(size for axis, size in sizes.items() if axis in (width, SCAN_AXIS))
            shapes["v_col"] = tuple(size for axis, size in sizes.items() if axis != width)
        elif array.ndim == 2 and split_stacked(name) is None and min(array.shape) >= _DEFAULT_MIN_SIZE:
            shapes["v_row"], shapes["v_col"] = (min(array.shape),), (max(array.shape),)
        else:
            shapes["v"] = array.shape
        states |= {f"{name}/{slot}": np.zeros(shape, np.float32) for slot, shape in shapes.items()}
    return unflatten_dict(states, sep="/")
