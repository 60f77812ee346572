"""A checkpoint that TensorFlow wrote, and what is said of damaged ones.

Its numbers are compared with T5X's reading in tests/exchange/t5x/test_params.py.
"""

from pathlib import Path

import numpy as np

from t5xpg.data.tensorflow_checkpoint import TensorFlowCheckpoint
from tests.refusals import refused
from tests.t5x_goldens import unpack

PREFIX = "model.ckpt-5"


def change(file: Path, at: int) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])


def test_texts_are_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / PREFIX), tensor_names=["name", "half"], shape_and_slices=["", ""],
        tensors=[tf.constant("a text"), tf.constant([0.5, 2.0], tf.bfloat16)],
    )  # fmt: skip
    found = TensorFlowCheckpoint(tmp_path / PREFIX)
    assert np.array_equal(found.read("half").astype(np.float32), [0.5, 2.0])
    with refused("name", PREFIX, "texts"):
        found.read("name")


def test_damage_is_said(tmp_path: Path) -> None:
    prefix = unpack("mesh_tensorflow", tmp_path) / PREFIX
    index, data = prefix.with_name(f"{PREFIX}.index"), prefix.with_name(f"{PREFIX}.data-00000-of-00001")
    change(data, 100)
    found = TensorFlowCheckpoint(prefix)
    with refused(PREFIX, "Checksum does not match"):
        [found.read(name) for name in found.shapes]
    other = data.rename(prefix.with_name(f"{PREFIX}.data-00001-of-00002"))
    with refused(f"{PREFIX}.data-00000-of-00002", "Copy or download"):
        TensorFlowCheckpoint(prefix)
    other.rename(data)
    damages = (lambda: change(index, 50), lambda: index.write_bytes(index.read_bytes()[:-3]), index.unlink)
    for damage, named in zip(damages, ("checksum mismatch", "not an sstable", f"{PREFIX}.index"), strict=True):
        damage()
        with refused(named):
            TensorFlowCheckpoint(prefix)
