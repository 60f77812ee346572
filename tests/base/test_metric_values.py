"""Values of metrics as JSON."""

import json
import math

import numpy as np

from t5xpg.base.metric_values import Generic, Histogram, Image, MetricValue, to_record
from t5xpg.run.records import to_json


def test_records_are_json() -> None:
    values: dict[str, MetricValue] = {
        "number": 0.1 + 0.2,
        "count": 3,
        "nothing": None,
        "text": "nrefs:1|é",
        "lengths": Histogram(np.array([[1.0, 2.0], [2.0, math.nan]]), bins=2),
        "pictures": Image(np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3), max_outputs=1),
        "curve": Generic(np.array([1.5, 2.5]), b"\x00\xff summary"),
    }
    record = {name: to_record(value) for name, value in values.items()}
    assert json.loads(json.dumps(to_json(record))) == record
    assert record["number"] == 0.1 + 0.2
    assert record["lengths"] == {"histogram": {"counts": [1, 2], "edges": [1.0, 1.5, 2.0]}}
    assert record["pictures"]["image"]["shape"] == [1, 2, 2, 3]
    assert len(record["pictures"]["image"]["sha256"]) == 64
    assert record["curve"] == {"tensor": [1.5, 2.5]}
    assert to_record(Generic(np.zeros((8, 8), np.float32)))["tensor"]["shape"] == [8, 8]
    assert to_record(Histogram(np.array([math.inf]))) == {"histogram": {"counts": [], "edges": []}}
