"""What scanned layers, remat policies and meshes do to the memory of a training step, by XLA's analysis of the program.

    python -m benchmarks.layer_memory gin/models/t5_1_1_small.gin
    JAX_NUM_CPU_DEVICES=8 python -m benchmarks.layer_memory gin/models/t5_1_1_small.gin gin/partitioning/*.gin

Prints a table, with Adafactor; compiles a step for each row, and runs none. With fragments of partitioning there is a
row for each of them, with scanned layers of which nothing but the inputs is kept; else a row for either kind of layers
with each policy.
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from t5xpg.base.xla_flags import set_xla_flags

_LENGTHS = "{'inputs': 512, 'targets': 114}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a fragment of gin/models")
    parser.add_argument("meshes", nargs="*", help="fragments of gin/partitioning")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    set_xla_flags()  # before jax is imported
    from t5xpg.check.plan import memory
    from t5xpg.experiment import assembly, config

    print("| | state | at once besides | ours for all | seconds to compile |\n|---|---|---|---|---|")
    for row, overrides, mesh in rows(given.meshes):
        overrides += [f"BATCH_SIZE={given.batch_size}", f"DTYPE={given.dtype}", f"TASK_FEATURE_LENGTHS={_LENGTHS}"]
        fragments = [given.model, "gin/optimizers/adafactor.gin", mesh]
        experiment = config.load("byt5_tiny_demo", overrides, fragments).experiment
        built = assembly.assemble(experiment)
        began = time.perf_counter()
        compiled = built.compile_train_step().memory_analysis()
        took = time.perf_counter() - began
        assert compiled is not None
        ours = memory.estimate(experiment, built.abstract_state, built.shardings, built.mesh)
        sizes = (compiled.argument_size_in_bytes, compiled.temp_size_in_bytes, ours.total)
        print(f"| {row} | {' | '.join(f'{size / 2**20:,.0f} MiB' for size in sizes)} | {took:.0f} |", flush=True)


def rows(meshes: list[str]) -> Iterator[tuple[str, list[str], str]]:
    """(name, overrides, fragment of partitioning)."""
    for mesh in meshes:
        yield f"`{Path(mesh).stem}`", ["SCAN_LAYERS=True", "REMAT_POLICY=full"], mesh
    if meshes:
        return
    for scanned, policy in itertools.product((False, True), ("none", "dots", "full")):
        overrides = [f"SCAN_LAYERS={scanned}", f"REMAT_POLICY={policy}"]
        yield f"{'scanned' if scanned else 'plain'}, `{policy}`", overrides, "gin/partitioning/one_device.gin"


if __name__ == "__main__":
    main()
