"""Supervised tasks, as `text.labelled` describes them. Imports TensorFlow. Inputs and targets are kept as texts, too
("inputs_pretokenized"): metrics compare with a target as it was, and not as a vocabulary gives it back."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf
from t5.data import postprocessors as t5_postprocessors
from t5.data import preprocessors as t5

from t5xpg.data import metrics
from t5xpg.data.preprocessors import parse_records
from t5xpg.data.tasks.shared_cache import register
from t5xpg.data.tasks.task_names import KnownTask
from t5xpg.data.text.labelled import TFDS_TASKS, TRANSLATE
from t5xpg.data.vocab.seqio_vocabularies import to_seqio

Step = Callable[..., tf.data.Dataset]


def register_records(
    row: KnownTask, source: seqio.DataSource, fields: Sequence[str], several_answers: bool = False
) -> None:
    """Register a supervised task of an export of records with such fields. several_answers: see `manifest.Manifest`."""
    assert row.supervised is not None
    answers = {"answers": row.supervised.targets} if several_answers else {}
    parse = functools.partial(parse_records, fields=tuple(fields), **answers)
    inputs, targets, kind = row.supervised.inputs, row.supervised.targets, row.supervised.kind
    make = with_answers if several_answers else text_to_text
    step = functools.partial(make, inputs=inputs, targets=targets, prompt=row.supervised.prompt(row.dataset))
    if kind == TRANSLATE:
        step = functools.partial(t5.translate, source_language=inputs, target_language=targets)
    _register(row, source, [parse, step], one_or_several if several_answers else None)


def register_tfds(row: KnownTask) -> None:
    """Register a task over TensorFlow Datasets, which are read when they are used."""
    assert row.supervised is not None
    task = TFDS_TASKS[kind := row.supervised.kind]
    source = seqio.TfdsDataSource(task.dataset, splits=dict(task.splits))
    # all answers of an example that are right, for its target
    _register(row, source, [_TFDS_STEPS[kind]], None if kind == "wmt19_ende" else t5_postprocessors.qa)


def _register(
    row: KnownTask, source: seqio.DataSource, steps: Sequence[Step], postprocess: Callable[..., Any] | None = None
) -> None:
    assert row.supervised is not None
    feature = seqio.Feature(to_seqio(row.vocabulary), add_eos=True)
    register(
        row.name,
        row.cached_as,
        source=source,
        preprocessors=[
            *steps,
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos_after_trim,
        ],
        postprocess_fn=postprocess,
        metric_fns=[getattr(metrics, name) for name in row.supervised.metrics],
        output_features={"inputs": feature, "targets": feature},
    )


@seqio.map_over_dataset
def text_to_text(example: Mapping[str, tf.Tensor], inputs: str, targets: str, prompt: str = "") -> dict[str, tf.Tensor]:
    """{"inputs", "targets"} of two fields; `prompt` in front of the inputs."""
    return {"inputs": tf.strings.join([prompt, example[inputs]]), "targets": example[targets]}


@seqio.map_over_dataset
def with_answers(example: Mapping[str, tf.Tensor], inputs: str, targets: str, prompt: str = "") -> dict[str, tf.Tensor]:
    """As `text_to_text`, of several answers: the model is trained on the first one, and "answers" has them all."""
    answers = example[targets]
    return {"inputs": tf.strings.join([prompt, example[inputs]]), "targets": answers[0], "answers": answers}


def one_or_several(answer: str, example: Mapping[str, Any], is_target: bool = False, **_: Any) -> str | list[str]:
    """A postprocessor of SeqIO: a prediction as it is; the target, or all that are right where there are several."""
    answers = t5_postprocessors.qa(answer, example, is_target=True) if is_target else [answer]
    return answers if len(answers) > 1 else answers[0]


@seqio.map_over_dataset
def trivia_qa_open(example: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """A question of TFDS's `trivia_qa` for closed-book answering, as Roberts et al. 2020 ask it. "answers" has all
    aliases, of which an answer is to be one; the model is trained on the answer itself."""
    return {
        "inputs": tf.strings.join(["trivia_qa question: ", example["question"]]),
        "targets": example["answer"]["value"],
        "answers": example["answer"]["aliases"],
    }


_TFDS_STEPS: Mapping[str, Step] = {
    "wmt19_ende": functools.partial(t5.translate, source_language="en", target_language="de"),
    "trivia_qa_open": trivia_qa_open,
    "squad": t5.squad,
}
