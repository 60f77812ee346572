import math
import struct
from pathlib import Path

import numpy as np
import pytest

from t5xpg.base.metric_values import Generic, Histogram, Image, MetricValue
from t5xpg.run.records import JsonlWriter, TensorBoardWriter, read_jsonl
from tests.refusals import refused


def test_records_are_readable_at_once_and_exact(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "metrics.jsonl"
    writer = JsonlWriter(path)
    nested = [np.float32("inf"), {"x": -math.inf}, Path("a/b")]
    note = "é ⏎ \ud83d"  # half a character is written as its number
    writer.write({"step": np.int32(3), "loss": np.float32(0.1), "exact": 0.1 + 0.2, "note": note, "nested": nested})
    (read,) = read_jsonl(path)  # not closed
    exact = {"loss": float(np.float32(0.1)), "exact": 0.1 + 0.2}
    assert read == {"step": 3, **exact, "note": note, "nested": [None, {"x": None}, "a/b"]}
    with pytest.raises(TypeError, match=r"ndarray cannot be written as JSON"):
        writer.write({"x": np.zeros(3)})
    writer.close()


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b'{"step": 3}', b"x" * 10_000])
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "m.jsonl"
    whole = b'{"step": 1}\n{"step": 2}\n'
    path.write_bytes(whole + torn)
    assert [line["step"] for line in read_jsonl(path)] == [1, 2]
    with JsonlWriter(path) as writer:
        assert path.read_bytes() == whole
        writer.write({"step": 3})
    assert path.read_bytes() == whole + b'{"step": 3}\n'


def test_truncation_keeps_the_lines_up_to_the_step_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    # written by an earlier process; spacing and order survive
    kept = b'{"step":1}\n{"step": 2,  "a": 0.10}\n{"step": 2, "split": "validation"}\n'
    path.write_bytes(kept + b'{"step": 3}\n{"step": 4')
    with JsonlWriter(path, last_step=2) as writer:
        writer.write({"step": 3, "again": True})
    assert path.read_bytes() == kept + b'{"step": 3, "again": true}\n'
    JsonlWriter(path, last_step=-1).close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("line", ["no json", '{"step": "1"}'])
def test_a_whole_line_that_is_no_record_is_an_error(tmp_path: Path, line: str) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n' + line + "\n", encoding="utf-8")
    with refused("m.jsonl, line 2", "Delete that line"):
        read_jsonl(tmp_path / "m.jsonl")


def events(directory: Path) -> list[bytes]:
    """The payloads of all event files: TFRecords of length, its checksum, data, its checksum."""
    found = []
    for path in sorted(directory.iterdir()):
        data, position = path.read_bytes(), 0
        while position < len(data):
            (length,) = struct.unpack_from("<Q", data, position)
            found.append(data[position + 12 : position + 12 + length])
            position += 16 + length
    return found


def test_tensorboard_events(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    with TensorBoardWriter(tmp_path) as writer:
        writer.hyperparameters({"schedule.peak": 0.02, "model": "T5Config", "seed": 3, "max_batches": None})
        writer.values(10, {"loss": np.float32(2.5), "steps": 3, "gone": None}, prefix="train")
    with TensorBoardWriter(tmp_path, after_step=10) as writer:
        writer.values(11, {"loss": 2.25}, prefix="train")
    read = [Event.FromString(payload) for payload in events(tmp_path)]
    written = [(event.step, value) for event in read for value in event.summary.value]
    hparams = [value for _, value in written if value.tag.startswith("_hparams_/")]
    values = [(step, value.tag, value.simple_value) for step, value in written if value not in hparams]
    assert sorted(values) == [(10, "train/loss", 2.5), (10, "train/steps", 3.0), (11, "train/loss", 2.25)]
    assert [value.tag for value in hparams] == ["_hparams_/experiment", "_hparams_/session_start_info"]
    started = HParamsPluginData.FromString(hparams[1].metadata.plugin_data.content).session_start_info.hparams
    assert started["schedule.peak"].number_value == 0.02
    assert [started[name].string_value for name in ("model", "max_batches")] == ["T5Config", "None"]
    assert [event.step for event in read if event.session_log.status == 1] == [11]  # hides steps from 11 on


def test_metrics_of_all_kinds_as_events(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    plugin = Summary.Value(tag="replaced")
    plugin.metadata.plugin_data.plugin_name = "mine"
    values: dict[str, MetricValue] = {
        "bleu": 12.5,
        "none": None,
        "nats_per_byte": math.nan,  # of targets that are no text
        "signature": "nrefs:1",
        "lengths": Histogram(np.array([1.0, 2.0, 2.0, math.nan]), bins=2),
        "picture": Image(np.zeros((1, 4, 5, 3), np.uint8)),
        "pictures": Image(np.ones((3, 4, 5, 1), np.float32), max_outputs=2),
        "own": Generic(np.array([0.5], np.float32), plugin.SerializeToString()),
        "array": Generic(np.ones(3)),
    }
    with TensorBoardWriter(tmp_path) as writer:
        writer.values(4, values, prefix="infer_eval/a_task")
    found = {
        value.tag.removeprefix("infer_eval/a_task/"): value
        for payload in events(tmp_path)
        for value in Event.FromString(payload).summary.value
    }
    assert set(found) == {*["bleu", "signature/text_summary", "lengths", "picture", "pictures/0", "pictures/1", "own"]}
    assert found["bleu"].simple_value == 12.5
    histogram = found["lengths"].histo
    assert (histogram.num, histogram.sum, histogram.sum_squares) == (3, 5.0, 9.0)
    assert (list(histogram.bucket_limit), list(histogram.bucket)) == ([1.0, 1.5, 2.0], [0, 1, 2])
    assert (found["picture"].image.height, found["picture"].image.width) == (4, 5)
    assert found["own"].metadata.plugin_data.plugin_name == "mine"
