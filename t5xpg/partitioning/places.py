"""Where the arrays of a model lie while it computes on a mesh.

Left to itself XLA lets activations follow what is split already: with the embedding's columns split over "data" it
would split activations by columns, and every device would hold every row.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5xpg.models.activations import Product
from t5xpg.partitioning.rules import BATCH_AXES, LogicalAxisRules, MeshAxes, as_tuple, parts, spec_of


@dataclass(frozen=True)
class Places:
    """`activations.Places` of a mesh and its rules."""

    mesh: Mesh
    rules: LogicalAxisRules

    def split(self, x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        return self._constrained(x, self._spec(axes))

    def is_gathered(self, axes: tuple[str, ...]) -> bool:
        return any(_over_batch(entry) for entry in self._spec(axes))

    def gathered(self, weight: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        return self._constrained(weight, _without_batch(self._spec(axes)))

    def summed_over_rows(self, product: Product, a: jax.Array, b: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        """Every device adds up its own rows, and of the sums over devices each gets only the part that it stores.

        Written out, because not every backend of XLA makes that of a sum over all devices and a slice of it.
        """
        spec = self._spec(axes)
        over = tuple(axis for axis in BATCH_AXES if axis in self.mesh.shape)
        if not self.is_gathered(axes) or a.shape[0] % parts(over, self.mesh.shape):
            return self._constrained(product(a, b), spec)
        columns = _without_batch(spec)

        def of_own_rows(a: jax.Array, b: jax.Array) -> jax.Array:
            found, left = product(a, b), set(over)
            if a.ndim == 1 and columns[0] is not None:
                size = found.shape[0] // parts(columns[0], self.mesh.shape)
                found = lax.dynamic_slice_in_dim(found, lax.axis_index(columns[0]) * size, size)
            for dimension, entry in enumerate(spec):
                for axis in _over_batch(entry):
                    found = lax.psum_scatter(found, axis, scatter_dimension=dimension, tiled=True)
                    left.remove(axis)
            return lax.psum(found, tuple(left)) if left else found

        rows = [PartitionSpec(over, *[column] * (x.ndim - 1)) for x, column in zip((a, b), columns, strict=True)]
        return jax.shard_map(of_own_rows, mesh=self.mesh, in_specs=tuple(rows), out_specs=spec, check_vma=False)(a, b)

    def _spec(self, axes: tuple[str, ...]) -> PartitionSpec:
        return spec_of(axes, self.mesh.shape, self.rules)

    def _constrained(self, x: jax.Array, spec: PartitionSpec) -> jax.Array:
        """x with this layout, but for dimensions that do not divide: they stay whole."""
        sizes = self.mesh.shape
        fits = [axes if size % parts(axes, sizes) == 0 else None for axes, size in zip(spec, x.shape, strict=False)]
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*fits)))


def _without_batch(spec: PartitionSpec) -> PartitionSpec:
    """Padded to two dimensions."""
    kept = [tuple(axis for axis in as_tuple(entry) if axis not in BATCH_AXES) or None for entry in spec]
    return PartitionSpec(*kept, *[None] * (2 - len(kept)))


def _over_batch(axes: MeshAxes) -> tuple[str, ...]:
    """Those of an entry of a PartitionSpec that batches are split over, too."""
    return tuple(axis for axis in as_tuple(axes) if axis in BATCH_AXES)
