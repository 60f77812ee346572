"""A recording as the training process sees it: the interface of the data process, positions, damage and refusals."""

import dataclasses
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.batch import BatchSpec, hash_batch
from t5xpg.data.recording.format import stream_path
from t5xpg.data.recording.manifest import MANIFEST, files_of
from t5xpg.data.recording.reader import RecordedData
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.vocab.vocabulary import Vocabulary
from tests.data.recording_samples import DESCRIPTION, SOURCE, TRAIN, VALIDATION, batches, hashes, identity, make
from tests.small_tokenizers import sentencepiece_model

FILES = ("train.npz", "validation.npz", "../x")


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
        for position, message in (
            (live_position(4, seed=9), "belongs to other batches than were recorded: seed was 9, is 5"),
            (live_position(4, files="2 files"), "files was 2 files, is 1 files, abc"),
            (live_position(8), r"The run has read 8 batches\. .* holds 7 batches of train\. Record more"),
        ):
            with pytest.raises(UserError, match=message):
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
        with pytest.raises(UserError, match="Batch 7 of the recording is not the one that the run has read"):
            more.restore(state)


def test_behind_the_last_batch(folder: Path) -> None:
    with RecordedData(folder) as data:
        data.require(7)
        more = r"a recording' FORCE=1\), or read fewer \(GIN=\"--gin\.TRAIN_STEPS=7\"\)\.$"
        with pytest.raises(UserError, match=rf"This run has 1,000 steps\. .* holds 7 batches of train\. .*{more}"):
            data.require(1000)
        stream = data.open(TRAIN)
        for _ in range(7):
            next(stream)
        for _ in range(2):
            with pytest.raises(UserError, match=rf"no batch for step 8\. .* EXP='some experiment' STEPS=n .*{more}"):
                next(stream)
        stream.state()  # that of the last step can still be saved


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dataclasses.replace(TRAIN, batch_size=9), "other settings: batch_size was 6, is 9. Train with those"),
        (
            dataclasses.replace(TRAIN, feature_converter="PrefixLMFeatureConverter"),
            "feature_converter was EncDecFeatureConverter, is PrefixLMFeatureConverter",
        ),
        (dataclasses.replace(VALIDATION, pack=True), "pack was False, is True"),
    ],
)
def test_other_settings_are_refused(folder: Path, config: DatasetConfig, message: str) -> None:
    with RecordedData(folder) as data:
        for ask in (data.describe, data.open):
            with pytest.raises(UserError, match=message) as caught:
                ask(config)
            assert str(caught.value).endswith("into another folder: make record EXP=… STEPS=n GIN=… OUTPUT=…")


def test_settings_that_change_no_batch_may_differ(folder: Path, tmp_path: Path) -> None:
    with RecordedData(folder) as data:
        data.open(dataclasses.replace(TRAIN, module_import=("some.module",)))
        assert len(list(data.open(dataclasses.replace(VALIDATION, max_batches=2)))) == 2
        assert len(list(data.open(dataclasses.replace(VALIDATION, max_batches=200)))) == 3  # as the live one has
    with RecordedData(make(tmp_path / "cut", validation=3, limit=3)) as data:
        assert len(list(data.open(dataclasses.replace(VALIDATION, max_batches=3)))) == 3
        for limit, said in ((None, "all"), (4, "4")):  # a cut one does not pass for a longer one
            message = rf"3 batches of the split 'validation' of some_task, and this run reads {said} \(EVAL_STEPS\)"
            with pytest.raises(UserError, match=message):
                data.open(dataclasses.replace(VALIDATION, max_batches=limit))


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
        with pytest.raises(UserError, match=r"train\.model is not the SentencePiece model that was recorded"):
            data.describe(TRAIN)


# Recordings that are damaged, of another form, or none: one message that names the file and says what to type.


@pytest.mark.parametrize("name", ["train.npz", "validation.npz"])
def test_files_that_are_missing_or_of_another_size(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    remedy = r"Copy the recording again, or make it anew: make record EXP='some experiment' STEPS=7 OUTPUT=.* FORCE=1"
    (folder / name).write_bytes(content[:-1])
    sizes = rf"{len(content) - 1:,} bytes instead of {len(content):,}"
    with pytest.raises(UserError, match=rf"{name} has {sizes}\. {remedy}"):
        RecordedData(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"{name} is missing\. {remedy}"):
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
            with pytest.raises(UserError, match=r"train\.npz, batch 7 of 7: .*\. Copy the recording again, or"):
                next(stream)
        assert stream.batches_read == 6
    monkeypatch.setenv("T5XPG_VERIFY", "1")
    with pytest.raises(UserError, match=r"The recording .* is damaged: .*train\.npz"):
        RecordedData(folder)


def edit_manifest(folder: Path, where: str, new: Any) -> None:
    """Set a place such as "streams/train/batches" of a manifest; ... takes it out."""
    document = json.loads((folder / MANIFEST).read_text())
    *parents, last = where.split("/")
    value = document
    for name in parents:
        value = value[name]
    if new is ...:
        del value[last]
    else:
        value[last] = new
    (folder / MANIFEST).write_text(json.dumps(document))


def test_files_of_another_recording(folder: Path, tmp_path: Path) -> None:
    def copy_from(other: Path, stream: str) -> None:
        shutil.copy(stream_path(other, stream), stream_path(folder, "train"))
        # sizes and digests as they are now
        edit_manifest(folder, "files", {name: file for name, file in files_of(folder).items() if name != MANIFEST})

    copy_from(make(tmp_path / "other", train=8), "train")
    with pytest.raises(UserError, match=r"train\.npz: it has 8 batches instead of 7"):
        RecordedData(folder)
    copy_from(folder, "validation")
    edit_manifest(folder, "streams/train/batches", 3)
    with RecordedData(folder) as data, pytest.raises(UserError, match=r"train\.npz, batch 1 of 3: .* has shape"):
        next(data.open(TRAIN))


@pytest.mark.parametrize(
    ("where", "new"),
    [
        ("format", 2),
        ("experiment", ...),
        ("streams/train", ...),
        ("streams/train/batches", True),
        ("streams/train/identity", ["x"]),
        ("source", {}),
        ("files/train.npz", ...),
        ("gin", ...),
        ("files", {name: {"bytes": 1, "sha256": "x"} for name in FILES}),
    ],
)
def test_manifests_of_another_form(folder: Path, where: str, new: Any) -> None:
    edit_manifest(folder, where, new)
    with pytest.raises(UserError, match=r"manifest\.json cannot be read as the manifest of a recording of this v"):
        RecordedData(folder)


def test_folders_that_are_none(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent is no recording: .* no manifest\.json\. `make record EXP=… STEPS=n"):
        RecordedData(tmp_path / "absent")
    for other in ('{"format": 1, "name": "wikitext"}', "[1]"):
        (folder / MANIFEST).write_text(other)
        with pytest.raises(UserError, match=r"is no recording: its manifest\.json is of something else"):
            RecordedData(folder)
    for text in (b"", b"\xff\xfe", b"[" * 100_000):
        (folder / MANIFEST).write_bytes(text)
        with pytest.raises(UserError, match="cannot be read as the manifest"):
            RecordedData(folder)
    os.truncate(folder / MANIFEST, 1 << 25)
    with pytest.raises(UserError, match="33,554,432 bytes"):
        RecordedData(folder)
