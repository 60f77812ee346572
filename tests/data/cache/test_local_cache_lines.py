"""Examples of exports that are made without a graph are those that the steps of the table make."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5xpg.data.cache.local_format import applies, columns
from t5xpg.data.preprocessors import parse_jsonl
from t5xpg.data.tasks.seqio_vocabularies import to_seqio
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.tasks.task_names import VOCABULARIES, rows
from t5xpg.data.text.manifest import canonical_line

TRICKY = [chr(code) for code in range(0x20)] + list('\\"/bfnrtuab01{}: \x7f\x85\u2028é€😀')
OTHER_LINES = [
    b'{"text": "\\u0008 \\u000a \\u001f"}\n',  # control characters that an export writes otherwise
    b'{"text": "carriage return"}\r\n',
    b'{"te\rxt": "\r"}\n',
    b'{"text": ""}\n',
    b'{"text": "\xf4\x8f\xbf\xbf"}\n',
    b'{"text": "no line end"}',
]
STEPS: list[Any] = [
    parse_jsonl,
    functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
    functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
]


def task_of(path: Path, steps: list[Any], vocabulary: Any = None, **options: Any) -> seqio.Task:
    feature = seqio.Feature(vocabulary or seqio.ByteVocabulary(extra_ids=125), add_eos=True)
    source = seqio.TextLineDataSource({"train": str(path)}, **options)
    return seqio.Task("lines", source, {"targets": feature}, [*steps, seqio.CacheDatasetPlaceholder()])


def made(task: seqio.Task, path: Path) -> Iterator[list[int]]:
    for count, batch in columns(task, path):
        column = batch["targets"]
        assert len(column.splits) == count + 1
        assert column.values.dtype == np.int32
        yield from (part.tolist() for part in np.split(column.values, column.splits[1:-1]))


def test_examples_are_those_of_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    texts = ["".join(a + b for b in TRICKY) for a in TRICKY] + ["short"] * 300 + ["long " * 40_000, "\ud800"]
    path.write_bytes(b"".join([*map(canonical_line, texts), *OTHER_LINES]))
    task = task_of(path, STEPS)
    dataset = task.preprocess_precache(task.source.get_dataset("train", shuffle=False), seed=0)
    assert list(made(task, path)) == [example["targets"].tolist() for example in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("line", [b"\n", b'{"text": "a" }\n', b'{"text": "\xff"}\n', b'{"text": "\\ud800"}\n'])
def test_what_the_steps_refuse_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(canonical_line("first") + line)
    with pytest.raises(tf.errors.InvalidArgumentError, match="This line is not"):
        list(made(task_of(path, STEPS), path))


def test_it_is_for_the_steps_of_the_table_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(canonical_line("first"))
    assert applies(task_of(path, STEPS), STEPS, "train")
    assert applies(task_of(path, STEPS, to_seqio(VOCABULARIES[0].vocabulary)), STEPS, "train")
    others: list[list[Any]] = [
        [*STEPS, STEPS[2]],
        [lambda dataset: parse_jsonl(dataset), *STEPS[1:]],
        [STEPS[0], functools.partial(seqio.preprocessors.rekey, key_map={"targets": "other"}), STEPS[2]],
        [*STEPS[:2], functools.partial(seqio.preprocessors.tokenize_and_append_eos, copy_pretokenized=False)],
        [*STEPS[:2], seqio.preprocessors.tokenize],  # which copies the text
    ]
    for steps in others:
        assert not applies(task_of(path, steps), steps, "train")
    assert not applies(task_of(path, STEPS, seqio.PassThroughVocabulary(300)), STEPS, "train")
    assert not applies(task_of(path, STEPS, skip_header_lines=1), STEPS, "train")
    assert not applies(task_of(tmp_path / "elsewhere", STEPS), STEPS, "train")
    # and for every cache of the table's bytes
    register_tasks(tmp_path)
    for row in rows("wikitext"):
        task = seqio.TaskRegistry.get(row.cached_as)
        steps = task.preprocessors
        place = next(i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder))
        assert applies(task, steps[:place], "train")
