"""The compiled training step of this project, with its state and its batches on devices: what `make train` runs.

Import it after `set_xla_flags`: it imports jax.
"""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.jobs import B1, B2, EPSILON, LEARNING_RATE, Z_LOSS, Job
from t5xpg.experiment import assembly, config
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.encoder_decoder import EncoderDecoderModel, T5Config
from t5xpg.models.losses import LossConfig
from t5xpg.optim.optimizers import AdamW
from t5xpg.optim.schedules import Constant


class OwnStep:
    """Called with a batch on devices, it updates its state, waits for the result, and returns the metrics."""

    def __init__(self, experiment: Experiment) -> None:
        self.parts = assembly.assemble(experiment)
        began = time.perf_counter()
        self.update = self.parts.compile_train_step()
        self.compile_seconds = time.perf_counter() - began
        self.state = self.parts.new_state()
        self._token_bytes = jnp.ones(experiment.model.config.vocab_size, jnp.int32)

    def __call__(self, batch: Any) -> Mapping[str, jax.Array]:
        self.state, metrics = self.update(self.state, batch, self._token_bytes)
        jax.block_until_ready((self.state, metrics))
        return metrics


def experiment(job: Job, dtype: str = "float32", *, microbatches: int = 1, **settings: Any) -> Experiment:
    """optimizers_tiny with the job's sizes, packed, and the job's optimiser.

    settings: of T5Config, beside those that the job decides.
    """
    model = T5Config(
        vocab_size=job.vocabulary, emb_dim=job.emb, num_heads=job.heads, head_dim=job.head_dim, mlp_dim=job.mlp,
        num_encoder_layers=job.encoder_layers, num_decoder_layers=job.decoder_layers, dtype=dtype, **settings,
    )  # fmt: skip
    tiny = config.load("optimizers_tiny").experiment
    lengths = {"inputs": job.inputs, "targets": job.targets}
    return dataclasses.replace(
        tiny,
        model=EncoderDecoderModel(model),
        optimizer=AdamW(Constant(LEARNING_RATE), b1=B1, b2=B2, epsilon=EPSILON),
        loss=LossConfig(z_loss=Z_LOSS),
        num_microbatches=microbatches,
        train_dataset=dataclasses.replace(
            tiny.train_dataset, task_feature_lengths=lengths, batch_size=job.batch, pack=True
        ),
    )
