"""Trees of arrays with the layers of a stack apart, "layers_0", "layers_1", …, or together, as they are scanned.

The trees are nested dicts: of parameters, of an optimiser's arrays that belong to parameters, of what describes either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from t5xpg.models.layer_stack import LAYERS, layer_name

Tree = dict[str, Any]
# (the leaves of all layers, the leaf of the other tree) -> one leaf
Join = Callable[[Sequence[Any], Any], Any]
# (the leaf of all layers, which layer, the leaf of the other tree) -> one leaf
Take = Callable[[Any, int, Any], Any]


def layers_as_in(tree: Tree, like: Mapping[str, Any], join: Join, take: Take) -> Tree:
    """`tree`, with layers together where those of `like` are, and apart where they are apart.

    Where the two differ in more than that, the tree is left as it is: who compares them finds what differs.
    """
    apart, others = _layers_apart(tree), _layers_apart(like)
    if apart and LAYERS in like and not others and _same([*(tree[name] for name in apart), like[LAYERS]]):
        together = jax.tree.map(
            lambda other, *leaves: join(leaves, other), like[LAYERS], *(tree[name] for name in apart)
        )
        tree = {LAYERS: together} | {name: part for name, part in tree.items() if name not in apart}
    elif others and LAYERS in tree and not apart and _same([tree[LAYERS], *(like[name] for name in others)]):
        single = {
            name: jax.tree.map(lambda leaf, other, at=index: take(leaf, at, other), tree[LAYERS], like[name])
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
    """The names of the layers of a stack that are apart, in their order; none where one is missing."""
    found = {name for name in tree if re.fullmatch(rf"{LAYERS}_\d+", name)}
    names = [layer_name(index) for index in range(len(found))]
    return names if found == set(names) else []


def _same(trees: Sequence[Any]) -> bool:
    first: Any = jax.tree.structure(trees[0])
    return all(first == jax.tree.structure(tree) for tree in trees)
