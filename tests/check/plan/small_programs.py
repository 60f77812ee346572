"""Called by test_collectives.py in a process with eight simulated devices: prints compiled programs as JSON.

Every program does one thing to arrays of known sizes on a mesh of 4 x 2.
"""

import json

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def main() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    rows, columns, whole = PartitionSpec("data"), PartitionSpec(None, "data"), PartitionSpec()

    def text(function, inside, outside, dtype=jnp.float32) -> str:
        mapped = jax.shard_map(function, mesh=mesh, in_specs=inside, out_specs=outside, check_vma=False)
        return jax.jit(mapped).lower(jax.ShapeDtypeStruct((64, 256), dtype)).compile().as_text()

    def repeated(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.psum(carry, "model") * 0.5, None

        return jax.lax.scan(body, x, None, length=5)[0]

    ring = [(number, (number + 1) % 4) for number in range(4)]
    programs = {
        "all-reduce": text(lambda x: jax.lax.psum(x, "data"), rows, whole),
        "all-reduce of bfloat16": text(lambda x: jax.lax.psum(x, "model"), rows, rows, jnp.bfloat16),
        "all-reduce of all": text(lambda x: jax.lax.psum(x, ("data", "model")), rows, whole),
        "all-gather": text(lambda x: jax.lax.all_gather(x, "data", tiled=True), rows, whole),
        "reduce-scatter": text(lambda x: jax.lax.psum_scatter(x, "data", tiled=True), whole, rows),
        "all-to-all": text(lambda x: jax.lax.all_to_all(x, "data", 1, 0, tiled=True), rows, columns),
        "collective-permute": text(lambda x: jax.lax.ppermute(x, "data", ring), rows, rows),
        "five in a loop": text(repeated, rows, rows),
    }

    # what a partitioner makes of it: the product is added up, and each device keeps its rows
    left, right = NamedSharding(mesh, columns), NamedSharding(mesh, rows)
    product = jax.jit(jnp.matmul, in_shardings=(left, right), out_shardings=right)
    sides = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 128), (128, 32)))
    programs["a product of which each keeps its rows"] = product.lower(*sides).compile().as_text()
    print(json.dumps(programs))
