"""Stacks of layers of one kind: each layer is a part of the program, or all are one scan over their parameters.

A scanned stack has one module "layers", whose parameters have a first axis "layers", instead of "layers_0" and so on.
XLA then compiles a single layer, and the temporary arrays of one layer exist at a time. All numbers, those of initial
parameters and dropout included, are equal but for rounding.

Rematerialisation computes what the backward pass needs of a layer again, instead of keeping it. "full" keeps only the
layer's input; "dots" also the results of products with weights, which are most of the work; "none" keeps everything.
"""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from t5xpg.models.config import T5Config
from t5xpg.models.layers import OFF, PRODUCT, Dropout, named_key

LAYERS = "layers"  # the module and its parameters' first axis
# (x, layer, its dropout, its index, an int or int32 []) -> x
Body = Callable[[jax.Array, Any, Dropout, int | jax.Array], jax.Array]


def layer_name(index: int) -> str:
    """The name of a layer that is not scanned; the layer's random keys derive from it, scanned or not."""
    return f"{LAYERS}_{index}"


class LayerStack(nnx.Module):
    """The base of encoders and decoders: `num_layers` layers, which `add_layers` makes."""

    num_layers: int

    def add_layers(
        self, key: jax.Array, config: T5Config, number: int, make: Callable[[jax.Array, T5Config], nnx.Module]
    ) -> None:
        """Make the layers. key: of the stack; each layer's key derives from it."""
        self.num_layers = number
        self.is_scanned = config.scan_layers
        self.remat_policy = config.remat_policy
        keys = [named_key(key, layer_name(index)) for index in range(number)]
        if self.is_scanned:
            setattr(self, LAYERS, _stacked([make(key, config) for key in keys]))
        else:
            for index, key in enumerate(keys):
                setattr(self, layer_name(index), make(key, config))

    def run_layers(self, x: jax.Array, body: Body, dropout: Dropout = OFF) -> jax.Array:
        """body(..., body(body(x, first layer, its dropout), second layer, ...))."""
        if not self.is_scanned:
            for index, (name, layer) in enumerate(self.named_layers()):
                x = self._rematerialize(body, layer, index)(x, _parameters(layer), dropout.at(name))
            return x
        stack = getattr(self, LAYERS)
        keys = _keys(dropout, self.num_layers)

        def step(x: jax.Array, layer_values: tuple[Any, jax.Array | None, jax.Array]) -> tuple[jax.Array, None]:
            parameters, key, index = layer_values
            return self._rematerialize(body, stack)(x, parameters, Dropout(dropout.rate, key), index), None

        indices = jnp.arange(self.num_layers, dtype=jnp.int32)
        return lax.scan(step, x, (_parameters(stack), keys, indices))[0]

    def named_layers(self) -> list[tuple[str, Any]]:
        """The layers one by one, each with its own parameters."""
        names = [layer_name(index) for index in range(self.num_layers)]
        if not self.is_scanned:
            return [(name, getattr(self, name)) for name in names]
        layers = getattr(self, LAYERS)
        stacked, graph = _parameters(layers), nnx.graphdef(layers)
        return [
            (name, nnx.merge(graph, nnx.State(jax.tree.map(lambda leaf, index=index: leaf[index], stacked))))
            for index, name in enumerate(names)
        ]

    def _rematerialize(self, body: Body, layer: nnx.Module, fixed_index: int | None = None) -> Callable[..., jax.Array]:
        """`body` as a function of the parameters of a layer like `layer`, rematerialised by the policy.

        fixed_index: the layer's index; None in a scan, where the index is an argument.
        """
        graph = nnx.graphdef(layer)

        def call(x: jax.Array, parameters: Any, key: jax.Array | None, index: Any, rate: float) -> jax.Array:
            layer = nnx.merge(graph, nnx.State(parameters))
            return body(x, layer, Dropout(rate, key), index if fixed_index is None else fixed_index)

        if self.remat_policy != "none":
            # by name: a policy does not see into the products, which have a gradient of their own
            policy = jax.checkpoint_policies.save_only_these_names(PRODUCT) if self.remat_policy == "dots" else None
            # a scan's forward and backward loops are separate: XLA finds no common subexpressions (CSE) between them
            call = jax.checkpoint(call, policy=policy, prevent_cse=not self.is_scanned, static_argnums=(4,))
        return lambda x, parameters, dropout, index=None: call(x, parameters, dropout.key, index, dropout.rate)


def _parameters(layer: nnx.Module) -> Any:
    return nnx.to_pure_dict(nnx.state(layer))


def _stacked(layers: list[nnx.Module]) -> nnx.Module:
    """One module with the parameters of all layers, stacked along a first axis."""

    def stack(*variables: nnx.Variable) -> nnx.Variable:
        values = jnp.stack([variable[...] for variable in variables])
        return variables[0].replace(values, axes=(LAYERS, *variables[0].get_metadata()["axes"]))

    states = [nnx.state(layer) for layer in layers]
    together = jax.tree.map(stack, *states, is_leaf=lambda node: isinstance(node, nnx.Variable))
    return nnx.merge(nnx.graphdef(layers[0]), together)


def _keys(dropout: Dropout, number: int) -> jax.Array | None:
    """The keys of the layers' dropout, as `Dropout.at` derives them; None where nothing is dropped."""
    if not dropout.active:
        return None
    assert dropout.key is not None
    names = jnp.asarray([zlib.crc32(layer_name(index).encode()) for index in range(number)], jnp.uint32)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(dropout.key, names)


Tree = dict[str, Any]
# (the leaves of all layers, the leaf of the other tree) -> one leaf
Join = Callable[[Sequence[Any], Any], Any]
# (the leaf of all layers, the layer's index, the leaf of the other tree) -> one leaf
Take = Callable[[Any, int, Any], Any]


def layers_as_in(tree: Tree, like: Mapping[str, Any], join: Join, take: Take) -> Tree:
    """`tree`, with the layers of a stack together where they are together in `like`, and apart where they are apart.

    Where the two differ in anything else, the tree stays as it is: a comparison with `like` then finds the difference.
    """
    apart, others = _layers_apart(tree), _layers_apart(like)
    if apart and LAYERS in like and not others and _same_structure([*(tree[name] for name in apart), like[LAYERS]]):
        together = jax.tree.map(
            lambda other, *leaves: join(leaves, other), like[LAYERS], *(tree[name] for name in apart)
        )
        tree = {LAYERS: together} | {name: part for name, part in tree.items() if name not in apart}
    elif others and LAYERS in tree and not apart and _same_structure([tree[LAYERS], *(like[name] for name in others)]):
        single = {
            name: jax.tree.map(lambda leaf, other, index=index: take(leaf, index, other), tree[LAYERS], like[name])
            for index, name in enumerate(others)
        }
        tree = single | {name: part for name, part in tree.items() if name != LAYERS}
    return {
        name: layers_as_in(part, like[name], join, take)
        if isinstance(part, dict) and isinstance(like.get(name), Mapping)
        else part
        for name, part in tree.items()
    }


def _layers_apart(tree: Mapping[str, Any]) -> list[str]:
    """The names "layers_0", "layers_1" and so on in `tree`, in order; empty if one of them is missing."""
    present = {name for name in tree if re.fullmatch(rf"{LAYERS}_\d+", name)}
    names = [layer_name(index) for index in range(len(present))]
    return names if present == set(names) else []


def _same_structure(trees: Sequence[Any]) -> bool:
    first: Any = jax.tree.structure(trees[0])
    return all(first == jax.tree.structure(tree) for tree in trees)
