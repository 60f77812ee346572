"""The answers that predictions may be (`DecodingConfig.allowed`), as tokens."""

import dataclasses

import jax
import jax.numpy as jnp

from t5xpg.base.errors import UserError
from t5xpg.data.batch import MASKED_LM
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.decoding import Constraint
from t5xpg.models.decoding.answer_set import token_rows, trie


def with_allowed(loaded: LoadedConfig, file: str | None) -> LoadedConfig:
    """The configuration whose predictions are answers of a file, one on each line; None: the configuration as it is."""
    if file is None:
        return loaded
    decoding = dataclasses.replace(loaded.experiment.decoding, allowed=file)
    return dataclasses.replace(loaded, experiment=dataclasses.replace(loaded.experiment, decoding=decoding))


def constraint_of(experiment: Experiment, vocabulary: Vocabulary) -> Constraint | jax.Array | None:
    """The constraint of an experiment's decoding, on the device; None if it has none.

    Raises UserError for a file that cannot be read or is empty, for an answer that no tokens of the vocabulary spell or
    that is too long, with its line, and for a model that fills in masks, which writes no answer.
    """
    config = experiment.decoding
    if config.allowed is None and config.method != "rank":
        return None
    if experiment.eval_dataset.converter == MASKED_LM:
        raise UserError("A masked language model fills in its masks one by one: it takes no allowed answers.")
    longest = config.max_decode_length or experiment.eval_dataset.task_feature_lengths["targets"]
    answers = [_ids(answer, where, vocabulary, longest) for where, answer in config.answers()]
    rows = token_rows(answers, vocabulary.eos_id)
    return jnp.asarray(rows) if config.method == "rank" else trie(rows, vocabulary.eos_id)


def _ids(answer: str, where: str, vocabulary: Vocabulary, longest: int) -> list[int]:
    ids = vocabulary.encode(answer)
    if (spelt := vocabulary.decode(ids)) != answer or not ids:
        raise UserError(f"{where}: no tokens of the vocabulary spell {answer!r}; the nearest are read as {spelt!r}.")
    if len(ids) + 1 > longest:
        raise UserError(
            f"{where}: {answer!r} has {len(ids) + 1} tokens with its end, and a prediction has at most {longest}. "
            f'Allow more: GIN="--gin.decoding.DecodingConfig.max_decode_length={len(ids) + 1}"'
        )
    return ids
