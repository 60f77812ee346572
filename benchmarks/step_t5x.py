"""The training step on T5X's own network and loss, with optax's AdamW: a contestant of `benchmarks.step`.

T5X is in no package registry; T5X_PYTHON names a Python that can import `t5x`, jax and optax. Only its minimal T5
(`t5x.examples.t5.network`) and `t5x.losses` are timed, not its trainer.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from t5x import losses
from t5x.examples.t5 import network

from benchmarks.contestant import parse_options
from benchmarks.jobs import JOBS, Z_LOSS
from benchmarks.step_plain_jax import measure
from t5xpg.exchange.huggingface.config import config_from_transformers
from t5xpg.exchange.huggingface.params import params_from_transformers


def main() -> None:
    given = parse_options(__doc__)
    job = JOBS[given.job]
    model = network.Transformer(
        network.T5Config(
            vocab_size=job.vocabulary, emb_dim=job.emb, num_heads=job.heads, head_dim=job.head_dim, mlp_dim=job.mlp,
            num_encoder_layers=job.encoder_layers, num_decoder_layers=job.decoder_layers,
            mlp_activations=("gelu", "linear"), dropout_rate=0.0, logits_via_embedding=False, dtype=given.dtype,
        )
    )  # fmt: skip
    # parameters have T5X's names and shapes here, too
    params = jax.tree.map(
        jnp.asarray, params_from_transformers(job.weights(), config_from_transformers(job.settings()))
    )

    def loss_of(params, batch):  # type: ignore[no-untyped-def]
        logits = model.apply(
            {"params": params},
            batch["encoder_input_tokens"],
            batch["decoder_input_tokens"],
            batch["decoder_target_tokens"],
            encoder_segment_ids=batch["encoder_segment_ids"],
            decoder_segment_ids=batch["decoder_segment_ids"],
            encoder_positions=batch["encoder_positions"],
            decoder_positions=batch["decoder_positions"],
            decode=False,
            enable_dropout=False,
        )
        weights = batch["decoder_loss_weights"]
        loss, _, _ = losses.compute_weighted_cross_entropy(
            logits, batch["decoder_target_tokens"], weights, 0.0, Z_LOSS, loss_normalizing_factor=weights.sum()
        )
        return loss

    measure(loss_of, params, job, given.repeats)


if __name__ == "__main__":
    main()
