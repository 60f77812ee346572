"""Distillation: besides the targets, a model learns the token probabilities of a trained model at each target."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from t5xpg.base.errors import UserError
from t5xpg.models.losses import LossConfig, loss_weights_and_normalizer, token_weights
from t5xpg.models.model import Batch, Model, Params


@dataclass(frozen=True)
class Teacher:
    """The trained model, and the weight of its probabilities (Hinton et al. 2015, arXiv 1503.02531, section 2).

    checkpoint: as INITIAL_CHECKPOINT. model: the checkpoint's; it reads the student's batches, without dropout.
    weight: w in the loss (1 - w) * loss of the targets + w * temperature^2 * KL(teacher || student), with the
    divergence weighted and normalised as the loss is. temperature: divides the logits of both for the divergence.

    Raises UserError for impossible values.
    """

    checkpoint: str
    model: Model
    weight: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.checkpoint, str) or not self.checkpoint.strip():
            raise UserError(f"TEACHER_CHECKPOINT is {self.checkpoint!r}: expected the name or the folder of a run.")
        if not 0.0 < self.weight <= 1.0:
            raise UserError(f"DISTILLATION_WEIGHT is {self.weight!r}: it must be above 0, and at most 1.")
        if not 0.0 < self.temperature < float("inf"):
            raise UserError(f"DISTILLATION_TEMPERATURE is {self.temperature!r}: it must be a finite number above 0.")

    def check(self, student: Model, converter: str) -> None:
        """Raise UserError for a student with another vocabulary size, or with batches that the teacher cannot read."""
        ours, theirs = student.config.vocab_size, self.model.config.vocab_size
        if ours != theirs:
            raise UserError(
                f"The teacher has logits of {theirs} ids and the model of {ours}: distillation compares them one by "
                "one, so both take the same VOCAB_SIZE and VOCAB_SIZE_MULTIPLE."
            )
        if converter not in self.model.feature_converters:
            raise UserError(
                f"The teacher is a {type(self.model).__name__}, which takes batches of "
                f"{' or '.join(self.model.feature_converters)}, and those of the run are of {converter}."
            )

    def distillation_loss(
        self,
        loss: jax.Array,
        sums: dict[str, jax.Array],
        logits: jax.Array,
        params: Params,
        batch: Batch,
        config: LossConfig,
        normalizer: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The loss with the divergence, and the sums of `losses.loss_and_metrics` with it.

        loss, sums: of the targets. logits: of the student, [B, T, V] float32. params: of the teacher. normalizer: of
        the whole batch. One sum is added, "teacher_divergence": nats, over tokens by their weights.
        """
        teacher_logits = jax.lax.stop_gradient(self.model.logits(params, batch))
        log_probabilities = (jax.nn.log_softmax(x / self.temperature) for x in (logits, teacher_logits))
        divergences = optax.losses.kl_divergence_with_log_targets(*log_probabilities)  # forward: KL(teacher || student)
        weights, _ = loss_weights_and_normalizer(batch, config)
        divergence = self.temperature**2 * jnp.sum(divergences * weights) / normalizer
        total = (1 - self.weight) * loss + self.weight * divergence
        further = {
            "loss": jax.lax.stop_gradient(total),
            "teacher_divergence": jax.lax.stop_gradient(jnp.sum(divergences * token_weights(batch))),
        }
        return total, {**sums, **further}
