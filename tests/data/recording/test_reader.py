"""A recording as the training process sees it: the interface of the data process, positions, and refusals."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from t5xpg.base.errors import UserError
from t5xpg.data.batch import BatchSpec, hash_batch
from t5xpg.data.recording.reader import RecordedData
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.vocab.vocabulary import Vocabulary
from tests.data.recording_samples import (
    DESCRIPTION,
    LENGTHS,
    SOURCE,
    TRAIN,
    VALIDATION,
    batches,
    hashes,
    identity,
    make,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "a recording")


def test_it_gives_what_was_recorded(folder: Path) -> None:
    with RecordedData(folder) as data:
        assert data.source == SOURCE
        assert data.describe(TRAIN) == data.describe(VALIDATION) == DESCRIPTION
        train, validation = data.open(TRAIN), data.open(VALIDATION, prefetch=1)
        assert train.spec == BatchSpec(6, LENGTHS, False, 384)
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


@pytest.mark.parametrize("shards", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_rows_of_virtual_shards(folder: Path, shards: tuple[int, ...]) -> None:
    whole = batches(TRAIN, 3)
    with RecordedData(folder) as data:
        stream = data.open(TRAIN, shards)
        assert stream.spec.batch_size == 2 * len(shards)
        for batch in whole:
            rows = next(stream)
            for name, array in batch.items():
                expected = np.concatenate([array[2 * shard : 2 * shard + 2] for shard in shards])
                np.testing.assert_array_equal(rows[name], expected, strict=True)


@pytest.mark.parametrize("shards", [(), (1, 0), (0, 0), (3,), (-1,)])
def test_other_shards_are_refused(folder: Path, shards: tuple[int, ...]) -> None:
    with RecordedData(folder) as data:
        with pytest.raises(ValueError, match="expected ascending numbers from 0 to 2"):
            data.open(TRAIN, shards)
        with pytest.raises(ValueError, match="prefetch is 0"):
            data.open(TRAIN, prefetch=0)


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
        other.restore(states[2])
        assert {name: array.tobytes() for name, array in other.state().items()} == {
            name: array.tobytes() for name, array in states[2].items()
        }


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
        with pytest.raises(UserError, match="belongs to other batches than were recorded: seed was 9, is 5"):
            stream.restore(live_position(4, seed=9))
        with pytest.raises(UserError, match="files was 2 files, is 1 files, abc"):
            stream.restore(live_position(4, files="2 files"))
        with pytest.raises(UserError, match=r"The run has read 8 batches\. .* holds 7 batches of train\. Record more"):
            stream.restore(live_position(8))
        with pytest.raises(UserError, match="has read -1"):
            stream.restore(live_position(-1))


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
            with pytest.raises(
                UserError, match=r"There is no batch for step 8\. .* EXP='some experiment' STEPS=n .*" + more
            ):
                next(stream)
        stream.state()  # that of the last step can still be saved


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dataclasses.replace(TRAIN, batch_size=9), "other settings: batch_size was 6, is 9. Train with those"),
        (dataclasses.replace(TRAIN, seed=8), "seed was 5, is 8"),
        (dataclasses.replace(TRAIN, mixture_or_task_name="x"), "mixture_or_task_name was some_task, is x"),
        (
            dataclasses.replace(TRAIN, task_feature_lengths={"inputs": 13, "targets": 8}),
            "'inputs': 12, .* is {'inputs'",
        ),
        (dataclasses.replace(TRAIN, objective=None), "objective was {'noise_density': 0.15, .*}, is None"),
        (dataclasses.replace(VALIDATION, pack=True), "pack was False, is True"),
    ],
)
def test_other_settings_are_refused(folder: Path, config: DatasetConfig, message: str) -> None:
    with RecordedData(folder) as data:
        for ask in (data.describe, data.open):
            with pytest.raises(UserError, match=message) as caught:
                ask(config)
            assert "STEPS=7 OUTPUT='" in str(caught.value)


def test_settings_that_change_no_batch_may_differ(folder: Path) -> None:
    with RecordedData(folder) as data:
        data.open(dataclasses.replace(TRAIN, module_import=("some.module",)))
        short = data.open(dataclasses.replace(VALIDATION, max_batches=2))
        assert [hash_batch(batch) for batch in short] == hashes(VALIDATION, 2)
        long = data.open(dataclasses.replace(VALIDATION, max_batches=200))  # the live one has no more either
        assert len(list(long)) == 3


def test_a_cut_validation_does_not_pass_for_a_longer_one(tmp_path: Path) -> None:
    with RecordedData(make(tmp_path / "cut", validation=3, limit=3)) as data:
        assert len(list(data.open(dataclasses.replace(VALIDATION, max_batches=3)))) == 3
        assert len(list(data.open(dataclasses.replace(VALIDATION, max_batches=1)))) == 1
        for limit, said in ((None, "all"), (4, "4")):
            message = (
                rf"holds 3 batches of the split 'validation' of some_task, and this run reads {said} \(EVAL_STEPS\)"
            )
            with pytest.raises(UserError, match=message):
                data.open(dataclasses.replace(VALIDATION, max_batches=limit))


def test_a_sentencepiece_model_goes_with_the_recording(tmp_path: Path) -> None:
    words = [a + b + c for a in "bdgklmnprst" for b in "aeiou" for c in "bdgklmnprst"]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(words[i : i + 9]) for i in range(len(words) - 9)), model_writer=model,
        vocab_size=64, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, num_threads=1,
    )  # fmt: skip
    path = tmp_path / "pieces.model"
    path.write_bytes(model.getvalue())
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
