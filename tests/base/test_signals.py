"""Requests to stop: what is one request, and what is not."""

from __future__ import annotations

import os
import signal

import pytest

from t5xpg.base import signals
from t5xpg.base.signals import StopRequest


def test_a_second_sigterm_is_no_order_to_drop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(signals.time, "monotonic", lambda: now)
    with StopRequest() as request:
        assert not request.requested
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):  # as Make and its sender give it
            os.kill(os.getpid(), number)
        now += 5.0
        os.kill(os.getpid(), signal.SIGTERM)
        assert (request.number, request.age) == (signal.SIGTERM, 5.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
