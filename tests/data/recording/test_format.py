"""Recorded batches: what comes back is what was written, and damage is found and named."""

import io
import os
import random
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg.base.errors import UserError
from t5xpg.data.batch import Batch, BatchSpec, hash_batch
from t5xpg.data.recording.format import StreamReader, StreamWriter, stream_path
from tests.refusals import refused

SPEC = BatchSpec(3, {"inputs": 10, "targets": 6}, packed=True, vocab_size=70000)


def make_batch(spec: BatchSpec, seed: int, highest: int = 69999) -> Batch:
    draw = np.random.default_rng(seed)
    batch = {}
    for name, (shape, dtype) in spec.features().items():
        limit = 2 if name.endswith("weights") else 6 if "positions" in name else highest + 1
        batch[name] = draw.integers(0, limit, shape).astype(dtype)
    return batch


def write(folder: Path, batches: list[Batch], spec: BatchSpec = SPEC) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with StreamWriter(folder, "train", spec) as writer:
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
    with StreamReader(folder, "train", count) as reader:
        assert len(reader) == count
        for number in random.Random(seed).sample(range(count), count):  # in any order
            read = reader.read(number, spec)
            assert list(read) == list(batches[number])
            for name, array in batches[number].items():
                np.testing.assert_array_equal(read[name], array, strict=True)
                assert read[name].flags.writeable
        with pytest.raises(IndexError, match=f"there are {count}"):
            reader.read(count, spec)


def test_numpy_alone_reads_it_and_the_same_batches_are_the_same_bytes(recorded: Path, tmp_path: Path) -> None:
    with np.load(stream_path(recorded, "train")) as arrays:
        assert len(arrays) == 5
        for name, array in make_batch(SPEC, 3).items():
            np.testing.assert_array_equal(arrays["3"][name], array)
    write(tmp_path / "again", [make_batch(SPEC, seed) for seed in range(5)])
    assert stream_path(tmp_path / "again", "train").read_bytes() == stream_path(recorded, "train").read_bytes()


def test_an_unfinished_stream_is_none(tmp_path: Path) -> None:
    def interrupted() -> None:
        with StreamWriter(tmp_path, "train", SPEC) as writer:
            writer.write(make_batch(SPEC, 0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_the_writer_refuses_what_is_no_batch(tmp_path: Path) -> None:
    broken = make_batch(SPEC, 0)
    broken["encoder_input_tokens"][0, 0] = -1
    with StreamWriter(tmp_path, "train", SPEC) as writer, pytest.raises(ValueError, match="encoder_input_tokens"):
        writer.write(broken)
    StreamReader(tmp_path, "train", 0).close()
    with pytest.raises(FileExistsError):
        StreamWriter(tmp_path, "train", SPEC)
    with refused("1,073,741,824", "BATCH_SIZE"):
        StreamWriter(tmp_path, "huge", BatchSpec(10**12, {"inputs": 1, "targets": 1}))
    assert not stream_path(tmp_path, "huge").exists()


def everything(folder: Path) -> list[Batch]:
    with StreamReader(folder, "train", 2, "Record it again, please.") as reader:
        return [reader.read(number, SPEC) for number in range(len(reader))]


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """An error that names the file, never another batch. Some bits of ZIP, as of times, and a few of deflate mean
    nothing: with those flipped, the batches are the same."""
    write(tmp_path, [make_batch(SPEC, seed) for seed in range(2)])
    expected = [hash_batch(batch) for batch in everything(tmp_path)]
    path = stream_path(tmp_path, "train")
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        starts = [(entry.header_offset + 30 + len(entry.filename), entry.compress_size) for entry in archive.infolist()]
    in_arrays = {place for start, size in starts for place in range(start, start + size)}
    harmless = 0
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        try:
            found: list[str] | str = [hash_batch(batch) for batch in everything(tmp_path)]
        except UserError as error:
            found = str(error)
        harmless += found == expected and place in in_arrays
        if found != expected:
            assert re.fullmatch(rf"{re.escape(str(path))}.*: .*\. Record it again, please\.", str(found))
    assert harmless < len(in_arrays) / 100


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(10**7), "10,000,000 bytes"),
        (saved(np.array([{}])), "allow_pickle=False"),
        (saved(np.zeros(3, [("inputs", "u1", 4)])), "encoder_input_tokens"),
        (saved(np.zeros(3, [(name, "u1", 4) for name in SPEC.features()])), "[3, 4]"),
    ],
    ids=range(4),
)
def test_arrays_that_are_no_batch(recorded: Path, content: bytes, message: str) -> None:
    """With a checksum that is right: what a mistake in a writer would make. More of it: fuzz/targets.py."""
    path = stream_path(recorded, "train")
    path.unlink()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0.npy", content)
    with StreamReader(recorded, "train", 1) as reader, refused("train.npz, batch 1 of 1", message):
        reader.read(0, SPEC)


def test_what_is_not_there_or_no_file(recorded: Path, tmp_path: Path) -> None:
    with refused("other.npz", "not there"):
        StreamReader(tmp_path, "other", 5)
    with refused("train.npz", "5 batches instead of 4"):
        StreamReader(recorded, "train", 4)
    path = stream_path(recorded, "train")
    for content in (b"", b"PK\3\4" * 50, path.read_bytes()[:-1]):
        path.write_bytes(content)
        with refused("train.npz", "no batches", "Record it"):
            StreamReader(recorded, "train", 5)
    path.unlink()
    os.mkfifo(path)
    with refused("train.npz", "no regular file"):
        StreamReader(recorded, "train", 5)
