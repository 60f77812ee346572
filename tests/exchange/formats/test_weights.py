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

from t5xpg.base.errors import UserError
from t5xpg.exchange.formats import torch_files
from t5xpg.exchange.formats.torch_files import TorchFile
from t5xpg.exchange.formats.weights import files_of, open_weights
from tests.small_models import FAMILIES

EXPECTED = load_file(FAMILIES / "t5_1_1" / "model.safetensors")
COPIES = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the checkpoint in parts."""
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


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no parameters: expected model\.safetensors or pytorch_model\.bin"):
        open_weights(tmp_path)


def test_parts_that_are_missing_or_of_something_else(folder: Path) -> None:
    _, second = sorted(folder.glob("*.safetensors"))
    kept = load_file(second)
    second.unlink()
    with pytest.raises(UserError, match=f"names 2 files, and 1 of them are not there: {second.name}"):
        open_weights(folder)
    save_file({"another": np.zeros(1)}, second)
    with pytest.raises(UserError, match="in a file that lacks it: the files are not of one checkpoint"):
        open_weights(folder)
    save_file(kept, second)
    first, *parts = files_of(folder)
    assert (first.name, len(parts)) == ("model.safetensors.index.json", 2)
    check(open_weights(folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not an index of files"),
        ("[]", "is not an index of files"),
        ('{"weight_map": {}}', "names no files"),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "expected the name of a file beside it"),
        ('{"weight_map": {"a": 3}}', "expected the name of a file beside it"),
    ],
)
def test_indices_that_are_none(folder: Path, text: str, message: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match=message):
        open_weights(folder)


@pytest.mark.parametrize("size", [0, 5, -1])
def test_safetensors_that_end_too_early(tmp_path: Path, size: int) -> None:
    data = (FAMILIES / "t5_1_1" / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:size])
    with pytest.raises(UserError, match=rf"is not a whole safetensors file .* {len(data[:size]):,} bytes are there"):
        open_weights(tmp_path)


def test_types_that_numpy_lacks(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(2))
    with pytest.raises(UserError, match=r"a in .*model\.safetensors is of F8_E4M3: expected float32"):
        open_weights(tmp_path)["a"]


@pytest.mark.parametrize("layout", ["archive_bin", "old_bin"])
@pytest.mark.parametrize("size", [0, 100, -100])
def test_files_of_pytorch_that_end_too_early(tmp_path: Path, layout: str, size: int) -> None:
    (tmp_path / "a.bin").write_bytes((FAMILIES / layout / "pytorch_model.bin").read_bytes()[:size])
    with pytest.raises(UserError, match="is not a whole file of tensors that PyTorch wrote"):
        dict(TorchFile(tmp_path / "a.bin"))


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


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: {"shared.weight": one}], ids=["alone", "inside"])
def test_nothing_is_run(tmp_path: Path, wrap: object) -> None:
    bad = archive(tmp_path / "a.bin", wrap(Hostile(tmp_path / "made")))  # type: ignore[operator]
    with pytest.raises(UserError, match="which is not run"):
        TorchFile(bad)
    (tmp_path / "b.bin").write_bytes(pickle.dumps(Hostile(tmp_path / "made"), protocol=2))
    with pytest.raises(UserError, match="which is not run"):
        TorchFile(tmp_path / "b.bin")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("value", [{}, [], 3, {"a": 3}, {3: "a"}])
def test_what_is_no_dict_of_tensors(tmp_path: Path, value: object) -> None:
    with pytest.raises(UserError, match=r"named tensors|instead of a dict|no dict of tensors needs"):
        TorchFile(archive(tmp_path / "a.bin", value))


DOUBLED = b"\x80\x02)" + b"".join(b"q%ch%c\x86" % (number, number) for number in range(200))


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (DOUBLED + b"}h\xc7K\x01s.", "a tuple where a name is expected"),  # {t: 1}, t = (t', t'), 200 times
        (DOUBLED + b"h\xc7\x93.", "a tuple where a name is expected"),
        (b"\x80\x02" + 101 * b"]" + b".", "more than 100 instructions"),
    ],
)
def test_descriptions_that_would_take_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, described: bytes, message: str
) -> None:
    if message.startswith("more"):
        monkeypatch.setattr(torch_files, "_MOST_INSTRUCTIONS", 100)
    for path in (tmp_path / "archive.bin", tmp_path / "stream.bin"):
        path.write_bytes(described)
    with zipfile.ZipFile(tmp_path / "archive.bin", "w") as file:
        file.writestr("archive/data.pkl", described)
    for name in ("archive.bin", "stream.bin"):
        with pytest.raises(UserError, match=message):
            TorchFile(tmp_path / name)


@pytest.mark.parametrize(
    ("offset", "shape", "strides", "is_whole"),
    [
        (0, (2, 2), (2, 1), True),
        (0, (2, 2), (1, 2), True),
        (3, (1,), (1,), True),
        (1, (4,), (1,), False),
        (0, (2, 2), (4, 1), False),
        (0, (1 << 40, 1), (0, 0), False),
        (-1, (1,), (1,), False),
        (0, (2,), (-1,), False),
        (0, (2, 2), (1,), False),
    ],
)
def test_tensors_stay_in_their_numbers(
    offset: int, shape: tuple[int, ...], strides: tuple[int, ...], is_whole: bool
) -> None:
    numbers = np.arange(4, dtype=np.float32)
    storage = torch_files._Storage("0", numbers.dtype, numbers.size)
    tensor = torch_files._Tensor(storage, offset, shape, strides)
    if is_whole:
        expected = np.lib.stride_tricks.as_strided(numbers[offset:], shape, [4 * stride for stride in strides])
        np.testing.assert_array_equal(tensor.view(numbers), expected)
    else:
        with pytest.raises(ValueError, match=r"impossible shape|reaches beyond its numbers"):
            tensor.view(numbers)
