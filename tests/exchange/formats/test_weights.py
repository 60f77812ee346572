"""Files of tensors: one or several, safetensors or PyTorch's own, and what is said of those that are not whole."""

import json
import pickle
import shutil
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5xpg.exchange.formats import torch_files
from t5xpg.exchange.formats.torch_files import TorchFile
from t5xpg.exchange.formats.weights import files_of, open_weights
from tests.refusals import refused
from tests.small_models import FAMILIES

EXPECTED = load_file(FAMILIES / "t5_1_1" / "model.safetensors")
COPIES = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FAMILIES / "parts", tmp_path / "parts"))


def check(found: Mapping[str, np.ndarray], rounded: bool = False) -> None:
    assert set(found) - COPIES == set(EXPECTED)
    assert len(found) == len(list(found))
    for name, expected in EXPECTED.items():
        assert found[name].shape == expected.shape
        np.testing.assert_array_equal(found[name], expected.astype(np.float16) if rounded else expected)
    with pytest.raises(KeyError):
        found["no such tensor"]


@pytest.mark.parametrize(("layout", "rounded"), [("archive_bin", True), ("old_bin", False)])
def test_files_of_pytorch(layout: str, rounded: bool) -> None:
    found = open_weights(FAMILIES / layout)
    assert found["shared.weight"].dtype == (np.float16 if rounded else np.float32)
    check(found, rounded)
    transposed = TorchFile(FAMILIES / layout / "small.bin")["a"]
    np.testing.assert_array_equal(transposed, [[0, 2], [1, 3]])
    assert transposed.flags["C_CONTIGUOUS"]


def test_safetensors_come_first(tmp_path: Path) -> None:
    shutil.copy(FAMILIES / "t5_1_1" / "model.safetensors", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"something else")
    check(open_weights(tmp_path))


def test_parts_that_are_missing_or_of_something_else(folder: Path) -> None:
    _, second = sorted(folder.glob("*.safetensors"))
    kept = load_file(second)
    second.unlink()
    with refused(second.name):
        open_weights(folder)
    save_file({"another": np.zeros(1)}, second)
    with refused("not of one checkpoint"):
        open_weights(folder)
    save_file(kept, second)
    first, *parts = files_of(folder)
    assert (first.name, len(parts)) == ("model.safetensors.index.json", 2)
    check(open_weights(folder))


def test_indices_that_are_none(folder: Path, tmp_path: Path) -> None:
    for text in (
        "{",
        "[]",
        '{"weight_map": {}}',
        '{"weight_map": {"a": "../b.safetensors"}}',
        '{"weight_map": {"a": 3}}',
    ):
        (folder / "model.safetensors.index.json").write_text(text)
        with refused("model.safetensors.index.json"):
            open_weights(folder)
    with refused("model.safetensors", "pytorch_model.bin"):
        open_weights(tmp_path)


def test_files_that_end_too_early(tmp_path: Path) -> None:
    data = (FAMILIES / "t5_1_1" / "model.safetensors").read_bytes()
    for size in (0, 5, -1):
        (tmp_path / "model.safetensors").write_bytes(data[:size])
        with refused("model.safetensors", f"{len(data[:size]):,} bytes"):
            open_weights(tmp_path)
    for layout in ("archive_bin", "old_bin"):
        data = (FAMILIES / layout / "pytorch_model.bin").read_bytes()
        for size in (0, 100, -100):
            (tmp_path / "a.bin").write_bytes(data[:size])
            with refused("a.bin"):
                dict(TorchFile(tmp_path / "a.bin"))


def test_types_that_numpy_lacks(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(2))
    with refused("model.safetensors", "F8_E4M3", "float32"):
        open_weights(tmp_path)["a"]


class Hostile:
    """What would make a folder where it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> object:
        return Path.mkdir, (self.target,)


def archive(path: Path, description: object) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(description, protocol=2))
    return path


def test_nothing_is_run(tmp_path: Path) -> None:
    hostile = Hostile(tmp_path / "made")
    archive(tmp_path / "alone.bin", hostile)
    archive(tmp_path / "inside.bin", {"shared.weight": hostile})
    (tmp_path / "stream.bin").write_bytes(pickle.dumps(hostile, protocol=2))
    for name in ("alone.bin", "inside.bin", "stream.bin"):
        with refused("not run"):
            TorchFile(tmp_path / name)
    assert not (tmp_path / "made").exists()


def test_what_is_no_dict_of_tensors(tmp_path: Path) -> None:
    for value in ({}, [], 3, {"a": 3}, {3: "a"}):
        with refused("a.bin"):
            TorchFile(archive(tmp_path / "a.bin", value))


def test_descriptions_that_would_take_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(described: bytes, named: str) -> None:
        (tmp_path / "stream.bin").write_bytes(described)
        with zipfile.ZipFile(tmp_path / "archive.bin", "w") as file:
            file.writestr("archive/data.pkl", described)
        for name in ("archive.bin", "stream.bin"):
            with refused(named):
                TorchFile(tmp_path / name)

    doubled = b"\x80\x02)" + b"".join(b"q%ch%c\x86" % (number, number) for number in range(200))
    check(doubled + b"}h\xc7K\x01s.", "a tuple")  # {t: 1}, t = (t', t'), 200 times
    check(doubled + b"h\xc7\x93.", "a tuple")
    monkeypatch.setattr(torch_files, "_MOST_INSTRUCTIONS", 100)
    check(b"\x80\x02" + 101 * b"]" + b".", "more than 100")


def test_tensors_stay_in_their_numbers() -> None:
    numbers = np.arange(4, dtype=np.float32)
    storage = torch_files._Storage("0", numbers.dtype, numbers.size)
    for offset, shape, strides in ((0, (2, 2), (2, 1)), (0, (2, 2), (1, 2)), (3, (1,), (1,))):
        expected = np.lib.stride_tricks.as_strided(numbers[offset:], shape, [4 * stride for stride in strides])
        np.testing.assert_array_equal(torch_files._Tensor(storage, offset, shape, strides).view(numbers), expected)
    beyond = [(1, (4,), (1,)), (0, (2, 2), (4, 1)), (0, (1 << 40, 1), (0, 0)), (-1, (1,), (1,)), (0, (2,), (-1,))]
    for offset, shape, strides in (*beyond, (0, (2, 2), (1,))):
        with pytest.raises(ValueError, match=r"impossible shape|reaches beyond its numbers"):
            torch_files._Tensor(storage, offset, shape, strides).view(numbers)
