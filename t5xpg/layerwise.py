"""Optimisers that look at arrays as a whole, and stacks of layers, of which each is an array of its own.

The parameters of scanned layers lie in one array for each kind, along a first axis "layers". Where a rule takes a mean
over an array (Adafactor's rows and columns, the size of an update or of a parameter), it has to take one of each layer,
so that scanned layers train as the others do.
"""

from __future__ import annotations

from typing import Any

import jax
import optax

LAYERS = "layers"  # the axis
Axes = tuple[str, ...]


def is_stacked(axes: Axes) -> bool:
    """Whether an array with these logical axes holds all layers of a stack."""
    return axes[:1] == (LAYERS,)


def of_layer(axes: Axes) -> Axes:
    """The logical axes of one layer's part of an array, or of an array that is no stack."""
    return axes[1:] if is_stacked(axes) else axes


def by_layer(inner: optax.GradientTransformation, params_axes: Any) -> optax.GradientTransformation:
    """`inner`, which treats every array by itself, treating every layer of a stacked one by itself.

    inner: its state is made of trees of the parameters' structure, and of counts, which are scalars. params_axes: the
    tree of logical axes. The state is inner's, with stacked arrays for stacked parameters.
    """
    flags = [is_stacked(axes) for axes in jax.tree.leaves(params_axes, is_leaf=lambda node: isinstance(node, tuple))]
    if not any(flags):
        return inner

    def along(leaf: Any) -> Any:
        """The axes of inner's state of one stacked array: of its arrays the first, of its counts none."""
        layer = jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
        return jax.tree.map(lambda part: 0 if part.ndim else None, jax.eval_shape(inner.init, layer))

    def init(params: Any) -> Any:
        leaves, treedef = _flat(params)
        return _joined(
            [
                jax.vmap(inner.init, out_axes=along(leaf))(leaf) if stacked else inner.init(leaf)
                for leaf, stacked in zip(leaves, flags, strict=True)
            ],
            treedef,
        )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        assert params is not None, "the sizes of parameters decide"
        leaves, treedef = _flat(params)
        states = _apart(state, jax.tree.structure(jax.eval_shape(inner.init, leaves[0])), treedef)
        new_updates, new_states = [], []
        for gradient, own, leaf, stacked in zip(treedef.flatten_up_to(updates), states, leaves, flags, strict=True):
            one = inner.update
            if stacked:
                one = jax.vmap(one, in_axes=(0, along(leaf), 0), out_axes=(0, along(leaf)))
            changed, own = one(gradient, own, leaf)
            new_updates.append(changed)
            new_states.append(own)
        return treedef.unflatten(new_updates), _joined(new_states, treedef)

    return optax.GradientTransformation(init, update)


def _flat(params: Any) -> tuple[list[Any], Any]:
    return jax.tree.flatten(params)


def _joined(states: list[Any], treedef: Any) -> Any:
    """The state of all parameters, of the states of each: trees of arrays, and of the counts the first."""
    of_one: Any = jax.tree.structure(states[0])
    columns = zip(*(of_one.flatten_up_to(state) for state in states), strict=True)
    return of_one.unflatten([parts[0] if parts[0].ndim == 0 else treedef.unflatten(parts) for parts in columns])


def _apart(state: Any, of_one: Any, treedef: Any) -> list[Any]:
    """The states of each parameter, of the state of all."""
    number = treedef.num_leaves
    columns = [
        [part] * number if isinstance(part, jax.Array) else treedef.flatten_up_to(part)
        for part in of_one.flatten_up_to(state)
    ]
    return [of_one.unflatten([column[index] for column in columns]) for index in range(number)]
