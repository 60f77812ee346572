"""The fast parts of `local`: examples serialised as `tf.train.Example`s, the counts of SeqIO's stats file, and examples
made from the lines of an export.

Array operations write the bytes: a protocol buffer in Python for each example costs more than all of TensorFlow's work
on it.
"""

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.data.preprocessors import parse_jsonl
from t5xpg.data.text.manifest import canonical_line

# Tags of protocol buffer fields: the field's number times 8, plus 2 for content with its length in front.
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"
_LONGEST_VARINT = 10
_MAX_VALUES = 1 << 20  # most values of a part of a batch: intermediate arrays need about ten times their memory
FEATURE = "targets"  # of the lines of an export
_MAX_LINES = 256  # most lines of an export in a batch
_MAX_BYTES = 1 << 17  # of lines, above which a batch ends


@dataclass(frozen=True)
class Column:
    """One feature of B examples. values: [all values] int32, int64, or objects (bytes). splits: [B + 1] int64; example
    b has `values[splits[b]:splits[b + 1]]`."""

    values: np.ndarray
    splits: np.ndarray


@dataclass
class Stats:
    """The numbers of SeqIO's stats file. special_ids: by feature, the ids that are not counted (end and padding)."""

    special_ids: Mapping[str, Sequence[int]]
    examples: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    max_tokens: dict[str, int] = field(default_factory=dict)

    def add(self, batch: Mapping[str, Column], count: int) -> None:
        """Count a batch of `count` examples, and the tokens of its features of integers."""
        self.examples += count
        for name, special_ids in self.special_ids.items():
            if name in batch and batch[name].values.dtype in (np.int32, np.int64):
                values = batch[name].values
                is_token = np.ones(len(values), bool)
                for special_id in special_ids:
                    is_token &= values != special_id
                ends = np.zeros(len(values) + 1, np.int64)
                np.cumsum(is_token, out=ends[1:])
                tokens = np.diff(ends[batch[name].splits])
                self.tokens[name] = self.tokens.get(name, 0) + int(tokens.sum())
                self.max_tokens[name] = max(self.max_tokens.get(name, 0), int(tokens.max()))

    def to_json(self) -> dict[str, int]:
        """The stats under SeqIO's keys. Raises ValueError, as SeqIO does, where two features have the same key."""
        sums = {f"{name}_tokens": count for name, count in self.tokens.items()}
        # SeqIO's own renaming: it also changes a feature that is called "tokens"
        most = {f"{name}_tokens".replace("tokens", "max_tokens"): count for name, count in self.max_tokens.items()}
        if shared := sums.keys() & most.keys():
            raise ValueError(f"two features of the task have the same name in SeqIO's stats: {', '.join(shared)}")
        return {"examples": self.examples, **sums, **most}


def parts(batch: Mapping[str, Column], values: int = _MAX_VALUES) -> Iterator[tuple[int, dict[str, Column]]]:
    """A batch in parts of at most `values` values, or of one example: the number of examples, and the columns."""
    ends = sum(column.splits - column.splits[0] for column in batch.values())
    first, count = 0, len(ends) - 1
    while first < count:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + values, side="right")) - 1)
        part = {}
        for name, column in batch.items():
            splits = column.splits[first : last + 1]
            part[name] = Column(column.values[splits[0] : splits[-1]], splits - splits[0])
        yield last - first, part
        first = last


def serialise(batch: Mapping[str, Column], count: int) -> list[bytes]:
    """The `count` examples of a batch as protocol buffers, their features in the order of the batch."""
    columns = [[_entry(name, feature) for feature in _features(column)] for name, column in batch.items()]
    return [_with_length(_FIELD_1, b"".join(column[row] for column in columns)) for row in range(count)]


def names_in_order(names: Iterable[str]) -> list[str]:
    """Names in the order in which the protobuf library writes features: "ab" may come before its prefix "a"."""
    features = tf.train.Features(feature={name: tf.train.Feature() for name in names})
    written = features.SerializeToString(deterministic=True)
    # each entry begins with its length: only one can stand at a position
    return sorted(features.feature, key=lambda name: written.index(_entry(name, b"")))


def _entry(name: str, feature: bytes) -> bytes:
    key = name.encode("utf-8")
    return _with_length(_FIELD_1, _with_length(_FIELD_1, key) + _with_length(_FIELD_2, feature))


def _features(column: Column) -> list[bytes]:
    if column.values.dtype == object:
        items: list[Any] = [_with_length(_FIELD_1, item) for item in column.values.tolist()]
        parts = [b"".join(items[begin:end]) for begin, end in itertools.pairwise(column.splits.tolist())]
        return [_with_length(_FIELD_1, part) for part in parts]
    packed, ends = varints(column.values)
    data, places = packed.tobytes(), ends[column.splits].tolist()
    lists = [
        _with_length(_FIELD_1, data[begin:end]) if end > begin else b"" for begin, end in itertools.pairwise(places)
    ]
    return [_with_length(_FIELD_3, part) for part in lists]


def _with_length(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content


def varint(value: int) -> bytes:
    """A number that is not negative, seven bits a byte, the lowest first."""
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)


def varints(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers [N] as consecutive varints, uint8, and their offsets, int64 [N + 1]; negative ones have ten bytes."""
    negative = len(values) > 0 and int(values.min()) < 0
    bits = (values.astype(np.int64) if negative else values).view(np.uint64 if negative else f"u{values.itemsize}")
    largest = int(bits.max()) if len(bits) else 0
    lengths = np.ones(len(bits), np.uint8)
    for place in range(1, _LONGEST_VARINT):
        if largest >> 7 * place == 0:
            break
        lengths += bits >= 1 << 7 * place
    ends = np.zeros(len(bits) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    packed = np.empty(int(ends[-1]), np.uint8)
    begins, left = ends[:-1], lengths
    for place in range(int(lengths.max()) if len(bits) else 0):
        if place:  # only the integers that have more bytes
            more = left > place
            begins, left, bits = begins[more], left[more], bits[more]
        low = (bits >> 7 * place).astype(np.uint8) & 0x7F
        packed[begins + place] = low | ((left > place + 1).astype(np.uint8) << 7)
    return packed, ends


def applies(task: seqio.Task, steps: Sequence[Any], split: str) -> bool:
    """True if `columns` gives the same examples as `steps`, the task's steps before its placeholder."""
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


def columns(task: seqio.Task, path: Path) -> Iterator[tuple[int, dict[str, Column]]]:
    """The examples of a file of the source in batches: their number and their feature. Fails as the task's steps do."""
    vocabulary = task.output_features[FEATURE].vocabulary
    ids = vocabulary.encode_tf(tf.constant(bytes(range(256)))).numpy()
    texts: list[bytes] = []
    size = 0
    with path.open("rb") as file:
        for line in file:
            texts.append(text_of(line))
            size += len(line)
            if len(texts) == _MAX_LINES or size > _MAX_BYTES:
                yield len(texts), {FEATURE: _column(texts, ids)}
                texts, size = [], 0
    if texts:
        yield len(texts), {FEATURE: _column(texts, ids)}


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


def _column(texts: Sequence[bytes], ids: np.ndarray) -> Column:
    values = ids[np.frombuffer(b"".join(texts), np.uint8)]
    return Column(values, np.cumsum([0, *map(len, texts)]))
