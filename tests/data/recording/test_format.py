"""Recorded batches: what comes back is what was written, and damage is found and named."""

import hashlib
import json
import os
import random
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg.base.errors import UserError
from t5xpg.data.batch import Batch, BatchSpec, hash_batch
from t5xpg.data.recording import format as stream_format
from t5xpg.data.recording.format import VERSION, StreamReader, StreamWriter, batches_path, index_path

SPEC = BatchSpec(3, {"inputs": 10, "targets": 6}, packed=True, vocab_size=70000)


def make_batch(spec: BatchSpec, seed: int, highest: int = 69999) -> Batch:
    draw = np.random.default_rng(seed)
    batch = {}
    for name, (shape, dtype) in spec.features().items():
        limit = 2 if name.endswith("weights") else 6 if "positions" in name else highest + 1
        batch[name] = draw.integers(0, limit, shape).astype(dtype)
    return batch


def write(folder: Path, batches: list[Batch], spec: BatchSpec = SPEC, name: str = "train") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with StreamWriter(folder, name, spec) as writer:
        for batch in batches:
            writer.write(batch)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    write(tmp_path, [make_batch(SPEC, seed) for seed in range(5)])
    return tmp_path


@settings(max_examples=60)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9)),
    packed=st.booleans(),
    highest=st.sampled_from([1, 255, 256, 65535, 65536, 2**24 - 1, 2**24, 2**31 - 1]),
    count=st.integers(0, 4),
    seed=st.integers(0, 999),
)
def test_what_was_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: tuple[int, ...], packed: bool, highest: int, count: int, seed: int
) -> None:
    rows, inputs, targets = sizes
    spec = BatchSpec(rows, {"inputs": inputs, "targets": targets}, packed)
    batches = [make_batch(spec, seed + number, highest) for number in range(count)]
    for batch in batches:
        batch["encoder_input_tokens"][0, 0] = highest
        for name in [name for name in batch if "positions" in name]:
            batch[name][:] = 0
    folder = tmp_path_factory.mktemp("stream")
    write(folder, batches, spec)
    with StreamReader(folder, "train") as reader:
        assert (reader.spec, len(reader)) == (spec, count)
        for number in random.Random(seed).sample(range(count), count):  # in any order
            read = reader.read(number)
            assert list(read) == list(batches[number])
            for name, array in batches[number].items():
                np.testing.assert_array_equal(read[name], array, strict=True)
                assert read[name].flags.writeable
            assert reader.digest(number) == hash_batch(batches[number])
        with pytest.raises(IndexError, match=f"there are {count}"):
            reader.read(count)


def test_an_unfinished_stream_is_none(tmp_path: Path) -> None:
    def interrupted() -> None:
        with StreamWriter(tmp_path, "train", SPEC) as writer:
            writer.write(make_batch(SPEC, 0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(UserError, match="it is not an index of batches"):
        StreamReader(tmp_path, "train")


def test_the_writer_refuses_what_is_no_batch(tmp_path: Path) -> None:
    with StreamWriter(tmp_path, "train", SPEC) as writer:
        broken = make_batch(SPEC, 0)
        broken["encoder_input_tokens"][0, 0] = -1
        with pytest.raises(ValueError, match="encoder_input_tokens has values from -1"):
            writer.write(broken)
    with StreamReader(tmp_path, "train") as reader:
        assert len(reader) == 0
    with pytest.raises(FileExistsError):
        StreamWriter(tmp_path, "train", SPEC)
    with pytest.raises(UserError, match=r"at most 1,073,741,824 can be recorded. Lower BATCH_SIZE"):
        StreamWriter(tmp_path, "huge", BatchSpec(10**12, {"inputs": 1, "targets": 1}))
    assert not index_path(tmp_path, "huge").exists()


def everything(folder: Path) -> list[Batch]:
    with StreamReader(folder, "train", "Record it again, please.") as reader:
        return [reader.read(number) for number in range(len(reader))]


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """Each byte of both files, one flipped bit at a time: an error that names the file, never another batch.

    A few bits mean nothing to zstd: with those flipped, the batches are the same.
    """
    write(tmp_path, [make_batch(SPEC, seed) for seed in range(2)])
    expected = [hash_batch(batch) for batch in everything(tmp_path)]
    harmless = 0
    for path in (index_path(tmp_path, "train"), batches_path(tmp_path, "train")):
        whole = path.read_bytes()
        for place in range(len(whole)):
            data = bytearray(whole)
            data[place] ^= 1 << place % 8
            path.write_bytes(data)
            try:
                found: list[str] | str = [hash_batch(batch) for batch in everything(tmp_path)]
            except UserError as error:
                found = str(error)
            harmless += found == expected
            if found != expected:
                assert re.fullmatch(rf"{re.escape(str(tmp_path))}.*: .*\. Record it again, please\.", str(found))
        path.write_bytes(whole)
    assert harmless <= len(expected)


def test_a_file_cut_off_while_it_is_read(recorded: Path) -> None:
    with StreamReader(recorded, "train") as reader:
        reader.read(0)
        os.truncate(batches_path(recorded, "train"), 20)
        with pytest.raises(UserError, match=r"train\.batches, batch 2 of 5: the file ends before it"):
            reader.read(1)


def spec_json(rows: int, **changes: Any) -> bytes:
    lengths = {"inputs": 10**6, "targets": 1}
    value = {"batch_size": rows, "packed": False, "vocab_size": None, "task_feature_lengths": lengths} | changes
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("text", "entries", "message"),
    [
        (b"[" * 60000, b"", r"train\.index: it describes no batches"),
        (spec_json(10**6), b"", "a batch would have 4,000,012,000,000 bytes"),
        (spec_json(1, packed=3), b"", "packed is neither true nor false"),
        (spec_json(1), bytes(35), r"train\.index: it describes no batches"),
        (spec_json(1), b"\xff" * 36, r"train\.batches: it has [\d,]+ bytes instead of 4,294,967,303"),
    ],
)
def test_absurd_indices(recorded: Path, text: bytes, entries: bytes, message: str) -> None:
    """With a SHA-256 that is right: what a fuzzer, or a mistake in a writer, would make."""
    index = struct.pack("<8sII", b"t5xpgIdx", VERSION, len(text)) + text + entries
    index_path(recorded, "train").write_bytes(index + hashlib.sha256(index).digest())
    with pytest.raises(UserError, match=message):
        StreamReader(recorded, "train")


def test_a_frame_of_another_size_is_not_unpacked() -> None:
    widths = bytes([1] * len(SPEC.features()))
    bomb = zstandard.ZstdCompressor().compress(bytes(10**7))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10))
    for frame in (bomb, unsized):
        with pytest.raises(ValueError, match="its zstd frame is not of the size of its arrays"):
            stream_format._decode(widths + frame, SPEC)
    size = sum(int(np.prod(shape)) for shape, _ in SPEC.features().values())
    fitting = zstandard.ZstdCompressor().compress(bytes(size))
    assert not any(array.any() for array in stream_format._decode(widths + fitting, SPEC).values())
    for record in (b"", widths + fitting + b"more"):
        with pytest.raises((ValueError, zstandard.ZstdError)):
            stream_format._decode(record, SPEC)


def test_what_is_not_there_or_no_file(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"other\.index: it is not there"):
        StreamReader(tmp_path, "other")
    index = index_path(recorded, "train")
    content = index.read_bytes()
    index.write_bytes(content[:8] + struct.pack("<I", 1) + content[12:])
    with pytest.raises(UserError, match="it has version 1 of the format, and this program reads 2"):
        StreamReader(recorded, "train")
    index.write_bytes(b"PK\3\4" * 50)
    with pytest.raises(UserError, match=r"train\.index: it is not an index of batches"):
        StreamReader(recorded, "train")
    index.write_bytes(content)
    batches_path(recorded, "train").unlink()
    os.mkfifo(batches_path(recorded, "train"))
    with pytest.raises(UserError, match=r"train\.batches: it is no regular file"):
        StreamReader(recorded, "train")
