"""Checkpoints that real T5X wrote are read as T5X reads them, and those that are not whole are named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pytest
from flax import serialization

from t5xpg.base.errors import UserError
from t5xpg.exchange.formats.t5x_files import T5X, TENSORFLOW, holds_checkpoint, open_checkpoint, require_whole
from tests.refusals import refused
from tests.t5x_goldens import CASES, CONTENTS, described, unpack


@pytest.mark.parametrize("case", [case for case in CASES if case != "mesh_tensorflow"])
def test_every_array_is_what_t5x_reads(case: str, tmp_path: Path) -> None:
    found = open_checkpoint(unpack(case, tmp_path))
    assert found.kind == T5X
    assert CONTENTS[case].keys() <= found.arrays.keys()
    for name, stored in found.arrays.items():
        array = stored.read()
        assert stored.shape == array.shape
        if name in CONTENTS[case]:
            assert described(array) == CONTENTS[case][name], name
        else:  # what T5X keeps of an accumulator that it does not use
            assert array.shape == (1,)


def test_the_last_of_several_is_taken_and_any_can_be_named(tmp_path: Path) -> None:
    folder = unpack("t5_1_1", tmp_path)
    shutil.copytree(folder / "checkpoint_5", folder / "checkpoint_40")
    assert open_checkpoint(folder).path == folder / "checkpoint_40"
    for named in (folder / "checkpoint_5", folder / "checkpoint_5" / "checkpoint"):
        assert open_checkpoint(named).path == folder / "checkpoint_5"
    orbax = unpack("t5_1_1_orbax", tmp_path) / "checkpoint_5"
    assert open_checkpoint(orbax).path == open_checkpoint(orbax / "state").path == orbax / "state"
    tensorflow = unpack("mesh_tensorflow", tmp_path)
    shutil.copy(tensorflow / "model.ckpt-5.index", tensorflow / "model.ckpt-40.index")
    for named in (tensorflow, tensorflow / "model.ckpt-5", tensorflow / "model.ckpt-5.index"):  # `checkpoint` says 5
        found = open_checkpoint(named)
        assert (found.kind, found.path) == (TENSORFLOW, tensorflow / "model.ckpt-5")
    (tensorflow / "checkpoint").unlink()
    with refused("model.ckpt-40.data-00000-of-00001"):
        open_checkpoint(tensorflow)


def test_what_is_no_checkpoint_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "config.json"):
        assert not holds_checkpoint(path)
    with refused("holds no checkpoint"):
        open_checkpoint(tmp_path)


def write(folder: Path, tree: object) -> None:
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))


def pointing_at(path: str) -> dict[str, object]:
    spec = {"driver": "zarr", "kvstore": {"driver": "gfile", "path": path}, "metadata": {"shape": [2]}}
    return {"version": 3, "optimizer": {"target": {"a": spec}}}


def describe(folder: Path, **metadata: object) -> None:
    file = folder / "target.token_embedder.embedding" / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | metadata))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / "checkpoint").write_bytes(b"\xff\x00nonsense"), "not whole"),
        (lambda folder: (folder / "checkpoint").write_bytes(msgpack.packb([1, 2])), "no mapping"),
        (lambda folder: write(folder, {"version": 9, "optimizer": {}}), "version 9"),
        (lambda folder: write(folder, pointing_at("../../else/")), "'../../else/'"),
        (lambda folder: write(folder, pointing_at("/etc")), "'/etc'"),
        (lambda folder: shutil.rmtree(folder / "target.decoder.relpos_bias.rel_embedding"), "cannot be read"),
        (lambda folder: (folder / "target.token_embedder.embedding" / "0.0").write_bytes(b"short"), "not whole"),
        # would take all memory
        (lambda folder: describe(folder, chunks=[10**5, 10**6]), "(100000, 1000000)"),
        (lambda folder: describe(folder, shape=[10**9, 10**9]), "(1000000000, 1000000000)"),
    ],
)
def test_damage_is_said(damage: Callable[[Path], object], named: str, tmp_path: Path) -> None:
    folder = unpack("t5_1_1", tmp_path) / "checkpoint_5"
    damage(folder)
    with refused(named):
        [stored.read() for stored in open_checkpoint(folder).arrays.values()]


def test_missing_files_are_named(tmp_path: Path) -> None:
    folder = unpack("t5_1_1", tmp_path) / "checkpoint_5"
    names = ["target.token_embedder.embedding/0.0", "target.decoder.decoder_norm.scale/0"]
    for name in names:
        (folder / name).unlink()
    arrays = open_checkpoint(folder).arrays
    with refused(*names):
        require_whole([arrays[name] for name in sorted(arrays)])
    with refused("not whole"):
        arrays["target/token_embedder/embedding"].read()


def test_missing_files_of_one_store_are_named(tmp_path: Path) -> None:
    folder = unpack("t5_1_1_orbax", tmp_path) / "checkpoint_5" / "state"
    kept = {name: array.read() for name, array in open_checkpoint(folder).arrays.items()}
    needed = []
    for file in sorted(folder.glob("ocdbt.process_0/d/*")):  # T5X leaves files there that the store needs no more
        file.rename(tmp_path / file.name)
        try:
            open_checkpoint(folder)
        except UserError as error:
            needed.append(str(error).split()[-1])
            (tmp_path / file.name).rename(file)
    assert len(needed) == len({*needed}) == 3
    for name, array in open_checkpoint(folder).arrays.items():  # without the others
        np.testing.assert_array_equal(array.read(), kept[name])
    for name in needed:
        (folder / name).unlink()
    with refused(*needed):
        open_checkpoint(folder)
    (tree,) = (folder / "d").iterdir()
    tree.unlink()
    with refused(f"d/{tree.name}"):
        open_checkpoint(folder)


def test_a_damaged_orbax_checkpoint_is_said(tmp_path: Path) -> None:
    folder = unpack("t5_1_1_orbax", tmp_path) / "checkpoint_5" / "state"
    (folder / "manifest.ocdbt").write_bytes(b"nothing of the kind")
    with refused("cannot be read"):
        open_checkpoint(folder)
    (folder / "_METADATA").write_text('{"tree_metadata": {"a": {"key_metadata": [{"key": "../b"}]}}}')
    with refused("not whole"):
        open_checkpoint(folder)


def test_the_ways_of_older_versions(tmp_path: Path) -> None:
    """Paths at the top of a specification, bfloat16 as 16-bit numbers, arrays in the message, orbax's placeholders."""
    import jax.numpy as jnp
    import tensorstore

    numbers = np.asarray([1.5, -3.0], np.float32)
    bits = numbers.astype(jnp.bfloat16).view(np.uint16)
    for name, array in (("target.a", bits), ("target.b", numbers)):
        store = {"driver": "file", "path": f"{tmp_path / name}/"}
        spec = {"driver": "zarr", "kvstore": store, "metadata": {"dtype": array.dtype.str}}
        made = tensorstore.open(spec, create=True, dtype=array.dtype, shape=array.shape).result()
        made.write(array).result()
    place = {"driver": "gcs", "bucket": "b"}
    old = {"driver": "zarr", "kvstore": place, "path": "target.a", "metadata": {"shape": [2]}}
    target = {"a": old, "b": "PLACEHOLDER://target.b", "c": numbers, "d": None}
    write(tmp_path, {"version": 2, "optimizer": {"target": target, "state": {"step": np.int32(7)}}})
    found = open_checkpoint(tmp_path).arrays
    assert sorted(found) == ["state/step", "target/a", "target/b", "target/c"]
    for name in "abc":
        np.testing.assert_array_equal(found[f"target/{name}"].read().astype(np.float32), numbers)
    assert int(found["state/step"].read()) == 7
