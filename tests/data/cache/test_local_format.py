"""Examples that are written without TensorFlow, against protocol buffers; counts, against SeqIO's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from t5xpg.data.cache.local_format import Column, Stats, names_in_order, parts, serialise

INT32 = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 1, 127, 128, 383, 16383, 16384, 2**21, 2**28])
INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**35 - 1, 2**35, 2**42, 2**49, 2**56, 2**63 - 1])
ROWS = st.fixed_dictionaries({"é": st.lists(INT32), "a": st.lists(INT64), "é.": st.lists(st.binary()), "b": INT32})
DTYPES = {"é": np.int32, "a": np.int64, "é.": object, "b": np.int32}


def batch_of(rows: list[dict[str, Any]]) -> dict[str, Column]:
    found = {}
    for name in names_in_order(DTYPES):
        dtype = DTYPES[name]
        lists = [row[name] if isinstance(row[name], list) else [row[name]] for row in rows]
        values = np.empty(sum(map(len, lists)), dtype)
        values[:] = [value for one in lists for value in one]
        found[name] = Column(values, np.cumsum([0, *map(len, lists)]))
    return found


def example_of(row: dict[str, Any]) -> bytes:
    feature = {}
    for name, value in row.items():
        values = value if isinstance(value, list) else [value]
        if DTYPES[name] is object:
            feature[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        else:
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return bytes(example.SerializeToString(deterministic=True))


@given(rows=st.lists(ROWS, min_size=1, max_size=5), values=st.integers(1, 20))
def test_examples_are_those_of_protocol_buffers(rows: list[dict[str, Any]], values: int) -> None:
    expected = [example_of(row) for row in rows]
    batch = batch_of(rows)
    assert serialise(batch, len(rows)) == expected
    pieces = list(parts(batch, values))
    assert [record for count, piece in pieces for record in serialise(piece, count)] == expected
    for count, piece in pieces:
        assert count == 1 or sum(len(column.values) for column in piece.values()) <= values


def test_long_examples_have_long_lengths() -> None:
    row = {"é": list(range(300)), "a": [-1] * 3000, "é.": [b"x" * 200, b"", b"y" * 20000], "b": -5}
    assert serialise(batch_of([row]), 1) == [example_of(row)]


def test_tokens_are_counted_as_seqio_counts_them() -> None:
    stats = Stats({"é": [1, 0], "a": [], "b": [0], "é.": [0], "missing": [0]})
    rows = [{"é": [5, 1, 0, 0, 7, 8], "a": [0, 1], "é.": [b"text"], "b": 0}, {"é": [], "a": [3], "é.": [], "b": 4}]
    for row in rows:
        stats.add(batch_of([row]), 1)
    together = Stats(stats.unused)
    together.add(batch_of(rows), 2)
    assert stats == together
    assert stats.to_json() == {
        "examples": 2, "é_tokens": 3, "é_max_tokens": 3, "a_tokens": 3, "a_max_tokens": 2, "b_tokens": 1,
        "b_max_tokens": 1,
    }  # fmt: skip
    named = Stats({"tokens": []}, 1, {"tokens": 4}, {"tokens": 4}).to_json()
    assert named == {"examples": 1, "tokens_tokens": 4, "max_tokens_max_tokens": 4}
    with pytest.raises(ValueError, match="the same name in SeqIO's stats: x_max_tokens"):
        Stats({}, 1, {"x": 1, "x_max": 1}, {"x": 1, "x_max": 1}).to_json()
