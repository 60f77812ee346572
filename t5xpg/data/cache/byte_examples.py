"""The fast part of `local`: examples of bytes from the lines of an export, without TensorFlow.

Array operations write the bytes: a protocol buffer in Python for each example costs more than all the other work on it.
"""

import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.data.preprocessors import parse_jsonl
from t5xpg.data.text.manifest import canonical_line

# Tags of protocol buffer fields: the field's number times 8, plus 2 for content with its length in front.
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"
FEATURE = "targets"
_MAX_LINES = 256  # most lines in a batch
_MAX_BYTES = 1 << 17  # of lines, above which a batch ends


def applies(task: seqio.Task, steps: Sequence[Any], split: str) -> bool:
    """True if `batches` gives the same examples as `steps`, the task's steps before its placeholder."""
    source, feature = task.source, task.output_features.get(FEATURE)
    return (
        type(source) is seqio.TextLineDataSource
        and source._skip_header_lines == 0
        and all(Path(path).is_file() for path in source.list_shards(split))  # not on another machine
        and len(steps) == 3
        and steps[0] is parse_jsonl
        and _is_partial_of(steps[1], seqio.preprocessors.rekey, key_map={FEATURE: "text"})
        and _is_partial_of(steps[2], seqio.preprocessors.tokenize, copy_pretokenized=False)
        and feature is not None
        and type(feature.vocabulary) is seqio.ByteVocabulary
    )


def _is_partial_of(step: Any, function: Any, **keywords: Any) -> bool:
    is_partial = isinstance(step, functools.partial)
    return is_partial and step.func is function and not step.args and step.keywords == keywords


def batches(task: seqio.Task, path: Path) -> Iterator[tuple[list[int], list[bytes]]]:
    """The examples of a file of the source in batches: the number of tokens of each, and the examples as protocol
    buffers. Fails as the task's steps do."""
    ids = task.output_features[FEATURE].vocabulary.encode_tf(tf.constant(bytes(range(256)))).numpy()
    texts: list[bytes] = []
    size = 0
    with path.open("rb") as file:
        for line in file:
            texts.append(text_of(line))
            size += len(line)
            if len(texts) == _MAX_LINES or size > _MAX_BYTES:
                yield list(map(len, texts)), serialised(texts, ids)
                texts, size = [], 0
    if texts:
        yield list(map(len, texts)), serialised(texts, ids)


def text_of(line: bytes) -> bytes:
    """The text of a line, as the first step, `parse_jsonl`, gives it."""
    try:
        text = json.loads(line)["text"]
        if canonical_line(text) == line:  # which the step inverts
            return text.encode("utf-8")
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    # not as an export writes it: read as TensorFlow reads lines, then parsed by the step itself
    content = line.removesuffix(b"\n").replace(b"\r", b"")
    example = next(parse_jsonl(tf.data.Dataset.from_tensors(content)).as_numpy_iterator())
    return bytes(example["text"])


def serialised(texts: Sequence[bytes], ids: np.ndarray) -> list[bytes]:
    """A `tf.train.Example` of the ids of each text. ids: int32[256], below 2**14: of each byte."""
    # a varint has seven bits of an id in each byte, the lowest first, and one that says whether another byte follows
    is_long = ids > 0x7F
    first, second = ((ids & 0x7F) | is_long << 7).astype(np.uint8), (ids >> 7).astype(np.uint8)
    content = np.frombuffer(b"".join(texts), np.uint8)
    long = is_long[content]
    offsets = np.zeros(len(content) + 1, np.int64)
    np.cumsum(long + np.uint8(1), out=offsets[1:])
    packed = np.empty(offsets[-1], np.uint8)
    packed[offsets[:-1]] = first[content]
    packed[offsets[1:][long] - 1] = second[content[long]]
    data, places = packed.tobytes(), offsets[np.cumsum([0, *map(len, texts)])].tolist()
    return [_example(data[begin:end]) for begin, end in itertools.pairwise(places)]


def _example(packed: bytes) -> bytes:
    feature = _with_length(_FIELD_3, _with_length(_FIELD_1, packed) if packed else b"")
    entry = _with_length(_FIELD_1, FEATURE.encode()) + _with_length(_FIELD_2, feature)
    return _with_length(_FIELD_1, _with_length(_FIELD_1, entry))


def _with_length(tag: bytes, content: bytes) -> bytes:
    length, value = bytearray(), len(content)
    while value > 0x7F:
        length.append(value & 0x7F | 0x80)
        value >>= 7
    return tag + bytes((*length, value)) + content
