"""The compiled training step of an experiment on one batch, and nothing around it: a contestant of `benchmarks.loop`.

python -m benchmarks.loop_bare EXPERIMENT 30 "--gin.PACK=True"
"""

import json
import sys
import time

from t5xpg.base.xla_flags import set_xla_flags

WARM_UP = 5


def main() -> None:
    name, steps, overrides = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    set_xla_flags()  # before jax is imported
    from benchmarks.own_step import OwnStep
    from t5xpg.check.estimate import made_up_batches
    from t5xpg.experiment import config

    experiment = config.load(name, *config.split_overrides(overrides)).experiment
    step = OwnStep(experiment)
    batch = step.on_devices(next(made_up_batches(experiment, experiment.train_dataset)))
    for _ in range(WARM_UP):
        step(batch)
    began = time.perf_counter()
    for _ in range(steps):
        step(batch)
    print(json.dumps({"ms": 1000 * (time.perf_counter() - began) / steps}))


if __name__ == "__main__":
    main()
