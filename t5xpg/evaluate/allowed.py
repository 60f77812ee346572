"""The answers that predictions may be (`DecodingConfig.allowed` and `pattern`), as tokens."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp

from t5xpg.base.errors import UserError
from t5xpg.data.batch import MASKED_LM
from t5xpg.data.text.manifest import SPLITS
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.pattern import pattern_constraint
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.known_tasks import data_folder, known_task
from t5xpg.models.decoding import Constraint
from t5xpg.models.decoding.answer_set import token_rows, trie

TARGETS = "targets"  # in place of a file: what the task's training examples answer


def with_allowed(
    loaded: LoadedConfig, file: str | None, pattern: str | None = None, task: str | None = None
) -> LoadedConfig:
    """The configuration whose predictions are answers of a file, one on each line, or match a pattern; None: the
    configuration as it is. task: where the file is TARGETS; None: the experiment's.

    Raises UserError for both at once, and for the TARGETS of a task that is none of a supervised export.
    """
    if file is None and pattern is None:
        return loaded
    allowed: str | tuple[str, ...] | None = file
    if file == TARGETS and not Path(file).exists():
        allowed = _training_targets(task or loaded.experiment.eval_dataset.mixture_or_task_name)
    decoding = dataclasses.replace(loaded.experiment.decoding, allowed=allowed, pattern=pattern)
    return dataclasses.replace(loaded, experiment=dataclasses.replace(loaded.experiment, decoding=decoding))


def _training_targets(name: str) -> tuple[str, ...]:
    """All different targets of the training split of a task, sorted."""
    task = known_task(name)
    if task is None or task.supervised is None or task.dataset is None:
        raise UserError(
            f"ALLOWED={TARGETS} is for supervised tasks of an export (make data FIELDS=text,label), and {name} is "
            "none. Name a file with an answer on each line: ALLOWED=file."
        )
    file = data_folder() / task.dataset / f"{SPLITS[0]}.jsonl"
    if not file.is_file():
        raise UserError(f"ALLOWED={TARGETS}: {file} is not there. Make it: make data DATASET={task.dataset} …")
    with file.open(encoding="utf-8") as lines:
        targets = [json.loads(line)[task.supervised.targets] for line in lines]
    return tuple(sorted({one for target in targets for one in ([target] if isinstance(target, str) else target)}))


def constraint_of(experiment: Experiment, vocabulary: Vocabulary) -> Constraint | jax.Array | None:
    """The constraint of an experiment's decoding, on the device; None if it has none.

    Raises UserError for a file that cannot be read or is empty, for an answer that no tokens of the vocabulary spell or
    that is too long, with its line, and for a model that fills in masks, which writes no answer.
    """
    config = experiment.decoding
    if config.allowed is None and config.pattern is None and config.method != "rank":
        return None
    if experiment.eval_dataset.converter == MASKED_LM:
        raise UserError("A masked language model fills in its masks one by one: it takes no allowed answers.")
    longest = config.max_decode_length or experiment.eval_dataset.task_feature_lengths["targets"]
    if config.pattern is not None:
        constraint = pattern_constraint(config.pattern, vocabulary)
        _require_length(f"PATTERN={config.pattern[:80]}: the shortest answer", int(constraint.distances[0]), longest)
        return constraint
    answers = [_ids(answer, where, vocabulary, longest) for where, answer in config.answers()]
    rows = token_rows(answers, vocabulary.eos_id)
    return jnp.asarray(rows) if config.method == "rank" else trie(rows, vocabulary.eos_id)


def _ids(answer: str, where: str, vocabulary: Vocabulary, longest: int) -> list[int]:
    ids = vocabulary.encode(answer)
    if (spelt := vocabulary.decode(ids)) != answer or not ids:
        raise UserError(f"{where}: no tokens of the vocabulary spell {answer!r}; the nearest are read as {spelt!r}.")
    _require_length(f"{where}: {answer!r}", len(ids) + 1, longest)
    return ids


def _require_length(what: str, tokens: int, longest: int) -> None:
    if tokens > longest:
        raise UserError(
            f"{what} has {tokens:,} tokens with its end, and a prediction has at most {longest}. Allow more: "
            f'GIN="--gin.decoding.DecodingConfig.max_decode_length={tokens}"'
        )
