"""The compiled training step of an experiment on one batch, and nothing around it: a contestant of `benchmarks.loop`.

python -m benchmarks.loop_bare EXPERIMENT 30 "--gin.PACK=True"
"""

from __future__ import annotations

import json
import sys
import time

from t5xpg.__main__ import set_cpu_flags

WARM_UP = 5


def main() -> None:
    name, steps, overrides = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    set_cpu_flags()  # before jax is imported
    import jax
    import numpy as np

    from t5xpg import distributed
    from t5xpg.data.batch import BatchSpec
    from t5xpg.experiment import assembly, config

    settings, files = config.split_overrides(overrides)
    experiment = config.load(name, settings, files).experiment
    parts = assembly.assemble(experiment)
    update = parts.compile_train_step()
    dataset = experiment.train_dataset
    spec = BatchSpec(dataset.batch_size, dataset.task_feature_lengths, dataset.pack)
    ones = {feature: np.ones(shape, dtype) for feature, (shape, dtype) in spec.features().items()}
    batch = parts.on_devices(ones)
    vocabulary = np.ones(experiment.model.config.vocab_size, np.int32)
    token_bytes = jax.device_put(vocabulary, distributed.replicated(parts.mesh))
    state = parts.new_state()
    for _ in range(WARM_UP):
        state, metrics = update(state, batch, token_bytes)
    jax.block_until_ready((state, metrics))
    began = time.perf_counter()
    for _ in range(steps):
        state, metrics = update(state, batch, token_bytes)
        jax.block_until_ready(metrics)
    jax.block_until_ready(state)
    print(json.dumps({"ms": 1000 * (time.perf_counter() - began) / steps}))


if __name__ == "__main__":
    main()
