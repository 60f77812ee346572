"""The examples of the table's tasks without a TensorFlow graph: lines of an export to the ids of their bytes.

Running a graph for every document, with regular expressions over all of its text, takes most of the time that caching
such a task takes, and the graph itself takes longer to build than small exports to cache. Where a task's steps are
those of the table, this makes the same examples from the same files; `local_cache` runs any other steps as they are.
Imports TensorFlow.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.data.local_cache_examples import Column
from t5xpg.data.preprocessors import parse_jsonl

FEATURE = "targets"
# Lines are worked on so many at a time, or so many bytes.
_LINES = 256
_BYTES = 1 << 17
_BEFORE, _BEHIND = b'{"text": ', b"}\n"
_decode, _encode = json.JSONDecoder().decode, json.JSONEncoder(ensure_ascii=False).encode


def applies(task: seqio.Task, steps: Sequence[Any], split: str) -> bool:
    """Whether a task makes its examples as this does, by the steps before its placeholder."""
    source, feature = task.source, task.output_features.get(FEATURE)
    return (
        type(source) is seqio.TextLineDataSource
        and source._skip_header_lines == 0
        and all(Path(path).is_file() for path in source.list_shards(split))  # not on another machine
        and len(steps) == 3
        and steps[0] is parse_jsonl
        and _is(steps[1], seqio.preprocessors.rekey, key_map={FEATURE: "text"})
        and _is(steps[2], seqio.preprocessors.tokenize, copy_pretokenized=False)
        and feature is not None
        and type(feature.vocabulary) is seqio.ByteVocabulary
    )


def _is(step: Any, function: Any, **keywords: Any) -> bool:
    if not isinstance(step, functools.partial):
        return False
    return step.func is function and not step.args and step.keywords == keywords


def columns(task: seqio.Task, path: Path) -> Iterator[tuple[int, dict[str, Column]]]:
    """The examples of a file of the source in batches: how many, and their feature. Fails as the task's steps do."""
    vocabulary = task.output_features[FEATURE].vocabulary
    ids = vocabulary.encode_tf(tf.constant(bytes(range(256)))).numpy()
    texts: list[bytes] = []
    size = 0
    with path.open("rb") as file:
        for line in file:
            texts.append(text_of(line))
            size += len(line)
            if len(texts) == _LINES or size > _BYTES:
                yield len(texts), {FEATURE: _column(texts, ids)}
                texts, size = [], 0
    if texts:
        yield len(texts), {FEATURE: _column(texts, ids)}


def text_of(line: bytes) -> bytes:
    """What the first step makes of a line."""
    literal = line[len(_BEFORE) : -len(_BEHIND)]
    try:
        text = _decode(literal.decode("utf-8"))
        # the only line of this text: `manifest.canonical_line`, whose inverse the step is
        if isinstance(text, str) and b"".join((_BEFORE, _encode(text).encode("utf-8"), _BEHIND)) == line:
            return text.encode("utf-8")
    except (ValueError, RecursionError):
        pass
    # not as an export writes it: as TensorFlow reads lines, and the step takes them
    read = line.removesuffix(b"\n").replace(b"\r", b"")
    example = next(parse_jsonl(tf.data.Dataset.from_tensors(read)).as_numpy_iterator())
    return bytes(example["text"])


def _column(texts: Sequence[bytes], ids: np.ndarray) -> Column:
    values = ids[np.frombuffer(b"".join(texts), np.uint8)]
    return Column(values, np.cumsum([0, *map(len, texts)]))
