"""The masked language model of BERT (Devlin et al. 2019, section 3.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.data.objectives.objective import CHOSEN, Lengths, Objective, ObjectiveLengths, Step, is_number, text_of
from t5xpg.data.vocab.sentinels import CLS, MASK
from t5xpg.data.vocab.vocabulary import Vocabulary

# Of the feature CHOSEN. No position is 0: that is padding, and what pads is dropped where examples are packed.
NOT_CHOSEN_VALUE, CHOSEN_VALUE = 1, 2
_FIRST_TOKEN = 3  # ids below it are padding, end and unknown


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Tokens are chosen, and predicted in their place. `mask_share` of them are replaced by the mask, `random_share` by
    random tokens of text; the rest stays."""

    noise_density: float = 0.15  # probability that a token is chosen
    mask_share: float = 0.8
    random_share: float = 0.1

    name = "mlm"
    features = ("inputs", "targets", CHOSEN)

    def __post_init__(self) -> None:
        self._check_density()
        for name in ("mask_share", "random_share"):
            if not is_number(value := getattr(self, name)) or not 0.0 <= value <= 1.0:
                raise UserError(f"MaskedLM.{name} is {value!r}: a share is from 0 to 1.")
        if self.mask_share + self.random_share > 1.0 + 1e-9:
            raise UserError(
                f"MaskedLM.mask_share and random_share are {self.mask_share!r} and {self.random_share!r}: together "
                "they are at most 1."
            )

    @classmethod
    def known_steps(cls) -> tuple[Step, ...]:
        return (masked_lm,)

    def lengths(self, lengths: Lengths, vocabulary: Vocabulary | None = None, reserved: int = 0) -> ObjectiveLengths:
        inputs = lengths["inputs"] - reserved
        return ObjectiveLengths(inputs - 2, inputs)  # [CLS] and the end

    def vocabulary_problem(self, task: str, vocabulary: Vocabulary) -> str | None:
        if absent := [name for name in (CLS, MASK) if name not in vocabulary.named_tokens]:
            return (
                f"{task}: the vocabulary has no {' and no '.join(absent)}. Name some of its extra ids so, as the "
                "table's mlm tasks do (named_tokens= in Python)."
            )
        return None

    def targets_problem(self, task: str, lengths: Lengths, needed: ObjectiveLengths) -> str | None:
        if lengths["targets"] == lengths["inputs"]:
            return None
        return (
            f"The targets of {task} stand at the places of its inputs: both have one length. Set TASK_FEATURE_LENGTHS "
            f"= {{'inputs': {lengths['inputs']}, 'targets': {lengths['inputs']}}}."
        )


def masked_lm(
    dataset: Any,
    sequence_length: Lengths,
    output_features: Mapping[str, Any],
    noise_density: float = 0.15,
    mask_share: float = 0.8,
    random_share: float = 0.1,
) -> Any:
    """[CLS] and text, some of whose tokens are to be predicted.

    Each token is chosen with probability `noise_density`; of those, `mask_share` become [MASK] and `random_share` any
    token of text. Gives `inputs`, `targets` (the text as it was) and `chosen`, of one length, at most
    `sequence_length["inputs"]` - 1: the end is left to `seqio.preprocessors.append_eos_after_trim`.
    """
    import seqio
    import tensorflow as tf
    from t5.data import preprocessors as t5

    from t5xpg.data.vocab.seqio_vocabularies import from_seqio

    seqio_vocabulary = output_features["targets"].vocabulary
    vocabulary = from_seqio(seqio_vocabulary)
    cls, mask = (tf.constant(vocabulary.named_id(name), tf.int32) for name in (CLS, MASK))
    first_extra = seqio_vocabulary.vocab_size - seqio_vocabulary.extra_ids

    @seqio.map_over_dataset(num_seeds=3)
    def choose(example: Mapping[str, Any], seeds: Sequence[Any]) -> dict[str, Any]:
        tokens = tf.cast(example["targets"], tf.int32)
        length = tf.size(tokens)
        chosen = t5.iid_noise_mask(length, noise_density, seeds[:1])
        lot = tf.random.stateless_uniform([length], seed=seeds[1])
        others = tf.random.stateless_uniform(
            [length], minval=_FIRST_TOKEN, maxval=first_extra, dtype=tf.int32, seed=seeds[2]
        )
        replaced = tf.where(lot < mask_share, mask, tf.where(lot < mask_share + random_share, others, tokens))
        flags = tf.where(chosen, CHOSEN_VALUE, NOT_CHOSEN_VALUE)
        return {
            "inputs": tf.concat([[cls], tf.where(chosen, replaced, tokens)], 0),
            "targets": tf.concat([[cls], tokens], 0),
            CHOSEN: tf.concat([[NOT_CHOSEN_VALUE], flags], 0),
        }

    dataset = text_of(dataset, output_features)
    dataset = t5.split_tokens(dataset, max_tokens_per_segment=sequence_length["inputs"] - 2)
    return choose(dataset)
