"""The training step of this project, as `make train` compiles it: a contestant of `benchmarks.step`."""

from __future__ import annotations

import dataclasses

from benchmarks import step_timing
from benchmarks.jobs import B1, B2, EPSILON, JOBS, LEARNING_RATE, Z_LOSS, Job
from t5xpg.__main__ import set_cpu_flags


def main() -> None:
    given = step_timing.orders(__doc__)
    set_cpu_flags()  # before jax is imported
    import jax
    import numpy as np

    from t5xpg import distributed
    from t5xpg.exchange.huggingface.params import params_from_transformers
    from t5xpg.experiment import assembly
    from t5xpg.optim.state import TrainState

    job = JOBS[given.job]
    parts = assembly.assemble(experiment(job, given.dtype))
    update = parts.compile_train_step()
    weights = params_from_transformers(job.weights(), parts.experiment.model.config)

    def fresh() -> TrainState:
        state = parts.new_state()
        return dataclasses.replace(state, params=jax.device_put(weights, parts.shardings.params))

    state = fresh()
    batches = [parts.on_devices(batch) for batch in job.batches()]
    token_bytes = jax.device_put(np.ones(job.vocabulary, np.int32), distributed.replicated(parts.mesh))

    def step(number: int) -> float:
        nonlocal state
        state, metrics = update(state, batches[number], token_bytes)
        return float(jax.block_until_ready((state, metrics))[1]["loss"])

    step_timing.measure(step, given.steps)


def experiment(job: Job, dtype: str):  # type: ignore[no-untyped-def]  # t5xpg is imported after its flags are set
    """The published demo with the job's sizes, packed, and the job's optimiser."""
    from t5xpg.experiment import config
    from t5xpg.models.encoder_decoder import EncoderDecoderModel, T5Config
    from t5xpg.models.losses import LossConfig
    from t5xpg.optim.optimizers import AdamW
    from t5xpg.optim.schedules import Constant

    model = T5Config(
        vocab_size=job.vocabulary, emb_dim=job.emb, num_heads=job.heads, head_dim=job.head_dim, mlp_dim=job.mlp,
        num_encoder_layers=job.encoder_layers, num_decoder_layers=job.decoder_layers, dtype=dtype,
    )  # fmt: skip
    demo = config.load("byt5_tiny_demo").experiment
    return dataclasses.replace(
        demo,
        model=EncoderDecoderModel(model),
        optimizer=AdamW(Constant(LEARNING_RATE), b1=B1, b2=B2, epsilon=EPSILON),
        loss=LossConfig(z_loss=Z_LOSS),
        train_dataset=dataclasses.replace(
            demo.train_dataset,
            task_feature_lengths={"inputs": job.inputs, "targets": job.targets},
            batch_size=job.batch,
            pack=True,
        ),
    )


if __name__ == "__main__":
    main()
