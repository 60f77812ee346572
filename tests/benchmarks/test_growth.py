"""How growth is computed from the sizes that could be measured."""

import json

import pytest

from benchmarks import growth
from benchmarks.harness import NotMeasuredError


def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(arguments: list[str], **_: object) -> dict[str, float]:
        job, settings = map(json.loads, arguments[2:])
        if job["inputs"] == 8192 and "encoder_global_block" in settings:
            raise NotMeasuredError("no memory")
        tokens = job["inputs"] + job["targets"]
        return {"seconds": 2e-3 * tokens, "memory": 1e9, "flops": 3.0 * job["vocabulary"], "tokens": tokens}

    monkeypatch.setattr(growth, "report_of", measure)
    time, memory, vocabulary = growth.rows(2)
    assert time.found.values == {"windows": (1.0, 1.0)}
    assert list(time.found.missing) == list(memory.found.missing) == ["windows and global tokens (LongT5)"]
    assert memory.found.values["windows"] == pytest.approx([1280 / 8448] * 2)
    assert vocabulary.found.values["t5xpg"] == pytest.approx([384 / 32768] * 2)
    assert all(row.reached() for row in (time, memory, vocabulary))
