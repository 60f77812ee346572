"""The shardings of the state, batches and activations on a mesh, and the compiled steps with these shardings."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5xpg.base.errors import UserError
from t5xpg.distributed.mesh import BATCH_AXES, STANDARD_RULES, LogicalAxisRules, MeshAxes, as_tuple, num_parts, spec_of
from t5xpg.models import activation_sharding
from t5xpg.models.activation_sharding import Product
from t5xpg.optim.state import TrainState


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that is whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def params_shardings(axes: Any, abstract_params: Any, mesh: Mesh, rules: LogicalAxisRules = STANDARD_RULES) -> Any:
    """A NamedSharding for every parameter.

    axes: the tree of logical axis names (`model.logical_axes()`); abstract_params: arrays or ShapeDtypeStructs.
    Raises UserError where a dimension does not divide by the size of its mesh axis, or an axis has no rule.
    """

    def sharding(path: Any, names: tuple[str, ...], leaf: Any) -> NamedSharding:
        try:
            spec = spec_of(names, mesh.shape, rules)
        except UserError as error:
            raise UserError(f"{_path_text(path)}: {error}") from error
        for name, size, axes in zip(names, leaf.shape, spec, strict=False):
            count, along = num_parts(axes, mesh.shape), " x ".join(as_tuple(axes))
            if size % count:
                raise UserError(
                    f"{_path_text(path)} has the shape {tuple(leaf.shape)}: its dimension {name!r} of {size} cannot be "
                    f"split over the {count} devices of the mesh's axis {along!r}. "
                    f"Use a size of {along!r} that divides {size}."
                )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(
        sharding, axes, abstract_params, is_leaf=lambda node: isinstance(node, tuple)
    )


def state_shardings(
    axes: Any,
    abstract_state: TrainState,
    mesh: Mesh,
    rules: LogicalAxisRules = STANDARD_RULES,
    frozen_axes: Any = None,
) -> TrainState:
    """A NamedSharding for every array of the state. axes, frozen_axes: those of the trained and the frozen parameters.

    An array of the optimiser has the sharding of the parameter whose path is the end of its own path, if their shapes
    are equal; everything else (counts, Adafactor's rows and columns) is replicated, as in T5X.
    """
    params = params_shardings(axes, abstract_state.params, mesh, rules)
    shardings_of_params: dict[tuple[str, ...], tuple[tuple[int, ...], NamedSharding]] = {
        path_names(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(abstract_state.params), jax.tree.leaves(params), strict=True
        )
    }

    def optimizer_sharding(path: Any, leaf: Any) -> NamedSharding:
        names = path_names(path)
        for start in range(len(names)):
            shape, sharding = shardings_of_params.get(names[start:], (None, None))
            if sharding is not None and shape == leaf.shape:
                return sharding
        return replicated(mesh)

    return TrainState(
        step=replicated(mesh),
        params=params,
        opt_state=jax.tree_util.tree_map_with_path(optimizer_sharding, abstract_state.opt_state),
        average=None if abstract_state.average is None else params,
        frozen=None if frozen_axes is None else params_shardings(frozen_axes, abstract_state.frozen, mesh, rules),
    )


def with_shardings(abstract_tree: Any, shardings: Any) -> Any:
    """ShapeDtypeStructs with the sharding of each array, into which a checkpoint is restored."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract_tree, shardings
    )


def batch_parts(mesh: Mesh) -> int:
    """The number of parts into which a batch is split."""
    return num_parts(BATCH_AXES, mesh.shape)


def batch_parts_of(sharding: NamedSharding) -> int:
    """The number of parts into which the mesh's batch axes split an array."""
    axes = [axis for entry in sharding.spec for axis in as_tuple(entry) if axis in BATCH_AXES]
    return num_parts(tuple(axes), sharding.mesh.shape)


def check_batch_size(batch_size: int, mesh: Mesh, num_microbatches: int = 1) -> None:
    """Raise UserError where a global batch does not divide evenly over devices, processes and microbatches."""
    devices, processes = batch_parts(mesh), jax.process_count()
    least = math.lcm(devices, processes) * num_microbatches
    if num_microbatches < 1 or batch_size < 1 or batch_size % least:
        raise UserError(
            f"BATCH_SIZE is {batch_size}: it does not divide into {devices} data-parallel devices x {num_microbatches} "
            f"microbatches{f', read by {processes} processes' if processes > 1 else ''}. Use a multiple of "
            f"{max(least, 1)}."
        )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: its rows are split over the mesh's axis "data", and over its slices."""
    axes = tuple(axis for axis in BATCH_AXES if axis in mesh.shape)
    return NamedSharding(mesh, PartitionSpec(axes[0] if len(axes) == 1 else axes))


def path_names(path: Any) -> tuple[str, ...]:
    """The names along a jax key path: dict keys, attributes and positions."""
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)


def _path_text(path: Any) -> str:
    return "/".join(path_names(path))


@dataclass(frozen=True)
class MeshSharding:
    """The `activation_sharding.ActivationSharding` for a mesh and its rules."""

    mesh: Mesh
    rules: LogicalAxisRules

    def split(self, x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        return self._constrained(x, self._spec(axes))

    def is_gathered(self, axes: tuple[str, ...]) -> bool:
        return any(_batch_axes_of(entry) for entry in self._spec(axes))

    def gathered(self, weight: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        return self._constrained(weight, _without_batch_axes(self._spec(axes)))

    def summed_over_rows(self, product: Product, a: jax.Array, b: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        """Every device sums over its own rows; a reduce-scatter then gives each device only the part that it stores.

        Written out, because not every backend of XLA turns a sum over all devices and a slice of it into that.
        """
        spec = self._spec(axes)
        batch_axes = tuple(axis for axis in BATCH_AXES if axis in self.mesh.shape)
        if not self.is_gathered(axes) or a.shape[0] % num_parts(batch_axes, self.mesh.shape):
            return self._constrained(product(a, b), spec)
        column_axes = _without_batch_axes(spec)

        def sum_own_rows(a: jax.Array, b: jax.Array) -> jax.Array:
            total, remaining_axes = product(a, b), set(batch_axes)
            if a.ndim == 1 and column_axes[0] is not None:
                size = total.shape[0] // num_parts(column_axes[0], self.mesh.shape)
                total = lax.dynamic_slice_in_dim(total, lax.axis_index(column_axes[0]) * size, size)
            for dimension, entry in enumerate(spec):
                for axis in _batch_axes_of(entry):
                    total = lax.psum_scatter(total, axis, scatter_dimension=dimension, tiled=True)
                    remaining_axes.remove(axis)
            return lax.psum(total, tuple(remaining_axes)) if remaining_axes else total

        rows = [PartitionSpec(batch_axes, *[axis] * (x.ndim - 1)) for x, axis in zip((a, b), column_axes, strict=True)]
        return jax.shard_map(sum_own_rows, mesh=self.mesh, in_specs=tuple(rows), out_specs=spec, check_vma=False)(a, b)

    def _spec(self, axes: tuple[str, ...]) -> PartitionSpec:
        return spec_of(axes, self.mesh.shape, self.rules)

    def _constrained(self, x: jax.Array, spec: PartitionSpec) -> jax.Array:
        """x with this sharding; dimensions that do not divide evenly stay whole."""
        sizes = self.mesh.shape
        fits = [axes if size % num_parts(axes, sizes) == 0 else None for axes, size in zip(spec, x.shape, strict=False)]
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*fits)))


def _without_batch_axes(spec: PartitionSpec) -> PartitionSpec:
    """The spec without the axes that batches are split over, padded to two dimensions."""
    entries = [tuple(axis for axis in as_tuple(entry) if axis not in BATCH_AXES) or None for entry in spec]
    return PartitionSpec(*entries, *[None] * (2 - len(entries)))


def _batch_axes_of(axes: MeshAxes) -> tuple[str, ...]:
    """The axes in one entry of a PartitionSpec that also split batches."""
    return tuple(axis for axis in as_tuple(axes) if axis in BATCH_AXES)


def _on_mesh(step: Callable[..., Any], mesh: Mesh, rules: LogicalAxisRules) -> Callable[..., Any]:
    """`step`, traced for the mesh; for a mesh of one device, `step` itself."""
    if mesh.size == 1:
        return step

    @functools.wraps(step)
    def traced(*arguments: Any) -> Any:
        with activation_sharding.on_mesh(MeshSharding(mesh, rules)):
            return step(*arguments)

    return traced


def jit_create(create: Callable[..., TrainState], shardings: TrainState, *arguments: Any) -> TrainState:
    """The result of `create(*arguments)`, made in place: every device makes its own part. The arguments are used up."""
    donated = tuple(range(len(arguments)))
    return jax.jit(create, out_shardings=shardings, donate_argnums=donated)(*arguments)


def jit_train_step(
    step: Callable[..., Any], mesh: Mesh, shardings: TrainState, num_further: int, rules: LogicalAxisRules
) -> Any:
    """`step(state, batch, ...) -> (state, metrics)`, compiled; the old state's memory is reused for the new one.

    num_further: the number of further arguments of `step`, all replicated. rules: for the sharding of activations.
    """
    return jax.jit(
        _on_mesh(step, mesh, rules),
        in_shardings=(shardings, batch_sharding(mesh), *[replicated(mesh)] * num_further),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
    )


def jit_eval_step(step: Callable[..., Any], mesh: Mesh, params: Any, num_further: int, rules: LogicalAxisRules) -> Any:
    """`step(params, batch, ...) -> metrics`, compiled. params: their shardings. Others: see `jit_train_step`."""
    return jax.jit(
        _on_mesh(step, mesh, rules),
        in_shardings=(params, batch_sharding(mesh), *[replicated(mesh)] * num_further),
        out_shardings=replicated(mesh),
    )
