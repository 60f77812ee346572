"""A recording as the training process sees it: the interface of the data process, positions, damage and refusals."""

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t5xpg.data.batch import ENC_DEC, PREFIX_LM, BatchSpec, hash_batch
from t5xpg.data.recording.format import stream_path
from t5xpg.data.recording.manifest import MANIFEST
from t5xpg.data.recording.reader import RecordedData
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.vocab.vocabulary import Vocabulary
from tests.data.recording_samples import DESCRIPTION, SOURCE, TRAIN, VALIDATION, batches, hashes, identity, make
from tests.refusals import refused
from tests.small_tokenizers import sentencepiece_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "a recording")


def test_it_gives_what_was_recorded(folder: Path) -> None:
    with RecordedData(folder) as data:
        assert data.source == SOURCE
        assert data.describe(TRAIN) == data.describe(VALIDATION) == DESCRIPTION
        train, validation = data.open(TRAIN), data.open(VALIDATION, prefetch=1)
        assert train.spec == BatchSpec(6, TRAIN.task_feature_lengths, False, 384)
        assert (train.config, train.shards, train.batches_read) == (TRAIN, (0, 1, 2), 0)
        assert [hash_batch(next(train)) for _ in range(7)] == hashes(TRAIN, 7)
        assert [hash_batch(batch) for batch in validation] == hashes(VALIDATION, 3)
        with pytest.raises(StopIteration):
            next(validation)
        validation.rewind()
        assert [hash_batch(batch) for batch in validation] == hashes(VALIDATION, 3)
        assert (train.batches_read, validation.batches_read) == (7, 3)
        assert train.waited > 0
    for _ in range(2):
        train.close()
    with pytest.raises(ValueError, match="closed"):
        next(train)


def test_rows_of_virtual_shards(folder: Path) -> None:
    with RecordedData(folder) as data:
        stream = data.open(TRAIN, (0, 2))
        assert stream.spec.batch_size == 4
        for batch in batches(TRAIN, 3):
            rows = next(stream)
            for name, array in batch.items():
                np.testing.assert_array_equal(rows[name], array[[0, 1, 4, 5]], strict=True)
        for wrong in ((), (1, 0), (3,)):
            with pytest.raises(ValueError, match="expected ascending numbers from 0 to 2"):
                data.open(TRAIN, wrong)


def test_positions(folder: Path) -> None:
    expected = hashes(TRAIN, 7)
    with RecordedData(folder) as data:
        stream, other = data.open(TRAIN), data.open(TRAIN, prefetch=4)
        states = [stream.state()]
        for _ in range(7):
            next(stream)
            states.append(stream.state())
        for count in (3, 0, 7, 1, 6):  # in any order, and from the one stream to the other
            other.restore(states[count])
            assert other.batches_read == count
            assert [hash_batch(next(other)) for _ in range(7 - count)] == expected[count:]
        assert len({sum(array.nbytes for array in state.values()) for state in states[1:]}) == 1


def live_position(count: int, **changes: Any) -> dict[str, np.ndarray]:
    """What a live stream saves, as far as it matters."""
    saved = json.dumps(identity(TRAIN) | changes).encode()
    return {
        "batches_read": np.array(count, np.int64),
        "stream": np.frombuffer(saved, np.uint8),
        "shard_00000-position": np.array([count + 2, 0], np.int64),
        "shard_00000-data": np.zeros(100, np.uint8),
    }


def test_a_position_of_the_live_stream(folder: Path) -> None:
    with RecordedData(folder) as data:
        stream = data.open(TRAIN)
        stream.restore(live_position(4))
        assert [hash_batch(next(stream)) for _ in range(3)] == hashes(TRAIN, 7)[4:]
        for position, names in (
            (live_position(4, seed=9), ["seed was 9, is 5"]),
            (live_position(4, files="2 files"), ["files was 2 files, is 1 files, abc"]),
            (live_position(8), ["8 batches", "7 batches of train", "Record more"]),
        ):
            with refused(*names):
                stream.restore(position)


def test_a_longer_recording_of_the_same_goes_on_and_another_does_not(folder: Path, tmp_path: Path) -> None:
    longer = make(tmp_path / "longer", train=9)
    with RecordedData(folder) as short, RecordedData(longer) as long:
        stream, more = short.open(TRAIN), long.open(TRAIN)
        for _ in range(7):
            next(stream)
        more.restore(stream.state())
        assert [hash_batch(next(more)) for _ in range(2)] == hashes(TRAIN, 9)[7:]
        state = stream.state() | {"last_batch": np.zeros(32, np.uint8)}
        with refused("Batch 7"):
            more.restore(state)


def test_behind_the_last_batch(folder: Path) -> None:
    remedy = ("a recording' FORCE=1", 'GIN="--gin.TRAIN_STEPS=7"')
    with RecordedData(folder) as data:
        data.require(7)
        with refused("1,000 steps", "7 batches of train", *remedy):
            data.require(1000)
        stream = data.open(TRAIN)
        for _ in range(7):
            next(stream)
        for _ in range(2):
            with refused("step 8", "EXP='some experiment' STEPS=n", *remedy):
                next(stream)
        stream.state()  # that of the last step can still be saved


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (dataclasses.replace(TRAIN, batch_size=9), "batch_size was 6, is 9"),
        (dataclasses.replace(TRAIN, feature_converter=PREFIX_LM), f"feature_converter was {ENC_DEC}, is {PREFIX_LM}"),
        (dataclasses.replace(VALIDATION, pack=True), "pack was False, is True"),
    ],
)
def test_other_settings_are_refused(folder: Path, config: DatasetConfig, named: str) -> None:
    with RecordedData(folder) as data:
        for ask in (data.describe, data.open):
            with refused(named, "make record EXP=… STEPS=n GIN=… OUTPUT=…"):
                ask(config)


def test_settings_that_change_no_batch_may_differ(folder: Path, tmp_path: Path) -> None:
    def validated(data: RecordedData, limit: int | None) -> int:
        return len(list(data.open(dataclasses.replace(VALIDATION, max_batches=limit))))

    with RecordedData(folder) as data:
        data.open(dataclasses.replace(TRAIN, module_import=("some.module",)))
        assert (validated(data, 2), validated(data, 200)) == (2, 3)  # as the live one has
    with RecordedData(make(tmp_path / "cut", validation=3, limit=3)) as data:
        assert validated(data, 3) == 3
        for limit, said in ((None, "all"), (4, "4")):  # a cut one does not pass for a longer one
            with refused("3 batches", "'validation'", f"reads {said} (EVAL_STEPS)"):
                validated(data, limit)


def test_a_sentencepiece_model_goes_with_the_recording(tmp_path: Path) -> None:
    path = Path(sentencepiece_model(tmp_path / "pieces.model"))
    vocabulary = Vocabulary("sentencepiece", 10, model_file=str(path))
    encoded = vocabulary.encode("bab <extra_id_0>")
    described = dataclasses.replace(DESCRIPTION, vocabulary=vocabulary)
    folder = make(tmp_path / "pieces", description=described)
    with RecordedData(folder) as data:
        assert data.describe(TRAIN).vocabulary == vocabulary
        for damage in (lambda: path.write_bytes(b"another"), path.unlink):
            damage()
            found = data.describe(TRAIN).vocabulary
            assert found.model_file == str(folder / "train.model")
            assert (found.size, found.encode("bab <extra_id_0>")) == (74, encoded)
        (folder / "train.model").write_bytes(b"another")
        with refused("train.model"):
            data.describe(TRAIN)


@pytest.mark.parametrize("name", ["train.npz", "validation.npz"])
def test_files_that_are_missing_or_of_another_size(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    remedy = ("Copy the recording", "make record EXP='some experiment' STEPS=7 OUTPUT=", "FORCE=1")
    (folder / name).write_bytes(content[:-1])
    with refused(name, f"{len(content) - 1:,}", f"{len(content):,}", *remedy):
        RecordedData(folder)
    (folder / name).unlink()
    with refused(name, *remedy):
        RecordedData(folder)


def test_a_flipped_bit_is_found_when_it_is_read_or_verified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stream_path(folder, "train")
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("6.npy").header_offset
    content = bytearray(path.read_bytes())
    content[place + 50] ^= 1
    path.write_bytes(content)
    with RecordedData(folder) as data:
        stream = data.open(TRAIN)
        assert [hash_batch(next(stream)) for _ in range(6)] == hashes(TRAIN, 6)
        for _ in range(2):  # it does not go away, nor is the batch left out
            with refused("train.npz, batch 7 of 7", "Copy the recording"):
                next(stream)
        assert stream.batches_read == 6
    monkeypatch.setenv("T5XPG_VERIFY", "1")
    with refused("train.npz", "damaged"):
        RecordedData(folder)


@pytest.mark.parametrize(
    ("where", "new"),
    [
        ("format", 2),
        ("experiment", ...),
        ("streams/train", ...),
        ("streams/train/batches", True),
        ("source", {}),
        ("files", {name: {"bytes": 1, "sha256": "x"} for name in ("train.npz", "validation.npz", "../x")}),
    ],
)
def test_manifests_of_another_form(folder: Path, where: str, new: Any) -> None:
    """... takes a place out of the manifest."""
    document = json.loads((folder / MANIFEST).read_text())
    *parents, last = where.split("/")
    value = document
    for name in parents:
        value = value[name]
    value[last] = new
    if new is ...:
        del value[last]
    (folder / MANIFEST).write_text(json.dumps(document))
    with refused("manifest.json", "make record"):
        RecordedData(folder)


def test_folders_that_are_none(folder: Path, tmp_path: Path) -> None:
    with refused("absent", "manifest.json", "make record EXP=… STEPS=n"):
        RecordedData(tmp_path / "absent")
    for other in (b'{"format": 1, "name": "wikitext"}', b"[1]", b"", b"\xff\xfe", b"[" * 100_000):
        (folder / MANIFEST).write_bytes(other)
        with refused("manifest.json"):
            RecordedData(folder)
