"""The order of digests, in memory and in files, and the TFRecord files that it goes to."""

import hashlib
import random
from pathlib import Path

import pytest
import tensorflow as tf

from t5xpg.data.cache.external_sort import DigestSorter, deal


def some_records(count: int) -> list[bytes]:
    draw = random.Random(0)
    records = [draw.randbytes(draw.randrange(60)) for _ in range(count)]
    return records + records[: count // 3] + [b""] * 5


@pytest.mark.parametrize("held", [1, 5_000, 1 << 30], ids=["every batch in files", "many files", "in memory"])
def test_records_come_in_the_order_of_their_digests(tmp_path: Path, held: int) -> None:
    records = some_records(300)
    order = DigestSorter(tmp_path / "order", held)
    for first in range(0, len(records), 7):
        order.add(records[first : first + 7])
    assert (tmp_path / "order").exists() == (held < 1 << 30)
    assert list(order) == sorted(records, key=lambda record: hashlib.sha256(record).digest())
    assert not (tmp_path / "order").exists()
    assert list(DigestSorter(tmp_path / "order", held)) == []


@pytest.mark.parametrize(("count", "written"), [(0, 1 << 30), (3, 1), (200, 2_000), (200, 1 << 30)])
def test_files_are_as_tensorflow_writes_them(tmp_path: Path, count: int, written: int) -> None:
    records = some_records(count)[:count]
    paths = [tmp_path / f"ours-{number}" for number in range(4)]
    deal(iter(records), paths, written)
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
            for record in records[number::4]:
                writer.write(record)
        assert path.read_bytes() == (tmp_path / "theirs").read_bytes()
