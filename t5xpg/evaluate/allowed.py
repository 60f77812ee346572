"""The answers that predictions may be (`DecodingConfig.allowed`), as tokens."""

from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.decoding import Constraint
from t5xpg.models.decoding.answer_set import token_rows, trie


def constraint_of(experiment: Experiment, vocabulary: Vocabulary) -> Constraint | jax.Array | None:
    """The constraint of an experiment's decoding, on the device; None if it has none.

    Raises UserError for a file that cannot be read or is empty, and for an answer that no tokens of the vocabulary
    spell or that is too long, with its line.
    """
    config = experiment.decoding
    if config.allowed is None:
        return None
    longest = config.max_decode_length or experiment.eval_dataset.task_feature_lengths["targets"]
    answers = [_ids(answer, where, vocabulary, longest) for where, answer in _answers(config.allowed)]
    rows = token_rows(answers, vocabulary.eos_id)
    return jnp.asarray(rows) if config.method == "rank" else jax.tree.map(jnp.asarray, trie(rows, vocabulary.eos_id))


def _answers(allowed: str | Sequence[str]) -> list[tuple[str, str]]:
    """The answers, each with its place for messages."""
    if not isinstance(allowed, str):
        return [
            (f"Answer {number} of DecodingConfig.allowed", answer) for number, answer in enumerate(allowed, start=1)
        ]
    try:
        lines = Path(allowed).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"ALLOWED: {allowed} cannot be read as text ({error}).") from None
    answers = [(f"{allowed}:{number}", line) for number, line in enumerate(lines, start=1) if line]
    if not answers:
        raise UserError(f"ALLOWED: {allowed} is empty. Expected an answer on each line.")
    return answers


def _ids(answer: str, where: str, vocabulary: Vocabulary, longest: int) -> list[int]:
    ids = vocabulary.encode(answer)
    if (spelt := vocabulary.decode(ids)) != answer or not ids:
        raise UserError(f"{where}: no tokens of the vocabulary spell {answer!r}; the nearest are read as {spelt!r}.")
    if len(ids) + 1 > longest:
        raise UserError(
            f"{where}: {answer!r} has {len(ids) + 1} tokens with its end, and a prediction has at most {longest}. Allow "
            f'more: GIN="--gin.decoding.DecodingConfig.max_decode_length={len(ids) + 1}"'
        )
    return ids
