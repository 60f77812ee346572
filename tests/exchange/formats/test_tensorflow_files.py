"""TensorFlow's checkpoints, read without it: one that TensorFlow wrote, and indexes that are not whole."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg.base.errors import UserError
from t5xpg.exchange.formats.tensorflow_files import TensorFlowCheckpoint, unpacked
from t5xpg.exchange.t5x.params import of_mesh_tensorflow
from tests.t5x_goldens import CONTENTS, described, unpack

CASE, PREFIX = "mesh_tensorflow", "model.ckpt-5"


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return unpack(CASE, tmp_path) / PREFIX


def test_variables_are_those_that_t5x_takes(prefix: Path) -> None:
    """`contents.json` is what T5X's importer makes of the file by way of TensorFlow."""
    found = TensorFlowCheckpoint(prefix)
    assert len(found) == len(list(found)) == len(found.variables)
    named = {of_mesh_tensorflow(name): found[name] for name in found}
    assert None not in named
    for name, array in named.items():
        name = str(name).replace("/layers_0/relpos_bias/", "/relpos_bias/")
        assert described(array) == CONTENTS[CASE][name], name
    with pytest.raises(KeyError):
        found["no such variable"]


def change(file: Path, at: int, byte: int | None = None) -> None:
    data = bytearray(file.read_bytes())
    data[at] = data[at] ^ 0xFF if byte is None else byte
    file.write_bytes(bytes(data))


def test_damage_is_said(prefix: Path) -> None:
    index, data = prefix.with_name(f"{PREFIX}.index"), prefix.with_name(f"{PREFIX}.data-00000-of-00001")
    change(data, 100)
    found = TensorFlowCheckpoint(prefix)
    with pytest.raises(UserError, match="is damaged or not whole"):
        [found[name] for name in found]
    data.unlink()
    with pytest.raises(UserError, match=r"There is no .*data-00000-of-00001, which holds"):
        next(iter(found.values()))
    change(index, 50)
    with pytest.raises(UserError, match=r"is no index of a TensorFlow checkpoint, or not whole \(a block is damaged\)"):
        TensorFlowCheckpoint(prefix)
    index.write_bytes(index.read_bytes()[:-3])
    with pytest.raises(UserError, match="its end is not that of a table"):
        TensorFlowCheckpoint(prefix)
    index.unlink()
    with pytest.raises(UserError, match=r"There is no .*model.ckpt-5.index"):
        TensorFlowCheckpoint(prefix)


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def test_blocks_that_are_compressed_are_read(prefix: Path) -> None:
    """As TensorFlow wrote them when Mesh-TensorFlow trained T5."""
    index = prefix.with_name(f"{PREFIX}.index")
    plain = TensorFlowCheckpoint(prefix)
    data = index.read_bytes()
    # one block of entries, then the empty block of blocks, the block that points at the first, and the footer
    footer = data[-48:]
    start, size = _varint(footer, 0)[0], 0
    at = _varint(footer, _varint(footer, 0)[1])[1]
    start, at = _varint(footer, at)
    size, _ = _varint(footer, at)
    pointers = data[start : start + size]
    shared, own, length = pointers[0], pointers[1], pointers[2]
    assert shared == 0
    handle = pointers[3 + own : 3 + own + length]
    first, at = _varint(handle, 0)
    block_size, _ = _varint(handle, at)
    packed = pyarrow.compress(data[first : first + block_size], codec="snappy").to_pybytes()
    assert len(packed) < block_size
    made = packed + b"\x01" + masked(packed + b"\x01")
    value = b"\x00" + _as_varint(len(packed))
    entry = bytes([0, own, len(value)]) + pointers[3 : 3 + own] + value
    block = entry + (0).to_bytes(4, "little") + (1).to_bytes(4, "little")
    made_start = len(made)
    made += block + b"\x00" + masked(block + b"\x00")
    handles = b"\x00\x00" + _as_varint(made_start) + _as_varint(len(block))
    index.write_bytes(made + handles.ljust(40, b"\x00") + footer[40:])
    assert TensorFlowCheckpoint(prefix).variables == plain.variables


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def _as_varint(value: int) -> bytes:
    made = b""
    while value > 127:
        made, value = made + bytes([value & 127 | 128]), value >> 7
    return made + bytes([value])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"a" * 300, b"ab" * 40, b"layer_000/"])), max_size=30)
)
def test_snappy_is_undone(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert unpacked(pyarrow.compress(data, codec="snappy").to_pybytes()) == data


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_what_snappy_has_not_written_is_refused(data: bytes) -> None:
    try:
        made = unpacked(data)
    except (ValueError, IndexError):
        return
    assert len(made) <= 64 * len(data)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_any_other_byte_is_refused_or_read(tmp_path_factory: pytest.TempPathFactory, at: int, byte: int) -> None:
    folder = tmp_path_factory.mktemp("index")
    prefix = unpack(CASE, folder) / PREFIX
    index = prefix.with_name(f"{PREFIX}.index")
    change(index, at % index.stat().st_size, byte)
    try:
        found = TensorFlowCheckpoint(prefix)
        assert all(isinstance(found[name], np.ndarray) for name in found)
    except UserError:
        pass
