"""The retrieval of a pass key (Mohtashami and Jaggi 2023, arXiv 2305.16300)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from t5xpg.data.objectives.objective import Lengths, Objective, ObjectiveLengths, Step, text_of
from t5xpg.data.vocab.vocabulary import BYTES, Vocabulary


@dataclass(frozen=True)
class Passkey(Objective):
    """A number is retrieved from a long text that has it in a line of its own. For vocabularies of bytes."""

    digits: int = 5  # of the number

    BEFORE: ClassVar[str] = "\nThe pass key is "
    BEHIND: ClassVar[str] = ". Remember it.\n"
    name = "passkey"

    def __post_init__(self) -> None:
        self._check_count("digits")

    @property
    def line_length(self) -> int:
        """Bytes of the line, with those of the number."""
        return len(self.BEFORE) + self.digits + len(self.BEHIND)

    @classmethod
    def known_steps(cls) -> tuple[Step, ...]:
        return (passkey,)

    def lengths(self, lengths: Lengths, vocabulary: Vocabulary | None = None, reserved: int = 0) -> ObjectiveLengths:
        return ObjectiveLengths(lengths["inputs"] - reserved - 1 - self.line_length, self.digits + 1)

    def vocabulary_problem(self, task: str, vocabulary: Vocabulary) -> str | None:
        if vocabulary.kind != BYTES:
            return f"{task}: a pass key has a token for each digit: use bytes, not {vocabulary.kind}."
        return None


def passkey(dataset: Any, sequence_length: Lengths, output_features: Mapping[str, Any], digits: int = 5) -> Any:
    """Stretches of text with a number in a line of its own (`inputs`), and the number (`targets`).

    Number and place are drawn; all are equally likely. Inputs have the length that they may have, less their end.
    """
    import seqio
    import tensorflow as tf
    from t5.data import preprocessors as t5

    from t5xpg.data.vocab.seqio_vocabularies import from_seqio

    encode = from_seqio(output_features["targets"].vocabulary).encode_plain
    before, of_digits, behind = (
        tf.constant(encode(s), tf.int32) for s in (Passkey.BEFORE, "0123456789", Passkey.BEHIND)
    )

    @seqio.map_over_dataset(num_seeds=2)
    def hide(example: Mapping[str, Any], seeds: Sequence[Any]) -> dict[str, Any]:
        tokens = tf.cast(example["targets"], tf.int32)
        number = tf.gather(of_digits, tf.random.stateless_uniform([digits], seeds[0], maxval=10, dtype=tf.int32))
        place = tf.random.stateless_uniform([], seeds[1], maxval=tf.size(tokens) + 1, dtype=tf.int32)
        return {"inputs": tf.concat([tokens[:place], before, number, behind, tokens[place:]], 0), "targets": number}

    text = sequence_length["inputs"] - 1 - Passkey(digits).line_length
    return hide(t5.split_tokens(text_of(dataset, output_features), max_tokens_per_segment=text))
